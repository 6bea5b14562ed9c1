//! The status as a table for people. Pure: text in, text out.

use std::fmt::Write as _;

use counterfoil::proto::pb::{
    Cursor, Failure, GetStatusResponse, Log, LogLimits, ReceiverPosition,
};

use super::{Both, word};
use crate::numbers::{bytes, counted, grouped};

const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// The table; with colours only if somebody looks at it.
pub fn show(both: &Both, colours: bool) -> String {
    let paint = |colour: &str, text: &str| {
        if colours { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    };
    let mut text = String::new();
    let mut end = |name: &str, url: &str, rows: Result<Vec<Row>, &String>| {
        let _ = writeln!(text, "{}  {url}", paint(BOLD, name));
        let rows = rows.unwrap_or_else(|error| {
            vec![row("state", "DOWN").coloured(RED), row("", error.as_str())]
        });
        for Row { name, value, colour } in rows {
            let value = colour.map_or_else(|| value.clone(), |colour| paint(colour, &value));
            let _ = writeln!(text, "  {name:<13}{value}");
        }
    };
    end("publisher", &both.publisher_url, both.publisher.as_ref().map(of_log));
    end("receiver ", &both.receiver_url, both.receiver.as_ref().map(of_status));
    text
}

struct Row {
    name: &'static str,
    value: String,
    colour: Option<&'static str>,
}

impl Row {
    fn coloured(self, colour: &'static str) -> Self {
        Row { colour: Some(colour), ..self }
    }
}

fn row(name: &'static str, value: impl Into<String>) -> Row {
    Row { name, value: value.into(), colour: None }
}

fn of_log(log: &Log) -> Vec<Row> {
    let state = word(log.state().as_str_name(), "LOG_STATE_");
    let colour = if state == "ACTIVE" { GREEN } else { RED };
    let mut rows = vec![
        row("log", format!("{}  {}", log.name, log.log_id)),
        row("state", state).coloured(colour),
    ];
    if !log.state_detail.is_empty() {
        rows.push(row("", &log.state_detail));
    }
    rows.push(row("events", extent(log.floor_sequence, log.next_sequence)));
    rows.push(row("holds", format!("{}, {} keys", bytes_of(log.bytes), number(log.keys))));
    if let Some(limits) = &log.limits {
        rows.push(row("bounds", bounds(limits)));
    }
    if !log.ancestors.is_empty() {
        let ancestors = log.ancestors.iter().map(|ancestor| {
            format!("{} up to {}", ancestor.log_id, number(ancestor.last_sequence))
        });
        rows.push(row("goes on from", ancestors.collect::<Vec<_>>().join(", ")));
    }
    if log.receivers.is_empty() {
        rows.push(row("receivers", "none yet"));
    }
    for (index, receiver) in log.receivers.iter().enumerate() {
        rows.push(row(if index == 0 { "receivers" } else { "" }, position(receiver)));
    }
    rows
}

fn extent(floor: Option<i64>, next: Option<i64>) -> String {
    match (floor.unwrap_or(0), next.unwrap_or(0)) {
        (_, 0) => "none yet".to_owned(),
        (floor, next) if floor == next => format!("none retained, next is {}", grouped(next)),
        (floor, next) => {
            format!("{} ({} to {})", grouped(next - floor), grouped(floor), grouped(next - 1))
        }
    }
}

fn bounds(limits: &LogLimits) -> String {
    let age = match &limits.max_age {
        Some(age) if age.seconds % 86_400 == 0 => format!("{} d", age.seconds / 86_400),
        Some(age) => format!("{} s", grouped(age.seconds)),
        None => "any age".to_owned(),
    };
    let held = if limits.hold_for_receivers == Some(true) { ", held for receivers" } else { "" };
    format!(
        "{} events, {}, {age}, then {}{held}",
        number(limits.max_events),
        bytes_of(limits.max_bytes),
        limits.when_full
    )
}

fn position(receiver: &ReceiverPosition) -> String {
    let connected = if receiver.connected { "connected" } else { "away" };
    let mut text = format!(
        "{}  {connected}, acked {}, lag {}",
        receiver.name,
        sequence(receiver.acked.as_ref()),
        lag(receiver.lag_events, receiver.lag_seconds)
    );
    if receiver.needs_resync {
        text.push_str(", needs a resync");
    } else if let Some(headroom) = receiver.headroom_events {
        let _ = write!(text, ", headroom {}", grouped(headroom));
        if let Some(seconds) = receiver.eviction_seconds {
            let _ = write!(text, " ({} s)", grouped(seconds as i64));
        }
    }
    if receiver.holds_floor {
        text.push_str(", holds the oldest");
    }
    text
}

fn of_status(status: &GetStatusResponse) -> Vec<Row> {
    let state = word(status.state().as_str_name(), "RECEIVER_STATE_");
    let colour = match state {
        "LIVE" => GREEN,
        "HALTED" => RED,
        _ => YELLOW,
    };
    let mut rows = vec![
        row("name", format!("{}, log {}", status.receiver, status.log)),
        row("state", state).coloured(colour),
    ];
    if !status.state_detail.is_empty() {
        rows.push(row("", &status.state_detail));
    }
    rows.push(row("committed", sequence(status.cursor.as_ref())));
    rows.push(row("acked", sequence(status.acked.as_ref())));
    rows.push(row("lag", lag(status.lag_events, None)));
    if let Some(from) = status.ledger_from_sequence.filter(|from| *from > 0) {
        rows.push(row("ledger", format!("from {} on, older rows were pruned", grouped(from))));
    }
    let outcomes: Vec<_> = status
        .outcomes
        .iter()
        .filter(|&(_, &count)| count > 0)
        .map(|(outcome, count)| format!("{} {outcome}", grouped(*count)))
        .collect();
    if !outcomes.is_empty() {
        let commits = number(status.commits);
        rows.push(row("this run", format!("{} in {commits} commits", outcomes.join(", "))));
    }
    if let Some(resyncs) = status.resyncs.filter(|&resyncs| resyncs > 0) {
        rows.push(row("resyncs", grouped(resyncs)));
    }
    if let Some(rebuild) = &status.rebuild {
        let (from, to) = (number(rebuild.from_version), number(rebuild.to_version));
        let at = match rebuild.sequence {
            None | Some(-1) => "nothing".to_owned(),
            Some(sequence) => grouped(sequence),
        };
        let next = rebuild
            .next_sequence
            .map_or_else(String::new, |next| format!(" of {}", grouped(next - 1)));
        let said = format!("version {to} beside version {from}, applied {at}{next}");
        rows.push(row("rebuild", said).coloured(YELLOW));
        rows.push(row("", &rebuild.step));
    }
    if let Some(skipped) = status.skipped_events.filter(|&skipped| skipped > 0) {
        let events = counted(skipped.unsigned_abs(), "event");
        rows.push(row("skipped", format!("{events}, not applied yet")).coloured(YELLOW));
    }
    if let Some(pending) = status.outbox_pending.filter(|&pending| pending > 0) {
        rows.push(row("to forward", counted(pending.unsigned_abs(), "follow-up event")));
    }
    if let Some(failure) = &status.forward_failure {
        let said = format!("{}: {}", failure.reason, failure.message);
        let colour = if failure.next_attempt_time.is_some() { YELLOW } else { RED };
        rows.push(row("forwarding", said).coloured(colour));
        if let Some(at) = failure.sequence {
            let (number, key) = (failure.follow_up.unwrap_or(0), &failure.key);
            let kind = &failure.r#type;
            let at = grouped(at);
            rows.push(row("", format!("follow-up {number} of event {at} ({key}, {kind})")));
        }
    }
    if let Some(failure) = &status.failure {
        rows.extend(of_failure(failure));
    }
    rows
}

fn of_failure(failure: &Failure) -> Vec<Row> {
    let mut rows =
        vec![row("failure", format!("{}: {}", failure.reason, failure.message)).coloured(RED)];
    if let Some(at) = failure.sequence {
        let Failure { key, subject, r#type, .. } = failure;
        rows.push(row("", format!("event {}, key {key}, {type} of {subject:?}", grouped(at))));
    }
    let at = match (&*failure.class, &*failure.statement) {
        ("", "") => None,
        (class, "") => Some(class.to_owned()),
        (class, statement) => Some(format!("{class} at {statement}")),
    };
    let tried = failure.attempts.map(|attempts| {
        let next = failure.next_attempt_time.as_ref();
        let next =
            next.map_or_else(|| "no other by itself".to_owned(), |at| format!("next at {at}"));
        format!("{}, {next}", counted(attempts.unsigned_abs(), "attempt"))
    });
    rows.extend(at.into_iter().chain(tried).map(|line| row("", line)));
    rows
}

fn sequence(cursor: Option<&Cursor>) -> String {
    match cursor.and_then(|cursor| cursor.sequence) {
        None | Some(-1) => "nothing".to_owned(),
        Some(sequence) => grouped(sequence),
    }
}

fn lag(events: Option<i64>, seconds: Option<f64>) -> String {
    match (events, seconds) {
        (None, _) => "unknown".to_owned(),
        (Some(0), _) => "none".to_owned(),
        (Some(events), None) => counted(events.unsigned_abs(), "event"),
        (Some(events), Some(seconds)) => {
            format!("{}, {seconds:.1} s", counted(events.unsigned_abs(), "event"))
        }
    }
}

fn number(value: Option<i64>) -> String {
    value.map_or_else(|| "?".to_owned(), grouped)
}

fn bytes_of(value: Option<i64>) -> String {
    value.map_or_else(|| "?".to_owned(), bytes)
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::pb::{LogState, ReceiverState};

    use super::*;

    fn both() -> Both {
        let at = |sequence| Some(Cursor { sequence: Some(sequence), ..Default::default() });
        Both {
            publisher_url: "http://p".into(),
            publisher: Ok(Log {
                name: "main".into(),
                state: LogState::Active.into(),
                log_id: "id".into(),
                floor_sequence: Some(0),
                next_sequence: Some(120_000),
                bytes: Some(1536),
                keys: Some(120_000),
                receivers: vec![ReceiverPosition {
                    name: "shop".into(),
                    connected: true,
                    acked: at(119_999),
                    lag_events: Some(0),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            receiver_url: "http://r".into(),
            receiver: Ok(GetStatusResponse {
                receiver: "shop".into(),
                log: "main".into(),
                state: ReceiverState::Live.into(),
                cursor: at(119_999),
                acked: at(119_999),
                lag_events: Some(0),
                ..Default::default()
            }),
        }
    }

    #[test]
    fn both_ends_are_on_one_screen() {
        let text = show(&both(), false);
        for part in [
            "publisher  http://p\n",
            "  events       120,000 (0 to 119,999)\n",
            "  holds        1.5 KiB, 120,000 keys\n",
            "  receivers    shop  connected, acked 119,999, lag none\n",
            "receiver   http://r\n",
            "  committed    119,999\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(!text.contains('\x1b'));
        assert!(show(&both(), true).contains("\x1b[32mLIVE"));
    }

    #[test]
    fn an_end_that_is_down_is_said_beside_the_other() {
        let down = Both { receiver: Err("UNAVAILABLE: refused".into()), ..both() };
        let text = show(&down, false);
        assert!(text.contains("acked 119,999"), "{text}");
        assert!(
            text.contains("  state        DOWN\n               UNAVAILABLE: refused\n"),
            "{text}"
        );
    }

    #[test]
    fn a_receiver_that_is_in_danger_or_holds_is_told_so() {
        let receiver = |change: fn(&mut ReceiverPosition)| {
            let mut receiver = ReceiverPosition {
                name: "shop".into(),
                lag_events: Some(5),
                headroom_events: Some(1_000),
                ..Default::default()
            };
            change(&mut receiver);
            position(&receiver)
        };
        let known = "shop  away, acked nothing, lag 5 events, ";
        assert_eq!(receiver(|_| {}), format!("{known}headroom 1,000"));
        let evicted = receiver(|receiver| receiver.eviction_seconds = Some(3_661.7));
        assert_eq!(evicted, format!("{known}headroom 1,000 (3,661 s)"));
        let gone = receiver(|receiver| receiver.needs_resync = true);
        assert_eq!(gone, format!("{known}needs a resync"));
        let holds = receiver(|receiver| receiver.holds_floor = true);
        assert_eq!(holds, format!("{known}headroom 1,000, holds the oldest"));
    }

    #[test]
    fn a_failure_says_which_event_where_and_how_often() {
        let failure = Failure {
            reason: "EVENT_FAILED".into(),
            message: "Event 1500 failed: no.".into(),
            sequence: Some(1_500),
            key: "k".into(),
            r#type: "a.b".into(),
            subject: "x".into(),
            attempts: Some(3),
            statement: "on[1].sql[0]".into(),
            class: "CONSTRAINT".into(),
            ..Default::default()
        };
        let lines = of_failure(&failure).into_iter().map(|row| row.value).collect::<Vec<_>>();
        let expected = [
            "EVENT_FAILED: Event 1500 failed: no.",
            "event 1,500, key k, a.b of \"x\"",
            "CONSTRAINT at on[1].sql[0]",
            "3 attempts, no other by itself",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn an_extent_tells_empty_from_truncated() {
        let cases = [
            (0, 0, "none yet"),
            (5, 5, "none retained, next is 5"),
            (5, 1_005, "1,000 (5 to 1,004)"),
        ];
        for (floor, next, text) in cases {
            assert_eq!(extent(Some(floor), Some(next)), text);
        }
    }
}
