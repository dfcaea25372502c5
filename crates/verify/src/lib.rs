//! Fault verification of publish/subscribe systems.
//!
//! A [`template`] names systems, clients, faults and assertions. A [`plan`] is the template with all choices made.
//! [`judge`] dates figures to faults and evaluates assertions. [`results`] are the files of a run.
//!
//! [`run()`] uses all of them. The runtime provides machines and processes, the load generator provides clients.

pub mod args;
mod burden;
pub mod command;
mod configs;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "containers need namespaces"))]
mod docker;
pub(crate) mod dry_run;
mod error;
mod files;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "control groups are Linux's"))]
mod groups;
pub mod judge;
pub mod kind;
pub mod leader;
mod library;
mod line;
pub mod plan;
mod probe;
mod recorded;
#[cfg(target_os = "linux")]
mod relay;
mod report;
#[cfg(target_os = "linux")]
mod restore;
pub mod results;
mod rng;
mod run;
mod runtime;
mod status;
mod systems;
pub mod template;
pub mod units;
mod variables;

pub use args::Command;
pub use command::run;
pub use dry_run::dry_run;
pub use error::Error;
pub use plan::Plan;
pub use run::Setup;
pub use template::{Mistake, Mistakes, Template};
