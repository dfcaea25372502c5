//! Report on several runs side by side: brokers, policies or patterns.

use std::path::Path;

use super::chart::{Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke};
use super::html::{Cell, Page, Table, Tone};
use super::number::{count, short};
use super::series::{LEAST_MS, plot};
use crate::LoadgenError;
use crate::run::{Latency, Outcome};
use crate::statistics::{Summary, median};

/// One run of a comparison.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// The broker, policy or pattern. Repetitions have the same name; the report shows their medians.
    pub name: String,
    /// Directory of the run's own report, relative to that of the comparison, if it has one.
    pub directory: Option<String>,
    /// Outcome of the run.
    pub outcome: &'a Outcome,
}

/// Writes `report.html`, with the figures of all `runs` side by side, and an SVG file for each figure.
///
/// Creates the directory if needed.
///
/// # Errors
///
/// A file cannot be written.
pub fn write(directory: &Path, title: &str, runs: &[Compared<'_>]) -> Result<(), LoadgenError> {
    std::fs::create_dir_all(directory).map_err(|source| LoadgenError::Write { path: directory.to_owned(), source })?;
    page(title, runs).write(directory)
}

fn page(title: &str, runs: &[Compared<'_>]) -> Page {
    let names = names(runs);
    let repeated = runs.len() / names.len().max(1);
    let mut page = Page::new(title, &format!("{} runs of {}", count(runs.len() as u64), names.join(", ")));
    let is_whole = |outcome: &Outcome| outcome.verdict.lost == 0 && outcome.untaken().next().is_none();
    let is_faulty = |run: &&Compared<'_>| !is_whole(run.outcome) || run.outcome.verdict.duplicated > 0;
    let faults = runs.iter().filter(is_faulty).count();
    match faults {
        0 => page.banner(Tone::Good, "✓ Nothing lost, nothing duplicated in any of them."),
        _ => page.banner(Tone::Bad, &format!("✗ Messages lost or duplicated in {faults} of {} runs.", runs.len())),
    }
    page.table(&table(runs, &names));
    if repeated > 1 {
        page.paragraph("Medians of the repetitions; lost and duplicated are sums.");
    }
    page.heading("Figures");
    page.figure(bars(runs, &names, "throughput", "Throughput", "messages received a second", |outcome| {
        Some(outcome.received.average_per_second)
    }));
    page.figure(bars(runs, &names, "latency-median", "Latency, median", "latency p50, ms", ms(|latency| latency.p50)));
    page.figure(bars(runs, &names, "latency-p99", "Latency, p99", "latency p99, ms", ms(|latency| latency.p99)));
    if runs.iter().any(|run| !run.outcome.broker_usage.is_empty()) {
        let title = "What the brokers take";
        page.figure(bars(runs, &names, "broker-cpu", title, "deliveries a processor second", per_cpu_second));
    }
    distributions(runs, &names).into_iter().for_each(|figure| page.figure(figure));

    let own: Vec<_> = runs.iter().filter_map(|run| Some((run.directory.clone()?, run.name.clone()))).collect();
    if !own.is_empty() {
        page.heading("Each run");
        let link =
            |(directory, name): (String, String)| (format!("{directory}/report.html"), format!("{name}: {directory}"));
        page.links(&own.into_iter().map(link).collect::<Vec<_>>());
    }
    page
}

/// Each name once, in the order of first appearance.
fn names(runs: &[Compared<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        if !names.contains(&run.name) {
            names.push(run.name.clone());
        }
    }
    names
}

fn table(runs: &[Compared<'_>], names: &[String]) -> Table {
    let row = |name: &String| {
        let middle = |figure: &dyn Fn(&Outcome) -> Option<f64>| {
            let value = median(&values(runs, name, figure));
            Cell::from(value.map_or("–".to_owned(), short))
        };
        let sum = |figure: fn(&Outcome) -> u64| {
            let sum = of(runs, name).map(|run| figure(run.outcome)).sum::<u64>();
            Cell::toned(count(sum), if sum > 0 { Tone::Bad } else { Tone::Plain })
        };
        vec![
            name.clone().into(),
            middle(&|outcome| Some(outcome.published.average_per_second)),
            middle(&|outcome| Some(outcome.received.average_per_second)),
            middle(&ms(|latency| latency.p50)),
            middle(&ms(|latency| latency.p99)),
            middle(&ms(|latency| latency.max)),
            sum(|outcome| outcome.verdict.lost),
            sum(|outcome| outcome.verdict.duplicated),
            middle(&per_cpu_second),
        ]
    };
    let head = [
        "",
        "published a second",
        "received a second",
        "p50, ms",
        "p99, ms",
        "max, ms",
        "lost",
        "duplicated",
        "deliveries a processor second",
    ];
    Table { head: head.map(str::to_owned).to_vec(), rows: names.iter().map(row).collect(), text_columns: 1 }
}

fn bars(
    runs: &[Compared<'_>],
    names: &[String],
    name: &str,
    title: &str,
    axis: &str,
    figure: impl Fn(&Outcome) -> Option<f64>,
) -> Figure {
    let group = |(place, of_one): (usize, &String)| {
        let values = values(runs, of_one, &figure);
        let (value, range) = (median(&values)?, Summary::of(&values)?);
        let spread = (values.len() > 1).then_some((range.min, range.max));
        let bar = Bar { ink: Ink::Colour(place), is_hollow: false, value, spread, label: short(value) };
        Some(Group { name: of_one.clone(), bars: vec![bar] })
    };
    let groups = names.iter().enumerate().filter_map(group).collect();
    let bars = Bars { title: axis.to_owned(), groups, legend: Vec::new(), reference: None };
    let caption = if runs.len() > names.len() { "The line is from the lowest to the highest repetition." } else { "" };
    let (name, title, caption) = (name.to_owned(), title.to_owned(), caption.to_owned());
    Figure { name, title, caption, drawing: Drawing::Bars(bars) }
}

/// All latency distributions in one plot, unless there are too many to distinguish; of repetitions the first.
fn distributions(runs: &[Compared<'_>], names: &[String]) -> Option<Figure> {
    let curves: Vec<_> =
        names.iter().filter_map(|name| of(runs, name).find(|run| !run.outcome.latency_curve.is_empty())).collect();
    if curves.is_empty() || curves.len() > Ink::COLOURS {
        return None;
    }
    let points = || curves.iter().flat_map(|run| &run.outcome.latency_curve).map(|point| point.ms.max(LEAST_MS));
    let (shortest, longest) = (points().fold(f64::INFINITY, f64::min), points().fold(0.0, f64::max));
    let most = curves.iter().filter_map(|run| Some(run.outcome.latency?.count)).max().unwrap_or(0);
    let mark = |(place, run): (usize, &&Compared<'_>)| Mark {
        name: Some(run.name.clone()),
        ink: Ink::Colour(place),
        shape: Shape::Line(
            run.outcome.latency_curve.iter().map(|point| (point.ms, point.share)).collect(),
            Stroke::of(place),
        ),
    };
    let caption = "Share of the messages that took at most so long, from the due time, in the first run of each. Both axes \
                   are stretched for the slowest ones.";
    let drawn = Plot {
        x_title: "latency, ms (log scale)".to_owned(),
        x: Scale::log(shortest, longest),
        y_title: "messages that took at most so long".to_owned(),
        y: Scale::tail(most),
        marks: curves.iter().enumerate().map(mark).collect(),
        zones: Vec::new(),
    };
    Some(plot("latency-distribution", "Distribution of latency", caption, drawn))
}

fn of<'a, 'b>(runs: &'a [Compared<'b>], name: &'a str) -> impl Iterator<Item = &'a Compared<'b>> {
    runs.iter().filter(move |run| run.name == name)
}

fn values(runs: &[Compared<'_>], name: &str, figure: impl Fn(&Outcome) -> Option<f64>) -> Vec<f64> {
    of(runs, name).filter_map(|run| figure(run.outcome)).collect()
}

fn ms(figure: impl Fn(&Latency) -> f64) -> impl Fn(&Outcome) -> Option<f64> {
    move |outcome| outcome.latency.as_ref().map(&figure)
}

/// Deliveries per processor second, for all brokers together.
fn per_cpu_second(outcome: &Outcome) -> Option<f64> {
    let cpu_seconds = outcome.broker_usage.iter().map(|usage| usage.cpu_seconds).sum::<f64>();
    let deliveries = outcome.received.average_per_second * f64::from(outcome.received.seconds);
    (cpu_seconds > 0.0).then(|| deliveries / cpu_seconds)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, Directory};
    use super::*;

    #[test]
    fn repetitions_are_one_bar_and_each_run_has_a_link() {
        let (slow, _) = sample::stalled_run();
        let mut fast = slow.clone();
        fast.received.average_per_second = 3000.0;
        let compared = |name: &str, number: u32, outcome| Compared {
            name: name.to_owned(),
            directory: Some(format!("{name}-run{number}")),
            outcome,
        };
        let runs = [compared("a<b", 1, &slow), compared("other", 1, &fast), compared("a<b", 2, &fast)];
        let directory = Directory::new("comparison");
        write(&directory.0, "Brokers", &runs).unwrap();
        let svg = directory.read("throughput.svg");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        // The median of 1000 and 3000, and the only value of the other.
        assert!(texts.contains(&"2,000") && texts.contains(&"3,000") && texts.contains(&"a<b"), "{texts:?}");
        for name in ["latency-median", "latency-p99", "latency-distribution", "broker-cpu"] {
            roxmltree::Document::parse(&directory.read(&format!("{name}.svg"))).expect(name);
        }
        let html = directory.read("report.html");
        assert!(html.contains("href=\"other-run1/report.html\"") && html.contains("Nothing lost"), "{html}");
        assert!(!html.contains("://") && !html.contains("a<b"));
    }
}
