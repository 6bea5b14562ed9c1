//! How long to wait before a failed call is repeated. Pure: the attempt's
//! number and the random number are handed in. Judges nothing.

use std::time::Duration;

/// The first delay of a call over the network is at most this long.
pub const CALL_BASE: Duration = Duration::from_millis(100);
/// No delay is longer.
pub const CAP: Duration = Duration::from_secs(5);

/// The delay after `failed` attempts in a row (from 1): it grows twofold from
/// `base` up to [`CAP`]. `random` in 0..1 spreads the delays of many callers
/// over the whole range.
pub fn backoff(failed: u32, base: Duration, random: f64) -> Duration {
    let doubled = base.saturating_mul(1u32 << failed.saturating_sub(1).min(16));
    doubled.min(CAP).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_cap_with_full_jitter() {
        let ms = |failed, random| backoff(failed, CALL_BASE, random).as_millis();
        assert_eq!([ms(1, 1.0), ms(2, 1.0), ms(3, 1.0)], [100, 200, 400]);
        assert_eq!(
            [ms(6, 1.0), ms(7, 1.0), ms(40, 1.0), ms(u32::MAX, 1.0)],
            [3_200, 5_000, 5_000, 5_000]
        );
        assert_eq!([ms(7, 0.0), ms(7, 0.5)], [0, 2_500]);
    }
}
