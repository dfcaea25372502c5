//! `tenbin admin`, the lines of `docs/admin.md`, `tenbin broker --check`, and the log.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tenbin_codec::QoS;

use crate::admin::stage::{Stage, disconnect_of, wait_until};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, share};

/// Runs `tenbin admin` with these arguments; returns its exit code and its output on both streams.
fn admin(stage: &Stage, arguments: &[&str]) -> (Option<i32>, String) {
    let done = stage.command(&[&["admin"], arguments].concat()).output().expect("it runs");
    let text = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8(text).expect("text"))
}

#[test]
fn commands_show_and_change_the_broker() {
    let stage = Stage::start(&[]);
    let mut worker = stage.broker.v5("worker 1");
    worker.subscribe(&share("pool", "jobs/#"), QoS::AtLeastOnce);
    let said = |arguments: &[&str]| {
        let (code, text) = admin(&stage, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        text
    };
    assert!(said(&["status"]).lines().any(|line| line.starts_with("state ") && line.ends_with("serving")));
    let clients = said(&["clients", "--state", "ready"]);
    assert!(clients.starts_with("client ") && clients.lines().nth(1).is_some_and(|line| line.starts_with("worker 1 ")));
    assert!(said(&["client", "worker 1"]).contains("$share/pool/jobs/#"));
    let groups: Value = serde_json::from_str(&said(&["groups", "--format", "json"])).expect("JSON");
    assert_eq!(groups[0]["group"], "pool");
    assert!(said(&["group", "pool", "jobs/#"]).contains("worker 1"));
    said(&["drain", "--member", "pool", "jobs/#", "worker 1"]);
    assert!(said(&["group", "pool", "jobs/#"]).contains("draining"));
    said(&["drain", "--member", "pool", "jobs/#", "worker 1", "--end"]);
    said(&["publish", "kept/1", "x", "--retain", "--qos", "1"]);
    assert!(said(&["retained", "kept/#"]).contains("kept/1"));
    assert!(said(&["retained", "kept/#", "--remove"]).contains("removed  1"));
    said(&["ban", "--client", "worm"]);
    assert!(said(&["ban"]).contains("worm"));
    said(&["ban", "--remove", "1"]);
    assert_eq!(said(&["ban"]), "none\n");
    said(&["kick", "worker 1", "--session"]);
    assert_eq!(disconnect_of(&mut worker).reason.byte(), 0x98);
    assert_eq!(said(&["health"]), "ok\n");
    let (code, text) = admin(&stage, &["client", "nobody"]);
    assert!(code == Some(1) && text.contains("404") && text.contains("nobody"), "{text}");
    let (code, text) = admin(&stage, &["status", "--url", "http://127.0.0.1:1"]);
    assert!(code == Some(1) && text.contains("cannot reach the broker"), "{text}");
}

#[test]
fn token_of_the_data_directory_is_found_by_the_environment() {
    let data = DataDirectory::new();
    let stage = Stage::start(&["--data", data.path_text()]);
    let publish = |directory: &str| {
        let mut command = stage.command(&["admin", "publish", "a", "b"]);
        let directory = command.env_remove("TENBIN_TOKEN").env("TENBIN_DATA", directory);
        directory.status().expect("it runs").success()
    };
    assert!(publish(data.path_text()));
    assert!(!publish("/nowhere"));
}

#[test]
fn refused_command_names_the_ways_to_a_token() {
    let data = DataDirectory::new();
    // With a name of a proxy, reading needs a token too.
    let file = ConfigFile::new("[admin]\nhosts = [\"broker.example\"]\n");
    let stage = Stage::start(&["--data", data.path_text(), "--config", file.path()]);
    let token = data.path().join("a token");
    std::fs::write(&token, format!("{}\n", stage.token)).expect("written");
    let run = |arguments: &[&str]| {
        let mut command = stage.command(arguments);
        let done = command.env_remove("TENBIN_TOKEN").current_dir("/").output().expect("it runs");
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
    };
    for subcommand in [&["admin", "status"][..], &["explain", "--group", "pool"]] {
        let (is_fine, text) = run(subcommand);
        let names_both = text.contains("--data") && text.contains("--token-file");
        assert!(!is_fine && names_both && text.lines().count() == 1, "{text}");
    }
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs/#"), QoS::AtLeastOnce);
    let token = token.to_str().expect("text");
    for way in [["--token-file", token], ["--data", data.path_text()]] {
        let (is_fine, text) = run(&[&["admin", "status"][..], &way].concat());
        assert!(is_fine, "{way:?}: {text}");
        let (is_fine, text) = run(&[&["explain", "--group", "pool"][..], &way].concat());
        assert!(is_fine && text.starts_with("pool, filter jobs/#: "), "{way:?}: {text}");
    }
    let (is_fine, text) = run(&["admin", "status", "--token-file", "/nowhere/token"]);
    assert!(!is_fine && text.contains("/nowhere/token"), "{text}");
}

#[test]
fn explain_by_admin_http_shows_whole_names() {
    let file = ConfigFile::new("[explain]\npause_ms = 0\n");
    let stage = Stage::start(&["--config", file.path()]);
    let [pod, other] = ["abcde", "fghij"].map(|end| format!("billing-worker-7d9f6c5b8d-{end}"));
    let mut workers = [&pod, &other].map(|name| stage.broker.v5(name));
    for worker in &mut workers {
        worker.subscribe(&share("pool", "jobs/+"), QoS::AtLeastOnce);
        worker.subscribe(&share("pool", "more"), QoS::AtLeastOnce);
    }
    let mut publisher = stage.broker.v5("publisher");
    publisher.publish("jobs/1", "x", QoS::AtLeastOnce);
    let run = |arguments: &[&str]| {
        let done = stage.command(&[&["explain"], arguments].concat()).output().expect("it runs");
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
    };
    let (is_fine, text) = run(&["--group", "pool", "--filter", "jobs/+"]);
    assert!(is_fine && text.starts_with("pool, filter jobs/+: ") && !text.contains("more"), "{text}");
    assert!(text.contains(&pod) && text.contains(&other) && text.contains("jobs/1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let (is_fine, text) = run(&["--group", "pool", "--format", "json"]);
    let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let filters: Vec<_> = documents.iter().map(|document| document["members"]["filter"].clone()).collect();
    assert!(is_fine && filters == ["jobs/+", "more"], "{text}");
    assert_eq!((&documents[0]["shadow"], &documents[0]["members"]["scale"]), (&Value::Null, &Value::Null));
    let (is_fine, text) = run(&["--group", "nobody"]);
    assert!(!is_fine && text.contains("no such share group"), "{text}");
}

#[test]
fn lists_of_clients_fit_a_terminal() {
    let stage = Stage::start(&[]);
    let names = ["abcde", "fghij"].map(|end| format!("{}{end}", "billing-worker-7d9f6c5b8d-".repeat(6)));
    let _clients = names.each_ref().map(|name| stage.broker.v5(name));
    let (_, text) = admin(&stage, &["clients"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("abcde ") && text.contains("fghij "), "{text}");
    let (_, text) = admin(&stage, &["clients", "--wide"]);
    assert!(names.iter().all(|name| text.contains(name)) && text.contains("connection.keep_alive_seconds"), "{text}");
}

#[test]
fn reload_says_what_was_taken() {
    let file = ConfigFile::new("policy = \"random\"\n");
    let stage = Stage::start(&["--config", file.path()]);
    let (code, text) = admin(&stage, &["reload"]);
    assert!(code == Some(0) && text.starts_with("no key that a reload takes has changed\n"), "{text}");
    let text = std::fs::read_to_string(file.path()).expect("a file");
    let text = text.replace("random", "round_robin");
    std::fs::write(file.path(), text + "\n[queue]\nmessages_maximum = 5\n").expect("written");
    let (code, text) = admin(&stage, &["reload"]);
    assert!(code == Some(0) && text.contains("taken: policy = round_robin (before: random)\n"), "{text}");
    assert!(text.contains("not taken, needs a restart: queue.messages_maximum = 5 (in effect: 16384)\n"), "{text}");
    let reloaded: Value = serde_json::from_str(&admin(&stage, &["reload", "--format", "json"]).1).expect("JSON");
    assert_eq!((&reloaded["taken"], &reloaded["not_taken"][0]["key"]), (&json!([]), &json!("queue.messages_maximum")));
}

#[test]
fn top_shows_each_snapshot() {
    let stage = Stage::start(&[]);
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    let mut top = stage.command(&["admin", "top"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(top.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let found = lines.take_while(|line| !line.starts_with("worker ")).filter(|line| line.starts_with("pool jobs:"));
    assert_eq!(found.count(), 1);
    top.kill().and_then(|()| top.wait()).expect("it ends");
}

#[test]
fn lines_of_the_manual_run_as_they_stand() {
    let data = DataDirectory::new();
    let file = ConfigFile::new("[explain]\npause_ms = 0\n");
    let stage = Stage::start(&["--data", data.path_text(), "--config", file.path()]);
    let mut worker = stage.broker.v5("worker-1");
    worker.subscribe(&share("pool", "jobs/#"), QoS::AtLeastOnce);
    let manual = include_str!("../../../docs/admin.md");
    let blocks: Vec<_> = manual.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 7 && blocks[0].contains("export TOKEN"));
    let binary = Path::new(env!("CARGO_BIN_EXE_tenbin")).parent().expect("a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    // The first block names the default address.
    for line in blocks[1..].iter().flat_map(|block| block.lines()) {
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", line]).env("PATH", &path);
        shell.env("ADMIN", format!("http://{}", stage.admin)).env("TENBIN_URL", format!("http://{}", stage.admin));
        shell.env("TOKEN", &stage.token).env("TENBIN_TOKEN", &stage.token);
        let done = shell.output().expect("bash and curl are there");
        assert!(done.status.success(), "{line}\n{}", String::from_utf8_lossy(&[done.stdout, done.stderr].concat()));
    }
}

#[test]
fn check_tells_all_errors_or_the_differences() {
    let check = |file: &ConfigFile, variable: Option<(&str, &str)>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        let done =
            command.args(["broker", "--check", "--config", file.path()]).envs(variable).output().expect("it runs");
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
    };
    let fine = ConfigFile::new("policy = \"random\"\n[queue]\nmessages_maximum = 5\n");
    let (code, text) = check(&fine, None);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("policy = random (default: adaptive)\nqueue.messages_maximum = 5 (default: 16384)\n"),
        "{text}"
    );
    let (code, text) = check(&fine, Some(("TENBIN_QUEUE__MESSAGES_MAXIMUM", "none")));
    assert!(code == Some(1) && text.contains("TENBIN_QUEUE__MESSAGES_MAXIMUM"), "{text}");
    let wrong = ConfigFile::new("policy = \"best\"\n[queue]\nmessages_maximum = 0\n[sys]\ninterval = 1\n");
    let (code, text) = check(&wrong, None);
    assert_eq!((code, text.lines().count()), (Some(1), 3), "{text}");
    let files = ConfigFile::new("[[listeners]]\naddress = \"1883\"\npassword_file = \"/nowhere/users\"\n");
    let (code, text) = check(&files, None);
    assert!(code == Some(1) && text.contains("/nowhere/users"), "{text}");
    // Something else is where a directory or a socket should be.
    let is_file = fine.path();
    for (key, word) in [
        (format!("[store]\ndirectory = {is_file:?}"), "is no directory"),
        (format!("[store]\ndirectory = \"{is_file}/below\""), "is no directory"),
        (format!("listen = [\"unix:{is_file}\"]"), "no socket"),
        (format!("listen = [\"unix:/tmp/{}\"]", "s".repeat(120)), "unix:/tmp/sss"),
    ] {
        let (code, text) = check(&ConfigFile::new(&key), None);
        assert!(code == Some(1) && text.contains(word), "{key}: {text}");
    }
}

#[test]
fn json_log_lines_are_objects_with_bounded_texts() {
    let broker = BrokerProcess::start(&["--log-format", "json", "--log", "debug"]);
    let long = "ä".repeat(200);
    drop(broker.v5(&long));
    let line = broker.log().wait_for(&["\"message\":\"connected\""], PATIENCE);
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&line["level"], &line["session_present"]), (&json!("debug"), &json!(false)));
    assert!(
        line["client"].as_str().is_some_and(|client| client.starts_with("ää") && client.ends_with("… (400 bytes)")),
        "{line}"
    );
    assert!(line["time"].as_str().is_some_and(|time| time.contains('T') && time.ends_with('Z')), "{line}");
}

#[test]
fn log_level_of_one_client_shows_its_lines_alone() {
    let stage = Stage::start(&[]);
    let level = |body: Value| assert_eq!(stage.tell("POST", "/api/v1/log", &body).status, 204);
    level(json!({ "level": "debug", "client": "watched" }));
    drop(stage.broker.v5("other"));
    drop(stage.broker.v5("watched"));
    let log = stage.broker.log();
    log.wait_for(&["DEBUG", "connected", "\"watched\""], PATIENCE);
    assert_eq!(log.find(&["DEBUG", "\"other\""], std::time::Duration::ZERO), None);
    level(json!({ "level": "debug", "for": 1 }));
    drop(stage.broker.v5("third"));
    log.wait_for(&["DEBUG", "connected", "\"third\""], PATIENCE);
    // A new time replaces the old one.
    level(json!({ "level": "debug", "for": 1 }));
    log.wait_for(&["log level restored"], PATIENCE);
    drop(stage.broker.v5("fourth"));
    wait_until(|| stage.get_json("/api/v1/status")["counters"]["connects_accepted"] == 4);
    assert_eq!(log.find(&["DEBUG", "\"fourth\""], std::time::Duration::ZERO), None);
}
