//! Files of a run in a directory.

use std::path::Path;

use super::html::{Page, Tone};
use super::{number, run_csv, run_figures, run_tables, write_file};
use crate::LoadgenError;
use crate::run::{MessageRecord, Outcome, Plan, utc};

/// Writes `summary.json` (`outcome`, without the password), `report.html`, and an SVG file for each figure.
///
/// If there are `records`, it writes `messages.csv` too. Creates the directory if needed.
///
/// # Errors
///
/// A file cannot be written.
pub fn write(directory: &Path, outcome: &Outcome, records: Option<&[MessageRecord]>) -> Result<(), LoadgenError> {
    std::fs::create_dir_all(directory).map_err(|source| LoadgenError::Write { path: directory.to_owned(), source })?;
    write_file(&directory.join("summary.json"), |file| {
        serde_json::to_writer_pretty(&mut *file, &without_password(outcome))?;
        writeln!(file)
    })?;
    if let Some(records) = records {
        write_file(&directory.join("messages.csv"), |file| run_csv::write_messages(file, outcome, records))?;
    }
    page(outcome, records).write(directory)
}

fn page(outcome: &Outcome, records: Option<&[MessageRecord]>) -> Page {
    let brokers: Vec<_> = outcome.plan.brokers.iter().map(|broker| broker.name.as_str()).collect();
    let began = utc::to_the_second(outcome.started_unix_ms);
    let title = format!("Load on {}", brokers.join(", "));
    let mut page =
        Page::new(&title, &format!("{began} UTC, {} s. {}", number::short(outcome.seconds), plan_text(&outcome.plan)));

    let (tone, verdict) = run_tables::verdict_text(outcome);
    page.banner(tone, &verdict);
    page.tiles(&run_tables::tiles(outcome));
    if !outcome.notes.is_empty() {
        page.heading("Notes");
        page.list(&outcome.notes);
    }

    page.heading("Summary");
    page.table(&run_tables::throughput(outcome));
    page.table(&run_tables::latency(outcome));
    if outcome.per_second.iter().any(|second| !second.counts) {
        page.paragraph("Rates leave ramp-up and ramp-down out; numbers of messages and the verdict do not.");
    }

    page.heading("What became of the messages");
    page.table(&run_tables::verdicts(outcome));
    page.paragraph(run_tables::VERDICT_LEGEND);
    if !outcome.verdict.exact {
        page.banner(Tone::Plain, "Payloads are too small for a number: only sums of messages are compared.");
    }

    page.heading("Figures");
    for figure in run_figures::figures(outcome, records) {
        page.figure(figure);
    }

    page.heading("Subscribers");
    page.table(&run_tables::subscribers(outcome));
    page.heading("Brokers and connections");
    if let Some(usage) = run_tables::broker_usage(outcome) {
        page.table(&usage);
    }
    page.table(&run_tables::connections(outcome));
    page.heading("What was to be done");
    page.table(&run_tables::plan(&outcome.plan));
    page
}

fn plan_text(plan: &Plan) -> String {
    let several =
        |number: u64, what: &str| format!("{} {what}{}", number::count(number), if number == 1 { "" } else { "s" });
    let subscribers = plan.audiences.iter().map(|audience| u64::from(audience.count)).sum();
    let (publishers, subscribers) =
        (several(u64::from(plan.publishers.count), "publisher"), several(subscribers, "subscriber"));
    format!(
        "{publishers}, {subscribers}, {} bytes, QoS {}",
        number::count(plan.publishers.payload.into()),
        plan.publishers.qos
    )
}

