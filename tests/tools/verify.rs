//! The command `tenbin-verify` with its own broker in namespaces, and the absence of leftovers when it is killed.
//!
//! Without user namespaces the tests print a line and check nothing.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const TENBIN: &str = env!("CARGO_BIN_EXE_tenbin");
const PATIENCE: Duration = Duration::from_secs(60);

const FILE: &str = "\
systems:
  broker: { kind: tenbin }
  pub: { publishes_to: broker, count: 2, size: 100B, rate: 200, qos: 1 }
  sub: { subscribes_to: broker, qos: 1, session_expiry: 1h }
actions:
  - { name: away, target: sub, fault: pause, start: 2, duration: 3 }
  - { name: kill, target: broker, fault: kill, start: 3, duration: 1 }
  - { name: slow, fault: net.delay, delay: 50ms, from: broker, to: sub, start: 6, duration: 2 }
measure: { time: 10, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0, p50 during slow >= 50ms, unavailable during kill >= 500ms ]
";

/// True if users may create namespaces here.
fn has_namespaces() -> bool {
    let status = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).status();
    let has = status.is_ok_and(|status| status.success());
    if !has {
        println!("skipped: this machine lets its users create no namespaces");
    }
    has
}

/// Starts `run` with its temporary files below `directory`, by which its processes can be told.
fn start(directory: &Path) -> Child {
    start_with(directory, FILE)
}

fn start_with(directory: &Path, template: &str) -> Child {
    let file = directory.join("file.yaml");
    fs::write(&file, template).expect("a file");
    fs::create_dir_all(directory.join("tmp")).expect("a directory");
    Command::new(TENBIN)
        .args(["verify", "run"])
        .arg(&file)
        .arg("--out")
        .arg(directory.join("out"))
        .env("TMPDIR", directory.join("tmp"))
        // The plan alone decides.
        .env("TENBIN_QOS", "2")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command")
}

/// Processes with a mark in their environment or command line.
fn processes(directory: &Path) -> Vec<String> {
    let mark = directory.display().to_string();
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let has_mark = |file: &Path| fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&mark));
    let own =
        entries.filter(|entry| has_mark(&entry.path().join("environ")) || has_mark(&entry.path().join("cmdline")));
    own.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn broker_survives_faults_of_process_and_network() {
    if !has_namespaces() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let output = start(directory.path()).wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all assertions hold"), "{text}");
    let run = directory.path().join("out/default");
    for file in ["plan.json", "events.jsonl", "seconds.csv", "links.csv", "sockets.csv", "logs/broker.log"] {
        assert!(run.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file}");
    }
    assert_eq!(fs::read_dir(directory.path().join("tmp")).expect("a directory").count(), 0);
    assert_eq!(processes(directory.path()), Vec::<String>::new());
}

/// A user's clients on both sides, and a built-in subscriber beside them.
const PROGRAMS: &str = "\
systems:
  broker: { kind: tenbin }
  pub: { publishes_to: broker, count: 2, size: 100B, rate: 200, qos: 1, command: PROGRAM }
  sub: { subscribes_to: broker, qos: 1, session_expiry: 1h, command: PROGRAM }
  built-in: { subscribes_to: broker, qos: 1, session_expiry: 1h }
actions:
  - { name: away, target: sub, fault: pause, start: 2, duration: 2 }
  - { name: kill, target: broker, fault: kill, start: 5, duration: 500ms }
measure: { time: 8, warm_up: 1s, before: 1, drain: 30 }
assert: [ lost = 0, refused = 0, max during away >= 1s, unavailable during kill >= 300ms ]
";

