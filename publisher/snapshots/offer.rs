//! Whether an offered snapshot is taken, what has to go to make room for it, and what
//! goes once it is whole. Pure.

use crate::proto::{
    refusal::{Reason, Refusal},
    snapshot::{Snapshot, SnapshotId},
};

/// How much of snapshots a log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most whole ones of one projection, name and version; at least 1.
    pub keep: u64,
    /// Most bytes of all together, those being uploaded included; at least 1.
    pub max_bytes: u64,
}

/// Whether a receiver could go on from a place now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// What follows it is retained.
    Usable,
    /// What follows it is gone, and will not come back.
    Expired,
    /// It is a place of another history.
    Elsewhere,
    /// It cannot be looked at now. It is not shown, and does not go for that.
    Unknown,
}

/// How much of a snapshot is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// All of it.
    Whole,
    /// It is being uploaded.
    Coming,
    /// Its upload has not begun, or has stood still, for a while.
    Resting,
}

/// What is held of one snapshot.
#[derive(Debug, Clone)]
pub struct Held<'a> {
    /// Its name.
    pub id: SnapshotId,
    /// What was announced; none for bytes that nobody has announced since the start.
    pub announced: Option<&'a Snapshot>,
    /// Bytes that are set aside for it: none before its upload has begun.
    pub bytes: u64,
    /// How much of it is here.
    pub state: State,
    /// Whether a receiver could go on from it.
    pub standing: Standing,
}

impl Held<'_> {
    /// What was announced, of one that can be installed.
    fn usable(&self) -> Option<&Snapshot> {
        let whole = self.state == State::Whole && self.standing == Standing::Usable;
        self.announced.filter(|_| whole)
    }
}

/// Which of those held have to go so that an offered snapshot fits, in the order in which
/// they go: first what is of no use, then older ones of the same projection, then older
/// ones of others, then uploads that stand still, at last the newest of the same
/// projection, if the offered one is newer. The newest of another projection stays, and so
/// does what is being uploaded.
///
/// # Errors
/// SNAPSHOT_TOO_LARGE; WRONG_STATE where it would go again at once.
pub fn admit(
    bounds: &Bounds,
    offered: &Snapshot,
    held: &[Held<'_>],
) -> Result<Vec<SnapshotId>, Refusal> {
    let size = offered.size_bytes;
    if size > bounds.max_bytes {
        return Err(too_large(bounds, size, 0));
    }
    let newer = of_projection(held, offered)
        .filter(|other| other.age_order() > offered.age_order())
        .count() as u64;
    if newer >= bounds.keep {
        return Err(Refusal::new(
            Reason::WrongState,
            format!(
                "{newer} newer snapshots of projection {} version {} are here, and no more are \
                 kept: this one is not needed",
                offered.projection, offered.projection_version
            ),
        ));
    }
    let others = || held.iter().filter(|held| held.id != offered.id && !is_given_up(held, offered));
    let mut taken: u64 = others().map(|held| held.bytes).sum();
    let mut may_go: Vec<_> = others()
        .filter(|other| other.bytes > 0)
        .filter_map(|other| Some((rank(other, offered, held)?, other)))
        .collect();
    may_go.sort_by_key(|(rank, other)| (*rank, other.announced.map(Snapshot::age_order)));
    let mut go = Vec::new();
    for (_, other) in may_go {
        if taken.saturating_add(size) <= bounds.max_bytes {
            break;
        }
        taken -= other.bytes;
        go.push(other.id);
    }
    if taken.saturating_add(size) > bounds.max_bytes {
        return Err(too_large(bounds, size, taken));
    }
    Ok(go)
}

/// Whether an offer gives up another one: a receiver uploads one snapshot of its
/// projection at a time.
pub fn gives_up(offered: &Snapshot, other: &Snapshot) -> bool {
    other.id != offered.id && other.receiver == offered.receiver && other.same_projection(offered)
}

fn is_given_up(held: &Held<'_>, offered: &Snapshot) -> bool {
    held.state != State::Whole && held.announced.is_some_and(|other| gives_up(offered, other))
}

/// How soon one goes for an offered one; none: not at all.
fn rank(other: &Held<'_>, offered: &Snapshot, held: &[Held<'_>]) -> Option<u8> {
    let Some(announced) = other.announced else { return Some(0) };
    match other.standing {
        Standing::Usable => {}
        Standing::Expired | Standing::Elsewhere => return Some(0),
        Standing::Unknown => return None,
    }
    match other.state {
        State::Whole => {}
        State::Coming => return None,
        State::Resting => return Some(3),
    }
    let newest = of_projection(held, announced).map(Snapshot::age_order).max();
    let is_newest = Some(announced.age_order()) == newest;
    match (announced.same_projection(offered), is_newest) {
        (true, false) => Some(1),
        (false, false) => Some(2),
        (true, true) if announced.age_order() < offered.age_order() => Some(4),
        (_, true) => None,
    }
}

