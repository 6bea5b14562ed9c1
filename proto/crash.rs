//! Named places where a test may let the process die. One list, so that tests
//! can walk through all of them. Without feature `failpoints` a place is nothing.
//!
//! `FAILPOINTS='receiver-after-commit=1*off->return' receiver …` lets the first
//! pass go by and aborts the process at the second.

/// The publisher has admitted a group and written none of it.
pub const PUBLISHER_BEFORE_WRITE: &str = "publisher-before-write";
/// The group is in the file, not yet synced.
pub const PUBLISHER_AFTER_WRITE: &str = "publisher-after-write";
/// The group is on stable storage, nobody has been answered.
pub const PUBLISHER_AFTER_SYNC: &str = "publisher-after-sync";
/// A new segment file has its name and header; nothing has been appended to it.
pub const PUBLISHER_AFTER_ROLL: &str = "publisher-after-roll";
/// A higher floor is on stable storage; no file below it has been removed.
pub const PUBLISHER_AFTER_FLOOR: &str = "publisher-after-floor";
/// A file of receipts is on stable storage; no manifest names it.
pub const PUBLISHER_AFTER_RECEIPTS_FILE: &str = "publisher-after-receipts-file";
/// The manifest names it; the events may still stand in their segment.
pub const PUBLISHER_AFTER_RECEIPTS_MANIFEST: &str = "publisher-after-receipts-manifest";
/// A higher key floor is on stable storage; nothing has been decided by it.
pub const PUBLISHER_AFTER_KEY_FLOOR: &str = "publisher-after-key-floor";
/// The manifest no longer names a file of receipts, which still stands.
pub const PUBLISHER_AFTER_FORGET: &str = "publisher-after-forget";
/// A segment below the floor has been removed.
pub const PUBLISHER_AFTER_RELEASE: &str = "publisher-after-release";
/// What a receiver has reported is on stable storage, its position is not.
pub const PUBLISHER_AFTER_OUTCOMES: &str = "publisher-after-outcomes";
/// A receiver's position is on stable storage, the Ack has not been answered.
pub const PUBLISHER_AFTER_ACK_SYNC: &str = "publisher-after-ack-sync";
/// Bytes of a snapshot are on stable storage, which is not whole yet or has no name yet.
pub const PUBLISHER_AFTER_SNAPSHOT_BYTES: &str = "publisher-after-snapshot-bytes";
/// What is known of a snapshot is on stable storage; its bytes have no name yet.
pub const PUBLISHER_BEFORE_SNAPSHOT_RENAME: &str = "publisher-before-snapshot-rename";
/// The bytes of a snapshot have their name, perhaps not durably; nobody has been answered.
pub const PUBLISHER_AFTER_SNAPSHOT_RENAME: &str = "publisher-after-snapshot-rename";
/// An old snapshot has made room; the upload that needed it has not been answered.
pub const PUBLISHER_AFTER_SNAPSHOT_DROP: &str = "publisher-after-snapshot-drop";
/// What a fork is going to do is on stable storage, and nothing of it has been done.
pub const PUBLISHER_AFTER_FORK_INTENT: &str = "publisher-after-fork-intent";
/// Some of the events that stand for lost ones are on stable storage.
pub const PUBLISHER_AFTER_FORK_EVENTS: &str = "publisher-after-fork-events";
/// The log has its new identity; what the fork was going to do still stands.
pub const PUBLISHER_AFTER_FORK_IDENTITY: &str = "publisher-after-fork-identity";
/// Who had seen more stands in nobody's way any more; what the fork was going to do still
/// stands.
pub const PUBLISHER_AFTER_FORK_SETTLED: &str = "publisher-after-fork-settled";
/// The effects of a batch are in the transaction, which is not committed.
pub const RECEIVER_BEFORE_COMMIT: &str = "receiver-before-commit";
/// The transaction is committed; no ack has left.
pub const RECEIVER_AFTER_COMMIT: &str = "receiver-after-commit";
/// The ack has been sent and answered; the receiver has not taken note of it.
pub const RECEIVER_AFTER_ACK: &str = "receiver-after-ack";
/// The write-ahead log has been copied into the database.
pub const RECEIVER_AFTER_CHECKPOINT: &str = "receiver-after-checkpoint";
/// Ledger rows are deleted and what is kept of them is noted, in a transaction that is
/// not committed.
pub const RECEIVER_BEFORE_PRUNE_COMMIT: &str = "receiver-before-prune-commit";
/// That transaction is committed; nobody has been told.
pub const RECEIVER_AFTER_PRUNE_COMMIT: &str = "receiver-after-prune-commit";
/// The tables are those of a later version of the projection, in a transaction that is not
/// committed.
pub const RECEIVER_BEFORE_MIGRATION_COMMIT: &str = "receiver-before-migration-commit";
/// That transaction is committed; nothing has been applied or served.
pub const RECEIVER_AFTER_MIGRATION_COMMIT: &str = "receiver-after-migration-commit";

