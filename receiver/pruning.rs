//! Which ledger rows may go: those that neither the publisher nor anybody who resumes
//! from it can ask after again, and that its owner does not want to keep. Pure.

use std::{str::FromStr, time::Duration};

use super::store::prune::Bound;
use crate::{
    process::config,
    proto::event::{Sequence, duration_millis},
};

/// The setting `keep_ledger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Every row.
    All,
    /// Rows of events that the publisher still retains.
    Retained,
    /// Those, and all that were applied within this time.
    For(Duration),
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Keep::All),
            "retained" => Ok(Keep::Retained),
            text => config::parse_duration(text).map(Keep::For).map_err(|_| {
                format!(
                    "{text:?} is neither \"all\" nor \"retained\" nor a duration such as \"30d\""
                )
            }),
        }
    }
}

/// What a publisher has said on one stream, and in the answers to its acks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    stream: u64,
    /// The oldest sequence that it retains.
    floor: Sequence,
    /// Everything up to here is acknowledged.
    acked: Sequence,
    /// Everything up to here is reported; none: it keeps no outcomes.
    reported: Option<Sequence>,
}

impl Heard {
    /// Nothing yet.
    pub const NOTHING: Heard = Heard { stream: 0, floor: 0, acked: -1, reported: None };

    /// A stream has begun. What was heard on others may have been another log's.
    pub fn started(&mut self, stream: u64, floor: Sequence) {
        *self = Heard { stream, floor, ..Heard::NOTHING };
    }

    /// The floor has moved.
    pub fn floor(&mut self, stream: u64, floor: Sequence) {
        if stream == self.stream {
            self.floor = self.floor.max(floor);
        }
    }

    /// An ack was answered. `reported`: none where the publisher keeps no outcomes.
    pub fn answered(&mut self, stream: u64, acked: Sequence, reported: Option<Sequence>) {
        if stream == self.stream {
            (self.acked, self.reported) = (acked, reported);
        }
    }

    /// Rows that may go of a ledger that begins at `from` and ends at `committed`, at
    /// `now_ms`, milliseconds since the Unix epoch; none: all stay.
    pub fn bound(
        &self,
        keep: Keep,
        from: Sequence,
        committed: Sequence,
        now_ms: i64,
    ) -> Option<Bound> {
        let before_ms = match keep {
            Keep::All => return None,
            Keep::Retained => None,
            Keep::For(time) => Some(now_ms.saturating_sub(duration_millis(time))),
        };
        // Where the publisher lacks outcomes of rows that have gone, no later ones can be
        // reported, either: nothing is kept for that.
        let reported = self.reported.filter(|reported| reported + 1 >= from);
        let settled = reported.unwrap_or(self.acked).min(self.acked).min(committed);
        Some(Bound { below: self.floor.min(settled + 1), before_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stays_while_anybody_may_ask_for_it() {
        // floor, acked, reported, committed: below
        let cases = [
            ((0, 9, Some(9), 9), 0, "everything is retained"),
            ((5, 9, Some(9), 9), 5, "what is retained stays"),
            ((5, 9, None, 9), 5, "the publisher keeps no outcomes"),
            ((5, 2, Some(2), 9), 3, "not acknowledged yet"),
            ((5, 9, Some(2), 9), 3, "not reported yet"),
            ((5, -1, Some(-1), 9), 0, "nothing is acknowledged"),
            ((10, 9, Some(9), 9), 10, "all of it: nothing is retained"),
            ((20, 19, Some(19), 9), 10, "a publisher that says more than there is"),
        ];
        for ((floor, acked, reported, committed), below, why) in cases {
            let mut heard = Heard::NOTHING;
            heard.started(1, floor);
            heard.answered(1, acked, reported);
            let bound = heard.bound(Keep::Retained, 0, committed, 0);
            assert_eq!(bound, Some(Bound { below, before_ms: None }), "{why}");
            let kept = Keep::For(Duration::from_secs(2));
            let bound = heard.bound(kept, 0, committed, 5_000);
            assert_eq!(bound, Some(Bound { below, before_ms: Some(3_000) }), "{why}");
            assert_eq!(heard.bound(Keep::All, 0, committed, 0), None);
        }
    }

    /// The publisher lost outcomes, or this is a new name: what has gone cannot be told.
    #[test]
    fn a_report_that_can_never_come_keeps_no_row() {
        let mut heard = Heard::NOTHING;
        heard.started(1, 50);
        heard.answered(1, 70, Some(29));
        let below = |from| heard.bound(Keep::Retained, from, 70, 0).expect("not all").below;
        assert_eq!([0, 30, 31].map(below), [30, 30, 50]);
    }

    /// After a resync an older stream may still have something to say.
    #[test]
    fn what_another_stream_said_counts_for_nothing() {
        let below = |heard: &Heard| heard.bound(Keep::Retained, 0, 99, 0).expect("not all").below;
        let mut heard = Heard::NOTHING;
        heard.started(1, 50);
        heard.answered(1, 70, Some(60));
        assert_eq!(below(&heard), 50);
        heard.floor(1, 65);
        heard.floor(1, 64);
        assert_eq!(below(&heard), 61);
        heard.started(2, 10);
        assert_eq!(below(&heard), 0, "nothing is acknowledged on it yet");
        heard.answered(1, 70, Some(70));
        heard.floor(1, 70);
        assert_eq!(below(&heard), 0);
        heard.answered(2, 70, Some(70));
        assert_eq!(below(&heard), 10);
    }

    #[test]
    fn the_setting_is_a_word_or_a_duration() {
        let cases = [
            ("all", Ok(Keep::All)),
            ("retained", Ok(Keep::Retained)),
            ("30d", Ok(Keep::For(Duration::from_secs(30 * 86_400)))),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), expected);
        }
        for wrong in ["", "30", "some"] {
            let said = wrong.parse::<Keep>().expect_err(wrong);
            assert!(said.contains("retained") && said.contains("30d"), "{said}");
        }
    }
}
