//! MQTT bridge: passes messages between two brokers, as a client of both.
//!
//! A QoS 1 or 2 message keeps its Packet Identifier on its way through the bridge, and each acknowledgement of its receiver
//! goes on to its sender under that identifier. So the bridge is a pipe between the sessions of two brokers, and keeps
//! nothing that a crash could lose (`docs/decisions/0044-bridge.md`).
//!
//! ```text
//!   source broker ── PUBLISH 7 ──► bridge ── PUBLISH 7 ──► destination broker
//!   session:      ◄── PUBREC 7 ──        ◄── PUBREC 7 ──   session:
//!   7 is sent     ── PUBREL 7 ──►        ── PUBREL 7 ──►   7 is received
//!                 ◄── PUBCOMP 7 ─        ◄── PUBCOMP 7 ─
//! ```
//!
//! If one of the two connections ends, the bridge ends the other one too. Both brokers then resume their sessions on new
//! connections, and send unacknowledged messages again.
#![forbid(unsafe_code)]

mod bridge;
mod error;
mod flow;
mod link;
mod relay;
mod rule;
mod settings;
mod status;
mod suspect;

pub use bridge::Bridge;
pub use rule::{Direction, Rule};
pub use settings::{Endpoint, Settings};
pub use status::{Dropped, Side, Status};
pub use tenbin_client::Transport;
