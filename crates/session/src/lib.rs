//! MQTT protocol state machines without I/O: packets in, events and encoded bytes out.
//!
//! [`Connection`] implements both roles, server and client.
//!
//! There is no socket, no clock and no task: `now` is an argument. A [`Session`] outlives its Network Connections: a
//! connection takes it at its start and returns it at its end.
//!
//! ```text
//!              packets                     Event                        Delivery
//!   peer ───────────────► Connection ───────────────► application ───────────────► Connection ──► bytes
//!                              │ answers on its own: PINGRESP, PUBREL, PUBCOMP, resends
//!                              │ answers on request (`acknowledge`): PUBACK, PUBREC
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
mod withdrawn;

pub use connection::{Connection, DroppedResend, Role, Sent, Unacknowledged};
pub use delivery::{Delivery, Extras, Location, SharedDelivery, Stored, TakenAck};
pub use event::{Event, Rejected};
pub use limits::{Limits, SessionExpiry};
pub use outbound::SentId;
pub use publication::{PendingAck, Publication};
pub use session_state::{Restored, Session};
pub use violation::Violation;
