//! A listener that holds a bounded number of connections; more wait in the
//! kernel's queue until one ends.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::proto::limits::{LINGER, PREFACE_TIMEOUT};

/// Bytes that every HTTP/2 connection starts with (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// What is to be written is sent at once from so many bytes on; less waits one turn of the
/// scheduler for what others are about to add.
const FULL_WRITE_BYTES: usize = 4 * 1024;
/// What is discarded in one go of what a peer still sends.
const DISCARDED_BYTES: usize = 8 * 1024;

/// A connection that counts against the cap for as long as it lives, which is not
/// long if it says nothing.
pub(super) struct Connection {
    stream: TcpStream,
    /// Until the preface is whole: how much of it is missing, and until when it may be.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    /// Whether those who were about to run have had their turn since the last flush.
    turn_taken: bool,
    /// Once nothing more is written: until when the peer may still send.
    lingering: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        let preface = Some((PREFACE_BYTES, Box::pin(sleep(PREFACE_TIMEOUT))));
        Connection { stream, preface, turn_taken: false, lingering: None, _permit: permit }
    }

    /// Lets those who are about to run go first, once before each flush, if there is little to
    /// write: answers to a group commit become ready together, many at a time, and each of them would
    /// be a write of its own. It is no timer: with nobody else about to run, a turn takes
    /// less than a microsecond.
    fn poll_turn(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        if self.turn_taken || bytes >= FULL_WRITE_BYTES {
            return Poll::Ready(());
        }
        self.turn_taken = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and forgets until the peer has ended too.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut forgotten = [0; DISCARDED_BYTES];
        loop {
            let mut into = ReadBuf::new(&mut forgotten);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut into));
            if read.is_err() || into.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

/// Descriptors beside those of connections: files, databases, the runtime's own.
const OTHER_DESCRIPTORS: u64 = 1_024;

/// Asks for as many file descriptors as connections need; the usual limit of 1,024
/// would be used up before the cap is reached.
pub(super) fn allow_descriptors(connections: usize) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let needed = connections as u64 + OTHER_DESCRIPTORS;
    let allowed = limit.maximum.map_or(needed, |most| most.min(needed));
    if limit.current.is_some_and(|current| current < allowed) {
        limit.current = Some(allowed);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files stays where it is");
        }
    }
}

/// Accepts connections, at most `most` at a time.
pub(super) fn accept(
    listener: TcpListener,
    most: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let permits = Arc::new(Semaphore::new(most));
    futures_util::stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        let accepted = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream.set_nodelay(true).map(|()| stream),
                // Out of descriptors, or the peer was gone already: neither ends the service.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        };
        let connection = accepted.map(|stream| Connection::new(stream, permit));
        Some((connection, (listener, permits)))
    })
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some((missing, deadline)) = &mut self.preface else { return read };
        *missing = missing.saturating_sub(buf.filled().len() - before);
        if *missing == 0 {
            self.preface = None;
        } else if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx, buf.len()));
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.turn_taken = false;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Closed with bytes unread, a connection is reset, and the peer loses what it was
    /// told last (RFC 1122, section 4.2.2.13): so what it still sends is read first.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.lingering = Some(Box::pin(sleep(LINGER)));
        }
        if self.poll_discard(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        match &mut self.lingering {
            Some(until) => until.as_mut().poll(cx).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx, bufs.iter().map(|buf| buf.len()).sum()));
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed_and_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut accepted = Box::pin(accept(listener, 1));
        let _silent = TcpStream::connect(address).await.expect("connected");
        let mut silent = accepted.next().await.expect("one").expect("accepted");
        let error = silent.read_u8().await.expect_err("nothing was said");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(silent);

        let mut speaking = TcpStream::connect(address).await.expect("connected");
        let mut connection = accepted.next().await.expect("one more").expect("accepted");
        speaking.write_all(&[7; PREFACE_BYTES]).await.expect("written");
        let mut preface = [0; PREFACE_BYTES];
        connection.read_exact(&mut preface).await.expect("said in time");
        assert!(connection.preface.is_none());
    }

    /// A connection as the service has it, and the peer's end of it.
    async fn connected() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let peer = TcpStream::connect(listener.local_addr().expect("bound"));
        let mut accepted = Box::pin(accept(listener, 1));
        let (accepted, peer) = tokio::join!(accepted.next(), peer);
        (accepted.expect("one").expect("accepted"), peer.expect("connected"))
    }

    #[tokio::test]
    async fn a_peer_that_is_still_sending_reads_the_last_words() {
        let (mut connection, mut peer) = connected().await;
        peer.write_all(&[7; 100_000]).await.expect("sent");
        connection.write_all(b"last words").await.expect("said");
        let closed = tokio::spawn(async move {
            connection.shutdown().await.expect("shut down");
            drop(connection);
        });
        // What was sent before is read; what is sent behind it is no error either.
        peer.write_all(&[7; 100_000]).await.expect("sent");
        peer.shutdown().await.expect("ended");
        closed.await.expect("closed");
        let mut heard = Vec::new();
        peer.read_to_end(&mut heard).await.expect("no reset");
        assert_eq!(heard, b"last words");
    }

    #[tokio::test]
    async fn others_have_a_turn_before_a_little_is_written() {
        #[derive(Default)]
        struct Woken(AtomicUsize);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Woken::default());
        let times = || woken.0.load(Ordering::Relaxed);
        let waker = Arc::clone(&woken).into();
        let (mut connection, mut peer) = connected().await;
        let mut cx = Context::from_waker(&waker);
        let mut write = |bytes: &[u8]| Pin::new(&mut connection).poll_write(&mut cx, bytes);
        assert!(write(b"a").is_pending());
        assert_eq!(times(), 1, "it goes on after them");
        assert!(matches!(write(b"ab"), Poll::Ready(Ok(2))), "what came meanwhile goes along");
        assert!(matches!(write(b"c"), Poll::Ready(Ok(1))), "until it is flushed");
        connection.flush().await.expect("flushed");
        let mut heard = [0; 3];
        peer.read_exact(&mut heard).await.expect("there");
        assert_eq!(&heard, b"abc");
        let mut write = |bytes: &[u8]| Pin::new(&mut connection).poll_write(&mut cx, bytes);
        assert!(matches!(write(&[7; FULL_WRITE_BYTES]), Poll::Ready(Ok(_))), "enough already");
        assert_eq!(times(), 1);
        assert!(write(b"d").is_pending());
        assert_eq!(times(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_closes_is_not_waited_for_long() {
        let (mut connection, _peer) = connected().await;
        let started = tokio::time::Instant::now();
        connection.shutdown().await.expect("shut down");
        assert_eq!(started.elapsed().as_secs(), LINGER.as_secs());
    }
}
