//! Clusters of real processes: nodes and etcd on loopback ports. Nodes are killed, stopped, wiped and started again.
//!
//! Where etcd is not installed, the tests that need it say so and pass. In continuous integration (`CI` is set) they fail
//! instead.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod directories;
mod engine_away;
mod harness;
mod hostile;
mod ledger;
mod manual;
mod sessions;
mod stale_leader;
#[path = "../support/mod.rs"]
mod support;
mod takeover;

use std::process::{Command, Output, Stdio};

/// Runs `tenbin` with these arguments.
fn tenbin(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("the built command can be started")
}

/// Standard output and standard error of a command.
fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
