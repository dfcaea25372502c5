//! The programs in this directory. Each takes the broker's URL and a file with the certificate of its authority, and
//! prints a line for each successful step. On a failure it prints one line of complaint and exits with a status other
//! than 0.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::transports::Served;
use super::{Killed, is_installed, skip, wait};
use crate::support::{Lines, PATIENCE, retained};

#[test]
fn paho_for_python_passes_its_script() {
    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    if is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0]) {
        run(&["python3", "-B", &source("python/client.py")], &["tcp", "tls", "ws", "wss", "unix"], BOTH_VERSIONS);
    }
}

#[test]
fn paho_for_python_works_in_a_scenario_and_loses_nothing() {
    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    if is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0]) {
        let worker = format!("python3 -B {}/crates/loadgen/workers/paho_worker.py", env!("CARGO_MANIFEST_DIR"));
        let scenario = ["loadgen", "scenario", "2", "--qos", "1", "--duration", "500ms", "--worker-command", &worker];
        let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(scenario).output().expect("our own binary");
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("published 50, received 50, lost 0, duplicated 0\n"), "{said}{complaints}");
    }
}

#[test]
fn mqtt_js_passes_its_script() {
    let has_node = is_installed("Node.js", Command::new("node").arg("--version"), &[0]);
    if has_node && is_built("mqtt.js", &built("node/node_modules")) {
        run(&["node", &source("node/client.js")], &["tcp", "tls", "ws", "wss", "unix"], BOTH_VERSIONS + 2 * MANY);
    }
}

#[test]
fn browser_page_shows_live_values_over_websocket_and_tls() {
    let modules = built("node/node_modules");
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let has_browser = is_installed("Node.js", Command::new("node").arg("--version"), &[0])
        && is_installed("Chromium", Command::new(chromium).arg("--version"), &[0]);
    if !has_browser || !is_built("mqtt.js", &modules) {
        return;
    }
    let served = Served::over(&["wss"], &[]).next().expect("it is served");
    let mut sensor = served.broker.v5("sensor");
    sensor.publish_with(retained("sensors/kitchen/temperature", "21.5"));
    // The page's server finds MQTT.js beside its script.
    let page = built("browser");
    std::fs::create_dir_all(&page).expect("ours to write");
    for name in ["index.html", "serve.mjs"] {
        let example = format!("{}/examples/browser/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(example, page.join(name)).expect("ours to write");
    }
    let link = page.join("node_modules");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&modules, &link).expect("ours to write");
    let mut command = Command::new("node");
    command.args([&source("node/browser.mjs"), page.join("serve.mjs").to_str().expect("a readable name")]);
    command.args([&served.url, "sensors/kitchen/temperature"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Killed(command.spawn().expect("installed"));
    let shown = Lines::collect(client.0.stdout.take().expect("piped"));
    let complaints = Lines::collect(client.0.stderr.take().expect("piped"));
    for value in ["21.5", "22", "23.25"] {
        sensor.publish_with(retained("sensors/kitchen/temperature", value));
        assert!(
            shown.find(&[value], PATIENCE).is_some(),
            "{:?} {:?} {:?}",
            shown.all(),
            complaints.all(),
            served.broker.log().all()
        );
    }
    drop(client.0.stdin.take());
    assert!(wait(&mut client.0), "{:?}", complaints.all());
}

#[test]
fn hivemq_for_java_passes_its_program() {
    run_java("HiveMqClient");
}

#[test]
fn paho_for_java_passes_its_program() {
    run_java("PahoClient");
}

#[test]
fn paho_for_go_passes_its_program() {
    let program = built("go/client");
    if is_built("Paho for Go", &program) {
        run(&[&text(&program)], &["tcp", "tls", "ws", "wss", "unix"], ONE_VERSION + MANY);
    }
}

fn run_java(class: &str) {
    let classes = built("java/classes");
    let has_java = is_installed("Java", Command::new("java").arg("-version"), &[0]);
    if has_java && is_built(class, &classes.join(class).with_extension("class")) {
        let class_path = format!("{}:{}", text(&built("java/lib").join("*")), text(&classes));
        run(&["java", "-cp", &class_path, class], &["tcp", "tls", "ws", "wss"], ONE_VERSION);
    }
}

/// Runs a program over each of its transports, each against a new broker.
fn run(program: &[&str], spoken: &[&str], steps: usize) {
    for served in Served::over(spoken, &["--policy", "round_robin"]) {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args([&served.url, &served.authority()]);
        command.env("NODE_PATH", built("node/node_modules"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = Killed(command.spawn().expect("installed"));
        let said = Lines::collect(client.0.stdout.take().expect("piped"));
        let complaints = Lines::collect(client.0.stderr.take().expect("piped"));
        let status = wait(&mut client.0);
        drop(client);
        let (said, complaints) = (said.to_end(PATIENCE), complaints.to_end(PATIENCE));
        let log = served.broker.log().all();
        assert!(status, "{}:\n{}\n{}\n{log:?}", served.url, said.join("\n"), complaints.join("\n"));
        assert_eq!(said.len(), steps, "{}: {said:?}", served.url);
    }
}

pub(crate) fn source(path: &str) -> String {
    format!("{}/tests/real_clients/{path}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn built(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/real_clients").join(path)
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("a directory with a readable name").to_owned()
}

pub(crate) fn is_built(what: &str, path: &Path) -> bool {
    let is_built = path.exists();
    if !is_built {
        skip(&format!("{what} (.ci/real_clients)"));
    }
    is_built
}

/// Steps of a program that runs all of them at 5.0 and at 3.1.1, and of one that supports 5.0 only.
const BOTH_VERSIONS: usize = 12;
const ONE_VERSION: usize = 6;
/// The step with 9,000 subscriptions, of programs whose library restores them in one packet.
const MANY: usize = 1;
