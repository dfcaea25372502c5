//! Clients of other projects: Mosquitto's bridge and command line tools, Paho for Python, Java and Go, mqtt.js, HiveMQ's for
//! Java. Each is tested over all transports that it and the broker have.
//!
//! Where they are not installed, these tests say so and pass. In continuous integration (`CI` is set) they fail
//! instead. `.ci/real_clients` fetches and builds the dependencies of the programs in this directory, below
//! `target/real_clients`.

#[path = "../support/mod.rs"]
mod support;

mod bridge;
mod bridge_remote;
mod mosquitto;
mod programs;
mod stock_workers;
mod transports;
mod work_queue;
mod worker_libraries;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::PATIENCE;

/// A child process that is killed at the end of its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a child. Returns true if it succeeded.
fn wait(child: &mut Child) -> bool {
    let until = Instant::now() + 2 * PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// True if `probe` runs and exits with one of these statuses. Otherwise prints a note.
///
/// # Panics
/// In continuous integration, where no test may be skipped.
fn is_installed(what: &str, probe: &mut Command, statuses: &[i32]) -> bool {
    let quiet = probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = quiet.status().ok().and_then(|status| status.code());
    let installed = status.is_some_and(|status| statuses.contains(&status));
    if !installed {
        skip(what);
    }
    installed
}

fn skip(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what} is not installed");
    // Past the test harness, which would capture the line.
    let _ = writeln!(std::io::stderr(), "skipped: {what} is not installed");
}
