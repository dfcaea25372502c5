//! Code of an embedding program at the events of its broker, and the handle of that program.

mod every_event;
mod handle;
mod panics;
mod recorder;
mod stage;
mod verdicts;

#[path = "../support/mod.rs"]
mod support;
