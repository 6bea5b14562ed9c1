//! Random choices that can be repeated: the seed is printed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A small generator (splitmix64).
pub struct Chance(u64);

impl Chance {
    /// Seeded by `CHANCE_SEED`, else by the clock; a failing test shows the seed.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let given = std::env::var("CHANCE_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(since.as_nanos() as u64);
        println!("CHANCE_SEED={seed}");
        Chance(seed)
    }

    /// The choices of one seed.
    pub fn seeded(seed: u64) -> Self {
        Chance(seed)
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// Lets a random time pass, so that what follows hits a random moment.
    pub async fn moment(&mut self, at_most_millis: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(at_most_millis))).await;
    }
}
