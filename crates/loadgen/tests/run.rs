//! `run` against a test broker with deliberate faults: the verdict counts each fault exactly, and assertions report it.

mod command;
mod fake_broker;

use command::{directory, parse, read, try_run};
use fake_broker::{Faults, Often};
use serde_json::Value;
use tenbin_loadgen::LoadgenError;

fn run(line: &str) -> String {
    let (text, result) = try_run(line);
    result.unwrap_or_else(|error| panic!("{line}: {error}\n{text}"));
    text
}

/// The verdict in `summary.json` of a run with faults.
fn verdict(often: Often, line: &str) -> Value {
    let address = fake_broker::start(Faults { often, ..Faults::default() });
    let directory = directory();
    run(&format!("run --broker {address} --subscriber-timeout 3s --out {} {line}", directory.path().display()));
    let summary: Value = serde_json::from_str(&read(&directory, "summary.json")).expect("JSON");
    assert_eq!(summary["verdict"]["exact"], true);
    summary["verdict"].clone()
}

#[test]
fn good_broker_passes_all_assertions() {
    for line in [
        "--qos 0",
        "--qos 1 --publishers 3 --subscribers 2",
        "--qos 2 --protocol 3.1.1",
        "--publisher-qos 2 --subscriber-qos 1",
        "--shared --subscribers 3 --qos 1",
        "--topic a/{publisher}/{topic} --topics 5 --publishers 2 --filter a/# --filter a/+/3",
        "--interval 1ms --qos 1",
        "--closed=10 --messages 200",
        "--payload 600 --threads 1",
    ] {
        let address = fake_broker::start(Faults::default());
        let holds = "lost=0,duplicated=0,out_of_order=0,foreign=0,wrong=0,expected>=100";
        let text = run(&format!("run --broker {address} --assert {holds} {line}"));
        assert!(text.contains("assertion holds: lost = 0, wanted = 0"), "{line}: {text}");
    }
}

#[test]
fn run_does_not_wait_for_a_slow_subscriber() {
    let line = "--messages 1000 --subscribers 2 --slow 30 --time 4";
    let verdict = verdict(Often::default(), line);
    let lost = verdict["lost"].as_u64().expect("a number");
    // Half a minute would be too short for the slow subscriber; the other one gets all messages.
    assert!((1..1000).contains(&lost), "{verdict}");
    assert_eq!(verdict["expected"], 2000);
}

#[test]
fn small_payloads_allow_only_counting() {
    let address = fake_broker::start(Faults::default());
    run(&format!("run --broker {address} --payload 8 --assert lost=0,duplicated=0,foreign=0,expected=100"));
    let (text, result) = try_run(&format!("run --broker {address} --payload 8 --assert out_of_order=0,wrong=0"));
    assert!(matches!(result, Err(LoadgenError::Assertions { failed: 2, of: 2 })), "{result:?}");
    assert!(text.contains("assertion failed: wrong = unknown, wanted = 0"), "{text}");
}

#[test]
fn broker_faults_are_counted_exactly() {
    // Every 97th, 89th and 79th of 1000 messages; no message has two faults, or a faulty neighbour.
    let often = Often { lose: Some(97), duplicate: Some(89), hold_back: Some(79), ..Often::default() };
    for qos in 0..=2 {
        let verdict = verdict(often, &format!("--messages 1000 --qos {qos}"));
        let counts = ["expected", "received", "lost", "duplicated", "duplicated_unmarked", "out_of_order"];
        let counts = counts.map(|name| verdict[name].as_u64().unwrap());
        assert_eq!(counts, [1000, 990, 10, 11, 11, 12], "QoS {qos}: {verdict}");
    }
}

#[test]
fn copies_with_and_without_dup_are_distinguished() {
    let often = Often { redeliver: Some(50), duplicate: Some(81), ..Often::default() };
    let verdict = verdict(often, "--messages 1000 --qos 1");
    // 20 with the flag, 12 without.
    assert_eq!((&verdict["duplicated"], &verdict["duplicated_unmarked"]), (&32.into(), &12.into()), "{verdict}");
}

#[test]
fn message_to_all_members_is_noticed() {
    let often = Often { give_to_all: Some(50), ..Often::default() };
    let verdict = verdict(often, "--messages 1000 --shared --subscribers 3");
    assert_eq!((&verdict["expected"], &verdict["lost"]), (&1000.into(), &0.into()), "{verdict}");
    assert_eq!((&verdict["to_another_member"], &verdict["duplicated"]), (&40.into(), &40.into()), "{verdict}");
}

#[test]
fn a_damaged_message_is_wrong_and_lost() {
    let often = Often { damage: Some(100), ..Often::default() };
    let verdict = verdict(often, "--messages 1000");
    assert_eq!((&verdict["wrong"], &verdict["lost"]), (&10.into(), &10.into()), "{verdict}");
}

