//! Report on several runs side by side: brokers, policies or patterns.

use std::path::Path;

use crate::LoadgenError;
use crate::number::{DASH, brief, count, short};
use crate::report::chart::{Bar, Figure, Group, Ink};
use crate::report::charts::Label;
use crate::report::html;
use crate::report::model::{Block, Cell, Report, Section, Table, Tone};
use crate::report::origin::Origin;
use crate::run::report::late_ms;
use crate::run::{Latency, Outcome};
use crate::statistics::median;

/// Runs of a comparison with one broker, policy or pattern. Of several runs the report shows the medians.
#[derive(Debug, Clone)]
pub(crate) struct Compared<'a> {
    pub(crate) name: &'a str,
    pub(crate) outcomes: &'a [Outcome],
}

/// Writes `report.html`, with the figures of all `cases` side by side, and an SVG file for each figure.
///
/// Creates the directory if needed.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(directory: &Path, title: &str, cases: &[Compared<'_>]) -> Result<(), LoadgenError> {
    html::write(directory, &report(title, cases))
}

fn report(title: &str, cases: &[Compared<'_>]) -> Report {
    let outcomes = || cases.iter().flat_map(|case| case.outcomes);
    let (runs, is_repeated) = (outcomes().count(), cases.iter().any(|case| case.outcomes.len() > 1));
    let is_whole = |outcome: &Outcome| outcome.verdict.lost == 0 && outcome.untaken().next().is_none();
    let is_faulty = |outcome: &&Outcome| !is_whole(outcome) || outcome.verdict.duplicated > 0;
    let verdict = match outcomes().filter(is_faulty).count() {
        0 => (Tone::Good, "Nothing lost, nothing duplicated in any of them.".to_owned()),
        faults => (Tone::Bad, format!("Messages lost or duplicated in {faults} of {runs} runs.")),
    };
    let late_of = |case: &Compared<'_>| case.values(|outcome| late_ms(outcome, None)).into_iter().reduce(f64::max);
    let late = cases.iter().filter_map(|case| Some((case.name, late_of(case)?)));
    let late = late.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, late)| {
        let text =
            format!("Publishers were late with {name}, by about {} ms (p99); latency has that in it.", brief(late));
        Block::Banner(Tone::Warning, text)
    });
    let medians = "Medians of the repetitions; lost and duplicated are sums.".to_owned();
    let lead = Section::default()
        .with(Block::Banner(verdict.0, verdict.1))
        .with_all(late)
        .with(table(cases))
        .with_all(is_repeated.then_some(medians));
    let caption = if is_repeated { "The line is from the lowest to the highest repetition." } else { "" };
    let bars = |name: &str, title: &str, axis: &str, figure: &dyn Fn(&Outcome) -> Option<f64>| {
        let group = |(place, case): (usize, &Compared<'_>)| {
            let bar = Bar::of_runs(Ink::Colour(place), &case.values(figure), short)?;
            Some(Group { name: case.name.to_owned(), bars: vec![bar] })
        };
        let groups: Vec<_> = cases.iter().enumerate().filter_map(group).collect();
        (!groups.is_empty()).then(|| Label(name, title, caption).bars(axis, groups, Vec::new()))
    };
    let figures = [
        bars("throughput", "Throughput", "messages received a second", &received),
        bars("latency-median", "Latency, median", "latency p50, ms", &ms(|latency| latency.p50)),
        bars("latency-p99", "Latency, p99", "latency p99, ms", &ms(|latency| latency.p99)),
        bars("broker-cpu", "Cost of the brokers", "deliveries a processor second", &per_cpu_second),
        distributions(cases),
    ];
    let sections = vec![lead, Section::new("Figures").with_all(figures.into_iter().flatten())];
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    let title = format!("{title}: {} runs of {}", count(runs as u64), names.join(", "));
    Report { title, headline: headline(cases), origin: Origin::here(), sections }
}

