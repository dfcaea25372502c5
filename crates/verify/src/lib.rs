//! Fault verification of publish/subscribe systems.
//!
//! A [`template`] names systems, clients, faults and assertions. A [`plan`] is the template with all choices made.
//! [`judge`] dates figures to faults and evaluates assertions. [`results`] are the files of a run.

pub mod args;
pub mod command;
mod dry_run;
pub mod judge;
pub mod kind;
mod library;
pub mod plan;
pub mod results;
mod rng;
mod systems;
pub mod template;
pub mod units;

pub use args::Command;
pub use command::run;
pub use dry_run::dry_run;
pub use plan::Plan;
pub use template::{Mistake, Mistakes, Template};
