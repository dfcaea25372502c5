//! `tenbin-loadgen scenario` with the broker that it starts: no QoS 1 message is lost when workers pause, die, leave
//! and join.

use std::process::Command;

use crate::support::ConfigFile;

/// One worker pauses, one dies with messages, one leaves with messages, one joins. The load exceeds their capacity.
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
fn work_of_dead_and_leaving_workers_is_completed() {
    let file = ConfigFile::new(SCENARIO);
    // At QoS 2 the messages of a dead worker may not be redelivered [MQTT-4.8.2-6].
    for reports in ["none", "pingreq", "ack", "publish"] {
        let how = ["--qos", "1", "--reports", reports, "--policy", "round_robin"];
        let arguments = ["loadgen", "scenario", file.path()].into_iter().chain(how);
        let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(arguments).output().expect("our own binary");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        // The PUBACK of a worker's last message may die with it, so that another worker gets this message too.
        let is_complete = |copies| {
            text.contains(&format!("published 150, received 150, lost 0, duplicated {copies}, died with a worker"))
        };
        assert!(is_complete(0) || is_complete(1), "{text}");
    }
}

#[test]
fn slow_receivers_get_all_messages_with_a_data_directory() {
    let data = std::env::temp_dir().join(format!("tenbin-scenario-slow-{}", std::process::id()));
    let arguments =
        "loadgen scenario slow --sizes 4k:100,16k:50 --normal 2 --slow 2 --before 500ms --switch 300ms --after 700ms";
    let output = Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(arguments.split_whitespace())
        .arg("--data")
        .arg(&data)
        .output()
        .expect("our own binary");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for size in ["4 KiB, 100 messages a second", "16 KiB, 50 messages a second"] {
        assert!(text.contains(size), "{text}");
    }
    for who in ["normal", "slow"] {
        let none = format!("  {who}: lost 0, duplicated 0, out of order 0\n");
        assert_eq!(text.matches(&none).count(), 2, "{text}");
    }
    // Each broker's directory is gone, and the named one stays.
    let left = std::fs::read_dir(&data).expect("the directory that was named").count();
    let _ = std::fs::remove_dir_all(&data);
    assert_eq!(left, 0, "{text}");
}
