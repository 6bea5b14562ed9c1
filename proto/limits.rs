//! Every limit of the contract, with its unit in its name. Relations between
//! them are asserted when this is compiled.

use std::time::Duration;

/// Most events of one Publish.
pub const MAX_BATCH_EVENTS: usize = 1_000;
/// Most bytes of one Publish: the stored size of its events together.
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// Most bytes of one payload. Leaves a frame room for everything else of the event.
pub const MAX_DATA_BYTES: usize = 512 * 1024;
/// Most bytes of an idempotency key.
pub const MAX_KEY_BYTES: usize = 256;
/// Most characters of an event's type.
pub const MAX_TYPE_BYTES: usize = 128;
/// Most bytes of a subject.
pub const MAX_SUBJECT_BYTES: usize = 256;
/// Most bytes of a content type.
pub const MAX_CONTENT_TYPE_BYTES: usize = 128;
/// Most attributes of an event.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most bytes of an attribute's name.
pub const MAX_ATTRIBUTE_NAME_BYTES: usize = 128;
/// Most bytes of an attribute's value.
pub const MAX_ATTRIBUTE_VALUE_BYTES: usize = 4096;
/// Most characters of a log's or a receiver's name.
pub const MAX_NAME_BYTES: usize = 128;
/// Most types that a Replay may be filtered by.
pub const MAX_FILTER_TYPES: usize = 100;
/// Characters of a Struct's field name that a refusal shows.
pub const MAX_SHOWN_NAME_CHARS: usize = 64;
/// How far an intent's time, a `first_attempt_time` or the one inside a UUIDv7 key, may
/// lie ahead of the publisher's clock.
pub const MAX_CLOCK_LEAD: Duration = Duration::from_secs(5 * 60);
/// Integers in a `google.protobuf.Struct` are doubles; from here on neighbours
/// cannot be told apart (2^53).
pub const FIRST_UNSAFE_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Most events that one group commit of the publisher holds.
pub const MAX_GROUP_EVENTS: usize = 1_024;
/// Most stored bytes that one group commit of the publisher holds.
pub const MAX_GROUP_BYTES: usize = 1024 * 1024;

/// Bytes that a receipt takes while it waits to be sent, beside its key; a small
/// event takes less. A request weighs its stored bytes and this for each event, a
/// refusal its texts and this.
pub const ANSWER_BYTES: usize = 512;
/// What one Publish weighs at most.
pub const MAX_REQUEST_WEIGHT: usize = MAX_BATCH_BYTES + MAX_BATCH_EVENTS * ANSWER_BYTES;
/// Weight of the requests that wait for a log's appender. More wait for room.
pub const MAX_QUEUE_WEIGHT: usize = 16 * 1024 * 1024;
/// Weight of the requests of one PublishStream that are unanswered, or whose answers
/// nobody has taken. From there on the stream is not read: it holds less than this
/// and one request more.
pub const MAX_STREAM_WEIGHT: usize = 2 * 1024 * 1024;
/// Requests that these are at most.
pub const MAX_STREAM_REQUESTS: usize = MAX_STREAM_WEIGHT / ANSWER_BYTES;
/// Requests of one PublishStream that go into the queue in one piece, and are answered
/// in one.
pub const MAX_STREAM_BATCH: usize = 128;
/// PublishStreams that the publisher has open at a time, over all connections.
pub const MAX_PUBLISH_STREAMS: usize = 256;

/// Most outcomes of one Ack.
pub const MAX_ACK_OUTCOMES: usize = 1_000;
/// Most bytes of the reason of an outcome.
pub const MAX_REASON_BYTES: usize = 256;
/// Most bytes of the result of an outcome, as it is reported.
pub const MAX_RESULT_BYTES: usize = 16 * 1024;
/// Most bytes of the outcomes of one Ack, reasons and results together.
pub const MAX_ACK_OUTCOME_BYTES: usize = 1024 * 1024;
/// Outcomes that a receiver keeps in memory until they are reported; more are read
/// from its ledger.
pub const MAX_UNREPORTED_OUTCOMES: usize = 8 * MAX_ACK_OUTCOMES;
/// Bytes of their reasons and results.
pub const MAX_UNREPORTED_BYTES: usize = 2 * MAX_ACK_OUTCOME_BYTES;

/// Receivers that a log remembers to have seen more or other history than it holds; of
/// more, those that have seen most.
pub const MAX_SUSPECTS: usize = 64;
/// Receivers that a refusal names.
pub const NAMED_RECEIVERS: usize = 16;
/// Numbers of lost events that one fork stands in for.
pub const MAX_LOST_EVENTS: i64 = 10_000_000;

