//! A laboratory for distributed programs: machines made of Linux namespaces, and a switch between them that delays,
//! loses, repeats, damages, limits or cuts their traffic. It needs no root where the system lets users create
//! namespaces, and neither `netem` nor changes of the host.
//!
//! A [`Lab`] is one guard process and its descendants. The guard is the first process of a PID namespace, so the kernel
//! ends all of them with it; and it ends with the program that started it, even when that is killed. No mount, interface
//! or process remains. [`journal`] covers changes outside the namespaces.
//!
//! The programs `unshare` and `mount` (util-linux) and `ip` (iproute2) must be installed; for disk images `mkfs.ext4` too.
//!
//! # Example
//!
//! The embedding program lends itself as the helper: it calls [`guard_main`] when it is started for that purpose.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenbin_lab::{Command, Helper, Lab, Shape, Signal, guard_main};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let arguments = std::env::args().skip(1).collect::<Vec<_>>();
//!     if arguments.first().is_some_and(|first| first == "guard") {
//!         std::process::exit(guard_main(&arguments[1..]));
//!     }
//!     let lab = Lab::builder(Helper::this_program(&["guard"])?, "/tmp/lab").seed(7).start()?;
//!     let (server, client) = (lab.machine("server", None)?, lab.machine("client", None)?);
//!
//!     let log = lab.directory().join("server.log");
//!     let process = server.spawn(&Command::new("tenbin").arg("--config").arg("server.toml").stdout(log))?;
//!
//!     // 10 ms from server to client for a minute; the other direction stays fast.
//!     let delay = Shape { delay: Duration::from_millis(10), ..Shape::default() };
//!     lab.impair(&[(&server, &client)], &delay, Some(Duration::from_secs(60)))?;
//!     let output = client.exec(&Command::new("ping").args(["-c", "3", "server"]))?;
//!     println!("{}", String::from_utf8_lossy(&output.stdout));
//!
//!     process.signal(Signal::Kill)?;
//!     Ok(())
//! }
//! ```
#![cfg(target_os = "linux")]

mod command;
mod descriptor;
mod disk;
mod error;
mod guard;
mod helper;
pub mod journal;
mod lab;
mod machine;
mod process;
mod procfs;
mod program;
mod protocol;
mod shared;
mod signal;
mod switch;

pub use command::Command;
pub use descriptor::{receive_descriptor, send_descriptor};
pub use disk::Disk;
pub use error::Error;
pub use guard::guard_main;
pub use helper::Helper;
pub use lab::{Builder, Impairment, Lab};
pub use machine::{Machine, Output};
pub use process::Process;
pub use procfs::Usage;
pub use signal::{Exit, Signal};
pub use switch::{Counters, LinkCounters, PortKind, Rate, Shape};
