//! What outlives the broker: the [`state`], tables of small things on disk.
//!
//! A leaf: it knows bytes and tables of them; no MQTT, no tokio, no other crate of this workspace.
#![forbid(unsafe_code)]

mod directory;
pub mod state;

pub use directory::{DirectoryError, LockedDirectory};
