//! Tests of a run's report on terminal and page.

use tempfile::TempDir;
use tenbin_codec::Secret;

use super::{charts, sample, verdict_of};
use crate::report::chart::Width;
use crate::report::model::Tone;
use crate::run::assertion::Assertions;
use crate::run::{AudienceOutcome, Latency, Outcome, SubscriberOutcome, Verdict, report as run, sample as small};

#[test]
fn unacknowledged_messages_make_the_verdict_bad() {
    let text = |unacknowledged| {
        let mut outcome = Outcome { unacknowledged, ..sample::stalled_run().0 };
        outcome.verdict = Verdict { expected: 9, received: 9, exact: true, ..Verdict::default() };
        verdict_of(&outcome)
    };
    assert_eq!(text(0), (Tone::Good, "All 9 deliveries came, once and in order.".to_owned()));
    let missing = "Messages that are not expected, but missing: 2 never acknowledged.";
    assert_eq!(text(2), (Tone::Bad, format!("All 9 expected deliveries came. {missing}")));
}

#[test]
fn a_run_leaves_its_figures_tables_and_rows() {
    let (directory, (mut outcome, records)) = (TempDir::new().unwrap(), sample::stalled_run());
    outcome.plan.connection.password = Some(Secret::new("secret-of-mine".to_owned()));
    run::write(directory.path(), &outcome, Some(&records), &[]).unwrap();

    let summary = sample::read(&directory, "summary.json");
    assert!(!summary.contains("secret-of-mine"));
    let read: Outcome = serde_json::from_str(&summary).unwrap();
    assert_eq!(read.verdict, outcome.verdict);
    assert_eq!(sample::read(&directory, "messages.csv").lines().count(), records.len() + 1);

    let html = sample::read(&directory, "report.html");
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
        let svg = sample::read(&directory, &format!("{name}.svg"));
        let document = roxmltree::Document::parse(&svg).expect(name);
        assert_eq!(document.root_element().tag_name().name(), "svg");
        assert!(document.descendants().any(|node| node.has_tag_name("text")), "{name}");
        assert!(html.contains(&format!("<figure id=\"{name}\">")), "{name}");
    }
    // The page may link only files beside it, and a browser must fetch nothing else.
    assert!(!html.contains("://") && !html.contains("src=") && !html.contains("url(") && !html.contains("@import"));
    assert!(!html.contains("<script") && !html.contains("<link"));
    for link in html.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let is_there = match link.strip_prefix('#') {
            Some(id) => html.contains(&format!("<h2 id=\"{id}\">")),
            None => directory.path().join(link).is_file(),
        };
        assert!(is_there, "{link}");
    }
}

#[test]
#[ignore = "writes target/report, to be looked at: .ci/report_check does"]
fn samples_can_be_looked_at() {
    let (outcome, records) = sample::stalled_run();
    let checks = "p50<100ms,p99<50ms,lost=0".parse::<Assertions>().unwrap().check(&outcome);
    run::write(&sample::shown("run"), &outcome, Some(&records), &checks).unwrap();
}

#[test]
fn figures_in_the_page_are_well_formed_too() {
    let (outcome, records) = sample::stalled_run();
    for figure in charts::figures(&outcome, Some(&records)) {
        for width in [Width::Wide, Width::Narrow] {
            roxmltree::Document::parse(&figure.to_element(width)).expect(&figure.name);
        }
    }
}

#[test]
fn a_run_without_arrivals_has_a_report() {
    let (directory, (mut outcome, _)) = (TempDir::new().unwrap(), sample::stalled_run());
    (outcome.latency, outcome.latency_uncorrected) = (None, None);
    outcome.latency_curve.clear();
    outcome.latency_uncorrected_curve.clear();
    outcome.per_second.clear();
    outcome.audiences.clear();
    outcome.verdict = Default::default();
    run::write(directory.path(), &outcome, Some(&[]), &[]).unwrap();
    assert!(sample::read(&directory, "report.html").contains(">Figures</h2>"));
}

#[test]
fn many_subscribers_are_drawn_as_curves() {
    let (mut outcome, records) = sample::stalled_run();
    let one = outcome.audiences[0].subscribers[0].clone();
    let many = (0..300).map(|number| SubscriberOutcome { name: format!("many-sub-{number}"), ..one.clone() });
    outcome.audiences[0].subscribers = many.collect();
    let figures = charts::figures(&outcome, Some(&records));
    for figure in figures {
        let svg = figure.to_file();
        assert!(svg.len() < 1_000_000, "{}: {}", figure.name, svg.len());
        roxmltree::Document::parse(&svg).expect(&figure.name);
    }
}

fn text(outcome: &Outcome) -> String {
    let mut out = Vec::new();
    run::print(&mut out, outcome).unwrap();
    String::from_utf8(out).unwrap()
}

fn words<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix(title));
    row.unwrap_or_else(|| panic!("{title} in {text}")).split_whitespace().collect()
}

#[test]
fn summary_shows_waiting_time_of_workers() {
    let mut outcome = small::outcome();
    let waiting = outcome.latency.map(|latency| Latency { mean: 77.5, ..latency });
    outcome.audiences[0].waiting = waiting;
    outcome.audiences[0].subscribers[0].waiting = waiting;
    let text = text(&outcome);
    assert_eq!(words(&text, "taken by workers")[0], "77.500");
    assert_eq!((words(&text, "sub-0")[3], words(&text, "sub-1")[3]), ("77.500", "12.250"));
    assert_eq!(words(&text, "until taken")[..2], ["received", "share"]);
}

