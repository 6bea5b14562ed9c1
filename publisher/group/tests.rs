//! What requests of one group see of each other, and what is said when it fails.

use tokio::sync::watch;

use super::*;
use crate::proto::event::Intent;
use crate::publisher::{
    log::memory::MemoryLog,
    testing::{intent, wide},
};

type Answered = Vec<Result<Vec<Receipt>, Refusal>>;

/// Commits these requests, one event each, as one group after `k0`.
fn commit(fail: Option<CommitError>, requests: Vec<Intent>) -> Answered {
    let mut engine = MemoryLog::new(Uuid::from_u128(1));
    let (receipts, _) = Receipts::in_memory(engine.reader().extent().log_id);
    let halt = Halt::new("main", watch::Sender::new(true));
    let limits = wide();
    let run = |engine: &mut MemoryLog, requests: Vec<Intent>| {
        let reader = engine.reader();
        let mut group = Group::new(reader.extent(), 0);
        let mut answers = Vec::new();
        {
            let receipts = receipts::look(&receipts);
            let ground = Ground {
                receipts: &receipts,
                log: &*reader,
                limits: &limits,
                halt: &halt,
                hold: &Hold::NOTHING,
                suspect: None,
                now_ms: 7,
            };
            for intent in requests {
                let (answer, answered) = oneshot::channel();
                let batch = Batch::of(&[intent]);
                group.take(batch, answer, &ground, &mut Oldest::default());
                answers.push(answered);
            }
        }
        match group.commit(engine) {
            Ok(mut committed) => {
                committed.insert_into(&receipts);
                // A few at a time, as it is done.
                while committed.answer(2) {}
            }
            Err(failed) => {
                let refusal = halt.judge(&failed.error);
                failed.answer(&refusal);
            }
        }
        answers.iter_mut().map(|answer| answer.try_recv().expect("answered").only()).collect()
    };
    let _: Answered = run(&mut engine, vec![intent("k0", "camera")]);
    if let Some(error) = fail {
        engine.fail_next(error);
    }
    run(&mut engine, requests)
}

fn requests() -> Vec<Intent> {
    let stale = |key: &str| Intent { expected_version: Some(9), ..intent(key, "camera") };
    vec![
        stale("early"),
        intent("new", "camera"),
        intent("new", "camera"),
        intent("new", "lens"),
        stale("late"),
        intent("k0", "camera"),
    ]
}

fn reasons(answered: Answered) -> Vec<Result<(i64, bool), Reason>> {
    let place = |receipts: Vec<Receipt>| {
        let receipt = &receipts[0];
        (receipt.accepted.sequence, receipt.duplicate)
    };
    answered.into_iter().map(|a| a.map(place).map_err(|refusal| refusal.reason)).collect()
}

#[test]
fn requests_of_one_group_see_each_other() {
    let expected = [
        Err(Reason::StaleVersion),
        Ok((1, false)),
        Ok((1, true)),
        Err(Reason::KeyConflict),
        Err(Reason::StaleVersion),
        Ok((0, true)),
    ];
    assert_eq!(reasons(commit(None, requests())), expected);
}

#[test]
fn nothing_is_said_that_rests_on_a_group_that_failed() {
    let halted = || CommitError::Halted("an injected failure".to_owned());
    for (error, reason) in [(CommitError::DiskFull, Reason::LogFull), (halted(), Reason::LogHalted)]
    {
        let expected = [
            Err(Reason::StaleVersion),
            Err(reason),
            Err(reason),
            Err(reason),
            Err(reason),
            Ok((0, true)),
        ];
        assert_eq!(reasons(commit(Some(error), requests())), expected);
    }
}