#[test]
fn client_programs_of_a_user_survive_faults_of_process() {
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_namespaces() || !has_python {
        println!("skipped: it needs namespaces and python3");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = format!("python3 {}/verifications/clients/mqtt.py", env!("CARGO_MANIFEST_DIR"));
    let output = start_with(directory.path(), &PROGRAMS.replace("PROGRAM", &program)).wait_with_output();
    let output = output.expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all assertions hold"), "{text}");
    let seconds = fs::read_to_string(directory.path().join("out/default/seconds.csv")).expect("seconds");
    assert!(seconds.lines().count() > 8, "{seconds}");
    assert_eq!(processes(directory.path()), Vec::<String>::new());
}

#[test]
fn killed_command_leaves_nothing_behind() {
    if !has_namespaces() {
        return;
    }
    // Each wait ends in another part of the run: start, first fault, second fault.
    for wanted in [
        "planned",
        r#""action":"away","repetition":1,"event":"begun""#,
        r#""action":"kill","repetition":1,"event":"begun""#,
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let mounts = || fs::read_to_string("/proc/self/mounts").expect("mounts").lines().count();
        let before = mounts();
        let mut command = start(directory.path());
        let events = directory.path().join("out/default/events.jsonl");
        eventually(wanted, || fs::read_to_string(&events).is_ok_and(|events| events.contains(wanted)));
        command.kill().expect("SIGKILL");
        command.wait().expect("its end");
        eventually("the end of all processes", || processes(directory.path()).is_empty());
        assert_eq!(fs::read_dir(directory.path().join("tmp")).expect("a directory").count(), 0, "{wanted}");
        assert_eq!(mounts(), before, "{wanted}");
    }
}

#[test]
fn interrupted_run_undoes_faults_and_reports() {
    if !has_namespaces() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let command = start(directory.path());
    let events = directory.path().join("out/default/events.jsonl");
    let has = |wanted: &str| fs::read_to_string(&events).is_ok_and(|events| events.contains(wanted));
    let begun = r#""action":"kill","repetition":1,"event":"begun""#;
    eventually(begun, || has(begun));
    let interrupt = Command::new("kill").args(["-INT", &command.id().to_string()]).status();
    assert!(interrupt.is_ok_and(|status| status.success()));
    let output = command.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("interrupted after"), "{text}");
    for action in ["away", "kill"] {
        assert!(has(&format!(r#""action":"{action}","repetition":1,"event":"undone""#)), "{action}");
    }
    assert!(directory.path().join("out/report.html").exists());
}

/// A receiver with small buffers, and a sender with more load than their window lets through at 50 ms.
const SMALL_WINDOW: &str = "\
systems:
  broker: { kind: tenbin }
  pub: { publishes_to: broker, size: 100B, rate: 50, qos: 1 }
  sub: { subscribes_to: broker, qos: 1 }
  receiver:
    kind: mqtt
    command: \"echo 4096 16384 32768 > /proc/sys/net/ipv4/tcp_rmem &&
      exec 'TENBIN' broker --listen 0.0.0.0:1883 --data {data}\"
  sender:
    kind: command
    command: \"echo reno > /proc/sys/net/ipv4/tcp_congestion_control &&
      until 'TENBIN' verify await-port receiver:1883 --mqtt; do sleep 0.1; done;
      exec 'TENBIN' loadgen run --broker receiver:1883 --subscribers 0 --qos 1 --payload 16384 --publish-rate 600
      --in-flight 1000 --time 120s\"
    ready: { command: 'true' }
actions:
  - { name: far, fault: net.delay, delay: 50ms, from: sender, to: receiver, start: 3, duration: 5 }
measure: { time: 9, warm_up: 2s, before: 2, drain: 30 }
assert: [ lost = 0 ]
";

#[test]
fn page_names_the_window_that_limits_a_connection() {
    if !has_namespaces() {
        return;
    }
    if Command::new("ss").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("skipped: the program ss is not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let child = start_with(directory.path(), &SMALL_WINDOW.replace("TENBIN", TENBIN));
    let output = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let read = |name: &str| fs::read_to_string(directory.path().join("out").join(name)).expect("a file");

    // Round trip and window of the sender's connection while the fault lasts.
    let sockets = read("default/sockets.csv");
    let mut lines = sockets.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a head");
    let column = |name: &str| head.iter().position(|column| *column == name).expect("a column");
    let (from, to, rtt, window) = (column("from"), column("to"), column("rtt_ms"), column("send_window"));
    let value = |text: &str| text.parse::<f64>().expect("a number");
    let is_far = |line: &Vec<&str>| (line[from], line[to]) == ("sender", "receiver") && value(line[rtt]) >= 50.0;
    let far = lines.filter(is_far).collect::<Vec<_>>();
    assert!(far.len() >= 3 && far.iter().all(|line| value(line[window]) <= 32768.0), "{sockets}");

    let page = read("report.html");
    let cause = page.split("<tr>").find(|row| row.contains("during far") && row.contains("sender → receiver: window "));
    let cause = cause.unwrap_or_else(|| panic!("no window in the page; {sockets}"));
    assert!(cause.contains(" KiB at ") && cause.contains(" ms, so at most "), "{cause}");
    assert!(page.contains("congestion control") && page.contains("send buffer"), "the kernel's influence is missing");
    let instances = read("default/instances.csv");
    for name in ["broker", "pub", "sender", "this machine"] {
        let rows = instances.lines().filter(|line| line.split(',').nth(1) == Some(name));
        assert!(rows.count() >= 5, "{name}: {instances}");
    }
}
