//! State and messages on disk: restarts, damage, full disks, power cuts, and the ledger of all messages.

mod durable_messages;
mod durable_state;
mod ledger;
mod load;
mod store_command;
#[path = "../support/mod.rs"]
mod support;
