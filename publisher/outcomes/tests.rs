use super::*;
use crate::{
    proto::outcome::Outcome,
    publisher::{durable::scratch, log::ReadError},
};

fn rejected(sequence: Sequence) -> Reported {
    Reported {
        sequence,
        outcome: Outcome::Rejected,
        reason: "insufficient_stock".to_owned(),
        result: format!("{{\"available\":{sequence}}}"),
    }
}

fn report(through: Sequence, rejected_at: &[Sequence]) -> Report {
    Report { after: None, through, outcomes: rejected_at.iter().copied().map(rejected).collect() }
}

fn opened(dir: &Path) -> Outcomes {
    Outcomes::open(dir, Latch::open(dir).expect("open")).expect("opens")
}

/// Takes a report and makes it durable.
fn keep(outcomes: &mut Outcomes, receiver: &str, after: Sequence, report: &Report) {
    assert_eq!(outcomes.add(receiver, after, report).expect("taken"), report.through);
    outcomes.commit().expect("kept");
}

/// The receivers that have said something of an event.
fn said(reader: &Reader, sequence: Sequence) -> Vec<String> {
    reader.of(sequence).expect("readable").into_keys().collect()
}

fn files(dir: &Path) -> Vec<Sequence> {
    let mut firsts = block::list(dir).expect("listed");
    firsts.sort_unstable();
    firsts
}

#[test]
fn what_was_reported_is_told_by_receiver_also_after_opening_again() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let every_kind: Vec<_> = (0..)
        .zip(Outcome::ALL)
        .map(|(sequence, outcome)| Reported { outcome, ..rejected(sequence) })
        .collect();
    keep(&mut outcomes, "a", -1, &Report { after: None, through: 9, outcomes: every_kind.clone() });
    keep(&mut outcomes, "b", -1, &report(3, &[3]));
    for outcomes in [outcomes, opened(dir.path())] {
        let reader = outcomes.reader();
        for row in &every_kind[..3] {
            let rows = reader.of(row.sequence).expect("readable");
            assert_eq!(rows, [("a".to_owned(), row.clone())].into());
        }
        assert_eq!(said(&reader, 3), ["a", "b"]);
        assert_eq!(said(&reader, 7), [""; 0], "applied, and nothing more to say");
    }
}

#[test]
fn plain_effects_take_no_file_and_reports_stand_in_the_files_of_their_blocks() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let far = 3 * BLOCK;
    keep(&mut outcomes, "r", -1, &report(far, &[]));
    assert!(files(dir.path()).is_empty());
    let last = far + BLOCK - 1;
    keep(&mut outcomes, "r", far, &report(far + 5 * BLOCK, &[far + 7, last, last + 1]));
    assert_eq!(files(dir.path()), [far, far + BLOCK]);
    for sequence in [far + 7, last, last + 1] {
        assert_eq!(said(&outcomes.reader(), sequence), ["r"]);
    }
}

#[test]
fn what_had_been_reported_before_is_not_changed() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    keep(&mut outcomes, "r", -1, &report(5, &[2]));
    let again = Report {
        after: None,
        through: 7,
        outcomes: vec![Reported { reason: "other".to_owned(), ..rejected(2) }, rejected(6)],
    };
    keep(&mut outcomes, "r", 5, &again);
    let reader = outcomes.reader();
    assert_eq!(reader.of(2).expect("readable")["r"], rejected(2));
    assert_eq!(said(&reader, 6), ["r"]);
}

