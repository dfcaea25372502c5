//! Persistent storage of the broker: the [`state`], tables of small values, and the [`spool`], a log of queued
//! messages.
//!
//! This crate is a leaf: it knows bytes, tables and queues, but no MQTT, no tokio and no other crate of this workspace.
#![forbid(unsafe_code)]

mod directory;
mod identity;
pub mod mirror;
pub mod spool;
pub mod state;
mod sync;

pub use directory::{DirectoryError, LockedDirectory};
pub use identity::{MessageFiles, Mismatch, StoreId};
pub use sync::Sync;