#[test]
fn unacknowledged_and_refused_messages_are_reported() {
    for (faults, figures, verdict, note) in [
        (
            Faults { swallow: Some(5), ..Faults::default() },
            "published=5,lost=0,unacknowledged=1,not_taken=0,missing=1",
            "\n  missing, but not in lost: never acknowledged 1\n",
            "note: 1 messages were sent and never acknowledged",
        ),
        (
            Faults { refuse: true, ..Faults::default() },
            "expected=0,unacknowledged=0,not_taken=20,missing=20",
            "\n  missing, but not in lost: refused by the broker 20\n",
            "note: 20 messages were not taken",
        ),
    ] {
        let address = fake_broker::start(faults);
        let line = "--qos 1 --in-flight 1 --messages 20 --time 1 --subscriber-timeout 3s";
        let text = run(&format!("run --broker {address} {line} --assert {figures}"));
        assert!(text.contains(verdict) && text.contains(note), "{text}");
    }
    let address = fake_broker::start(Faults::default());
    let text = run(&format!("run --broker {address} --topic a --filter b --assert expected=0,published=100"));
    assert!(text.contains("note: nothing is expected"), "{text}");
}

#[test]
fn stall_until_the_end_shows_in_latency_of_unsent() {
    // The broker stalls from 0.1 to 0.6 s: four fifths of the messages become due and wait for an acknowledgement.
    let address = fake_broker::start(Faults { stall: Some(100), ..Faults::default() });
    let load = "--qos 1 --in-flight 1 --publish-rate 1000 --time 500ms";
    let text = run(&format!("run --broker {address} {load} --assert lost=0,unsent>300,p50>50ms"));
    assert!(text.contains("messages were due and never sent: "), "{text}");
}

#[test]
fn a_failing_assertion_is_an_error_and_says_what_was_found() {
    let address = fake_broker::start(Faults { lose: Some(3), ..Faults::default() });
    let directory = directory();
    let junit = directory.path().join("junit.xml");
    let line = format!(
        "run --broker {address} --subscriber-timeout 3s --assert lost=0,duplicated=0 --assert p99<60s --junit {}",
        junit.display()
    );
    let (text, result) = try_run(&line);
    assert!(matches!(result, Err(LoadgenError::Assertions { failed: 1, of: 3 })), "{result:?}");
    for part in ["assertion failed: lost = 1, wanted = 0\n", "assertion holds: duplicated = 0", "Number of received"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let xml = std::fs::read_to_string(&junit).expect("a report");
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    let is_case = |node: &roxmltree::Node<'_, '_>| node.has_tag_name("testcase");
    let failed = document.descendants().filter(is_case).filter(roxmltree::Node::has_children);
    assert_eq!(failed.filter_map(|case| case.attribute("name")).collect::<Vec<_>>(), ["lost = 0"]);
}

#[test]
fn failed_run_replaces_the_junit_report_by_an_error() {
    let address = fake_broker::start(Faults { die: Some(3), ..Faults::default() });
    let directory = directory();
    let junit = directory.path().join("junit.xml");
    std::fs::write(&junit, "of another run").expect("a file");
    let (text, result) = try_run(&format!("run --broker {address} --assert lost=0 --junit {}", junit.display()));
    let error = result.expect_err(&text);
    assert!(matches!(error, LoadgenError::ConnectionLost { .. }), "{error}");
    let xml = std::fs::read_to_string(&junit).expect("a report");
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    let errors: Vec<_> = document.descendants().filter(|node| node.has_tag_name("error")).collect();
    let [told] = errors.as_slice() else { panic!("one error: {xml}") };
    assert_eq!(told.attribute("message"), Some(error.to_string().as_str()));
    let suite = document.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
    assert_eq!((suite.attribute("tests"), suite.attribute("errors")), (Some("1"), Some("1")));
}

#[test]
fn unwritable_report_does_not_prevent_assertions() {
    let address = fake_broker::start(Faults { lose: Some(3), ..Faults::default() });
    let directory = directory();
    let (junit, out) = (directory.path().join("junit.xml"), directory.path().join("a-file"));
    std::fs::write(&out, "no directory").expect("a file");
    let line = format!("--assert lost=0 --junit {} --out {}", junit.display(), out.display());
    let (text, result) = try_run(&format!("run --broker {address} --subscriber-timeout 3s {line}"));
    assert!(result.is_err() && text.contains("assertion failed: lost = 1"), "{result:?} {text}");
    assert!(std::fs::read_to_string(&junit).expect("a report").contains("<failure"));
}

#[test]
fn mqttloader_record_has_a_row_per_message_and_side() {
    let address = fake_broker::start(Faults::default());
    let directory = directory();
    let out = directory.path().display();
    run(&format!("run --broker {address} --publishers 2 --messages 50 --subscribers 2 --record-file {out}"));
    let files: Vec<_> = std::fs::read_dir(directory.path()).expect("a directory").flatten().collect();
    let [file] = files.as_slice() else { panic!("one file: {files:?}") };
    let name = file.file_name().into_string().expect("plain");
    assert!(
        name.starts_with("mqttloader_")
            && name.ends_with(".csv")
            && name.len() == "mqttloader_20201104-101838.csv".len()
    );
    let text = std::fs::read_to_string(file.path()).expect("rows");
    let rows: Vec<Vec<_>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 4), "{text}");
    let times: Vec<u64> = rows.iter().map(|row| row[0].parse().expect("microseconds")).collect();
    assert!(times.is_sorted(), "{text}");
    let of = |event: &str| rows.iter().filter(|row| row[2] == event).count();
    assert_eq!((of(""), of("S"), of("R")), (1, 100, 200));
}

