//! The table as a plot: bars of events per second on a logarithmic scale, one for
//! each size of payload. Pure.

use std::fmt::Write as _;

use super::{figure::Group, table::Row};
use crate::numbers::grouped;

const WIDTH: f64 = 860.0;
/// Where bars start, and where the longest ends.
const LEFT: f64 = 290.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 64.0;
const BAR: f64 = 10.0;
const GAP: f64 = 8.0;
/// The plot begins at this many events per second.
const LEAST: f64 = 100.0;
/// By the size of payload: none, the smaller, the larger.
const CLASSES: [&str; 3] = ["any", "small", "large"];
/// Colours that can be read on white and on black.
const STYLE: &str = "text{font:12px sans-serif;fill:#24292f}.group{font-weight:bold}\
.value{font-size:10px}.grid{stroke:#8c959f;stroke-opacity:.35}\
.any{fill:#8250df}.small{fill:#0969da}.large{fill:#1a7f37}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.any{fill:#a371f7}\
.small{fill:#4493f8}.large{fill:#3fb950}}";

/// Bars of one stage, one for each size of payload that it was measured with.
struct Stage<'a> {
    group: Group,
    name: &'a str,
    rows: Vec<&'a Row>,
}

/// An SVG file. Paced stages are left out: how fast they are is given.
pub fn svg(machine: &str, rows: &[Row]) -> String {
    let stages = stages(rows);
    let payloads = payloads(rows);
    let most = rows.iter().map(|row| row.speed.median).fold(LEAST * 10.0, f64::max);
    let decades = (most / LEAST).log10().ceil();
    let x = |value: f64| {
        LEFT + (RIGHT - LEFT) * ((value.max(LEAST) / LEAST).log10() / decades).clamp(0.0, 1.0)
    };
    let (mut body, mut y, mut group) = (String::new(), TOP, None);
    for Stage { group: own, name, rows } in &stages {
        if group.replace(*own) != Some(*own) {
            y += GAP;
            text(&mut body, 10.0, y + 10.0, "group", own.name());
            y += 18.0;
        }
        let height = BAR * rows.len() as f64;
        text(&mut body, 20.0, y + height / 2.0 + 4.0, "name", name);
        for row in rows {
            let class = class(&payloads, row.stage.payload);
            let end = x(row.speed.median);
            let _ = write!(
                body,
                r#"<rect class="{class}" x="{LEFT}" y="{y:.0}" width="{:.1}" height="{:.0}"/>"#,
                end - LEFT,
                BAR - 1.0
            );
            text(&mut body, end + 5.0, y + 8.5, "value", &value(row));
            y += BAR;
        }
        y += GAP;
    }
    let mut grid = String::new();
    for decade in 0..=decades as i32 {
        let at = LEAST * 10f64.powi(decade);
        let _ = write!(
            grid,
            r#"<line class="grid" x1="{0:.1}" x2="{0:.1}" y1="{TOP}" y2="{y:.0}"/>"#,
            x(at)
        );
        text(&mut grid, x(at) - 8.0, TOP - 5.0, "value", &grouped(at as i64));
    }
    let mut head = String::new();
    text(&mut head, 10.0, 18.0, "group", "events per second, and times the limit");
    text(&mut head, 10.0, 36.0, "name", machine);
    for (place, payload) in payloads.iter().enumerate() {
        let (class, left) = (class(&payloads, *payload), 460.0 + 130.0 * place as f64);
        let _ = write!(head, r#"<rect class="{class}" x="{left}" y="9" width="10" height="10"/>"#);
        let about = payload.map_or_else(
            || "any payload".to_owned(),
            |bytes| format!("{} bytes", grouped(bytes as i64)),
        );
        text(&mut head, left + 15.0, 18.0, "name", &about);
    }
    let height = y + 10.0;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="events per second of each stage"><style>{STYLE}</style>{head}{grid}{body}</svg>
"#
    )
}

/// The same stage with all payloads, in the order of the first.
fn stages(rows: &[Row]) -> Vec<Stage<'_>> {
    let mut stages: Vec<Stage<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.stage.group != Group::Paced) {
        let (group, name) = (row.stage.group, row.stage.name.as_str());
        match stages.iter_mut().find(|stage| (stage.group, stage.name) == (group, name)) {
            Some(stage) => stage.rows.push(row),
            None => stages.push(Stage { group, name, rows: vec![row] }),
        }
    }
    stages.sort_by_key(|stage| stage.group);
    stages
}

fn payloads(rows: &[Row]) -> Vec<Option<usize>> {
    let mut payloads: Vec<_> = rows.iter().map(|row| row.stage.payload).collect();
    payloads.sort();
    payloads.dedup();
    payloads
}

fn class(payloads: &[Option<usize>], payload: Option<usize>) -> &'static str {
    let sized = payloads.iter().flatten().position(|size| Some(*size) == payload);
    let place = sized.map_or(0, |place| place + 1);
    CLASSES[place.min(CLASSES.len() - 1)]
}

fn value(row: &Row) -> String {
    let speed = grouped(row.speed.median.round() as i64);
    row.ratio.map_or_else(|| speed.clone(), |ratio| format!("{speed} ({:.2})", ratio.median))
}

fn text(to: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(to, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{words}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{figure, table::Spread};

    fn row(group: Group, name: &str, payload: Option<usize>, speed: f64) -> Row {
        let spread = |median| Spread { median, least: median, most: median };
        Row {
            stage: figure::Stage::new(group, name, payload),
            speed: spread(speed),
            ratio: payload.map(|_| spread(0.5)),
            cpu: [None; 3],
            memory: [None; 3],
            processors: 1.0,
            latency: None,
        }
    }

    #[test]
    fn each_stage_has_a_bar_for_each_payload() {
        let rows = [
            row(Group::Limits, "a <limit>", None, 1_000.0),
            row(Group::Live, "live", Some(100), 100_000.0),
            row(Group::Paced, "paced", Some(100), 500.0),
            row(Group::Live, "live", Some(1_024), 10_000.0),
        ];
        let svg = svg("a & b", &rows);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        for part in ["a &amp; b", "a &lt;limit>", "100,000 (0.50)", "1,024 bytes"] {
            assert!(svg.contains(part), "{part} is missing in: {svg}");
        }
        assert!(!svg.contains(">paced<"), "{svg}");
        // Logarithmic: of three decades, from 100 on.
        for width in ["136.7", "410.0", "273.3"] {
            assert!(svg.contains(&format!(r#"width="{width}""#)), "{width}: {svg}");
        }
    }
}