/// Names by their throughput, the best first.
fn headline(cases: &[Compared<'_>]) -> String {
    let mut rates: Vec<_> = cases.iter().filter_map(|case| Some((case, case.median(received)?))).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    let each = rates.into_iter().map(|(case, rate)| {
        let p99 = case.median(ms(|latency| latency.p99));
        let p99 = p99.map_or(String::new(), |p99| format!(" (p99 {} ms)", brief(p99)));
        format!("{} {}/s{p99}", case.name, brief(rate))
    });
    format!("Received: {}", each.collect::<Vec<_>>().join(", "))
}

fn table(cases: &[Compared<'_>]) -> Table {
    let head =
        ["", "published/s", "received/s", "p50, ms", "p99, ms", "max, ms", "lost", "duplicated", "deliveries/CPU s"];
    let mut table = Table::new(head);
    for case in cases {
        let middle =
            |figure: &dyn Fn(&Outcome) -> Option<f64>| Cell::from(case.median(figure).map_or(DASH.to_owned(), short));
        let sum = |figure: fn(&Outcome) -> u64| Cell::faults(case.outcomes.iter().map(figure).sum::<u64>());
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
        table.add(case.name, cells);
    }
    table
}

/// All latency distributions in one plot, unless there are too many to distinguish; of repetitions the first.
fn distributions(cases: &[Compared<'_>]) -> Option<Figure> {
    let measured = |outcome: &&Outcome| !outcome.latency_curve.is_empty();
    let first = cases.iter().filter_map(|case| Some((case.name, case.outcomes.iter().find(measured)?)));
    let measured: Vec<_> = first.collect();
    let most = measured.iter().filter_map(|(_, outcome)| Some(outcome.latency?.count)).max()?;
    let curves: Vec<_> = measured.iter().map(|(name, outcome)| (*name, outcome.latency_curve.as_slice())).collect();
    let label = Label(
        "latency-distribution",
        "Distribution of latency",
        "Share of the messages that took at most so long, from the due time, in the first run of each. Both axes are \
         stretched for the slowest ones.",
    );
    (curves.len() <= Ink::COLOURS).then(|| label.distribution(&curves, most)).flatten()
}

impl<'a> Compared<'a> {
    /// Values of a figure, of the runs that have it.
    fn values(&self, figure: impl Fn(&'a Outcome) -> Option<f64>) -> Vec<f64> {
        self.outcomes.iter().filter_map(figure).collect()
    }

    fn median(&self, figure: impl Fn(&'a Outcome) -> Option<f64>) -> Option<f64> {
        median(&self.values(figure))
    }
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
    use tempfile::TempDir;

    use super::*;
    use crate::run::report::sample;

    #[test]
    #[ignore = "writes target/report, to be looked at: .ci/report_check does"]
    fn samples_can_be_looked_at() {
        let (outcome, _) = sample::stalled_run();
        let mut fast = outcome.clone();
        fast.latency = fast.latency.map(|latency| Latency { p50: 0.02, p99: 0.9, ..latency });
        fast.latency_uncorrected = fast.latency;
        let compared = [("one broker", &outcome), ("another", &fast)]
            .map(|(name, outcome)| Compared { name, outcomes: std::slice::from_ref(outcome) });
        write(&sample::shown("comparison"), "Brokers", &compared).unwrap();
    }

    #[test]
    fn repetitions_are_one_bar() {
        let (mut slow, _) = sample::stalled_run();
        slow.received.average_per_second = 1000.0;
        let mut fast = slow.clone();
        fast.received.average_per_second = 3000.0;
        let (both, one) = ([slow, fast.clone()], [fast]);
        let compared = [("a<b", &both[..]), ("other", &one)].map(|(name, outcomes)| Compared { name, outcomes });
        let directory = TempDir::new().unwrap();
        write(directory.path(), "Brokers", &compared).unwrap();
        let svg = sample::read(&directory, "throughput.svg");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        // The median of 1000 and 3000, and the only value of the other.
        assert!(texts.contains(&"2,000") && texts.contains(&"3,000") && texts.contains(&"a<b"), "{texts:?}");
        for name in ["latency-median", "latency-p99", "latency-distribution", "broker-cpu"] {
            roxmltree::Document::parse(&sample::read(&directory, &format!("{name}.svg"))).expect(name);
        }
        let html = sample::read(&directory, "report.html");
        assert!(html.contains("Nothing lost") && html.contains("3 runs of a&lt;b, other"), "{html}");
        assert!(!html.contains("://") && !html.contains("a<b"));
    }
}
