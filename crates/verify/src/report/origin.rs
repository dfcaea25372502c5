//! `origin.json`: command, date, machine and version of a run, for pages that are made later.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tenbin_loadgen::report::Origin;

use crate::error::Error;

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    command: String,
    date: String,
    machine: String,
    version: String,
    /// Congestion control and socket buffers, which influence every figure of a network.
    kernel: Vec<(String, String)>,
}

/// Files of the kernel with its influence on connections.
const KERNEL: [(&str, &str); 3] = [
    ("congestion control", "/proc/sys/net/ipv4/tcp_congestion_control"),
    ("receive buffer", "/proc/sys/net/ipv4/tcp_rmem"),
    ("send buffer", "/proc/sys/net/ipv4/tcp_wmem"),
];

/// Writes the file for this process.
pub(crate) fn remember(directory: &Path) -> Result<(), Error> {
    let Origin { command, date, machine, version } = Origin::here();
    let kernel = KERNEL.iter().filter_map(|(name, path)| {
        let text = fs::read_to_string(path).ok()?;
        Some(((*name).to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
    });
    let stored = Stored { command, date, machine, version: version.to_owned(), kernel: kernel.collect() };
    let text = serde_json::to_string_pretty(&stored).expect("it has only texts");
    crate::results::write(&directory.join("origin.json"), text.as_bytes())
}

/// Reads the file; without it, the origin is this process.
pub(super) fn read(directory: &Path) -> Origin {
    let stored = fs::read_to_string(directory.join("origin.json")).ok();
    let stored = stored.and_then(|text| serde_json::from_str::<Stored>(&text).ok());
    let here = Origin::here();
    stored.map_or(here.clone(), |stored| {
        let kernel = stored.kernel.iter().map(|(name, value)| format!(", {name} {value}")).collect::<String>();
        let (command, date, machine) = (stored.command, stored.date, stored.machine + &kernel);
        Origin { command, date, machine, ..here }
    })
}
