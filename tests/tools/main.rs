//! The load generator and the fault verification with the built broker.

mod loadgen_agents;
mod loadgen_engine;
mod loadgen_run;
mod loadgen_scenario;
mod loadgen_stall;
mod loadgen_workers;
#[path = "../support/mod.rs"]
mod support;
mod verify;
mod verify_host;
mod verify_manual;
mod verify_ssh;
