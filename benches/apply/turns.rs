//! A projection in a file beside the same statements called from Rust, both on the
//! receiver's own way, in turns, so that whatever else the machine does falls on both.

use std::time::Duration;

use counterfoil::receiver::decide::Step;

use super::ways::{Spent, called, declared};

const BATCH: usize = 1_024;
/// The first one warms up and does not count.
const ROUNDS: usize = 16;

/// Lets both take turns, and prints what the file costs.
pub fn take(steps: &[Step], payload: usize) {
    let mut spent = [Spent::default(); 2];
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // Neither is always the first.
        let (file, rust) = if round % 2 == 0 {
            let file = declared(steps, BATCH);
            (file, called(steps, BATCH))
        } else {
            let rust = called(steps, BATCH);
            (declared(steps, BATCH), rust)
        };
        if round > 0 {
            spent = [spent[0].plus(file), spent[1].plus(rust)];
            ratios.push(file.processor.as_secs_f64() / rust.processor.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    let [file, rust] = spent;
    let ratio = |of: fn(&Spent) -> Duration| file.each(of(&file)) / rust.each(of(&rust));
    println!(
        "{payload} B, {BATCH} a commit: a file costs {:.2} of the same statements from Rust by \
         the clock, {:.2} by processor time ({:.2} and {:.2} us an event; {:.2} to {:.2} in a round)",
        ratio(|spent| spent.clock),
        ratio(|spent| spent.processor),
        file.each(file.processor),
        rust.each(rust.processor),
        ratios.first().copied().unwrap_or_default(),
        ratios.last().copied().unwrap_or_default(),
    );
}
