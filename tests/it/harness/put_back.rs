//! A publisher that has gone back in time under a receiver that has not.

use tempfile::TempDir;

use super::{
    events::adjustments,
    files::put_copy,
    pair::directory,
    publisher::{Publisher, Setup},
    receiver::Receiver,
};

/// The receiver goes first when dropped, the directory last.
pub struct PutBack {
    /// Runs, and has applied ten events, `k0` to `k4` and `l0` to `l4`.
    pub receiver: Receiver,
    /// Its publisher, which does not run; started, it has the first five of them.
    pub publisher: Setup,
    pub dir: TempDir,
}

impl PutBack {
    /// The publisher's directory is copied with five events, and put back after five more.
    pub async fn to_five_of_ten() -> PutBack {
        let dir = directory();
        let publisher = Publisher::start(dir.path());
        publisher.publish(adjustments("k", 5)).await.expect("accepted");
        let (again, data) = (publisher.successor(), publisher.dir().to_owned());
        let backup = dir.path().join("backup");
        assert_eq!(publisher.terminate().code(), Some(0));
        put_copy(&data, &backup);

        let publisher = again.clone().start();
        publisher.publish(adjustments("l", 5)).await.expect("accepted");
        let receiver = Receiver::start(dir.path(), &publisher.url());
        publisher.waits_for_ack("receiver", 9).await;
        assert_eq!(publisher.terminate().code(), Some(0));
        put_copy(&backup, &data);
        PutBack { receiver, publisher: again, dir }
    }
}
