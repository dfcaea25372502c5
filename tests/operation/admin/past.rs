//! The past: series and events, also of the last run.

use std::time::Instant;

use serde_json::{Value, json};
use tenbin_codec::QoS;

use crate::admin::stage::{Stage, wait_until};
use crate::support::{ConfigFile, DataDirectory, PATIENCE, share};

/// Values of a series of ten seconds that are known.
fn known(past: &Value, series: &str) -> Vec<f64> {
    let values = past["ten_seconds"]["values"][series].as_array().expect("a series");
    values.iter().filter_map(Value::as_f64).collect()
}

#[test]
fn series_events_and_rates_survive_a_restart() {
    let data = DataDirectory::new();
    let file = ConfigFile::new("[[share]]\ngroup = \"pool\"\nfilter = \"jobs\"\nkeep_seconds = 600\n");
    let arguments = ["--data", data.path_text(), "--config", file.path()];
    let mut stage = Stage::start(&arguments);
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    let past = || stage.get_json("/api/v1/past");
    let until = Instant::now() + PATIENCE;
    while !known(&past(), "messages_received").iter().any(|rate| *rate > 0.0) {
        worker.publish("jobs", "x", QoS::AtLeastOnce);
        worker.drain();
        assert!(Instant::now() < until, "no row comes");
    }
    let desired = || stage.get_json("/api/v1/groups/pool/jobs/scale")["desired"].clone();
    wait_until(|| desired().is_u64());
    let before = past();
    assert!(before["ten_seconds"]["values"].as_object().is_some_and(|series| series.len() >= 20), "{before}");
    assert_eq!((&before["ten_seconds"]["step_ms"], &before["minutes"]["step_ms"]), (&json!(10_000), &json!(60_000)));
    stage.broker.signal("TERM");
    assert!(stage.broker.wait_for_exit(PATIENCE).success());
    let stored = std::fs::metadata(data.path().join("past.json")).expect("a file").len();
    assert!(stored < 2 << 20, "{stored}");

    let stage = Stage::start(&arguments);
    // At once: the rate and the speed are those of the last run.
    let scale = stage.get_json("/api/v1/groups/pool/jobs/scale");
    assert!(scale["desired"].as_u64().is_some_and(|desired| desired > 0), "{scale}");
    let past = stage.get_json("/api/v1/past");
    assert!(known(&past, "messages_received").iter().any(|rate| *rate > 0.0), "{past}");
    let started = past["events"].as_array().into_iter().flatten().find(|event| event["kind"] == "started");
    assert!(started.is_some_and(|event| event["times"] == 2 || event["times"] == 1), "{past}");
}

#[test]
fn damaged_file_begins_a_new_past() {
    let data = DataDirectory::new();
    std::fs::write(data.path().join("past.json"), "{\"version\": 1, \"ten").expect("written");
    let stage = Stage::start(&["--data", data.path_text()]);
    stage.broker.log().wait_for(&["WARN", "the past of the last run cannot be read"], PATIENCE);
    assert_eq!(known(&stage.get_json("/api/v1/past"), "clients"), [] as [f64; 0]);
}