/// Its database was put back, and did the work again with another result.
#[test]
fn a_receiver_that_reports_again_is_believed_also_in_what_it_does_not_say() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let next = BLOCK + 3;
    keep(&mut outcomes, "r", -1, &report(next, &[2, 5, 9, next]));
    keep(&mut outcomes, "other", -1, &report(next, &[9]));
    // From 4 on it starts anew, in a process that knows of it from the file alone.
    let mut outcomes = opened(dir.path());
    keep(&mut outcomes, "r", 4, &report(7, &[]));
    let reader = outcomes.reader();
    assert_eq!(said(&reader, 2), ["r"], "done before");
    assert_eq!(said(&reader, 5), [""; 0], "this time it was applied");
    assert_eq!(said(&reader, 9), ["other", "r"], "not reported again yet");
    keep(&mut outcomes, "r", 7, &report(next + 1, &[10]));
    assert_eq!(said(&reader, 9), ["other"]);
    assert_eq!(said(&reader, 10), ["r"]);
    assert_eq!(said(&reader, next), [""; 0], "in the next block, too");
    let before = fs::metadata(path(dir.path(), 0)).expect("there").len();
    keep(&mut outcomes, "r", next + 1, &report(next + 9, &[]));
    assert_eq!(fs::metadata(path(dir.path(), 0)).expect("there").len(), before);
}

#[test]
fn a_write_torn_anywhere_takes_back_what_nobody_was_answered_for() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let path = path(dir.path(), 0);
    keep(&mut outcomes, "r", -1, &report(2, &[2]));
    let answered = fs::read(&path).expect("read").len();
    keep(&mut outcomes, "r", 2, &report(4, &[4]));
    let whole = fs::read(&path).expect("read");
    drop(outcomes);
    for cut in answered..whole.len() {
        fs::write(&path, &whole[..cut]).expect("written");
        let mut outcomes = opened(dir.path());
        assert_eq!(said(&outcomes.reader(), 2), ["r"], "cut at {cut}");
        assert_eq!(said(&outcomes.reader(), 4), [""; 0]);
        keep(&mut outcomes, "r", 2, &report(4, &[4]));
        assert_eq!(fs::read(&path).expect("read"), whole, "as if nothing had happened");
    }
}

/// As it is after a write whose beginning never reached the disk.
#[test]
fn reports_of_one_commit_are_there_together_or_not_at_all() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let path = path(dir.path(), 0);
    keep(&mut outcomes, "r", -1, &report(2, &[2]));
    let answered = fs::read(&path).expect("read").len();
    for receiver in ["a", "b"] {
        outcomes.add(receiver, -1, &report(4, &[4])).expect("taken");
    }
    outcomes.commit().expect("kept");
    assert_eq!(said(&outcomes.reader(), 4), ["a", "b"]);
    drop(outcomes);
    let mut torn = fs::read(&path).expect("read");
    torn[answered..answered + 30].fill(0);
    fs::write(&path, &torn).expect("written");
    let outcomes = opened(dir.path());
    assert_eq!(said(&outcomes.reader(), 2), ["r"]);
    assert_eq!(said(&outcomes.reader(), 4), [""; 0]);
}

/// Reports up to 4 of a block whose file is then damaged, and reports of the next.
fn damaged(dir: &Path) -> Vec<u8> {
    let mut outcomes = opened(dir);
    keep(&mut outcomes, "r", -1, &report(2, &[2]));
    keep(&mut outcomes, "r", 2, &report(4, &[4]));
    keep(&mut outcomes, "other", BLOCK, &report(BLOCK + 1, &[BLOCK + 1]));
    let mut damaged = fs::read(path(dir, 0)).expect("read");
    damaged[30] ^= 1;
    fs::write(path(dir, 0), &damaged).expect("written");
    damaged
}

#[test]
fn a_damaged_file_is_set_aside_and_what_it_said_can_be_said_again() {
    let dir = scratch();
    let damaged = damaged(dir.path());
    let mut outcomes = opened(dir.path());
    let unread = outcomes.reader().of(2).expect_err("damaged");
    assert!(matches!(unread, ReadError::Corrupt { sequence: 2, .. }), "{unread}");
    assert_eq!(outcomes.add("r", 4, &report(6, &[6])).expect("no further"), 4);
    outcomes.commit().expect("nothing to keep");
    assert_eq!(fs::read(path(dir.path(), 0)).expect("read"), damaged, "until positions say so");
    assert_eq!(outcomes.lost_from(), Some(0));

    outcomes.set_aside().expect("set aside");
    assert_eq!(outcomes.lost_from(), None);
    let kept = format!("damaged-{:020}-0.outcomes", 0);
    assert_eq!(fs::read(dir.path().join(kept)).expect("kept"), damaged);
    keep(&mut outcomes, "r", -1, &report(6, &[2, 6]));
    let outcomes = opened(dir.path());
    for sequence in [2, 6] {
        assert_eq!(said(&outcomes.reader(), sequence), ["r"]);
    }
    assert_eq!(said(&outcomes.reader(), BLOCK + 1), ["other"]);
}

