//! Bridges between brokers that are processes.

mod bridge_process;
mod ledger;
mod passing;
mod refused;
#[path = "../support/mod.rs"]
mod support;