/// A Replay frame is closed once it holds this many events.
pub const FRAME_EVENTS: usize = 512;
/// A Replay frame is closed once it holds this many bytes of events.
pub const FRAME_BYTES: usize = 128 * 1024;
/// No frame is larger than this.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// Newest events that a log keeps in memory for the Replays that follow.
pub const MAX_RECENT_EVENTS: usize = 8 * MAX_GROUP_EVENTS;
/// The same in bytes of events.
pub const MAX_RECENT_BYTES: usize = 4 * MAX_GROUP_BYTES;
/// A quiet Replay says that it is alive this often.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// Most events of one commit of the receiver.
pub const MAX_COMMIT_EVENTS: usize = 1_024;
/// Most payload bytes of one commit of the receiver.
pub const MAX_COMMIT_BYTES: usize = 1024 * 1024;
/// Most steps of SQLite's virtual machine that one event of a projection takes, over all of
/// its statements. A second or more on a fast machine: far beyond what an event should cost
/// that others wait for, and it ends what would never end.
pub const MAX_EVENT_STEPS: u64 = 100_000_000;
/// Most bytes of one value, or one row, that a projection's statements make. A single step
/// can make a value as large as SQLite lets it; so this is what bounds their memory.
pub const MAX_VALUE_BYTES: i32 = 16 * 1024 * 1024;
/// Most ledger rows that one commit of the receiver prunes.
pub const MAX_PRUNED_ROWS: usize = 1_024;
/// Ledger rows that may go and are still there, from which on they are pruned also while
/// events wait.
pub const PRESSING_ROWS: i64 = 64 * MAX_PRUNED_ROWS as i64;
/// Follow-up events that one event may have.
pub const MAX_FOLLOW_UPS: usize = 1_000;
/// Most bytes of the name of a follow-up event. The key that is derived for it has room for
/// that, for its projection's name and for a hash.
pub const MAX_FOLLOW_UP_NAME_BYTES: usize = 48;
/// Frames that wait between the receiver's stream and its apply thread.
/// Below 2,048 events the commits would be capped by it.
pub const RECEIVE_QUEUE_FRAMES: usize = 8;
/// Most rows that a Query returns.
pub const MAX_QUERY_ROWS: usize = 1_000;
/// Most bytes of the rows that a Query returns: with what stands beside them they fit a
/// message.
pub const MAX_QUERY_BYTES: usize = MAX_MESSAGE_BYTES - 64 * 1024;
/// One read of a receiver's database takes no longer than this. A write-ahead log that has to
/// be cut waits for those under way, and new ones for that.
pub const MAX_READ: Duration = Duration::from_secs(5);

/// Most bytes of a snapshot in one message of an upload or a download.
pub const MAX_SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes of a snapshot in one message, as these services send it.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 * 1024;
/// Bytes of a snapshot that are read, hashed or synced in one go: what a thread that waits
/// for the disk is busy with.
pub const SNAPSHOT_STEP_BYTES: u64 = 16 * 1024 * 1024;
/// Uploads and downloads of snapshots that the publisher has open at a time, over all
/// connections.
pub const MAX_SNAPSHOT_TRANSFERS: usize = 8;
/// Those of them that use the disk at a time; Replays and receipts share its threads.
pub const SNAPSHOT_DISK_STEPS: usize = 2;
/// Snapshots of one log that are offered and not whole yet.
pub const MAX_SNAPSHOT_OFFERS: usize = 64;
/// A transfer whose other end is silent for so long is ended.
pub const SNAPSHOT_SILENCE: Duration = Duration::from_secs(60);
/// An upload that has stood still for so long makes room for others.
pub const SNAPSHOT_REST: Duration = Duration::from_secs(10 * 60);
/// An upload that has stood still for so long is given up, and its bytes are removed.
pub const SNAPSHOT_OFFER_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Pages of a snapshot that a receiver installs before it looks whether it is to end.
pub const INSTALL_PIECE_PAGES: i32 = 64;
/// Snapshots that are made because they are due are at least this far apart.
pub const SNAPSHOT_SPACING: Duration = Duration::from_secs(1);
/// A snapshot that is due is made no sooner than so many times what the last one took.
pub const SNAPSHOT_PACE: u32 = 4;
/// The second resync in a row waits up to twice this long, and each one twice as long
/// as the one before, up to the cap of all delays.
pub const RESYNC_BASE: Duration = Duration::from_millis(250);