/// Reports are passed on, so that the password must not be in them.
fn without_password(outcome: &Outcome) -> Outcome {
    let mut outcome = outcome.clone();
    if let Some(password) = &mut outcome.plan.connection.password {
        *password = "(not written)".to_owned();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::sample::{self, Directory};
    use super::super::{Compared, comparison_page, scenario_page};
    use super::*;
    use crate::run::Verdict;

    #[test]
    fn unacknowledged_messages_make_the_verdict_bad() {
        let text = |unacknowledged| {
            let mut outcome = Outcome { unacknowledged, ..sample::stalled_run().0 };
            outcome.verdict = Verdict { expected: 9, received: 9, exact: true, ..Verdict::default() };
            run_tables::verdict_text(&outcome)
        };
        assert_eq!(text(0), (Tone::Good, "✓ All 9 deliveries came, once and in order.".to_owned()));
        let missing = "Messages that are not expected, but missing: 2 never acknowledged.";
        assert_eq!(text(2), (Tone::Bad, format!("✗ All 9 expected deliveries came. {missing}")));
    }

    #[test]
    fn a_run_leaves_its_figures_tables_and_rows() {
        let (directory, (mut outcome, records)) = (Directory::new("whole"), sample::stalled_run());
        outcome.plan.connection.password = Some("secret-of-mine".to_owned());
        write(&directory.0, &outcome, Some(&records)).unwrap();

        let summary = directory.read("summary.json");
        assert!(!summary.contains("secret-of-mine"));
        let read: Outcome = serde_json::from_str(&summary).unwrap();
        assert_eq!(read.verdict, outcome.verdict);
        assert_eq!(directory.read("messages.csv").lines().count(), records.len() + 1);

        let html = directory.read("report.html");
        let names = [
            "latency-over-time",
            "latency-per-message",
            "latency-distribution",
            "throughput",
            "subscriber-shares",
            "subscriber-throughput",
            "processing-time",
        ];
        for name in names {
            let svg = directory.read(&format!("{name}.svg"));
            let document = roxmltree::Document::parse(&svg).expect(name);
            assert_eq!(document.root_element().tag_name().name(), "svg");
            assert!(document.descendants().any(|node| node.has_tag_name("text")), "{name}");
            assert!(html.contains(&format!("<figure id=\"{name}\">")), "{name}");
        }
        // The page may link only files beside it, and a browser must fetch nothing else.
        assert!(!html.contains("://") && !html.contains("src=") && !html.contains("url(") && !html.contains("@import"));
        assert!(!html.contains("<script") && !html.contains("<link"));
        let links = html.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert!(links.into_iter().all(|link| directory.0.join(link).is_file()));
    }

    #[test]
    #[ignore = "writes target/report, to be looked at: .ci/report_check does"]
    fn samples_can_be_looked_at() {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "../../target".into(), PathBuf::from);
        let (outcome, records) = sample::stalled_run();
        write(&target.join("report/run"), &outcome, Some(&records)).unwrap();
        let compared = ["one broker", "another"].map(|name| Compared {
            name: name.to_owned(),
            directory: Some("../run".to_owned()),
            outcome: &outcome,
        });
        comparison_page::write(&target.join("report/comparison"), "Brokers", &compared).unwrap();
        let (plan, runs) = sample::thesis_runs();
        std::fs::create_dir_all(target.join("report/scenario")).unwrap();
        scenario_page::page(&plan, &runs).unwrap().write(&target.join("report/scenario")).unwrap();
    }

    #[test]
    fn figures_in_the_page_are_well_formed_too() {
        let (outcome, records) = sample::stalled_run();
        for figure in run_figures::figures(&outcome, Some(&records)) {
            for width in [super::super::chart::Width::Wide, super::super::chart::Width::Narrow] {
                roxmltree::Document::parse(&figure.to_element(width)).expect(&figure.name);
            }
        }
    }

    #[test]
    fn a_run_without_arrivals_has_a_report() {
        let (directory, (mut outcome, _)) = (Directory::new("empty"), sample::stalled_run());
        (outcome.latency, outcome.latency_uncorrected) = (None, None);
        outcome.latency_curve.clear();
        outcome.latency_uncorrected_curve.clear();
        outcome.per_second.clear();
        outcome.audiences.clear();
        outcome.verdict = Default::default();
        write(&directory.0, &outcome, Some(&[])).unwrap();
        assert!(directory.read("report.html").contains("<h2>Figures</h2>"));
    }

    #[test]
    fn many_subscribers_are_drawn_as_curves() {
        let (mut outcome, records) = sample::stalled_run();
        let one = outcome.audiences[0].subscribers[0].clone();
        let many =
            (0..300).map(|number| crate::run::SubscriberOutcome { name: format!("many-sub-{number}"), ..one.clone() });
        outcome.audiences[0].subscribers = many.collect();
        let figures = run_figures::figures(&outcome, Some(&records));
        for figure in figures {
            let svg = figure.to_file();
            assert!(svg.len() < 1_000_000, "{}: {}", figure.name, svg.len());
            roxmltree::Document::parse(&svg).expect(&figure.name);
        }
    }
}
