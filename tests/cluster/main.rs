//! Clusters of real processes: nodes and etcd on loopback ports. Nodes are killed, stopped, wiped and started again.
//!
//! Where etcd is not installed, the tests that need it say so and pass. In continuous integration (`CI` is set) they fail
//! instead.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod admin;
mod bridges;
mod chart;
mod commands;
mod compose;
mod configuration;
mod copies;
mod dashboard;
mod directories;
mod disks;
mod documented;
mod engine_away;
mod formats;
mod gateways;
mod handover;
mod harness;
mod hostile;
mod kubernetes;
mod ledger;
mod loopback;
mod manual;
mod namesakes;
#[path = "../docs/page.rs"]
#[allow(dead_code, reason = "these tests take a part of it")]
mod page;
mod recovery;
mod secure;
#[path = "../sn/mqtt_sn/sensor.rs"]
#[allow(dead_code, reason = "these tests take a part of it")]
mod sensor;
mod sessions;
mod slow_receivers;
mod small_files;
mod stale_leader;
#[path = "../support/mod.rs"]
mod support;
mod takeover;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Directory of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

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
