//! WebSocket (RFC 6455) as MQTT uses it: a byte stream in binary frames.
//!
//! Pure: no I/O, no clock, no random numbers. Frames are no units `[MQTT-6.0.0-2]`: a payload passes through in the
//! parts in which it arrives, so that a frame of any size needs no memory. Compression is not supported.
//!
//! ```
//! use tenbin_websocket::{Incoming, Mask, Opcode, Side, append_frame};
//!
//! let mut bytes = Vec::new();
//! append_frame(&mut bytes, Opcode::Binary, b"\xC0\x00", Some(Mask([1, 2, 3, 4])));
//! let mut incoming = Incoming::new(Side::Server);
//! let length = incoming.unpack(&mut bytes);
//! assert_eq!(&bytes[..length], b"\xC0\x00");
//! ```
#![forbid(unsafe_code)]

mod client;
mod frame;
mod incoming;
mod mask;
mod outgoing;
mod receiver;
mod upgrade;
mod violation;

pub use client::ClientConnection;
pub use frame::{CONTROL_MAX, Opcode, Side, append_frame};
pub use incoming::{End, Incoming};
pub use mask::Mask;
pub use outgoing::Outgoing;
pub use upgrade::client::{ClientUpgrade, UpgradeError};
pub use upgrade::server::{Accepted, Refusal, Rules, accept};
pub use upgrade::{SUBPROTOCOL, UPGRADE_MAX};
pub use violation::{CloseCode, Violation};
