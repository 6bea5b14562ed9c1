//! What a rebuilt database takes over from the one before: it is not in the log.

use counterfoil::proto::pb::ReceiverState;

use super::{COMMON, SUMS, file, flag, rows, takes_over};
use crate::harness::{
    events::{adjusted, adjustments},
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
    tools::counterfoil,
    wait::wait_until,
};

/// What was forwarded is not forwarded again, although the later version would say it in
/// other words; and of the past nothing is said beside it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forwarded_is_not_forwarded_again() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    publisher.publish(adjustments("k", 20)).await.expect("accepted");
    let emits = |rest: &str, emits: &str| {
        rest.replacen("\n[[query]]", &format!("emit = [{emits}]\n\n[[query]]"), 1)
    };
    let seen = |n: i64, name: &str| {
        format!(
            r#"{{ name = "{name}", type = "goods.{name}", query = "SELECT :subject AS subject, json_object('n', {n}) AS data" }}"#
        )
    };
    let first = file(dir.path(), 1, "migrate", &emits(COMMON, &seen(1, "seen")));
    let both = format!("{}, {}", seen(2, "seen"), seen(2, "more"));
    let second = file(dir.path(), 2, "rebuild", &emits(SUMS, &both));
    let forward = format!("--forward-to={}", target.url());
    let setup = Receiver::at(dir.path(), &publisher.url()).arg(forward);
    let receiver = setup.clone().arg(flag(&first)).start();
    let arrives = async |next: i64| {
        wait_until(&format!("{next} follow-up events are there"), async || {
            (target.log().await.next_sequence == Some(next)).then_some(())
        })
        .await;
    };
    arrives(20).await;
    wait_until("all are marked", async || {
        (receiver.status().await.outbox_pending == Some(0)).then_some(())
    })
    .await;
    assert_eq!(receiver.terminate().code(), Some(0));

    let receiver = setup.arg(flag(&second)).start();
    takes_over(&receiver, 2).await;
    publisher.accepts(adjusted("last", "item-0", 1)).await;
    receiver.applies(20).await;
    arrives(22).await;
    let status = receiver.status().await;
    assert_eq!(status.forward_failure, None);
    let marked =
        "SELECT count(forwarded_sequence) || ' ' || count(given_up) FROM counterfoil_outbox
                  WHERE sequence < 20";
    assert_eq!(rows(receiver.db(), marked), ["20 20"]);
}

/// What a person has set aside stays so, until a person has it applied.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_aside_stays_so() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let narrow = COMMON.replace(
        "sql = \"INSERT",
        "require = [{ field = \"/delta\", type = \"integer\", max = 5 }]\nsql = \"INSERT",
    );
    let first = file(dir.path(), 1, "migrate", &narrow);
    let setup = Receiver::at(dir.path(), &publisher.url()).arg("--on-error=skip");
    let receiver = setup.clone().arg(flag(&first)).arg("--apply-attempts=1").start();
    publisher.accepts(adjusted("large", "lamp", 900)).await;
    publisher.accepts(adjusted("small", "lamp", 2)).await;
    receiver.applies(1).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = setup.arg(flag(&file(dir.path(), 2, "rebuild", SUMS))).start();
    takes_over(&receiver, 2).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(receiver.status().await.skipped_events, Some(1));
    let outcomes = "SELECT outcome FROM counterfoil_ledger ORDER BY sequence";
    assert_eq!(rows(receiver.db(), outcomes), ["SKIPPED", "APPLIED"]);
    let sum = "SELECT CAST(total AS TEXT) FROM sum";
    assert_eq!(rows(receiver.db(), sum), ["2"]);
    let ended = counterfoil(["apply-skipped", "--receiver", &receiver.url(), "0"]).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert_eq!(rows(receiver.db(), sum), ["902"]);
}
