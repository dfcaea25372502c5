//! Scenarios against a test broker: counts, files and errors.

mod command;
mod fake_broker;

use std::path::Path;

use command::{directory, read, try_run};
use fake_broker::Faults;
use serde_json::Value;
use tempfile::TempDir;
use tenbin_loadgen::LoadgenError;

fn run(line: &str) -> Result<String, LoadgenError> {
    let (text, result) = try_run(line);
    result.map(|()| text)
}

fn summary(directory: &TempDir) -> Value {
    serde_json::from_str(&read(directory, "summary.json")).expect("JSON")
}

fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).expect("rows");
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn at_every_qos_each_message_is_taken_once_and_recorded() {
    for qos in 0..=2 {
        let (address, directory) = (fake_broker::start(Faults::default()), directory());
        let runs = if qos == 1 { 2 } else { 1 };
        let out = directory.path().display();
        let line = format!(
            "scenario 2 --broker {address} --policy in_turn --qos {qos} --interval 2ms --duration 60ms --runs {runs} --out {out}"
        );
        let text = run(&line).unwrap();
        assert!(text.contains("published 30, received 30, lost 0, duplicated 0"), "{text}");

        let summary = summary(&directory);
        let policy = &summary["policies"][0];
        assert_eq!((&policy["policy"], policy["runs"].as_array().map(Vec::len)), (&"in_turn".into(), Some(runs)));
        assert_eq!(policy["runs"][0]["received"], 30);
        // In turn, ten messages of 50 ms take 500 ms. Taken by idle workers, all 30 take 300 ms and none waits that
        // long.
        for best in ["best_possible_ms", "best_possible_as_received_ms"] {
            let (measured, best) = (&policy["runs"][0]["latency_ms"], &policy["runs"][0][best]);
            assert_eq!(best["n"], 30);
            assert!(best["max"].as_f64().unwrap() < measured["max"].as_f64().unwrap(), "{best} {measured}");
        }
        assert!(policy["median_latency_ms"].as_f64().unwrap() > 0.0);

        let page = read(&directory, "report.html");
        for figure in ["figure-44-mean-latency", "in_turn-messages-per-second", "in_turn-latency-per-message"] {
            assert!(page.contains(&format!("<figure id=\"{figure}\">")), "{figure}");
            assert!(directory.path().join(format!("{figure}.svg")).is_file(), "{figure}");
        }

        for number in 1..=runs {
            let rows = rows(&directory.path().join(format!("in_turn-run{number}.csv")));
            let mut sequences: Vec<u64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
            sequences.sort_unstable();
            assert_eq!(sequences, (0..30).collect::<Vec<_>>());
            // Ten messages of 50 ms arrive within 60 ms: the worker takes one per service time.
            let slow: Vec<u64> =
                rows.iter().filter(|row| row[1] == "sub-2").map(|row| row[4].parse().unwrap()).collect();
            assert_eq!(slow.len(), 10);
            assert!(slow.windows(2).all(|pair| pair[1] - pair[0] >= 50_000_000), "{slow:?}");
        }
    }
}

#[test]
fn simulated_figures_stand_beside_measured_ones() {
    let (address, directory) = (fake_broker::start(Faults::default()), directory());
    let out = directory.path().display();
    let line = format!("scenario 2 --broker {address} --interval 5ms --duration 50ms --compare --out {out}");
    let text = run(&format!("{line} --policy round_robin")).unwrap();
    // Ten messages in turn: 0, 10, 20, 30; 0, 10, 20; 0, 35, 70 ms. The mean is 19.5, plus 0.2 ms on the way.
    let simulated = text.lines().find(|line| line.trim_start().starts_with("simulated")).expect("a row");
    assert_eq!(simulated.split_whitespace().nth(1), Some("19.7"), "{text}");
    assert!(text.contains("measured / simulated"), "{text}");
    assert!(summary(&directory)["policies"][0]["simulated_latency_ms"]["mean"].is_f64());

    // A name that the balancer does not know is only a label.
    let text = run(&format!("{line} --policy somebody's")).unwrap();
    assert!(!text.contains("simulated"), "{text}");
}

#[test]
fn lost_and_repeated_messages_are_counted() {
    let faults = Faults { lose: Some(3), duplicate: Some(7), ..Faults::default() };
    let (address, directory) = (fake_broker::start(faults), directory());
    let line =
        format!("scenario 1 --broker {address} --interval 5ms --duration 100ms --out {}", directory.path().display());
    let text = run(&line).unwrap();
    assert!(text.contains("published 20, received 19, lost 1, duplicated 1"), "{text}");

    let rows = rows(&directory.path().join("broker-run1.csv"));
    assert_eq!(rows.len(), 20);
    assert!(rows.iter().all(|row| row[0] != "3"));
    let duplicates: Vec<_> = rows.iter().filter(|row| row[7] == "true").map(|row| row[0].as_str()).collect();
    assert_eq!(duplicates, ["7"]);
}

