//! Async MQTT-SN 1.2 client over UDP.
//!
//! One task owns the socket and the client's state machine, [`tenbin_sn::ClientPeer`]. The application uses two handles:
//! [`Client`] queues requests for the task, and [`Events`] yields received messages.
//!
//! ```text
//!   Client ──commands (bounded)──►┌──────┐◄──datagrams──► gateway
//!   Events ◄──messages (bounded)──┤ task │                (the next one of the list if it is lost)
//!                                 └──────┘
//! ```
//!
//! * [`ClientOptions::gateway`] adds gateways. The client connects to the first that accepts it, and to another one when
//!   that is lost.
//! * [`Client::sleep`] and [`Client::wake`] save a device's battery: the gateway keeps its messages while it sleeps.
//! * [`publish_unconnected`] sends at QoS −1, without a connection.
//! * [`search`] finds gateways.
//!
//! Each queue holds [`ClientOptions::queue`] entries. UDP cannot make a gateway wait: while the event queue is full, the
//! client drops messages without an answer. The gateway repeats those at QoS 1 and 2.
//!
//! ```no_run
//! use tenbin_sn_client::{Client, ClientEvent, ClientOptions, OutgoingMessage, QoS};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = ClientOptions::new("127.0.0.1:10000", "sensor-1").gateway("127.0.0.1:10001");
//! let (client, mut events) = Client::connect(options).await?;
//!
//! client.subscribe("plant/+/alarm", QoS::AtLeastOnce).await?;
//! let reading = OutgoingMessage::new("plant/1/temperature", "21.5").at(QoS::AtLeastOnce);
//! client.publish(reading).await?.await?; // in the queue, then acknowledged
//!
//! while let Some(event) = events.recv().await {
//!     if let ClientEvent::Message(message) = event {
//!         println!("{}: {:?}", message.topic, message.payload);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod client;
mod command;
mod error;
mod events;
mod link;
mod message;
mod options;
mod search;
#[cfg_attr(not(feature = "dtls"), path = "no_dtls.rs")]
mod secured;
mod shared;
mod task;
mod topic;
mod unconnected;

pub use client::Client;
pub use command::PublishTicket;
pub use error::{ClientError, ClientErrorKind, DisconnectReason, Failure};
pub use events::{ClientEvent, Events};
pub use message::{Message, OutgoingMessage};
pub use options::ClientOptions;
pub use search::{FoundGateway, Search, SearchError, search};
pub use secured::DtlsKeys;
pub use topic::Topic;
pub use unconnected::publish_unconnected;

pub use tenbin_codec::Secret;
pub use tenbin_sn::ClientWill as Will;
pub use tenbin_sn_codec::v1_2::{QoS, ReturnCode, ShortName};