/// An event is set aside, in a transaction that is not committed.
pub const RECEIVER_BEFORE_SKIP_COMMIT: &str = "receiver-before-skip-commit";
/// That transaction is committed; nobody has been told.
pub const RECEIVER_AFTER_SKIP_COMMIT: &str = "receiver-after-skip-commit";
/// The effect of an event that was set aside is made, in a transaction that is not committed.
pub const RECEIVER_BEFORE_LATE_COMMIT: &str = "receiver-before-late-commit";
/// That transaction is committed; nobody has been told.
pub const RECEIVER_AFTER_LATE_COMMIT: &str = "receiver-after-late-commit";

/// Follow-up events are about to be sent; none of them is.
pub const RECEIVER_FORWARD_BEFORE_SEND: &str = "receiver-forward-before-send";
/// Their receipts are there; nothing of that is noted.
pub const RECEIVER_FORWARD_AFTER_RECEIPT: &str = "receiver-forward-after-receipt";
/// It is noted, and committed; nobody has been told.
pub const RECEIVER_FORWARD_AFTER_MARK: &str = "receiver-forward-after-mark";

/// A copy of the database stands beside it, not yet synced.
pub const RECEIVER_SNAPSHOT_COPIED: &str = "receiver-snapshot-copied";
/// The copy is on stable storage and has its hash; nothing has been offered.
pub const RECEIVER_SNAPSHOT_MADE: &str = "receiver-snapshot-made";
/// The publisher has said from where on it wants the snapshot; nothing has been sent.
pub const RECEIVER_SNAPSHOT_OFFERED: &str = "receiver-snapshot-offered";
/// A piece of the snapshot has been handed to the connection.
pub const RECEIVER_SNAPSHOT_SENT: &str = "receiver-snapshot-sent";
/// The publisher has stored the snapshot; the copy still stands.
pub const RECEIVER_SNAPSHOT_STORED: &str = "receiver-snapshot-stored";

/// A piece of a snapshot is in the staged file.
pub const RECEIVER_RESYNC_PIECE: &str = "receiver-resync-piece";
/// All of it is in the staged file, which has not been looked at.
pub const RECEIVER_RESYNC_STAGED: &str = "receiver-resync-staged";
/// The staged file is fit; nothing of the database has been touched.
pub const RECEIVER_RESYNC_CHECKED: &str = "receiver-resync-checked";
/// Some of its pages are in the database's write-ahead log, not committed.
pub const RECEIVER_RESYNC_COPYING: &str = "receiver-resync-copying";
/// All but the last of its pages are, not committed.
pub const RECEIVER_RESYNC_BEFORE_COMMIT: &str = "receiver-resync-before-commit";
/// The database is the snapshot, committed; the store has not been opened again.
pub const RECEIVER_RESYNC_AFTER_COMMIT: &str = "receiver-resync-after-commit";
/// The store has been opened again, behind its barrier; the staged file still stands.
pub const RECEIVER_RESYNC_REOPENED: &str = "receiver-resync-reopened";

/// Some events are applied in the database that is filled beside the live one.
pub const RECEIVER_REBUILD_GROUP: &str = "receiver-rebuild-group";
/// Some of the live one's follow-up events have been taken over into it.
pub const RECEIVER_REBUILD_CARRYING: &str = "receiver-rebuild-carrying";
/// It has all, and it is whole in one file; it has not been handed over.
pub const RECEIVER_REBUILD_FILLED: &str = "receiver-rebuild-filled";
/// The apply thread has it; nothing of the live database has been touched.
pub const RECEIVER_REBUILD_BEFORE_SWAP: &str = "receiver-rebuild-before-swap";
/// The live database is the new one, committed and opened again; its file still stands.
pub const RECEIVER_REBUILD_AFTER_SWAP: &str = "receiver-rebuild-after-swap";

/// Of the publisher's, those on an event's way, in its order.
pub const PUBLISHER: [&str; 12] = [
    PUBLISHER_AFTER_KEY_FLOOR,
    PUBLISHER_BEFORE_WRITE,
    PUBLISHER_AFTER_WRITE,
    PUBLISHER_AFTER_SYNC,
    PUBLISHER_AFTER_ROLL,
    PUBLISHER_AFTER_FLOOR,
    PUBLISHER_AFTER_RECEIPTS_FILE,
    PUBLISHER_AFTER_RECEIPTS_MANIFEST,
    PUBLISHER_AFTER_RELEASE,
    PUBLISHER_AFTER_FORGET,
    PUBLISHER_AFTER_OUTCOMES,
    PUBLISHER_AFTER_ACK_SYNC,
];

