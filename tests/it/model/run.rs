//! Many histories, from a seed that is printed: until so many operations have been lived,
//! or one has failed and been made as small as can be.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::{live::Life, operations::history};
use crate::harness::chance::Chance;

/// Histories that are lived at a time: mostly they wait for the disk.
const WORKERS: usize = 4;

/// A failing history is made smaller for at most this long.
const SHRINKING_MS: u32 = 120_000;

/// What has to come about in a run, lest the histories have become dull.
const NEVER_MISSING: [&str; 11] = [
    "appended",
    "duplicate",
    "InvalidField",
    "KeyConflict",
    "KeyExpired",
    "KeysFull",
    "LogFull",
    "PartialDuplicate",
    "StaleVersion",
    "unanswered, accepted",
    "unanswered, without a trace",
];

/// What has come about, by name, in all histories of a run.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<String, u64>>);

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().expect("no panic while counting");
        counts.iter().try_for_each(|(what, count)| writeln!(f, "{count:>9} {what}"))
    }
}

impl Tally {
    pub fn count(&self, what: impl Into<String>) {
        *self.0.lock().expect("no panic while counting").entry(what.into()).or_default() += 1;
    }

    fn of(&self, what: &str) -> u64 {
        self.0.lock().expect("no panic while counting").get(what).copied().unwrap_or(0)
    }
}

/// A number from the environment.
fn told(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn every_history_gets_the_answers_of_the_model() {
    let wanted = told("COUNTERFOIL_MODEL_OPERATIONS").unwrap_or(10_000);
    let again = told("COUNTERFOIL_MODEL_SEED");
    let first = again.unwrap_or_else(|| Chance::new().below(1 << 48));
    let (tally, histories, failed) = (Tally::default(), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while tally.of("operations") < wanted && !failed.load(Ordering::Relaxed) {
            let seed = first + histories.fetch_add(1, Ordering::Relaxed);
            if let Err(why) = one_history(seed, &tally) {
                failed.store(true, Ordering::Relaxed);
                panic!("{why}");
            }
        }
    };
    let workers = if again.is_some() { 1 } else { WORKERS };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    println!("{} histories:\n{tally}", histories.into_inner());
    assert!(tally.of("operations") >= wanted);
    for event in NEVER_MISSING {
        assert!(again.is_some() || tally.of(event) > 0, "{event}: never\n{tally}");
    }
}

/// Makes up the history of a seed and lives it.
///
/// # Errors
/// What went wrong in a history that is as small as could be found.
fn one_history(seed: u64, tally: &Tally) -> Result<(), String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: u32::MAX - 1,
        max_shrink_time: SHRINKING_MS,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let lived = TestRunner::new_with_rng(config, rng).run(&history(), |history| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(Life::live(&history, tally));
        Ok(())
    });
    lived.map_err(|error| match error {
        TestError::Fail(why, history) => format!(
            "{why}\nin this history, the smallest that was found:\n{history}for the whole one \
             again: COUNTERFOIL_MODEL_SEED={seed} COUNTERFOIL_MODEL_OPERATIONS=1"
        ),
        TestError::Abort(why) => format!("seed {seed}: {why}"),
    })
}
