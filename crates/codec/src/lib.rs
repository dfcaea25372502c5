//! Bytes to MQTT control packets and back: MQTT 5.0, MQTT 3.1.1, and the extended PINGREQ.
//!
//! Pure: no I/O, no clock, two dependencies (`bytes`, and `subtle` to compare secrets; `serde` for secrets is a feature). Decoding copies nothing: topics,
//! payloads, strings and binary data are slices of the input buffer. Encoding writes into a [`WriteBuffer`], which copies
//! small parts and shares large ones.
//!
//! ```
//! use bytes::BytesMut;
//! use tenbin_codec::{Decoded, Decoder, Packet, ProtocolVersion, WriteBuffer};
//!
//! let mut out = WriteBuffer::new();
//! Packet::PingResp.encode(ProtocolVersion::V5, &mut out);
//! let mut input = BytesMut::from(&out.to_bytes()[..]);
//!
//! let mut decoder = Decoder::client(ProtocolVersion::V5, 1024);
//! assert!(matches!(decoder.decode(&mut input), Ok(Decoded::Packet(Packet::PingResp))));
//! assert!(matches!(decoder.decode(&mut input), Ok(Decoded::NeedMore(2))));
//! ```
#![forbid(unsafe_code)]

mod decoder;
mod error;
mod frame;
mod load_report;
mod new_session;
pub mod packet;
mod packet_id;
mod packet_type;
mod property;
mod property_id;
mod qos;
mod reader;
mod reason;
mod secret;
mod text;
mod topic;
mod varint;
mod version;
mod write_buffer;

pub use decoder::{Decoded, Decoder};
pub use error::DecodeError;
pub use frame::PACKET_SIZE_MAX;
pub use load_report::{ReportCarrier, ReportCarriers, UnknownCarrier};
pub use new_session::NewSession;
pub use packet::{
    Ack, AckProperties, Auth, AuthProperties, BadStream, ConnAck, ConnAckProperties, Connect, ConnectProperties,
    Disconnect, DisconnectProperties, EXTERNAL_GREETING, ExternalPublish, ExternalScanner, MessageProperties, Packet,
    PingBody, PingReq, PlainAcknowledged, PlainPublish, Publish, PublishHeader, PublishTemplate, REFERENCE_BYTES,
    RetainHandling, Scanned, SubAck, Subscribe, Subscription, SubscriptionOptions, UnsubAck, Unsubscribe, Will,
    write_external,
};
pub use packet_id::PacketId;
pub use packet_type::PacketType;
pub use property::UserProperty;
pub use property_id::PropertyId;
pub use qos::QoS;
pub use reason::ReasonCode;
pub use secret::Secret;
pub use text::{Text, TextError};
pub use topic::{ShareName, SharedFilter, TopicError, TopicFilter, TopicName};
pub use varint::{VARINT_MAX, varint_len};
pub use version::ProtocolVersion;
pub use write_buffer::WriteBuffer;
