//! Cheap commands of README, run as they stand but for the port.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::page::Page;
use crate::root;
use crate::support::{BrokerProcess, Lines, PATIENCE};

/// `cargo run --release broker` prints README's lines, the Python worker gets the message of `mosquitto_pub`, and `tenbin
/// explain` shows the worker's group.
#[test]
fn first_screen_of_the_readme_works() {
    let readme = Page::read("README.md");
    let block = |language: &str| {
        let found = readme.blocks.iter().find(|(other, _)| other == language);
        found.expect("a block").1.join("\n")
    };
    let broker = BrokerProcess::start(&["--ephemeral"]);
    let address = broker.address().to_string();
    let promised = block("text").lines().next().expect("a line").replace("127.0.0.1:1883", &address);
    assert_eq!(broker.start_lines()[0], promised);

    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    let has_paho = Command::new("python3").args(["-c", probe]).output().is_ok_and(|output| output.status.success());
    if !is_there("Paho for Python", "pip install paho-mqtt", has_paho) {
        return;
    }
    let port = broker.address().port().to_string();
    let script = block("python").replace("connect(\"127.0.0.1\")", &format!("connect(\"127.0.0.1\", {port})"));
    assert!(script.contains(&port) && script.lines().filter(|line| !line.is_empty()).count() == 6, "{script}");
    let mut worker = Command::new("python3");
    worker.args(["-u", "-c", &script]).stdout(Stdio::piped());
    let mut worker = worker.spawn().expect("python3 starts");
    let lines = Lines::collect(worker.stdout.take().expect("piped"));
    let command = "cargo run --release pub";
    let publish = readme.shell_lines().into_iter().find(|line| line.starts_with(command)).expect("a line");
    let publish = publish.replacen(command, &format!("{} pub -p {port}", env!("CARGO_BIN_EXE_tenbin")), 1);
    let until = Instant::now() + PATIENCE;
    while !lines.all().iter().any(|line| line == "b'hello'") {
        assert!(Instant::now() < until, "the worker gets the message: {:?}", lines.all());
        let done = Command::new("sh").args(["-c", &publish]).status().expect("a shell");
        assert!(done.success(), "{publish}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let explained = tenbin(&["explain", "--group", "workers", "--broker", &address]);
    let _ = worker.kill();
    let _ = worker.wait();
    assert!(explained.contains("workers, filter jobs/#: adaptive; 1 member"), "{explained}");
}

/// `tenbin broker --check --config FILE` of CONFIGURATION reports as the page says.
#[test]
fn check_reports_errors_or_differences() {
    assert!(tenbin(&["broker", "--check"]).contains("configuration is valid, with 0 keys"));
    let file = crate::support::ConfigFile::new("[queue]\nmessages_maximum = 7\n");
    let report = tenbin(&["broker", "--check", "--config", file.path()]);
    assert!(report.contains("queue.messages_maximum = 7 (default: 16384)"), "{report}");
}

/// The recipes can be read, and the site can be built without the network.
#[test]
fn recipes_and_site_are_well_formed() {
    if is_installed("just") {
        let list = Command::new("just").arg("--list").current_dir(root()).output().expect("it starts");
        assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    }
    if is_installed("mdbook") {
        let directory = tempfile::tempdir().expect("a directory");
        let mut build = Command::new("mdbook");
        let done = build.arg("build").arg("-d").arg(directory.path()).current_dir(root()).output().expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
        assert!(directory.path().join("keys.html").exists());
    }
}

fn tenbin(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(arguments).output().expect("the built program starts");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Whether a tool is installed that CI does without.
fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        let _ = writeln!(std::io::stderr(), "skipped: {program} is not installed (cargo install {program})");
    }
    is_there
}

/// Whether a client that CI has to have is installed; `command` installs it.
fn is_there(what: &str, command: &str, is_there: bool) -> bool {
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "{what} is not installed ({command})");
        let _ = writeln!(std::io::stderr(), "skipped: {what} is not installed ({command})");
    }
    is_there
}