/// All of the publisher's on the way of an uploaded snapshot, in its order.
pub const PUBLISHER_SNAPSHOTS: [&str; 4] = [
    PUBLISHER_AFTER_SNAPSHOT_BYTES,
    PUBLISHER_BEFORE_SNAPSHOT_RENAME,
    PUBLISHER_AFTER_SNAPSHOT_RENAME,
    PUBLISHER_AFTER_SNAPSHOT_DROP,
];

/// Those of a fork, in their order.
pub const FORK: [&str; 4] = [
    PUBLISHER_AFTER_FORK_INTENT,
    PUBLISHER_AFTER_FORK_EVENTS,
    PUBLISHER_AFTER_FORK_IDENTITY,
    PUBLISHER_AFTER_FORK_SETTLED,
];

/// Of the receiver's, those on an event's way, in its order.
pub const RECEIVER: [&str; 4] =
    [RECEIVER_BEFORE_COMMIT, RECEIVER_AFTER_COMMIT, RECEIVER_AFTER_ACK, RECEIVER_AFTER_CHECKPOINT];

/// Those that a receiver passes only while it prunes its ledger.
pub const RECEIVER_PRUNING: [&str; 2] = [RECEIVER_BEFORE_PRUNE_COMMIT, RECEIVER_AFTER_PRUNE_COMMIT];

/// Those that a receiver passes only while it migrates its database.
pub const RECEIVER_MIGRATION: [&str; 2] =
    [RECEIVER_BEFORE_MIGRATION_COMMIT, RECEIVER_AFTER_MIGRATION_COMMIT];

/// Those that a receiver passes only while an event is set aside, or applied later.
pub const RECEIVER_SKIPPING: [&str; 4] = [
    RECEIVER_BEFORE_SKIP_COMMIT,
    RECEIVER_AFTER_SKIP_COMMIT,
    RECEIVER_BEFORE_LATE_COMMIT,
    RECEIVER_AFTER_LATE_COMMIT,
];

/// Those that a receiver passes only while it forwards what its projection emits.
pub const RECEIVER_FORWARDING: [&str; 3] =
    [RECEIVER_FORWARD_BEFORE_SEND, RECEIVER_FORWARD_AFTER_RECEIPT, RECEIVER_FORWARD_AFTER_MARK];

/// All that are passed while a receiver makes a snapshot and uploads it.
pub const RECEIVER_SNAPSHOT: [&str; 5] = [
    RECEIVER_SNAPSHOT_COPIED,
    RECEIVER_SNAPSHOT_MADE,
    RECEIVER_SNAPSHOT_OFFERED,
    RECEIVER_SNAPSHOT_SENT,
    RECEIVER_SNAPSHOT_STORED,
];

/// All that are passed while a receiver downloads a snapshot and installs it.
pub const RECEIVER_RESYNC: [&str; 7] = [
    RECEIVER_RESYNC_PIECE,
    RECEIVER_RESYNC_STAGED,
    RECEIVER_RESYNC_CHECKED,
    RECEIVER_RESYNC_COPYING,
    RECEIVER_RESYNC_BEFORE_COMMIT,
    RECEIVER_RESYNC_AFTER_COMMIT,
    RECEIVER_RESYNC_REOPENED,
];

/// All that are passed while a later version of the projection is rebuilt and takes over;
/// the pages of the new database are installed as those of a snapshot are.
pub const RECEIVER_REBUILD: [&str; 7] = [
    RECEIVER_REBUILD_GROUP,
    RECEIVER_REBUILD_CARRYING,
    RECEIVER_REBUILD_FILLED,
    RECEIVER_REBUILD_BEFORE_SWAP,
    RECEIVER_RESYNC_BEFORE_COMMIT,
    RECEIVER_RESYNC_AFTER_COMMIT,
    RECEIVER_REBUILD_AFTER_SWAP,
];

/// Arms the crash points that `FAILPOINTS` names. Call once, first thing in `main`.
pub fn arm() {
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

/// Dies here if the test says so: no destructor runs, no buffer is flushed.
#[inline]
pub fn point(name: &'static str) {
    #[cfg(feature = "failpoints")]
    fail::eval(name, |_| {
        eprintln!("crash point {name} reached");
        std::process::abort()
    })
    .unwrap_or(());
    #[cfg(not(feature = "failpoints"))]
    let _ = name;
}