#[test]
fn workers_join_pause_leave_and_die() {
    let (address, directory) = (fake_broker::start(Faults::default()), directory());
    let file = directory.path().join("roles.toml");
    let text = r#"
        messages = 100
        arrivals = { fixed = "20ms" }
        idle = "0s"
        pings = { every = "100ms" }
        [[workers]]
        service = "1ms"
        pauses = [{ at = "300ms", for = "200ms" }]
        [[workers]]
        service = "90ms"
        dies = "500ms"
        [[workers]]
        service = "25ms"
        leaves = "500ms"
        [[workers]]
        service = "1ms"
        joins = "500ms"
    "#;
    std::fs::write(&file, text).expect("a file");
    let out = directory.path().display();
    run(&format!("scenario {} --broker {address} --qos 0 --out {out}", file.display())).unwrap();

    let of_run = &summary(&directory)["policies"][0]["runs"][0];
    let number = |key: &str| of_run[key].as_u64().unwrap();
    // The second worker is slower than its messages arrive: it dies with some of them, which are lost.
    assert!(number("died_with_a_worker") > 0 && number("lost") >= number("died_with_a_worker"), "{of_run}");
    assert_eq!((number("published"), number("received") + number("lost")), (100, 100));

    let rows = rows(&directory.path().join("broker-run1.csv"));
    // A leaving worker finishes its messages and gets none of the last; a joining worker gets none of the first.
    let has = |name: &str, sequences: std::ops::Range<u64>| {
        rows.iter().any(|row| row[1] == name && sequences.contains(&row[0].parse().unwrap()))
    };
    assert!(has("sub-2", 0..10) && !has("sub-2", 95..100) && has("sub-3", 95..100) && !has("sub-3", 0..10));
    assert!(rows.iter().filter(|row| row[1] == "sub-2").all(|row| !row[4].is_empty()));
}

#[test]
fn a_warm_up_is_another_run_of_the_same_workers() {
    let address = fake_broker::start(Faults { duplicate: Some(7), ..Faults::default() });
    let line = format!(
        "scenario 2 --broker {address} --interval 5ms --duration 100ms --ping-interval 100ms --qos 1 --warm=200ms"
    );
    // The duplicate was one of the warm-up's forty messages.
    let text = run(&line).unwrap();
    assert!(text.contains("published 20, received 20, lost 0, duplicated 0"), "{text}");
}

#[test]
fn broken_worker_program_is_a_one_line_error() {
    let address = fake_broker::start(Faults::default());
    for program in ["true", "/nowhere/worker"] {
        let error = run(&format!("scenario 2 --broker {address} --worker-command {program}")).unwrap_err();
        assert!(matches!(error, LoadgenError::NotReady { .. } | LoadgenError::Start { .. }), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn dying_broker_is_a_one_line_error() {
    let address = fake_broker::start(Faults { die: Some(5), ..Faults::default() });
    let error = run(&format!("scenario 2 --broker {address}")).unwrap_err();
    assert!(matches!(error, LoadgenError::ConnectionLost { .. }), "{error}");
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn unreachable_broker_is_a_one_line_error() {
    let address = "127.0.0.1:1";
    for command in ["scenario 2 --broker", "compare --brokers x="] {
        let line = if command.ends_with('=') { format!("{command}{address}") } else { format!("{command} {address}") };
        let error = run(&line).unwrap_err();
        assert!(matches!(error, LoadgenError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(address) && !error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn closed_loop_counts_every_delivery_in_each_mode() {
    for mode in [
        "--closed --shared --qos 0",
        "--closed --shared --qos 1",
        "--closed --shared --qos 2",
        "--closed --qos 0",
        "--closed --shared --qos 1 --protocol 3.1.1",
        "--closed=1 --qos 0",
    ] {
        let address = fake_broker::start(Faults::default());
        let broker = format!("--brokers fake={address},pid={}", std::process::id());
        let text =
            run(&format!("compare {broker} --publishers 2 --subscribers 3 --time 200ms --runs 1 {mode}")).unwrap();
        assert!(text.contains("lost 0, duplicated 0, refused 0"), "{mode}: {text}");
        assert!(["s of processor time", "per CPU-s", "CPU s", "RSS KiB"].iter().all(|of| text.contains(of)), "{text}");
        assert!(received_per_second(&text) > 0.0, "{mode}: {text}");
    }
}

#[test]
fn closed_loop_goes_on_after_a_loss() {
    let address = fake_broker::start(Faults { lose: Some(4), ..Faults::default() });
    // A window of one message: the loss closes it until it is given up, long before the end of the load.
    let load = "--shared --subscribers 10 --closed=1 --time 500ms --runs 1";
    let text = run(&format!("compare --brokers fake={address} {load}")).unwrap();
    assert!(text.contains("lost 1, duplicated 0"), "{text}");
    assert!(received_per_second(&text) > 0.0, "{text}");
}

#[test]
fn closed_loop_loses_nothing_after_a_stall() {
    // The stall lasts longer than the load, so that given-up messages arrive after its end.
    let address = fake_broker::start(Faults { stall: Some(1000), ..Faults::default() });
    let load = "--shared --publishers 10 --subscribers 10 --payload 100 --closed --time 10ms --runs 1";
    let text = run(&format!("compare --brokers fake={address} {load}")).unwrap();
    assert!(text.contains("lost 0, duplicated 0"), "{text}");
}

/// Received messages a second, from the row of medians.
fn received_per_second(text: &str) -> f64 {
    let row = text.lines().find(|line| line.starts_with("fake")).expect("a row of medians");
    row.split_whitespace().nth(2).expect("a figure").parse().expect("a number")
}
