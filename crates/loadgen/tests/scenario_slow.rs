//! `scenario slow` against a test broker: measurements, counts and files.

mod command;
mod fake_broker;

use command::{directory, parse, read, try_run};
use fake_broker::Faults;
use serde_json::Value;
use tenbin_loadgen::LoadgenError;

/// Runs the scenario for 0.6 s with 120 messages.
fn run(faults: Faults, options: &str) -> Result<String, LoadgenError> {
    let address = fake_broker::start(faults);
    let line = format!(
        "scenario slow --broker {address} --sizes 4k:200 --normal 2 --slow 2 --before 200ms --switch 200ms \
         --after 200ms {options}"
    );
    let (text, result) = try_run(&line);
    result.map(|()| text)
}

#[test]
fn each_phase_is_measured_and_backlog_is_drained() {
    let directory = directory();
    let text = run(Faults::default(), &format!("--out {}", directory.path().display())).unwrap();
    for part in ["4 KiB, 200 messages a second", "published: proposed", "n/a, the broker says nothing", "published 120"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("normal: lost 0, duplicated 0, out of order 0\n"), "{text}");
    assert!(text.contains("slow: lost 0, duplicated 0, out of order 0\n"), "{text}");

    let summary: Value = serde_json::from_str(&read(&directory, "summary.json")).expect("JSON");
    let size = &summary["sizes"][0];
    // The first quarter of the phase before the switch is left out.
    for (phase, messages) in [("before", 30), ("switch", 40), ("after", 40)] {
        assert_eq!(size["latency_ms"][phase]["n"], 2 * messages, "{phase}");
    }
    assert_eq!(size["latency_ms"]["before"]["mean_to_mean_before"], 1.0);
    assert_eq!(size["published_ratios"]["mean_after"]["proposed"], 0.81);
    // Two receivers read a tenth of 80 messages; a busy machine shifts it.
    let backlog = size["backlog"].as_u64().expect("a number");
    assert!((50..=240).contains(&backlog), "{backlog}");

    assert_eq!(read(&directory, "normal-4_KiB.csv").lines().count(), 1 + 2 * 120);
    let page = read(&directory, "report.html");
    assert!(page.contains("<figure id=\"normal-4_KiB\">") && page.contains("Nothing lost"), "{page}");
    roxmltree::Document::parse(&read(&directory, "normal-4_KiB.svg")).expect("a figure");
}

#[test]
fn lost_and_repeated_messages_are_counted() {
    let faults = Faults { lose: Some(30), duplicate: Some(50), ..Faults::default() };
    let text = run(faults, "--slow-reads 0").unwrap();
    for who in ["normal", "slow"] {
        assert!(text.contains(&format!("{who}: lost 2, duplicated 2, out of order 0\n")), "{text}");
    }
    assert!(text.contains("missed: mean") && text.contains("lost 4"), "{text}");
}

#[test]
fn a_broker_that_closes_connections_ends_the_run() {
    let error = run(Faults { die: Some(40), ..Faults::default() }, "").unwrap_err();
    assert!(error.to_string().contains("lost its connection"), "{error}");
}

#[test]
fn the_other_scenarios_are_still_found_by_name() {
    for (line, is_known) in [
        ("scenario 2 --qos 1", true),
        ("scenario step", true),
        ("scenario slow --qos 1", false),
        ("scenario 2 --sizes 4k", false),
        ("scenario", false),
    ] {
        assert_eq!(parse(line).is_ok(), is_known, "{line}");
    }
}
