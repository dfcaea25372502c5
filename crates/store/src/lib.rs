//! What outlives the broker: the [`state`], tables of small things on disk, and the [`spool`], a log of messages that wait
//! for their receivers.
//!
//! A leaf: it knows bytes, tables, queues and places in them; no MQTT, no tokio, no other crate of this workspace.
#![forbid(unsafe_code)]

mod directory;
mod identity;
pub mod spool;
pub mod state;
mod sync;

pub use directory::{DirectoryError, LockedDirectory};
pub use identity::{MessageFiles, Mismatch, StoreId};
pub use sync::Sync;