#[test]
fn corrected_and_uncorrected_latencies_stand_side_by_side() {
    let text = text(&small::outcome());
    assert_eq!(words(&text, "latency in ms"), ["mean", "min", "p50", "p90", "p99", "p99.9", "max"]);
    let due = ["12.250", "0.500", "10.000", "40.000", "61.200", "150.0", "200.0"];
    assert_eq!(words(&text, "from the due time"), due);
    assert_eq!(words(&text, "from sending")[4], "20.500");
    assert!(!text.contains("CONNECT to"), "{text}");
}

#[test]
fn the_verdict_is_given_by_audience_and_for_all() {
    let mut outcome = small::outcome();
    let row = ["1,000", "997", "3", "0", "2"];
    assert_eq!(words(&text(&outcome), "workers  "), row);
    assert!(!text(&outcome).contains("without DUP"));

    outcome.audiences.push(AudienceOutcome { name: "archive".into(), ..outcome.audiences[0].clone() });
    outcome.verdict =
        Verdict { expected: 2000, duplicated: 5, duplicated_unmarked: 4, exact: false, ..outcome.verdict };
    let text = text(&outcome);
    assert_eq!(words(&text, "archive"), row);
    assert_eq!(words(&text, "all"), ["2,000", "997", "3", "5", "2"]);
    assert!(text.contains("duplicated without DUP flag 4\n") && text.contains("by numbers of messages only"), "{text}");
}

#[test]
fn missing_messages_stand_below_the_verdict() {
    assert!(!text(&small::outcome()).contains("missing"));
    let text = text(&Outcome { unacknowledged: 7, not_taken: 2, ..small::outcome() });
    let lines: Vec<_> = text.lines().collect();
    let verdict = lines.iter().position(|line| line.starts_with("  verdict ")).expect("there is one");
    let expected = "  missing, but not in lost: never acknowledged 7, refused by the broker 2";
    assert_eq!(lines[verdict + 2], expected, "{text}");
}

#[test]
fn receive_only_run_has_no_verdict() {
    let mut outcome = small::outcome();
    outcome.plan.publishers.count = 0;
    let text = text(&outcome);
    assert!(text.contains("no verdict: ") && !text.contains("expected"), "{text}");
}

#[test]
fn shares_are_those_of_each_member_or_of_the_extremes() {
    let mut outcome = small::outcome();
    let few = text(&outcome);
    assert!(few.contains("\nworkers: 2 subscribers, Jain's index 0.960\n"), "{few}");
    assert_eq!(words(&few, "sub-1")[..3], ["397", "39.8", "%"]);

    let member = outcome.audiences[0].subscribers[0].clone();
    let named = |number: u64| SubscriberOutcome { name: format!("s{number}"), received: number, ..member.clone() };
    outcome.audiences[0].subscribers = (0..100).map(named).collect();
    let many = text(&outcome);
    assert_eq!(words(&many, "most: s99")[0], "99");
    assert_eq!(words(&many, "in the middle: s50")[0], "50");
    assert!(!many.contains("s42"), "{many}");
}

#[test]
fn summary_shows_usage_and_notes() {
    let text = text(&small::outcome());
    assert_eq!(words(&text, "b  "), ["42", "0.50", "1,594", "4.0", "5.0"]);
    assert_eq!(words(&text, "connections accepted"), ["3"]);
    assert_eq!(words(&text, "accepted a second"), ["300"]);
    assert_eq!(words(&text, "processor time of this program, s"), ["0.25"]);
    assert!(text.ends_with("\nnote: a note\n"), "{text}");
    assert!(!text.contains("refused"), "{text}");
}

/// The page of `outcome` with these assertions.
fn page(outcome: &Outcome, assertions: &str) -> String {
    let directory = TempDir::new().unwrap();
    let checks = assertions.parse::<Assertions>().unwrap().check(outcome);
    run::write(directory.path(), outcome, None, &checks).unwrap();
    sample::read(&directory, "report.html")
}

#[test]
fn a_failed_assertion_is_under_no_green_tick() {
    let mut outcome = sample::stalled_run().0;
    outcome.latency_uncorrected = outcome.latency;
    let html = page(&outcome, "p99<1ms,lost=0");
    assert!(html.contains("<p class=\"banner bad\">✗ 1 of 2 assertions failed.</p>"), "{html}");
    assert!(html.contains("<li class=\"bad\">✗ p99 = ") && html.contains("<li class=\"good\">✓ lost = 0"), "{html}");
    assert!(!html.contains("banner good") && !html.contains("banner warning"), "{html}");
    let html = page(&outcome, "lost=0");
    assert!(html.contains("banner good") && !html.contains("banner bad"), "{html}");
}

#[test]
fn late_publishers_are_a_warning() {
    let outcome = sample::stalled_run().0;
    assert!(page(&outcome, "lost=0").contains("banner warning\">⚠ Publishers were late"));
    let (directory, records) = (TempDir::new().unwrap(), sample::stalled_run().1);
    run::write(directory.path(), &outcome, Some(&records), &[]).unwrap();
    let html = sample::read(&directory, "report.html");
    let late = html.split("late, by about ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a delay");
    // The latest message is 1.6 s late; the 99th of a hundred is 199 messages earlier.
    assert!(late.replace(',', "").parse::<f64>().is_ok_and(|ms| (1000.0..1600.0).contains(&ms)), "{late}");
}

#[test]
fn a_page_names_command_machine_and_version() {
    let html = page(&sample::stalled_run().0, "lost=0");
    assert!(html.contains("2025-11-21 20:29:07 UTC, 19.9 s · tenbin ") && html.contains("<pre>"), "{html}");
    assert!(html.contains("publishers · payload") && html.contains("<td>schedule · time limit</td><td>60 s</td>"));
}
