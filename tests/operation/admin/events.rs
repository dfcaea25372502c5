//! `/api/v1/events`, as the dashboard reads it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::Value;
use tenbin_codec::QoS;

use crate::admin::stage::Stage;
use crate::support::{PATIENCE, share};

/// Events of an open stream.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(stage: &Stage, path: &str) -> Self {
        let mut stream = TcpStream::connect(stage.admin).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", stage.admin).as_bytes()).expect("sent");
        Self(BufReader::new(stream))
    }

    /// Data of the next event.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("a line") > 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }
}

#[test]
fn snapshots_show_rates_groups_and_new_decisions() {
    let stage = Stage::start_in(&[("TENBIN_EXPLAIN__PAUSE_MS", "0".into())], &[]);
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs/+"), QoS::AtLeastOnce);
    let mut events = Events::open(&stage, "/api/v1/events?group=pool&filter=jobs/%2B");
    let first = events.next();
    assert_eq!((&first["clients"], &first["groups_total"], &first["rates"]), (&1.into(), &1.into(), &Value::Null));
    let mut seen = Vec::new();
    let mut sent = 0;
    while seen.len() < 3 {
        // One message between two snapshots: it is in the next one's rates.
        worker.publish("jobs/1", "x", QoS::AtLeastOnce);
        worker.receive_message();
        sent += 1;
        let snapshot = events.next();
        let rate = snapshot["rates"]["messages_received"].as_f64().expect("a rate");
        assert!((0.0..=10.0 * f64::from(sent)).contains(&rate), "{rate}");
        let group = &snapshot["groups"][0];
        let member = &group["members"][0];
        assert_eq!((&group["group"], &member["client"]), (&"pool".into(), &"worker".into()));
        let parts = ["wait_at_client_ms", "wait_in_flight_ms", "wait_queued_ms"].map(|part| member[part].as_f64());
        let sum = parts.iter().map(|part| part.expect("a time")).sum::<f64>();
        assert!((sum - member["predicted_wait_ms"].as_f64().expect("a time")).abs() < 0.01, "{member}");
        for decision in snapshot["decisions"].as_array().expect("decisions") {
            assert_eq!(decision["chosen"], "worker");
            seen.push(decision["number"].as_u64().expect("a number"));
        }
    }
    assert!(seen.is_sorted_by(|one, other| one < other), "each once: {seen:?}");
    assert_eq!(stage.get("/api/v1/events?group=pool").status, 400);
}