/// Largest message that either service accepts. A Publish of the largest batch
/// fits, with the overhead of a Struct against its JSON text.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Streams that one HTTP/2 connection may have open.
pub const MAX_CONCURRENT_STREAMS: u32 = 1_024;
/// Bytes that a peer may send on one HTTP/2 stream before they are read: a full
/// [`MAX_STREAM_REQUESTS`] of small events need not wait for the window.
pub const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// The same over all streams of a connection: one that is not read does not close
/// the window of the others.
pub const CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Bytes that the publisher may send on a Replay before the receiver has read them: some
/// frames, so that 100,000 events a second come over a way of 20 ms. Leaves room in the
/// connection's window for the answers to Acks.
pub const REPLAY_WINDOW_BYTES: u32 = 1024 * 1024;
/// Connections that one service holds open.
pub const MAX_CONNECTIONS: usize = 1_024;
/// Calls of the publisher that are worked on at a time, over all connections; more
/// wait on their connections. Streams count until they have started.
pub const MAX_CALLS: usize = 256;
/// A connection has to say that it speaks HTTP/2 within this time.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of headers that one request may have.
pub const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Stream resets that a peer may provoke before its connection is closed.
pub const MAX_STREAM_RESETS: usize = 64;
/// An idle connection is pinged this often, by both sides.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// A ping without an answer ends the connection after this time.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A process that was told to end does so within this time.
pub const DRAIN: Duration = Duration::from_secs(3);
/// A peer may go on sending for so long on a connection that is being closed.
pub const LINGER: Duration = Duration::from_secs(1);

const _: () = {
    // One request always fits one group.
    assert!(MAX_BATCH_EVENTS <= MAX_GROUP_EVENTS && MAX_BATCH_BYTES <= MAX_GROUP_BYTES);
    // One request always fits the empty queue, and one stream never fills it: three
    // more may be as full.
    assert!(4 * (MAX_STREAM_WEIGHT + MAX_REQUEST_WEIGHT) <= MAX_QUEUE_WEIGHT);
    // The answers that all streams together keep waiting take less than 1 GiB.
    assert!(MAX_PUBLISH_STREAMS * (MAX_STREAM_WEIGHT + MAX_REQUEST_WEIGHT) < 1024 * 1024 * 1024);
    // The largest single event fits a frame, and a full frame plus one largest event does too.
    assert!(
        FRAME_BYTES
            + MAX_DATA_BYTES
            + MAX_ATTRIBUTES * (MAX_ATTRIBUTE_NAME_BYTES + MAX_ATTRIBUTE_VALUE_BYTES)
            < MAX_FRAME_BYTES
    );
    assert!(MAX_FRAME_BYTES <= MAX_MESSAGE_BYTES);
    assert!(MAX_SNAPSHOT_CHUNK_BYTES < MAX_MESSAGE_BYTES);
    assert!(SNAPSHOT_CHUNK_BYTES <= MAX_SNAPSHOT_CHUNK_BYTES);
    // A silent upload is ended before it counts as standing still.
    assert!(SNAPSHOT_SILENCE.as_secs() < SNAPSHOT_REST.as_secs());
    assert!(SNAPSHOT_REST.as_secs() < SNAPSHOT_OFFER_LIFE.as_secs());
    assert!(MAX_SNAPSHOT_CHUNK_BYTES as u64 <= SNAPSHOT_STEP_BYTES);
    // A transfer is also a call; most of them remain.
    assert!(MAX_SNAPSHOT_TRANSFERS <= MAX_CALLS / 4);
    // A commit of nothing but outcomes is kept until the Ack after it.
    assert!(MAX_UNREPORTED_OUTCOMES > MAX_COMMIT_EVENTS);
    assert!(CONNECTION_WINDOW_BYTES > STREAM_WINDOW_BYTES);
    assert!(CONNECTION_WINDOW_BYTES > REPLAY_WINDOW_BYTES);
    // `sha256:` and the hash, the names, a number, and what stands between them.
    assert!(MAX_FOLLOW_UPS <= 1_000);
    assert!(7 + 64 + 1 + MAX_NAME_BYTES + 1 + MAX_FOLLOW_UP_NAME_BYTES + 1 + 3 <= MAX_KEY_BYTES);
    assert!(LINGER.as_millis() < DRAIN.as_millis());
    assert!(RECEIVE_QUEUE_FRAMES * FRAME_EVENTS >= 2 * MAX_COMMIT_EVENTS);
};
