//! Datagrams to MQTT-SN messages and back: version 1.2, and the header of a forwarder.
//!
//! Pure: no I/O, no clock, no `std`, no dependency. Decoding copies nothing: names and payloads borrow from the
//! datagram. A datagram carries one message; every other size is an error.
//!
//! ```
//! use tenbin_sn_codec::v1_2::{Message, Publish, QoS, Topic};
//!
//! let publish = Publish {
//!     dup: false,
//!     qos: Some(QoS::AtMostOnce),
//!     retain: false,
//!     topic: Topic::Normal(1),
//!     message_id: None,
//!     data: b"21.5",
//! };
//! let mut datagram = Vec::new();
//! Message::Publish(publish).encode(&mut datagram);
//! assert_eq!(datagram, b"\x0B\x0C\x00\x00\x01\x00\x0021.5");
//! assert_eq!(Message::decode(&datagram), Ok(Message::Publish(publish)));
//! ```
//!
//! Each protocol version has a module: [`v1_2`].
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod error;
mod forwarded;
mod frame;
mod reader;
pub mod v1_2;

pub use error::DecodeError;
pub use forwarded::Forwarded;
pub use frame::MESSAGE_SIZE_MAX;
