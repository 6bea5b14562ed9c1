//! What was measured: medians, and how they compare. Pure.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use super::{BASE, load::Way};
use crate::numbers::grouped;

/// One turn of one way.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Events with a receipt.
    pub events: u64,
    /// Within this time.
    pub elapsed: Duration,
    /// Processor time of the publisher.
    pub publisher_cpu: Duration,
    /// Processor time of this process.
    pub client_cpu: Duration,
}

/// The medians of one way.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    way: Way,
    events_per_second: f64,
    /// Least and most of all rounds.
    range: (f64, f64),
    /// Microseconds an event.
    publisher_cpu: f64,
    client_cpu: f64,
    /// Times the events per second of [`BASE`]: the median of each round's own ratio.
    ratio: f64,
}

/// All ways.
#[derive(Debug)]
pub struct Table {
    machine: String,
    turn: Duration,
    rounds: usize,
    rows: Vec<Row>,
}

impl Table {
    /// Out of the turns of each round, which are the same ways in the same order.
    pub fn new(machine: String, turn: Duration, rounds: &[Vec<(Way, Turn)>]) -> Self {
        let ways = rounds.first().map(|turns| turns.iter().map(|(way, _)| *way));
        let rows = ways.into_iter().flatten().map(|way| row(way, rounds)).collect();
        Table { machine, turn, rounds: rounds.len(), rows }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "way": row.way.to_string(),
                    "inFlight": row.way.in_flight,
                    "eventsPerSecond": row.events_per_second.round(),
                    "least": row.range.0.round(),
                    "most": row.range.1.round(),
                    "publisherCpuMicros": hundredths(row.publisher_cpu),
                    "clientCpuMicros": hundredths(row.client_cpu),
                    "ratio": hundredths(row.ratio),
                })
            })
            .collect();
        json!({
            "machine": self.machine,
            "rounds": self.rounds,
            "turnMillis": self.turn.as_millis() as u64,
            "ratioTo": BASE.to_string(),
            "ways": rows,
        })
    }
}

fn row(way: Way, rounds: &[Vec<(Way, Turn)>]) -> Row {
    let turn = |round: &[(Way, Turn)], wanted: Way| {
        round.iter().find(|(way, _)| *way == wanted).map(|(_, turn)| *turn)
    };
    let turns: Vec<Turn> = rounds.iter().filter_map(|round| turn(round, way)).collect();
    let speeds: Vec<f64> = turns.iter().map(Turn::events_per_second).collect();
    let ratios = rounds.iter().filter_map(|round| {
        let (own, base) = (turn(round, way)?, turn(round, BASE)?);
        Some(own.events_per_second() / base.events_per_second())
    });
    Row {
        way,
        range: (
            speeds.iter().copied().fold(f64::INFINITY, f64::min),
            speeds.iter().copied().fold(0.0, f64::max),
        ),
        events_per_second: median(speeds),
        publisher_cpu: median(turns.iter().map(|turn| turn.micros(turn.publisher_cpu)).collect()),
        client_cpu: median(turns.iter().map(|turn| turn.micros(turn.client_cpu)).collect()),
        ratio: median(ratios.collect()),
    }
}

impl Turn {
    fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }

    /// Of so much time, what one event has taken.
    fn micros(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.events.max(1) as f64
    }
}

/// The upper one of the two in the middle, where there are two; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl fmt::Display for Table {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { machine, turn, rounds, rows } = self;
        writeln!(to, "{machine}")?;
        writeln!(to, "payloads of 100 bytes; medians of {rounds} rounds of {turn:?} each")?;
        writeln!(to)?;
        writeln!(
            to,
            "{:<29}{:>10}{:>22}{:>10}{:>22}",
            "", "events/s", "least ... most", "ratio", "CPU us an event"
        )?;
        write!(to, "{:<29}{:>10}{:>22}{:>10}{:>12}{:>10}", "", "", "", "", "publisher", "client")?;
        for row in rows {
            let whole = |value: f64| grouped(value.round() as i64);
            let range = format!("{} ... {}", whole(row.range.0), whole(row.range.1));
            write!(
                to,
                "\n{:<29}{:>10}{range:>22}{:>10}{:>12.1}{:>10.1}",
                row.way.to_string(),
                whole(row.events_per_second),
                format!("{:.2}", row.ratio),
                row.publisher_cpu,
                row.client_cpu,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::Load;

    const STREAM: Way = Way { load: Load::Stream, in_flight: 1024 };

    fn turn(events: u64) -> Turn {
        Turn {
            events,
            elapsed: Duration::from_secs(2),
            publisher_cpu: Duration::from_secs(1),
            client_cpu: Duration::from_millis(500),
        }
    }

    fn table() -> Table {
        let round = |base, stream| vec![(BASE, turn(base)), (STREAM, turn(stream))];
        // The machine was half as fast in the second round: the ratio does not show it.
        let rounds = [round(20_000, 140_000), round(10_000, 70_000), round(20_000, 160_000)];
        Table::new("a machine".to_owned(), Duration::from_secs(2), &rounds)
    }

    #[test]
    fn figures_are_medians_and_ratios_are_those_of_a_round() {
        let table = table();
        let stream = table.rows[1];
        assert_eq!((stream.events_per_second, stream.ratio), (70_000.0, 7.0));
        assert_eq!(stream.range, (35_000.0, 80_000.0));
        assert!((table.rows[0].publisher_cpu - 50.0).abs() < 1e-9);
        assert!((table.rows[0].client_cpu - 25.0).abs() < 1e-9);
    }

    #[test]
    fn both_forms_tell_the_same() {
        let table = table();
        let text = table.to_string();
        assert!(text.contains("PublishStream, 1024 in flight"), "{text}");
        assert!(text.contains("35,000 ... 80,000"), "{text}");
        let json = table.json();
        assert_eq!(json["ways"][1]["eventsPerSecond"], 70_000.0);
        assert_eq!(json["ways"][1]["ratio"], 7.0);
        assert_eq!(json["ratioTo"], "Publish, 128 callers");
    }
}
