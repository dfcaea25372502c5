//! MQTT state machines, sans-io: packets in, events and encoded bytes out. The server's and the client's role
//! are one [`Connection`].
//!
//! No socket, no clock, no task: `now` is an argument. What outlives a Network Connection is a [`Session`],
//! which a connection is given when it begins and gives back when it ends.
//!
//! ```text
//!              packets                     Event                        Delivery
//!   peer ───────────────► Connection ───────────────► application ───────────────► Connection ──► bytes
//!                              │ answers on its own: PINGRESP, PUBREL, PUBCOMP, resends
//!                              │ answers when told (`acknowledge`): PUBACK, PUBREC
//! ```
#![forbid(unsafe_code)]

mod aliases;
mod connection;
mod delivery;
mod event;
pub mod handshake;
mod limits;
mod outbound;
mod publication;
mod session_state;
mod timers;
mod violation;

pub use connection::{Connection, DroppedResend, Role, Sent};
pub use delivery::{Delivery, SharedDelivery};
pub use event::Event;
pub use limits::{Limits, SessionExpiry};
pub use outbound::SentId;
pub use publication::{PendingAck, Publication};
pub use session_state::{Restored, Session};
pub use violation::Violation;
