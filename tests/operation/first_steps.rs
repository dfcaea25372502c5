//! The first steps of an operator, as `docs/access.md` has them.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

/// Lines of the page's first block that is marked as shell.
fn lines() -> &'static str {
    let page = include_str!("../../docs/access.md");
    let block = page.split_once("```sh\n").expect("a block").1;
    block.split_once("```").expect("its end").0
}

fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--help").output().is_ok();
    assert!(is_there || std::env::var_os("CI").is_none(), "{program} is not installed");
    is_there
}

/// Runs the lines with another port and directory; the broker ends with the shell.
#[test]
fn first_steps_of_the_page_work() {
    if !["openssl", "mosquitto_sub", "mosquitto_pub"].into_iter().all(is_installed) {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(directory.path().join("target/release")).expect("a directory");
    let program = directory.path().join("target/release/tenbin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tenbin"), program).expect("a link");
    // Another test may take the free port first. Then the broker ends.
    let done = (0..5).map(|_| run(directory.path())).find(|done| done.status.code() != Some(BROKER_ENDED));
    let done = done.expect("a port that stays free");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.contains("sensors/sensor-1/temperature 22.9"), "{out}\n{err}");
}

fn run(directory: &Path) -> Output {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let lines = lines().replace("8883", &port.to_string());
    let waits = "do sleep 1; done";
    assert!(lines.contains(waits), "{lines}");
    let lines = lines.replace(waits, &format!("do kill -0 %1 || exit {BROKER_ENDED}; sleep 1; done"));
    let script = format!("trap 'kill %1' EXIT\n{lines}");
    Command::new("bash").args(["-c", &script]).current_dir(directory).output().expect("a shell")
}

const BROKER_ENDED: i32 = 9;
