//! What applying costs beside the statements themselves: the receiver's writer, and the
//! same statements prepared once by hand on the same kind of connection; then a projection
//! in a file, and the same statements called from Rust, taking turns.
//!
//! ```sh
//! cargo bench --no-default-features --features receiver --bench apply
//! cargo bench --no-default-features --features receiver --bench apply -- declared
//! TMPDIR=/a/real/disk …
//! ```
//! Each run starts on a fresh database in `TMPDIR`, which should not be in memory: a commit
//! costs a sync. After each pair the ratio is printed, by the clock and by processor time.

mod turns;
mod ways;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};

use ways::{Spent, Way, declared, raw, steps};

/// Events of one commit.
const BATCHES: [usize; 4] = [1, 16, 128, 1_024];
const PAYLOADS: [usize; 2] = [100, 1_024];
/// Of one run, as long as that is not too many commits.
const EVENTS: usize = 64 * 1_024;
const COMMITS: usize = 512;

fn main() {
    if std::env::args().all(|argument| argument != "declared") {
        let mut criterion = Criterion::default().configure_from_args();
        for payload in PAYLOADS {
            for batch in BATCHES {
                compare(&mut criterion, payload, batch);
            }
        }
        criterion.final_summary();
    }
    for payload in PAYLOADS {
        turns::take(&steps(EVENTS, payload), payload);
    }
}

fn compare(criterion: &mut Criterion, payload: usize, batch: usize) {
    let steps = steps(EVENTS.min(batch * COMMITS), payload);
    let mut group = criterion.benchmark_group(format!("{payload} B"));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(steps.len() as u64));
    let mut spent = [Spent::default(); 2];
    let ways: [(&str, Way); 2] = [("raw", raw), ("writer", declared)];
    for ((name, way), sum) in ways.into_iter().zip(&mut spent) {
        group.bench_function(BenchmarkId::new(name, batch), |bencher| {
            bencher.iter_custom(|runs| {
                let run = (0..runs).fold(Spent::default(), |all, _| all.plus(way(&steps, batch)));
                *sum = sum.plus(run);
                run.clock
            });
        });
    }
    group.finish();
    let [raw, writer] = spent;
    if raw.events > 0 && writer.events > 0 {
        let ratio = |of: fn(&Spent) -> Duration| raw.each(of(&raw)) / writer.each(of(&writer));
        println!(
            "{payload} B, {batch} a commit: {:.2} of raw by the clock, {:.2} by processor time \
             ({:.2} and {:.2} us an event)\n",
            ratio(|spent| spent.clock),
            ratio(|spent| spent.processor),
            raw.each(raw.processor),
            writer.each(writer.processor),
        );
    }
}
