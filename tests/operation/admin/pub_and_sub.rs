//! `tenbin pub` and `tenbin sub`.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::admin::stage::{Stage, wait_until};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, Lines, PATIENCE, retained};

fn command(broker: &BrokerProcess, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(arguments).args(["-p", &broker.address().port().to_string()]);
    command
}

fn run(broker: &BrokerProcess, arguments: &[&str]) -> Output {
    command(broker, arguments).stdin(Stdio::null()).output().expect("our own program")
}

/// A running `tenbin sub`.
struct Running {
    child: Child,
    lines: Lines,
}

impl Running {
    fn start(broker: &BrokerProcess, arguments: &[&str]) -> Self {
        let mut child = command(broker, &[&["sub"], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("our own program");
        let lines = Lines::collect(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    /// Sends SIGTERM, and waits for the end.
    fn end(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().expect("kill is there").success());
        assert!(self.child.wait().expect("our own child").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn members(stage: &Stage, group: &str) -> Vec<Value> {
    let answer = stage.get(&format!("/api/v1/groups/{group}/jobs%2F%23"));
    let view: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    view["members"].as_array().cloned().unwrap_or_default()
}

#[test]
fn published_payloads_are_printed_as_they_are() {
    for version in ["5", "311"] {
        let broker = BrokerProcess::start(&[]);
        let sub = Running::start(&broker, &["-t", "a/#", "-q", "2", "-v", "-V", version, "-C", "6"]);
        let mut publisher = broker.v5("publisher");
        publisher.publish_with(retained("a/ready", "ready"));
        sub.lines.wait_for(&["a/ready ready"], PATIENCE);
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().write_all(b"of a file").expect("ours to write");
        let path = file.path().to_str().expect("a readable name");
        for (arguments, input) in [
            (&["-t", "a/1", "-m", "text", "-q", "1"][..], ""),
            (&["-t", "a/2", "-f", path, "-q", "2"], ""),
            (&["-t", "a/3", "-l", "-q", "1"], "one\ntwo\r\n"),
            (&["-t", "a/4", "-s"], "all"),
        ] {
            let arguments = [&["pub", "-V", version], arguments].concat();
            let mut child = command(&broker, &arguments).stdin(Stdio::piped()).spawn().expect("our own program");
            child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
            assert!(child.wait().expect("our own child").success(), "{arguments:?}");
        }
        let lines = sub.lines.to_end(PATIENCE);
        assert_eq!(lines[1..], ["a/1 text", "a/2 of a file", "a/3 one", "a/3 two", "a/4 all"], "{version}");
    }
}

#[test]
fn retained_message_is_removed_by_an_empty_one() {
    let broker = BrokerProcess::start(&[]);
    assert!(run(&broker, &["pub", "-t", "kept", "-m", "x", "-r", "-q", "1"]).status.success());
    let one = run(&broker, &["sub", "-t", "kept", "-C", "1", "-N", "-W", "20"]);
    assert_eq!(String::from_utf8_lossy(&one.stdout), "x");
    assert!(run(&broker, &["pub", "-t", "kept", "-n", "-r", "-q", "1"]).status.success());
    for arguments in [&["sub", "-t", "kept", "-W", "0.3"][..], &["sub", "-t", "other", "-R", "-W", "0.3"]] {
        let none = run(&broker, arguments);
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        assert!(none.status.code() == Some(1) && said.contains("the time of 0.3 s is over"), "{said}");
    }
}

#[test]
fn workers_report_their_load_and_get_messages_by_it() {
    let stage = Stage::start(&["--ephemeral"]);
    let sub =
        |id, service| Running::start(&stage.broker, &["-g", "pool", "-t", "jobs/#", "--service", service, "-i", id]);
    let mut workers = [sub("fast", "2ms"), sub("slow", "40ms")];
    wait_until(|| members(&stage, "pool").len() == 2);
    let payload = &["pub", "-t", "jobs/1", "-m", "job %n", "-q", "1", "--repeat", "200", "--repeat-delay", "0.004"];
    assert!(run(&stage.broker, payload).status.success());
    let done = |worker: &Running| worker.lines.all().len();
    wait_until(|| workers.iter().map(done).sum::<usize>() == 200);
    assert!(done(&workers[0]) > 3 * done(&workers[1]), "{} {}", done(&workers[0]), done(&workers[1]));
    let mut all: Vec<_> = workers.iter().flat_map(|worker| worker.lines.all()).collect();
    all.sort_unstable_by_key(|line| line.trim_start_matches("job ").parse::<u32>().expect("a number"));
    assert_eq!(all, (1..=200).map(|number| format!("job {number}")).collect::<Vec<_>>());
    let slow = members(&stage, "pool").into_iter().find(|member| member["client"] == "slow").expect("a member");
    assert!(slow["reported_processing_time_ms"].as_f64().is_some_and(|time| time >= 40.0), "{slow}");
    // Work in hand is done before the end, and does not come again.
    let mut last = sub("last", "400ms");
    workers.iter_mut().for_each(Running::end);
    wait_until(|| members(&stage, "pool").len() == 1);
    assert!(run(&stage.broker, &["pub", "-t", "jobs/1", "-m", "in hand", "-q", "1"]).status.success());
    wait_until(|| members(&stage, "pool")[0]["in_flight"] == 1);
    last.end();
    wait_until(|| last.lines.all() == ["in hand"]); // another thread reads them
}

#[test]
fn rejected_messages_come_again_in_a_work_queue() {
    let rule = "[[share]]\ngroup = \"pool\"\non_reject = \"retry\"\nretry_delay_ms = 10\n";
    let (file, data) = (ConfigFile::new(rule), DataDirectory::new());
    let broker = BrokerProcess::start(&["--config", file.path(), "--data", data.path_text()]);
    let worker = ["-g", "pool", "-t", "jobs/#", "--service", "1ms", "--reject", "25%", "-C", "40"];
    let sub = Running::start(&broker, &worker);
    let begin = Instant::now();
    // The group begins with its first member.
    while run(&broker, &["pub", "-t", "jobs/1", "-m", "%n", "-q", "1", "--repeat", "30"]).status.success()
        && sub.lines.all().is_empty()
    {
        assert!(begin.elapsed() < PATIENCE, "nothing is printed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(sub.lines.to_end(PATIENCE).len(), 30, "every fourth of 40 deliveries is rejected");
}

#[test]
fn errors_name_the_option_or_the_broker() {
    let broker = BrokerProcess::start(&[]);
    for (arguments, words) in [
        (&["pub", "-t", "a/#", "-m", "x"][..], "invalid value 'a/#' for '--topic <TOPIC>'"),
        (&["pub", "-t", "a"], "required arguments were not provided"),
        (&["pub", "-t", "a", "-f", "/nonexistent"], "/nonexistent: No such file"),
        (&["sub", "-t", "a", "--reject", "5%"], "--service"),
        (&["sub", "-t", "a", "--service", "1ms", "--reject", "101%"], "want 0% to 100%"),
        (&["sub", "-t", "a", "--service", "1ms", "--reject", "5%", "-V", "311"], "--reject: needs MQTT 5.0"),
        (&["pub", "-t", "a", "-m", "x", "--repeat", "2", "--repeat-delay", "1e19"], "want 0 to 31536000"),
        (&["sub", "-t", "a", "--service", "1ms", "--reject", "5%", "-q", "0"], "--reject: needs QoS 1 or 2"),
        (&["sub", "-t", "$share/x/a", "-g", "g"], "--topic: has $share/ already"),
        (&["pub", "-t", "a", "-m", "x", "--expiry", "1", "-V", "311"], "--expiry: needs MQTT 5.0"),
        (&["sub", "-t", "a", "-g", "a/b"], "is no share name"),
        (&["sub", "-t", "a", "--cafile", "/nonexistent"], "/nonexistent"),
    ] {
        let output = run(&broker, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    let output = command.args(["pub", "-t", "a", "-m", "x", "-p", "1"]).output().expect("our own program");
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}
