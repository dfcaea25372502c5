//! `tenbin loadgen scenario` with the broker that it starts: whatever its workers do, no message of QoS 1 is lost.

mod support;

use std::process::Command;

use support::ConfigFile;

/// One worker stands still, one dies with messages, one leaves with messages, one joins; more than they can do.
const SCENARIO: &str = r#"
messages = 150
arrivals = { bursts = { messages = 10, every = "100ms" } }
idle = "0s"
pings = { every = "100ms", eager = true }
[[workers]]
service = "10ms"
pauses = [{ at = "300ms", for = "300ms" }]
[[workers]]
service = "40ms"
dies = "750ms"
[[workers]]
service = "40ms"
leaves = "750ms"
[[workers]]
service = "5ms"
threads = 2
joins = "500ms"
"#;

#[test]
fn what_a_worker_dies_or_leaves_with_is_done_all_the_same() {
    let file = ConfigFile::new(SCENARIO);
    // At QoS 2 what a dead worker has may be given to nobody else [MQTT-4.8.2-6].
    for reports in ["none", "pingreq", "ack", "publish"] {
        let how = ["--qos", "1", "--reports", reports, "--policy", "round_robin"];
        let arguments = ["loadgen", "scenario", file.path()].into_iter().chain(how);
        let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(arguments).output().expect("our own binary");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("published 150, received 150, lost 0, duplicated 0, died with a worker"), "{text}");
    }
}
