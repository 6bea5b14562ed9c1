//! `counterfoil verify` on databases that projection files have filled.

use std::path::Path;

use super::{COMMON, SUMS, file, flag, takes_over};
use crate::harness::{
    events::adjustments, pair::directory, process::Ended, publisher::Publisher, receiver::Receiver,
    tools::counterfoil,
};

fn verify(url: &str, db: &Path, flags: &[&str]) -> Ended {
    counterfoil(["verify", "--publisher", url, "--db"]).arg(db).args(flags).run()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_that_the_database_keeps_is_run_once_more() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let url = publisher.url();
    publisher.publish(adjustments("k", 30)).await.expect("accepted");
    let first = file(dir.path(), 1, "migrate", COMMON);
    let setup = Receiver::at(dir.path(), &url);
    let receiver = setup.clone().arg(flag(&first)).start();
    receiver.applies(29).await;
    let db = receiver.db().to_owned();
    let ended = verify(&url, &db, &[]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("7 rows in 1 table"), "{ended:?}");
    let asked = first.to_str().expect("UTF-8");
    assert_eq!(verify(&url, &db, &["--projection", asked]).code(), Some(0));
    let other = file(dir.path(), 1, "migrate", &COMMON.replace("n + 1", "n + 2"));
    let ended = verify(&url, &db, &["--projection", other.to_str().expect("UTF-8")]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("on[0] was "), "{ended:?}");
    assert_eq!(receiver.terminate().code(), Some(0));

    // What an earlier version has applied cannot be made again by a later one.
    let other = COMMON.replace("n + 1", "n + 2");
    let second = file(dir.path(), 2, "migrate", &other);
    let receiver = setup.clone().arg(flag(&second)).start();
    publisher.publish(adjustments("l", 30)).await.expect("accepted");
    receiver.applies(59).await;
    let ended = verify(&url, &db, &[]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("INCOMPLETE"), "{ended:?}");
    assert!(ended.stdout.contains("events up to 29 were applied by an earlier"), "{ended:?}");
    // From a snapshot of the later version on, it can.
    receiver.snapshot().await.expect("stored");
    publisher.publish(adjustments("m", 30)).await.expect("accepted");
    receiver.applies(89).await;
    assert_eq!(verify(&url, &db, &[]).code(), Some(0));
    assert_eq!(receiver.terminate().code(), Some(0));

    let receiver = setup.arg(flag(&file(dir.path(), 3, "rebuild", SUMS))).start();
    takes_over(&receiver, 3).await;
    receiver.applies(89).await;
    let ended = verify(&url, &db, &[]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("made again from nothing"), "{ended:?}");
}
