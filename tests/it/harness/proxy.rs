//! A link between two processes that breaks on demand: TCP, byte for byte.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::loopback;

/// How the link behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Carries bytes both ways.
    Open,
    /// Connections are closed, new ones too.
    Closed,
    /// Connections are reset (RST), new ones too.
    Reset,
    /// Bytes towards the server vanish; the connection stands.
    DeafServer,
    /// Bytes towards the client vanish; the connection stands.
    DeafClient,
}

#[derive(Debug, Clone, Copy)]
struct State {
    link: Link,
    target: SocketAddr,
    /// Connections of an older generation are closed.
    generation: u64,
}

/// A running link. Its connections end with it.
pub struct Proxy {
    pub address: SocketAddr,
    state: watch::Sender<State>,
    accepted: Arc<AtomicUsize>,
}

impl Proxy {
    /// A link to a server.
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((loopback::address(), 0)).await.expect("a loopback port");
        let address = listener.local_addr().expect("it is bound");
        let (state, watching) = watch::channel(State { link: Link::Open, target, generation: 0 });
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = accepted.clone();
        tokio::spawn(async move {
            let mut ended = watching.clone();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = gone(&mut ended) => return,
                };
                if let Ok((client, _)) = accepted {
                    counter.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(carry(client, watching.clone()));
                }
            }
        });
        Proxy { address, state, accepted }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes how the link behaves, for standing connections too.
    pub fn set(&self, link: Link) {
        self.state.send_modify(|state| state.link = link);
    }

    /// Closes all connections; new ones are carried.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Connections that were ever accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn gone(state: &mut watch::Receiver<State>) {
    while state.changed().await.is_ok() {}
}

/// Carries one connection until an end closes it or the link does.
async fn carry(mut client: TcpStream, mut state: watch::Receiver<State>) {
    let first = *state.borrow_and_update();
    let Ok(mut server) = TcpStream::connect(first.target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut up, mut down) = ([0; 16 * 1024], [0; 16 * 1024]);
    loop {
        let now = *state.borrow_and_update();
        match now.link {
            Link::Reset => {
                let _ = (client.set_zero_linger(), server.set_zero_linger());
                return;
            }
            Link::Closed => return,
            _ if now.generation != first.generation => return,
            _ => {}
        }
        let carried = tokio::select! {
            changed = state.changed() => if changed.is_err() { return } else { continue },
            read = client.read(&mut up) => match read {
                Ok(count) if count > 0 && now.link != Link::DeafServer => server.write_all(&up[..count]).await,
                Ok(count) if count > 0 => Ok(()),
                _ => return,
            },
            read = server.read(&mut down) => match read {
                Ok(count) if count > 0 && now.link != Link::DeafClient => client.write_all(&down[..count]).await,
                Ok(count) if count > 0 => Ok(()),
                _ => return,
            },
        };
        if carried.is_err() {
            return;
        }
    }
}
