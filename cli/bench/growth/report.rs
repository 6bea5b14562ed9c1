//! What growth costs: medians of both sizes, and their ratios. Pure.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use crate::{bench::table::Spread, numbers};

/// One turn of one log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Step {
    /// From the first event published to the last receipt.
    pub publish: Duration,
    /// Processor time of the publisher within it.
    pub publish_cpu: Duration,
    /// From the start of the receiver to its last commit.
    pub catch_up: Duration,
    /// Processor time of the receiver within it.
    pub catch_up_cpu: Duration,
    /// From the start of the publisher until it listens.
    pub restart: Duration,
    /// The same after it was killed.
    pub after_kill: Duration,
    /// Most memory of the publisher so far, in bytes.
    pub publisher_peak: u64,
    /// The same of the receiver.
    pub receiver_peak: u64,
}

/// Both sizes.
#[derive(Debug)]
pub struct Report {
    machine: String,
    settings: &'static str,
    step: u64,
    sizes: [u64; 2],
    steps: [Vec<Step>; 2],
}

/// What is told of a step: its name, its value, and whether a ratio says something.
struct Line {
    name: &'static str,
    value: fn(&Step, u64) -> f64,
    compared: bool,
}

fn micros(time: Duration, events: u64) -> f64 {
    time.as_secs_f64() * 1e6 / events.max(1) as f64
}

const LINES: [Line; 8] = [
    Line {
        name: "publish, us an event",
        value: |step, events| micros(step.publish, events),
        compared: true,
    },
    Line {
        name: "publish, CPU us an event, publisher",
        value: |step, events| micros(step.publish_cpu, events),
        compared: true,
    },
    Line {
        name: "catch-up, us an event",
        value: |step, events| micros(step.catch_up, events),
        compared: true,
    },
    Line {
        name: "catch-up, CPU us an event, receiver",
        value: |step, events| micros(step.catch_up_cpu, events),
        compared: true,
    },
    Line {
        name: "restart of the publisher, ms",
        value: |step, _| step.restart.as_secs_f64() * 1e3,
        compared: false,
    },
    Line {
        name: "the same after kill -9, ms",
        value: |step, _| step.after_kill.as_secs_f64() * 1e3,
        compared: false,
    },
    Line {
        name: "peak memory of the publisher, MiB",
        value: |step, _| step.publisher_peak as f64 / f64::from(1 << 20),
        compared: false,
    },
    Line {
        name: "peak memory of the receiver, MiB",
        value: |step, _| step.receiver_peak as f64 / f64::from(1 << 20),
        compared: false,
    },
];

impl Report {
    /// Out of the steps of the small and of the large log.
    pub fn new(
        machine: String,
        settings: &'static str,
        step: u64,
        sizes: [u64; 2],
        steps: [Vec<Step>; 2],
    ) -> Self {
        Report { machine, settings, step, sizes, steps }
    }

    fn value(&self, line: &Line, size: usize) -> Option<Spread> {
        Spread::of(self.steps[size].iter().map(|step| (line.value)(step, self.step)))
    }

    /// Large over small: the median of the ratios of each turn.
    fn ratio(&self, line: &Line) -> Option<Spread> {
        let [few, many] = &self.steps;
        let value = |step: &Step| (line.value)(step, self.step);
        let ratios = few.iter().zip(many).map(|(few, many)| value(many) / value(few));
        Spread::of(ratios.filter(|ratio| ratio.is_finite())).filter(|_| line.compared)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let lines = LINES.iter().map(|line| {
            let [few, many] = [0, 1].map(|size| self.value(line, size).map(|value| value.json(2)));
            let ratio = self.ratio(line).map(|ratio| ratio.json(3));
            json!({"name": line.name, "few": few, "many": many, "ratio": ratio})
        });
        json!({
            "machine": self.machine,
            "settings": self.settings,
            "retainedEvents": self.sizes,
            "eventsOfAStep": self.step,
            "growth": lines.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [few, many] = self.sizes.map(|size| numbers::grouped(size.cast_signed()));
        let (steps, step) = (self.steps[0].len(), numbers::grouped(self.step.cast_signed()));
        writeln!(to, "{}", self.machine)?;
        writeln!(
            to,
            "payloads of 100 bytes; medians of {steps} steps, each of which adds {step} events to both logs"
        )?;
        writeln!(to, "not the default configuration, which would drop the oldest:")?;
        for setting in self.settings.lines() {
            writeln!(to, "    {setting}")?;
        }
        write!(to, "\n{:<38}{few:>14}{many:>14}{:>9}", "events and keys retained", "ratio")?;
        for line in &LINES {
            let [few, many] = [0, 1].map(|size| self.value(line, size).map_or(0.0, |v| v.median));
            let ratio = self.ratio(line).map_or_else(String::new, |r| format!("{:.2}", r.median));
            write!(to, "\n{:<38}{few:>14.2}{many:>14.2}{ratio:>9}", line.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_grown_is_told_in_both_forms() {
        let step = |millis| Step {
            publish: Duration::from_millis(millis),
            publisher_peak: 64 << 20,
            ..Step::default()
        };
        let steps = [vec![step(100), step(200)], vec![step(110), step(220)]];
        let report = Report::new("a machine".into(), "max_events = 9\n", 1_000, [10, 1_000], steps);
        let text = report.to_string();
        let line = text.lines().find(|line| line.starts_with("publish, us")).expect("a line");
        assert!(line.ends_with("200.00        220.00     1.10"), "{line}");
        assert!(text.contains("    max_events = 9"), "{text}");
        let json = report.json();
        assert_eq!(json["growth"][0]["ratio"]["median"], 1.1);
        assert_eq!(json["growth"][6]["many"]["median"], 64.0);
        assert!(json["growth"][6]["ratio"].is_null());
    }
}
