//! Medians of what was measured, and how they compare. Pure.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use super::{
    PAYLOADS, Plan,
    figure::{Figure, Stage},
};
use crate::numbers::{counted, grouped};

/// Names of the columns that are there for each process.
const PROCESSES: [&str; 3] = ["publisher", "receiver", "client"];

/// A median, with the least and the most of all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// The medians of one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Which.
    pub stage: Stage,
    /// Events per second.
    pub speed: Spread,
    /// Times the events per second of the stage it is compared with, of one round each.
    pub ratio: Option<Spread>,
    /// Microseconds of processor time an event, for each process that took part.
    pub cpu: [Option<f64>; 3],
    /// Most memory, in bytes, likewise, of all rounds.
    pub memory: [Option<u64>; 3],
    /// Processors at work on average.
    pub processors: f64,
    /// Medians of the rounds' median and 99th percentile, in microseconds.
    pub latency: Option<(Spread, Spread)>,
}

/// All stages.
#[derive(Debug)]
pub struct Table {
    machine: String,
    turn: Duration,
    events: u64,
    rounds: usize,
    rows: Vec<Row>,
}

impl Table {
    /// Out of the figures of each round, which are of the same stages in the same order.
    pub fn new(machine: String, plan: &Plan, rounds: &[Vec<Figure>]) -> Self {
        let stages = rounds.first().into_iter().flatten().map(|figure| &figure.stage);
        let mut rows: Vec<Row> = stages.filter_map(|stage| row(stage, rounds)).collect();
        rows.sort_by_key(|row| (row.stage.payload, row.stage.group));
        let Plan { turn, events, .. } = *plan;
        Table { machine, turn, events, rounds: rounds.len(), rows }
    }

    /// What it was measured on.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The stages, by payload and group.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "machine": self.machine,
            "rounds": self.rounds,
            "turnMillis": self.turn.as_millis() as u64,
            "retainedEvents": self.events,
            "stages": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

fn row(stage: &Stage, rounds: &[Vec<Figure>]) -> Option<Row> {
    let own: Vec<&Figure> = rounds.iter().filter_map(|round| find(round, stage)).collect();
    let ratios = rounds.iter().filter_map(|round| {
        let base = compared(round, stage)?;
        Some(find(round, stage)?.events_per_second() / base.events_per_second())
    });
    let usages =
        |process: usize| own.iter().filter_map(move |f| Some((f, f.spent.each()[process]?)));
    let micros = |of: fn((Duration, Duration)) -> Duration| {
        Spread::of(own.iter().filter_map(|figure| Some(of(figure.latency?).as_secs_f64() * 1e6)))
    };
    Some(Row {
        stage: stage.clone(),
        speed: Spread::of(own.iter().map(|figure| figure.events_per_second()))?,
        ratio: Spread::of(ratios),
        cpu: [0, 1, 2].map(|process| {
            Some(
                Spread::of(usages(process).map(|(figure, usage)| figure.micros(usage.cpu)))?.median,
            )
        }),
        memory: [0, 1, 2].map(|process| usages(process).map(|(_, usage)| usage.peak_bytes).max()),
        processors: Spread::of(own.iter().map(|figure| figure.processors()))?.median,
        latency: micros(|latency| latency.0).zip(micros(|latency| latency.1)),
    })
}

fn find<'a>(round: &'a [Figure], stage: &Stage) -> Option<&'a Figure> {
    round.iter().find(|figure| figure.stage == *stage)
}

/// The figure that a stage is compared with: of the same payload, or of none.
fn compared<'a>(round: &'a [Figure], stage: &Stage) -> Option<&'a Figure> {
    let name = stage.against.as_ref()?;
    round.iter().find(|figure| {
        figure.stage.name == *name
            && (figure.stage.payload.is_none() || figure.stage.payload == stage.payload)
    })
}

impl Spread {
    /// Of such values, none of none. The median is the upper one of the two in the
    /// middle, where there are two.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        Some(Spread { median, least: *values.first()?, most: *values.last()? })
    }

    /// For programs, with so many digits behind the point.
    pub fn json(self, digits: i32) -> Value {
        let scale = 10f64.powi(digits);
        let [median, least, most] =
            [self.median, self.least, self.most].map(|value| (value * scale).round() / scale);
        json!({"median": median, "least": least, "most": most})
    }
}