#[test]
fn brokers_are_compared_in_turns() {
    let (one, other) =
        (fake_broker::start(Faults::default()), fake_broker::start(Faults { lose: Some(3), ..Faults::default() }));
    let directory = directory();
    let out = directory.path().display();
    let load = "--messages 100 --qos 1 --subscriber-timeout 3s";
    let text = run(&format!("compare --brokers one={one},other={other} --runs 2 {load} --out {out}"));
    let order: Vec<_> = text.lines().filter_map(|line| line.trim_start().strip_prefix("run ")).collect();
    let order: Vec<_> = order.iter().filter_map(|line| line.split_once(':')).map(|(run, _)| run).collect();
    assert_eq!(order, ["1 one", "1 other", "2 one", "2 other"]);
    let summary = read(&directory, "compare.json");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    let lost = summary["brokers"][1]["runs"].as_array().unwrap().iter().map(|run| run["lost"].as_f64().unwrap());
    // It loses only one message in its lifetime.
    assert_eq!(lost.sum::<f64>(), 1.0);
    assert_eq!(summary["brokers"][0]["medians"]["received"], 100.0);
}

#[test]
fn the_four_patterns_are_measured_and_observed() {
    let brokers = [fake_broker::start(Faults::default()), fake_broker::start(Faults::default())];
    let [a, b] = brokers;
    let directory = directory();
    let out = directory.path().display();
    let text =
        run(&format!("pattern all --brokers a={a},b={b} --qos 0,1 --time 1 --runs 1 --publishers 4 --out {out}"));
    for pattern in ["SGL-SGL", "SGL-SHD", "MLT-SGL", "MLT-SHD"] {
        for qos in 0..=1 {
            let title = format!("{pattern} QoS {qos} ");
            assert!(text.lines().any(|line| line.starts_with(&title)), "{title} is missing in {text}");
        }
    }
    for observation in ["QoS 0: ", "delivers most"] {
        assert!(text.contains(observation), "{text}");
    }
    let summary = read(&directory, "pattern.json");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    let rows = summary["systems"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!((&row["mean"]["lost"], row["runs"].as_array().map(Vec::len)), (&0.0.into(), Some(1)), "{row}");
        assert!(row["mean"]["received_per_second"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn find_rate_shows_steps_and_highest_rate() {
    let address =
        fake_broker::start(Faults { often: Often { lose: Some(100), ..Often::default() }, ..Faults::default() });
    // It loses its 100th and 200th messages; half a second at 100 messages a second ends before that.
    let line =
        format!("run --broker {address} --publish-rate 100 --step 500ms --subscriber-timeout 3s --find-rate max<60s");
    let text = run(&line);
    assert!(text.contains("100 msg/s") && text.contains("held") && text.contains("too high: lost 1"), "{text}");
    assert!(text.contains("highest rate with max < 60000 ms: "), "{text}");
}

#[test]
fn a_rate_at_which_the_broker_drops_its_clients_is_too_high() {
    // It gets 50 messages at the first rate, and ends all connections during the second one.
    let address = fake_broker::start(Faults { die: Some(70), ..Faults::default() });
    let line = format!("run --broker {address} --publish-rate 100 --step 500ms --find-rate max<60s");
    let text = run(&line);
    let is_told =
        |line: &str| line.contains(" 200 msg/s: no latency: too high: ") && line.contains("lost its connection");
    assert!(text.lines().any(is_told), "{text}");
    assert!(text.contains("highest rate with max < 60000 ms: "), "{text}");
}

#[test]
fn unreachable_broker_is_a_one_line_error() {
    let address = "127.0.0.1:1";
    let (_, result) = try_run(&format!("run --broker {address}"));
    let error = result.unwrap_err();
    assert!(matches!(error, LoadgenError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(address) && !error.to_string().contains('\n'), "{error}");
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    for line in [
        "--interval 1ms --publish-rate 5",
        "--closed --interval 1ms",
        "--reports ack",
        "--client-key k",
        "--rate 5",
        "--assert lots=0",
        "--assert p99<50",
        "--find-rate p99<1s --messages 5",
        "--find-rate p99<1s --time 5",
        "--token x",
    ] {
        assert!(parse(&format!("run {line}")).is_err(), "{line}");
    }
}
