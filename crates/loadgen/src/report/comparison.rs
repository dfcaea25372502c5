//! Report on several runs side by side: brokers, policies or patterns.

use std::path::Path;

use super::chart::{Bar, Figure, Group, Ink};
use super::charts::Label;
use super::html;
use super::model::{Block, Cell, Report, Section, Table, Tone};
use super::number::{DASH, brief, count, short};
use super::origin::Origin;
use super::run::late_ms;
use crate::LoadgenError;
use crate::run::{Latency, Outcome};
use crate::statistics::median;

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
    html::write(directory, &report(title, runs))
}

fn report(title: &str, runs: &[Compared<'_>]) -> Report {
    let names = names(runs);
    let is_whole = |outcome: &Outcome| outcome.verdict.lost == 0 && outcome.untaken().next().is_none();
    let is_faulty = |run: &&Compared<'_>| !is_whole(run.outcome) || run.outcome.verdict.duplicated > 0;
    let verdict = match runs.iter().filter(is_faulty).count() {
        0 => (Tone::Good, "Nothing lost, nothing duplicated in any of them.".to_owned()),
        faults => (Tone::Bad, format!("Messages lost or duplicated in {faults} of {} runs.", runs.len())),
    };
    let late = runs.iter().filter_map(|run| Some((&run.name, late_ms(run.outcome, None)?)));
    let late = late.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, late)| {
        let text =
            format!("Publishers were late with {name}, by about {} ms (p99); latency has that in it.", brief(late));
        Block::Banner(Tone::Warning, text)
    });
    let medians = "Medians of the repetitions; lost and duplicated are sums.".to_owned();
    let lead = Section::default()
        .with(Block::Banner(verdict.0, verdict.1))
        .with_all(late)
        .with(table(runs, &names))
        .with_all((runs.len() > names.len()).then_some(medians));
    let caption = if runs.len() > names.len() { "The line is from the lowest to the highest repetition." } else { "" };
    let bars = |name: &str, title: &str, axis: &str, figure: &dyn Fn(&Outcome) -> Option<f64>| {
        let group = |(place, name): (usize, &String)| {
            let bar = Bar::of_runs(Ink::Colour(place), &values(runs, name, figure), short)?;
            Some(Group { name: name.clone(), bars: vec![bar] })
        };
        let groups: Vec<_> = names.iter().enumerate().filter_map(group).collect();
        (!groups.is_empty()).then(|| Label(name, title, caption).bars(axis, groups, Vec::new()))
    };
    let figures = [
        bars("throughput", "Throughput", "messages received a second", &received),
        bars("latency-median", "Latency, median", "latency p50, ms", &ms(|latency| latency.p50)),
        bars("latency-p99", "Latency, p99", "latency p99, ms", &ms(|latency| latency.p99)),
        bars("broker-cpu", "Cost of the brokers", "deliveries a processor second", &per_cpu_second),
        distributions(runs, &names),
    ];
    let mut sections = vec![lead, Section::new("Figures").with_all(figures.into_iter().flatten())];
    let link = |run: &Compared<'_>| {
        let directory = run.directory.as_ref()?;
        Some((format!("{directory}/report.html"), format!("{}: {directory}", run.name)))
    };
    let links: Vec<_> = runs.iter().filter_map(link).collect();
    if !links.is_empty() {
        sections.push(Section::new("Each run").with(Block::Links(links)));
    }
    let title = format!("{title}: {} runs of {}", count(runs.len() as u64), names.join(", "));
    Report { title, headline: headline(runs, &names), origin: Origin::here(), sections }
}

/// Names by their throughput, the best first.
fn headline(runs: &[Compared<'_>], names: &[String]) -> String {
    let rate = |name: &String| Some((name.clone(), median(&values(runs, name, received))?));
    let mut rates: Vec<_> = names.iter().filter_map(rate).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    let each = rates.into_iter().map(|(name, rate)| {
        let p99 = median(&values(runs, &name, ms(|latency| latency.p99)));
        let p99 = p99.map_or(String::new(), |p99| format!(" (p99 {} ms)", brief(p99)));
        format!("{name} {}/s{p99}", brief(rate))
    });
    format!("Received: {}", each.collect::<Vec<_>>().join(", "))
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
    let head =
        ["", "published/s", "received/s", "p50, ms", "p99, ms", "max, ms", "lost", "duplicated", "deliveries/CPU s"];
    let mut table = Table::new(head);
    for name in names {
        let middle = |figure: &dyn Fn(&Outcome) -> Option<f64>| {
            Cell::from(median(&values(runs, name, figure)).map_or(DASH.to_owned(), short))
        };
        let sum =
            |figure: fn(&Outcome) -> u64| Cell::faults(of(runs, name).map(|run| figure(run.outcome)).sum::<u64>());
        let cells = [
            middle(&|outcome| Some(outcome.published.average_per_second)),
            middle(&received),
            middle(&ms(|latency| latency.p50)),
            middle(&ms(|latency| latency.p99)),
            middle(&ms(|latency| latency.max)),
            sum(|outcome| outcome.verdict.lost),
            sum(|outcome| outcome.verdict.duplicated),
            middle(&per_cpu_second),
        ];
        table.add(name, cells);
    }
    table
}

/// All latency distributions in one plot, unless there are too many to distinguish; of repetitions the first.
fn distributions(runs: &[Compared<'_>], names: &[String]) -> Option<Figure> {
    let measured = |run: &&Compared<'_>| !run.outcome.latency_curve.is_empty();
    let curves: Vec<_> = names.iter().filter_map(|name| of(runs, name).find(measured)).collect();
    let most = curves.iter().filter_map(|run| Some(run.outcome.latency?.count)).max()?;
    let curves: Vec<_> = curves.iter().map(|run| (run.name.as_str(), run.outcome.latency_curve.as_slice())).collect();
    let label = Label(
        "latency-distribution",
        "Distribution of latency",
        "Share of the messages that took at most so long, from the due time, in the first run of each. Both axes are \
         stretched for the slowest ones.",
    );
    (curves.len() <= Ink::COLOURS).then(|| label.distribution(&curves, most)).flatten()
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

fn received(outcome: &Outcome) -> Option<f64> {
    Some(outcome.received.average_per_second)
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
