//! Async MQTT 5.0 and 3.1.1 client that reports its load to the broker.
//!
//! One task owns the Network Connection. The application uses three handles: [`Client`] queues requests for the task,
//! [`Events`] yields received messages, and [`LoadReporter`] counts their processing. Load reports travel in extended
//! PINGREQs (thesis §4.1.1), or in another packet type that the broker announces.
//!
//! ```text
//!   Client ──commands (bounded)──►┌──────┐◄──bytes──► broker
//!   Client ──acknowledgements────►│ task │
//!   Events ◄──messages (bounded)──└──┬───┘
//!      │                             │ messages +1; at each interval, or sooner: report, reset
//!      └──► application ──► LoadReporter: messages −1, processing time
//! ```
//!
//! Each queue holds [`ClientOptions::queue`] entries. While the command queue is full, [`Client::publish`] waits and
//! [`Client::try_publish`] returns the message. While the event queue is full, the task stops reading from the socket,
//! so that the broker sees a slow receiver. The client drops nothing.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenbin_client::{Client, ClientEvent, ClientOptions, LoadReporter, OutgoingMessage};
//! use tenbin_client::{QoS, Subscription, SubscriptionOptions, TopicFilter, TopicName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let reporter = LoadReporter::new(Duration::from_secs(1));
//! let options = ClientOptions::new("localhost:1883", "worker-1").load_reporter(reporter.clone());
//! let (client, mut events) = Client::connect(options).await?;
//!
//! let filter = TopicFilter::try_from("$share/workers/jobs/#")?;
//! let options = SubscriptionOptions::at(QoS::AtLeastOnce);
//! client.subscribe(vec![Subscription { filter, options }]).await?;
//!
//! while let Some(event) = events.recv().await {
//!     if let ClientEvent::Message(job) = event {
//!         let _processing = reporter.start(); // measures until the end of this scope
//!         let done = OutgoingMessage::new(TopicName::try_from("done")?, job.payload);
//!         client.publish(done).await?.await?; // in the queue, then written
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod byte_stream;
mod client;
mod command;
mod error;
mod events;
mod load_reporter;
mod message;
mod options;
mod reconnect;
mod shared;
mod task;
mod ticket;
mod websocket;

pub use byte_stream::{ByteStream, Transport};
pub use client::Client;
pub use error::{ClientError, ClientErrorKind, DisconnectReason, TryPublishError};
pub use events::{ClientEvent, Events, TryRecvError};
pub use load_reporter::{LoadReporter, Processing};
pub use message::{Message, OutgoingMessage, Rejection};
pub use options::{AcknowledgeMode, ClientOptions};
pub use reconnect::{Backoff, Reconnect};
pub use ticket::PublishTicket;
pub use websocket::WebSocketStream;

pub use tenbin_balancer::LoadReport;
pub use tenbin_codec::{
    MessageProperties, ProtocolVersion, QoS, ReasonCode, ReportCarrier, RetainHandling, Secret, Subscription,
    SubscriptionOptions, Text, TopicFilter, TopicName, UserProperty, Will,
};
pub use tenbin_session::Violation;