/// Which whole ones of a projection go because enough newer ones are there.
pub fn surplus(bounds: &Bounds, stored: &Snapshot, held: &[Held<'_>]) -> Vec<SnapshotId> {
    let mut all: Vec<_> = of_projection(held, stored).collect();
    all.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.age_order()));
    let keep = usize::try_from(bounds.keep).unwrap_or(usize::MAX);
    all.iter().skip(keep).map(|snapshot| snapshot.id).collect()
}

/// The usable ones of the same projection.
fn of_projection<'a>(
    held: &'a [Held<'a>],
    like: &'a Snapshot,
) -> impl Iterator<Item = &'a Snapshot> {
    held.iter().filter_map(Held::usable).filter(|snapshot| snapshot.same_projection(like))
}

fn too_large(bounds: &Bounds, size: u64, held: u64) -> Refusal {
    let Bounds { max_bytes, .. } = bounds;
    let beside = match held {
        0 => String::new(),
        _ => format!(", of which {held} are taken by snapshots that stay"),
    };
    Refusal::new(
        Reason::SnapshotTooLarge,
        format!(
            "the snapshot has {size} bytes, the log's max_snapshot_bytes is {max_bytes}{beside}: \
             raise it to twice the largest snapshot of each projection"
        ),
    )
    .with("limit", max_bytes)
    .with("size", size)
    .with("held", held)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{
        Standing::{Elsewhere, Expired, Unknown, Usable},
        State::{Coming, Resting, Whole},
        *,
    };
    use crate::proto::chain::Cursor;

    const BOUNDS: Bounds = Bounds { keep: 2, max_bytes: 100 };

    fn id(n: u8) -> SnapshotId {
        SnapshotId([n; 32])
    }

    /// A snapshot of a projection at a sequence, which is also its name.
    fn snapshot(projection: &str, n: u8, size_bytes: u64) -> Snapshot {
        Snapshot {
            log: "main".into(),
            cursor: Cursor { log_id: Uuid::nil(), sequence: n.into(), chain: [0; 32] },
            projection: projection.into(),
            projection_version: 1,
            schema_digest: [0; 32],
            size_bytes,
            id: id(n),
            receiver: "shop".into(),
            create_time: None,
        }
    }

    /// The same of another receiver.
    fn from_elsewhere(snapshot: Snapshot) -> Snapshot {
        Snapshot { receiver: "other".into(), ..snapshot }
    }

    fn held(snapshot: &Snapshot, state: State, standing: Standing) -> Held<'_> {
        Held {
            id: snapshot.id,
            announced: Some(snapshot),
            bytes: snapshot.size_bytes,
            state,
            standing,
        }
    }

    #[test]
    fn room_is_made_by_the_rule() {
        let [a1, a2, a3] = [1, 2, 3].map(|n| snapshot("a", n, 30));
        let [b4, b5] = [4, 5].map(|n| snapshot("b", n, 30));
        let c1 = from_elsewhere(snapshot("a", 8, 30));
        let whole = |snapshot| held(snapshot, Whole, Usable);
        let coming = |snapshot| held(snapshot, Coming, Usable);
        let stray = Held { announced: None, ..coming(&b5) };
        let a = |n, bytes| snapshot("a", n, bytes);
        // (case, what is held, what is offered, what goes; none: too large)
        type Case<'a> = (&'a str, Vec<Held<'a>>, Snapshot, Option<&'a [u8]>);
        let b6 = from_elsewhere(snapshot("b", 6, 30));
        let bare = Held { bytes: 0, ..coming(&b6) };
        let cases: [Case<'_>; 24] = [
            ("nothing is held", vec![], a(9, 100), Some(&[])),
            ("larger than all", vec![], a(9, 101), None),
            ("it fits beside", vec![whole(&a1), whole(&a2)], a(9, 40), Some(&[])),
            ("the oldest goes", vec![whole(&a2), whole(&a1)], a(9, 50), Some(&[1])),
            ("no more than has to", vec![whole(&a1), whole(&a2)], a(9, 70), Some(&[1])),
            ("the newest goes last", vec![whole(&a1), whole(&a2)], a(9, 80), Some(&[1, 2])),
            ("not for an older one", vec![whole(&a3)], a(2, 80), None),
            ("older ones do", vec![whole(&a1), whole(&a3)], a(2, 60), Some(&[1])),
            ("of others the older", vec![whole(&b4), whole(&b5), whole(&a1)], a(9, 40), Some(&[4])),
            ("of others never the newest", vec![whole(&b4), whole(&b5)], a(9, 80), None),
            (
                "own older ones before those of others",
                vec![whole(&b4), whole(&b5), whole(&a1), whole(&a2)],
                a(9, 10),
                Some(&[1]),
            ),
            (
                "own newest after those of others",
                vec![whole(&b4), whole(&b5), whole(&a1)],
                a(9, 70),
                Some(&[4, 1]),
            ),
            (
                "what is of no use goes first",
                vec![whole(&a1), held(&a2, Whole, Expired), held(&b4, Whole, Elsewhere)],
                a(9, 70),
                Some(&[2, 4]),
            ),
            ("what nobody has announced, too", vec![whole(&a1), stray], a(9, 70), Some(&[5])),
            ("what is being uploaded stays", vec![coming(&c1), coming(&b4)], a(9, 50), None),
            ("but what it gives up itself", vec![coming(&a1), coming(&b4)], a(9, 70), Some(&[])),
            ("and no more", vec![coming(&a1), coming(&b4)], a(9, 71), None),
            ("what is only offered takes no room", vec![bare], a(9, 100), Some(&[])),
            ("what cannot be looked at stays", vec![held(&a1, Whole, Unknown)], a(9, 80), None),
            ("and counts", vec![held(&a1, Whole, Unknown)], a(9, 70), Some(&[])),
            (
                "but for one that nothing can follow",
                vec![held(&c1, Coming, Expired), coming(&b4)],
                a(9, 50),
                Some(&[8]),
            ),
            (
                "one that stands still goes before the last whole one",
                vec![whole(&a1), held(&c1, Resting, Usable)],
                a(9, 70),
                Some(&[8]),
            ),
            (
                "but after older ones",
                vec![whole(&a1), whole(&a2), held(&b4, Resting, Usable)],
                a(9, 20),
                Some(&[1]),
            ),
            ("itself is no obstacle", vec![coming(&a3)], a(3, 100), Some(&[])),
        ];
        for (case, held, offered, expected) in cases {
            match (admit(&BOUNDS, &offered, &held), expected) {
                (Ok(go), Some(expected)) => {
                    assert_eq!(go, expected.iter().map(|n| id(*n)).collect::<Vec<_>>(), "{case}");
                }
                (Err(refusal), None) => {
                    assert_eq!(refusal.reason, Reason::SnapshotTooLarge, "{case}");
                    assert!(refusal.metadata.contains(&("limit", "100".into())), "{case}");
                }
                (decided, expected) => panic!("{case}: {decided:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn one_that_would_go_at_once_is_not_taken() {
        let [a1, a2, a3] = [1, 2, 3].map(|n| snapshot("a", n, 10));
        let both = [held(&a2, Whole, Usable), held(&a3, Whole, Usable)];
        let refusal = admit(&BOUNDS, &a1, &both).expect_err("not needed");
        assert_eq!(refusal.reason, Reason::WrongState);
        for standing in [Expired, Elsewhere] {
            let one = [held(&a2, Whole, Usable), held(&a3, Whole, standing)];
            assert_eq!(admit(&BOUNDS, &a1, &one), Ok(vec![]));
        }
        let other = Snapshot { projection_version: 2, ..a1 };
        assert_eq!(admit(&BOUNDS, &other, &both), Ok(vec![]), "another version");
    }

    #[test]
    fn the_newest_few_of_each_projection_stay() {
        let [a1, a2, a3] = [1, 2, 3].map(|n| snapshot("a", n, 10));
        let b4 = snapshot("b", 4, 10);
        let whole = |snapshot| held(snapshot, Whole, Usable);
        let all = [whole(&a2), whole(&b4), whole(&a3), whole(&a1)];
        assert_eq!(surplus(&BOUNDS, &a3, &all), [id(1)]);
        assert_eq!(surplus(&BOUNDS, &b4, &all), []);
        assert_eq!(surplus(&Bounds { keep: 1, ..BOUNDS }, &a3, &all), [id(2), id(1)]);
        let coming = [held(&a1, Coming, Usable), whole(&a2), whole(&a3)];
        assert_eq!(surplus(&BOUNDS, &a3, &coming), [], "what comes is not counted yet");
    }
}
