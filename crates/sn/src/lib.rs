//! MQTT-SN state machines without I/O: datagrams and MQTT packets in, datagrams and MQTT packets out.
//!
//! An MQTT-SN client is an MQTT client whose packets a gateway translates. [`GatewayPeer`] is one client at the gateway:
//! it reads the client's messages, and writes MQTT packets for a byte stream to the broker, its *upstream*.
//!
//! ```text
//!                messages                      bytes of MQTT packets
//!   client ────────────────► GatewayPeer ────────────────────────────► broker
//!          ◄────────────────             ◄────────────────────────────
//!                datagrams                      packets, decoded
//! ```
//!
//! [`ClientPeer`] is the other side: the client itself.
//!
//! There is no socket, no clock and no task: [`Io::now`] is an argument. After each call the caller
//!
//! 1. sends and clears [`Output::datagrams`] to the client, and passes the bytes of [`Io::upstream`] on,
//! 2. follows the returned [`Action`],
//! 3. arms a timer for [`GatewayPeer::poll_timeout`], such as one of a [`Wheel`], and calls
//!    [`GatewayPeer::handle_timeout`] when it rings,
//! 4. reads packets from upstream only while [`GatewayPeer::accepts_packets`].
//!
//! The caller answers a datagram of another protocol version (`DecodeError::ProtocolId`) with CONNACK "not supported",
//! and messages of addresses without a peer.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tenbin_codec::{ConnAck, Packet, ReasonCode, WriteBuffer};
//! use tenbin_sn::{Action, Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings};
//! use tenbin_sn_codec::v1_2::Message;
//!
//! let gateway = Arc::new(Gateway::new(Settings::default(), PredefinedTopics::default()));
//! # #[allow(clippy::disallowed_methods)]
//! let now = std::time::Instant::now();
//! let (mut upstream, mut output) = (WriteBuffer::new(), Output::default());
//! let mut io = Io { now, upstream: &mut upstream, output: &mut output };
//!
//! // A datagram from an address without a peer: CONNECT makes one.
//! let datagram = b"\x07\x04\x04\x01\x00\x3Cc";
//! let Ok(Message::Connect(connect)) = Message::decode(datagram) else { panic!("it is a CONNECT") };
//! let (mut peer, action) = GatewayPeer::accept(&gateway, &connect, datagram.len(), None, &mut io);
//! assert_eq!(action, Action::OpenUpstream);
//! peer.upstream_opened(&mut io); // writes the MQTT CONNECT
//! assert!(!io.upstream.is_empty());
//!
//! // The broker's answer, decoded by `tenbin_codec::Decoder::client`.
//! let connack = Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success)));
//! assert_eq!(peer.handle_packet(connack, &mut io), Action::Continue);
//! assert!(io.output.datagrams.iter().eq([b"\x03\x05\x00"]));
//! ```
//!
//! Nothing here is random: MsgIds pass through as Packet Identifiers, and topic ids are given one after the other.
#![forbid(unsafe_code)]

mod candidate;
mod client;
mod client_state;
mod gateway;
mod held;
mod message_ids;
mod names;
mod outbox;
mod output;
mod pace;
mod peer;
mod predefined;
mod reason;
mod settings;
mod topic_ids;
mod wheel;

pub use candidate::{Candidate, Verdict};
pub use client::{ClientEvent, ClientOptions, ClientPeer, ClientTopic, ClientWill, Credentials, RequestId};
pub use client_state::ClientState;
pub use gateway::Gateway;
pub use output::{Datagrams, DropCause, Drops, Io, Output};
pub use peer::{Action, End, GatewayPeer};
pub use predefined::{PredefinedError, PredefinedTopics};
pub use settings::{Login, Settings, SleepReports};
pub use topic_ids::{TopicId, TopicOwner};
pub use wheel::{Alarm, Wheel};

/// Error of a program without the cargo feature `dtls` that is told to use DTLS.
pub const NO_DTLS: &str = "this build has no DTLS: build with `cargo build --release --features dtls`";
