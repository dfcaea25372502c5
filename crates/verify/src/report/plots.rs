//! Timelines of a run.

use tenbin_loadgen::report::{Axis, Drawing, Figure, Ink, Mark, Plot, Scale, Stroke, Zone};

use super::Run;
use crate::judge::windows::Phase;
use crate::results::{Happening, Row};

/// Both throughputs and the latency over time, with the times of faults shaded and their events marked.
pub(super) fn timelines(run: &Run, prefix: &str) -> Vec<Figure> {
    if run.seconds.is_empty() {
        return Vec::new();
    }
    let end = run.seconds.len() as f64;
    let x = || Axis::new("seconds after the warm-up", Scale::Linear { from: 0.0, to: end });
    let zones = zones(run, end);
    let middle = |value: fn(&Row) -> Option<f64>| {
        let point = |(second, row): (usize, &Row)| (second as f64 + 0.5, value(row).unwrap_or(f64::NAN));
        run.seconds.iter().enumerate().map(point).collect::<Vec<_>>()
    };
    let line = |name: &str, number: usize, points: Vec<(f64, f64)>| {
        Mark::line(name, Ink::Colour(number), points, Stroke::of(number))
    };
    let (published, received) = (middle(|row| Some(row.published)), middle(|row| Some(row.received)));
    let most = published.iter().chain(&received).map(|(_, value)| *value).fold(0.0, f64::max);
    let throughput = Plot {
        x: x(),
        y: Axis::new("messages a second", Scale::from_zero(most)),
        marks: vec![
            line("published (acknowledged)", 0, published),
            line("received", 1, received),
            events(run, 0.0, most),
        ],
        zones: zones.clone(),
    };
    let caption =
        "Faults are shaded from their actual begin to the end of their undo; dotted lines mark each of these.";
    let mut figures =
        vec![Figure::new(&format!("{prefix}-throughput"), "Throughput", caption, Drawing::Plot(throughput))];
    let (p50, p99) = (middle(|row| row.p50_ms), middle(|row| row.p99_ms));
    let max = middle(|row| row.max_ms);
    let known = || p50.iter().chain(&max).map(|(_, value)| *value).filter(|value| !value.is_nan());
    let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
    if most > 0.0 {
        let scale = Scale::log(least.max(0.001), most);
        let plot = Plot {
            x: x(),
            y: Axis::new("latency, ms", scale),
            marks: vec![
                line("median", 0, p50),
                line("p99", 1, p99),
                line("greatest", 2, max),
                events(run, least, most),
            ],
            zones,
        };
        let caption = "From the due time of a message to its arrival, by the second of the arrival.";
        figures.push(Figure::new(&format!("{prefix}-latency"), "Latency", caption, Drawing::Plot(plot)));
    }
    figures
}

/// A zone for each stretch in which one action alone is in effect, or several together.
pub(super) fn zones(run: &Run, end: f64) -> Vec<Zone> {
    let mut edges: Vec<f64> = Vec::new();
    let during: Vec<(f64, f64, &str)> = run
        .verdict
        .phases
        .iter()
        .filter_map(|time| match &time.phase {
            Phase::During(names) if names.len() == 1 => Some((time.from.secs(), time.to.secs().min(end), &*names[0])),
            _ => None,
        })
        .collect();
    edges.extend(during.iter().flat_map(|(from, to, _)| [*from, *to]));
    edges.sort_by(f64::total_cmp);
    edges.dedup();
    let zone = |pair: &[f64]| {
        let active = during.iter().filter(|(from, to, _)| *from <= pair[0] && pair[1] <= *to);
        let name = active.map(|(.., name)| *name).collect::<Vec<_>>().join(" + ");
        (!name.is_empty()).then(|| Zone { from: pair[0], to: pair[1], name })
    };
    edges.windows(2).filter_map(zone).collect()
}

/// An upright line for each begin and undo.
fn events(run: &Run, from: f64, to: f64) -> Mark {
    let is_shown = |happening: &Happening| matches!(happening, Happening::Begun | Happening::Undone);
    let shown = run.events.iter().filter(|event| is_shown(&event.happening));
    let times = shown.filter_map(|event| Some(event.at?.secs()));
    let points = times.flat_map(|at| [(at, from), (at, to), (at, f64::NAN)]).collect();
    Mark::line("begin and undo of a fault", Ink::Neutral, points, Stroke::Dotted)
}
