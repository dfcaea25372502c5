//! Labs of real namespaces: network, processes, disks, and the absence of leftovers.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod disks;
mod leftovers;
mod network;
mod probe;
mod processes;
mod trunk;

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_lab::{Command, Error, Helper, Lab, Machine, PortKind};

fn helper() -> Helper {
    Helper::new(env!("CARGO_BIN_EXE_tenbin-lab-guard"), &[])
}

fn builder_in(directory: &Path) -> tenbin_lab::Builder {
    Lab::builder(helper(), directory)
}

/// A lab in a temporary directory. None, with a line, where users may not create namespaces.
fn lab_with(port: PortKind) -> Option<(Lab, TempDir)> {
    let directory = tempfile::tempdir().expect("a directory");
    match builder_in(directory.path()).port(port).start() {
        Ok(lab) => Some((lab, directory)),
        Err(Error::Namespaces(reason)) => {
            skipped(reason);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn lab() -> Option<(Lab, TempDir)> {
    lab_with(PortKind::Auto)
}

fn skipped(reason: impl Display) {
    println!("skipped: {reason}");
}

/// Runs a shell command in the machine, and returns its standard output without the end of the line.
fn shell(machine: &Machine, script: &str) -> String {
    let output = machine.exec(&Command::new("sh").args(["-c", script])).expect("a command");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.exit.success(), "`{script}`: {:?} {stderr}", output.exit);
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

/// Waits for an event that other processes cause.
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
