//! README's work queue: three workers with gmqtt for Python, of which one works, one rejects, and one hangs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tenbin_codec::QoS;

use super::{Killed, is_installed};
use crate::support::{BrokerProcess, DataDirectory, Lines, PATIENCE};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/work-queue");

fn python() -> String {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python/bin/python3");
    if installed.exists() { installed.display().to_string() } else { "python3".to_owned() }
}

fn workers(broker: &BrokerProcess) -> (Killed, Lines) {
    let port = broker.address().port().to_string();
    let mut child = Command::new(python())
        .args(["-B", &format!("{EXAMPLE}/workers.py"), "--port", &port, "works", "rejects", "hangs"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python is installed");
    let lines = Lines::collect(child.stdout.take().expect("a pipe"));
    (Killed(child), lines)
}

#[test]
fn each_invoice_is_processed_once_or_a_dead_letter() {
    if !is_installed("gmqtt for Python", Command::new(python()).args(["-c", "import gmqtt"]), &[0]) {
        return;
    }
    let data = DataDirectory::new();
    let environment = [("TENBIN_ADMIN__ADDRESS", "127.0.0.1:0".into())];
    let config = format!("{EXAMPLE}/tenbin.toml");
    let arguments = ["--listen", "127.0.0.1:0", "--data", data.path_text(), "--config", &config];
    let broker = BrokerProcess::start_in(&environment, &arguments);
    let admin = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.args(["admin", "--format", "json", "--data", data.path_text()]).args(arguments);
        let done = command.output().expect("our own program");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice::<Value>(&done.stdout).expect("JSON")
    };
    let (_workers, lines) = workers(&broker);
    let members = || admin(&["group", "billing", "invoices/#"])["members_total"].as_u64();
    while members() != Some(3) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut publisher = broker.v5("publisher");
    let invoices = ["1", "2", "3", "4", "unreadable"];
    for invoice in invoices {
        publisher.publish(&format!("invoices/{invoice}"), invoice, QoS::AtLeastOnce);
    }
    assert_eq!(lines.count(" done", 4, PATIENCE), 4);
    let done = || lines.all().into_iter().filter(|line| line.ends_with(" done")).collect::<BTreeSet<_>>();
    let expected = ["1", "2", "3", "4"].map(|number| format!("works invoices/{number} {number} done"));
    assert_eq!(done(), expected.into());
    let begin = std::time::Instant::now();
    let letters = loop {
        let letters = admin(&["dead-letters", "billing", "list"]);
        if letters != Value::Array(Vec::new()) {
            break letters;
        }
        assert!(begin.elapsed() < PATIENCE, "no dead letter");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!((&letters[0]["topic"], &letters[1]), (&"invoices/unreadable".into(), &Value::Null));
    assert!(letters[0]["deliveries"].as_u64() >= Some(3), "{letters}");
    let before = lines.all().len();
    assert_eq!(admin(&["dead-letters", "billing", "replay"])["replayed"], 1);
    while lines.all().len() == before {
        assert!(begin.elapsed() < 2 * PATIENCE, "the invoice does not come again");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
