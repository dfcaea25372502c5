//! The programs in this directory. Each takes HOST and PORT, and prints a line for each successful step. On a failure
//! it prints one line of complaint and exits with a status other than 0.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{BrokerProcess, Certificates, ConfigFile, Lines, PATIENCE, retained};
use super::{Killed, is_installed, skip, wait};

#[test]
fn paho_for_python_passes_its_script() {
    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    if is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0]) {
        run(Command::new("python3").args(["-B", &source("python/client.py")]), BOTH_VERSIONS);
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
    let modules = built("node/node_modules");
    if is_installed("Node.js", Command::new("node").arg("--version"), &[0]) && is_built("mqtt.js", &modules) {
        run(Command::new("node").arg(source("node/client.js")).env("NODE_PATH", modules), BOTH_VERSIONS);
    }
}

#[test]
fn paho_for_python_passes_its_script_over_websocket() {
    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    if is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0]) {
        run_over_websocket(|| {
            let mut command = Command::new("python3");
            command.args(["-B", &source("python/client.py")]);
            command
        });
    }
}

#[test]
fn mqtt_js_passes_its_script_over_websocket() {
    let modules = built("node/node_modules");
    if is_installed("Node.js", Command::new("node").arg("--version"), &[0]) && is_built("mqtt.js", &modules) {
        run_over_websocket(|| {
            let mut command = Command::new("node");
            command.arg(source("node/client.js")).env("NODE_PATH", &modules);
            command
        });
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
    let (_certificates, _config, broker) = web_broker();
    let mut sensor = broker.v5("sensor");
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
    command.args([&format!("wss://localhost:{}/mqtt", broker.addresses()[2].port()), "sensors/kitchen/temperature"]);
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
            broker.log().all()
        );
    }
    drop(client.0.stdin.take());
    assert!(wait(&mut client.0), "{:?}", complaints.all());
}

#[test]
fn hivemq_for_java_passes_its_program() {
    let classes = built("java/classes");
    if is_installed("Java", Command::new("java").arg("-version"), &[0]) && is_built("HiveMQ's client", &classes) {
        let libraries = built("java/lib").join("*");
        let class_path = std::env::join_paths([libraries, classes]).expect("paths without a colon");
        run(Command::new("java").arg("-cp").arg(class_path).arg("RealClient"), ONE_VERSION);
    }
}

#[test]
fn paho_for_go_passes_its_program() {
    let program = built("go/client");
    if is_built("Paho for Go", &program) {
        run(&mut Command::new(program), ONE_VERSION);
    }
}

/// Runs a program against a broker of its own.
fn run(command: &mut Command, steps: usize) {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    command.args([broker.address().ip().to_string(), broker.address().port().to_string()]);
    run_at(&broker, command, steps);
}

/// A broker with a plain listener, one for WebSocket, and one for WebSocket over TLS.
fn web_broker() -> (Certificates, ConfigFile, BrokerProcess) {
    let certificates = Certificates::new();
    let web = "[[listeners]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\n";
    let secure = certificates.listener("").replace("[listeners.tls]", "transport = \"websocket\"\n[listeners.tls]");
    let config = ConfigFile::new(&format!("policy = \"round_robin\"\n{web}{secure}"));
    let broker = BrokerProcess::start_listening(&["--listen", "127.0.0.1:0", "--config", config.path()], 3);
    (certificates, config, broker)
}

/// Runs a program over WebSocket, and over WebSocket and TLS.
fn run_over_websocket(command: impl Fn() -> Command) {
    let (certificates, _config, broker) = web_broker();
    let (web, secure) = (broker.addresses()[1].port().to_string(), broker.addresses()[2].port().to_string());
    run_at(&broker, command().args(["localhost", &web, "ws"]), BOTH_VERSIONS);
    run_at(&broker, command().args(["localhost", &secure, "wss", &certificates.path("root.pem")]), BOTH_VERSIONS);
}

fn run_at(broker: &BrokerProcess, command: &mut Command, steps: usize) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Killed(command.spawn().expect("installed"));
    let said = Lines::collect(client.0.stdout.take().expect("piped"));
    let complaints = Lines::collect(client.0.stderr.take().expect("piped"));
    let status = wait(&mut client.0);
    drop(client);
    let said = said.to_end(PATIENCE);
    assert!(status, "{}\n{}\n{:?}", said.join("\n"), complaints.to_end(PATIENCE).join("\n"), broker.log().all());
    assert_eq!(said.len(), steps, "{said:?}");
}

fn source(path: &str) -> String {
    format!("{}/tests/real_clients/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn built(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/real_clients").join(path)
}

fn is_built(what: &str, path: &Path) -> bool {
    let is_built = path.exists();
    if !is_built {
        skip(&format!("{what} (.ci/real_clients)"));
    }
    is_built
}

/// Steps of a program that runs all of them at 5.0 and at 3.1.1, and of one that supports 5.0 only.
const BOTH_VERSIONS: usize = 12;
const ONE_VERSION: usize = 6;