#[test]
fn a_file_that_nobody_reports_to_is_found_damaged_by_who_looks_it_up() {
    let dir = scratch();
    damaged(dir.path());
    let mut outcomes = opened(dir.path());
    outcomes.inspect(BLOCK + 1);
    assert_eq!(outcomes.lost_from(), None, "that one is whole");
    outcomes.inspect(4);
    assert_eq!(outcomes.lost_from(), Some(0));
}

#[test]
fn a_copy_leaves_out_what_is_damaged_and_says_so() {
    let (dir, to) = (scratch(), scratch());
    damaged(dir.path());
    assert_eq!(copy(dir.path(), to.path()).expect("copied"), Some(0));
    assert_eq!(files(to.path()), [BLOCK]);
    assert_eq!(said(&opened(to.path()).reader(), BLOCK + 1), ["other"]);
}

/// One receiver's long report does not hold up the others.
#[test]
fn a_report_of_very_many_blocks_is_taken_in_parts() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let rows: Vec<_> = (0..3 * MOST_BLOCKS as Sequence).map(|n| n * BLOCK).collect();
    let whole = report(100 * BLOCK, &rows);
    let part = MOST_BLOCKS as Sequence * BLOCK - 1;
    assert_eq!(outcomes.add("r", -1, &whole).expect("taken"), part);
    let next = 2 * part + 1;
    assert_eq!(outcomes.add("r", part, &whole).expect("taken"), next);
    assert_eq!(outcomes.add("r", next, &whole).expect("taken"), whole.through);
    outcomes.add("q", -1, &report(0, &[0])).expect("taken");
    assert_eq!(outcomes.open.len(), MOST_OPEN);
    outcomes.commit().expect("kept");
    assert_eq!(said(&outcomes.reader(), 0), ["q", "r"]);
    for sequence in &rows[1..] {
        assert_eq!(said(&outcomes.reader(), *sequence), ["r"]);
    }
}

#[test]
fn files_go_with_the_receipts_of_their_events() {
    let dir = scratch();
    let mut outcomes = opened(dir.path());
    let rows = [0, BLOCK, 2 * BLOCK];
    keep(&mut outcomes, "r", -1, &report(2 * BLOCK, &rows));
    outcomes.sweep(|_| true);
    assert_eq!(files(dir.path()), rows);
    outcomes.sweep(|_| panic!("nothing has been added since"));
    keep(&mut outcomes, "r", 2 * BLOCK, &report(3 * BLOCK, &[3 * BLOCK]));
    // An untimed key keeps the first block's receipts.
    outcomes.sweep(|block| block.start == 0 || block.end > 2 * BLOCK);
    assert_eq!(files(dir.path()), [0, 2 * BLOCK, 3 * BLOCK]);
    assert_eq!(said(&outcomes.reader(), BLOCK), [""; 0]);
    keep(&mut outcomes, "late", -1, &report(BLOCK, &[BLOCK]));
    assert_eq!(said(&outcomes.reader(), BLOCK), ["late"]);
}

#[test]
fn after_a_failed_write_nothing_is_taken_any_more() {
    let dir = scratch();
    let latch = Latch::open(dir.path()).expect("open");
    let mut outcomes = Outcomes::open(dir.path(), latch.clone()).expect("opens");
    outcomes.add("r", -1, &report(2, &[2])).expect("taken");
    latch.clone().close("a sync", &std::io::Error::from_raw_os_error(5));
    assert!(matches!(outcomes.commit(), Err(CommitError::Halted(_))));
    assert_eq!(said(&outcomes.reader(), 2), [""; 0]);
    let refused = outcomes.add("r", -1, &report(BLOCK, &[BLOCK])).expect_err("closed");
    assert!(matches!(refused, CommitError::Halted(_)));
}