impl Row {
    fn json(&self) -> Value {
        let each = |values: [Option<Value>; 3]| -> Value {
            let named = PROCESSES.iter().zip(values);
            named.filter_map(|(name, value)| Some(((*name).to_owned(), value?))).collect()
        };
        json!({
            "group": self.stage.group.name(),
            "stage": self.stage.name,
            "payloadBytes": self.stage.payload,
            "eventsPerSecond": self.speed.json(0),
            "ratio": self.ratio.map(|ratio| ratio.json(3)),
            "ratioTo": self.stage.against,
            "cpuMicros": each(self.cpu.map(|cpu| Some(json!((cpu? * 100.0).round() / 100.0)))),
            "peakMemoryBytes": each(self.memory.map(|bytes| Some(json!(bytes?)))),
            "processors": (self.processors * 100.0).round() / 100.0,
            "p50Micros": self.latency.map(|(p50, _)| p50.json(0)),
            "p99Micros": self.latency.map(|(_, p99)| p99.json(0)),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { machine, turn, events, rounds, rows } = self;
        writeln!(to, "{machine}")?;
        writeln!(
            to,
            "medians of {}, turns of {turn:?}; {} events and keys retained, the log filled anew in \
             each round",
            counted(*rounds as u64, "round"),
            grouped(events.cast_signed())
        )?;
        for payload in [None].into_iter().chain(PAYLOADS.map(Some)) {
            let of_payload: Vec<_> = rows.iter().filter(|r| r.stage.payload == payload).collect();
            if of_payload.is_empty() {
                continue;
            }
            let about = payload.map_or_else(
                || "any payload".to_owned(),
                |bytes| format!("payloads of {} bytes", grouped(bytes as i64)),
            );
            writeln!(
                to,
                "\n{about:<42}{:>10}{:>24}{:>8}{:>7}{:>23}{:>21}",
                "events/s", "least ... most", "ratio", "cores", "CPU us an event", "peak MiB"
            )?;
            let [publisher, receiver, client] = ["publ", "recv", "client"];
            writeln!(
                to,
                "{:91}{publisher:>9}{receiver:>7}{client:>7}{publisher:>7}{receiver:>7}{client:>7}",
                ""
            )?;
            let mut group = None;
            for row in of_payload {
                if group.replace(row.stage.group) != Some(row.stage.group) {
                    writeln!(to, " {}", row.stage.group.name())?;
                }
                writeln!(to, "{row}")?;
            }
        }
        write!(
            to,
            "\nratio: to the limit or stage that --json names, within one round; CPU and peak \
             memory of publisher, receiver, client, or of what stands in for them"
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |value: f64| grouped(value.round() as i64);
        let range = format!("{} ... {}", whole(self.speed.least), whole(self.speed.most));
        let ratio = self.ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median));
        write!(
            to,
            "  {:<40}{:>10}{range:>24}{ratio:>8}{:>7.1}",
            self.stage.name,
            whole(self.speed.median),
            self.processors
        )?;
        for (cpu, width) in self.cpu.iter().zip([9, 7, 7]) {
            let cpu = cpu.map_or_else(String::new, |cpu| format!("{cpu:.1}"));
            write!(to, "{cpu:>width$}")?;
        }
        for (memory, width) in self.memory.iter().zip([7, 7, 7]) {
            let mib = memory.map_or_else(String::new, |bytes| (bytes >> 20).to_string());
            write!(to, "{mib:>width$}")?;
        }
        if let Some((p50, p99)) = self.latency {
            let (p50, p99) = (whole(p50.median), whole(p99.median));
            write!(to, "  p50 {p50} us, p99 {p99} us")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Group, Spent, Usage};

    fn figure(stage: &Stage, events: u64) -> Figure {
        let usage = |cpu| Some(Usage { cpu: Duration::from_millis(cpu), peak_bytes: 64 << 20 });
        Figure {
            stage: stage.clone(),
            events,
            elapsed: Duration::from_secs(2),
            spent: Spent { publisher: usage(1_000), receiver: None, client: usage(500) },
            latency: Some((Duration::from_micros(400), Duration::from_micros(900))),
        }
    }

    fn table() -> Table {
        let limit = Stage::new(Group::Limits, "limit", None);
        let stage = Stage::new(Group::Live, "stage", Some(100)).against("limit");
        let round = |base, own| vec![figure(&stage, own), figure(&limit, base)];
        // The machine was half as fast in the second round: the ratio does not show it.
        let rounds = [round(200_000, 140_000), round(100_000, 70_000), round(200_000, 160_000)];
        let plan = Plan {
            groups: Vec::new(),
            events: 1_000,
            turn: Duration::from_secs(2),
            warm_up: Duration::ZERO,
        };
        Table::new("a machine".to_owned(), &plan, &rounds)
    }

    #[test]
    fn figures_are_medians_and_ratios_are_those_of_a_round() {
        let table = table();
        let [limit, stage] = &table.rows[..] else { panic!("{table:?}") };
        assert_eq!(limit.ratio, None);
        assert_eq!(stage.speed, Spread { median: 70_000.0, least: 35_000.0, most: 80_000.0 });
        assert_eq!(stage.ratio, Some(Spread { median: 0.7, least: 0.7, most: 0.8 }));
        assert!((stage.cpu[0].expect("taken part") - 1e6 / 140_000.0).abs() < 1e-9);
        assert_eq!((stage.cpu[1], stage.memory[2]), (None, Some(64 << 20)));
        assert!((stage.processors - 0.75).abs() < 1e-9);
    }

    #[test]
    fn both_forms_tell_the_same() {
        let table = table();
        let text = table.to_string();
        for part in ["35,000 ... 80,000", "0.70", "p50 400 us, p99 900 us", " live\n  stage"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        let json = table.json();
        let stage = &json["stages"][1];
        assert_eq!(stage["eventsPerSecond"]["median"], 70_000.0);
        assert_eq!((&stage["ratio"]["median"], &stage["ratioTo"]), (&json!(0.7), &json!("limit")));
        assert_eq!(stage["cpuMicros"].as_object().map(serde_json::Map::len), Some(2));
        assert_eq!(stage["p99Micros"]["median"], 900.0);
    }
}
