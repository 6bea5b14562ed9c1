//! From where on the other log has lost what it had: found by halving, since what a log loses
//! is its end. Pure.

use crate::proto::event::Sequence;

/// Between a place that is known to be there still and one that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// What is noted up to here is there. Less than `lost`.
    kept: Sequence,
    /// What is noted here is lost.
    lost: Sequence,
}

impl Search {
    /// One is lost.
    pub fn below(lost: Sequence) -> Self {
        Search { kept: -1, lost }
    }

    /// The last mark up to this place is to be looked at; none: it is found.
    pub fn next(&self) -> Option<Sequence> {
        (self.lost - self.kept > 1).then(|| self.kept + (self.lost - self.kept) / 2)
    }

    /// Whether what is noted at a place is known to be there.
    pub fn knows(&self, at: Sequence) -> bool {
        at <= self.kept
    }

    /// The last mark up to `asked` is there, or there is none.
    pub fn keeps(&mut self, asked: Sequence) {
        self.kept = self.kept.max(asked);
    }

    /// The mark at this place is lost.
    pub fn loses(&mut self, at: Sequence) {
        self.lost = self.lost.min(at);
    }

    /// The first place that is lost.
    pub fn lost(&self) -> Sequence {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found among these marks where the log goes on anew at `end`, and how many are
    /// looked at.
    fn found(marks: &[Sequence], end: Sequence) -> (Sequence, usize) {
        let mut search = Search::below(*marks.last().expect("one is lost"));
        let mut looks = 0;
        while let Some(asked) = search.next() {
            match marks.iter().rev().find(|at| **at <= asked) {
                Some(at) if !search.knows(*at) => {
                    looks += 1;
                    match *at < end {
                        true => search.keeps(asked),
                        false => search.loses(*at),
                    }
                }
                _ => search.keeps(asked),
            }
        }
        (search.lost(), looks)
    }

    #[test]
    fn the_first_that_is_lost_is_found() {
        let marks = [0, 1, 2, 7, 8, 100, 101, 5_000];
        for end in [0, 1, 2, 3, 7, 8, 9, 100, 101, 102, 5_000] {
            let expected = marks.iter().copied().find(|at| *at >= end).expect("one");
            assert_eq!(found(&marks, end).0, expected, "{end}");
        }
        assert_eq!(found(&[0], 0), (0, 0));
        let many: Vec<_> = (0..1_000_000).collect();
        let (lost, looks) = found(&many, 777_777);
        assert_eq!(lost, 777_777);
        assert!(looks <= 20, "{looks} looks");
    }
}
