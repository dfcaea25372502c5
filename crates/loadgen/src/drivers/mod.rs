//! Drivers of protocols other than MQTT, for loads of the load generator.
//!
//! ```text
//! Plan ─► command ─► a program of the user, or of kafka ─► lines
//! Plan ─► host ─► a thread for subscribers ─► receiving ─► Inlet  ┐ of mqtt-sn, http, nats,
//!           └───► a thread for publishers ──► publishing ─► Outlet ┘ jetstream
//! ```
//!
//! `host` has the schedule, the window, records and counters. A protocol only sends and receives payloads.
//! Its names come from the topics of the plan (see `names`), its options from [`Plan::settings`].
//!
//! [`Plan::settings`]: crate::run::Plan::settings

mod command;
#[cfg(feature = "nats")]
mod connection;
mod host;
mod http;
pub mod installed;
#[cfg(feature = "nats")]
mod jetstream;
mod kafka;
mod kafka_metadata;
mod mqtt_sn;
mod mqtt_subscriber;
mod names;
#[cfg(feature = "nats")]
mod nats;
mod protocol;
mod publishing;
mod receiving;
mod settings;
mod window;

use crate::run::Drivers;

pub use command::CommandDriver;
#[cfg(feature = "nats")]
pub use jetstream::leader as jetstream_leader;
pub use kafka::KafkaDriver;
pub use kafka_metadata::leader as kafka_leader;
pub use names::first_level;
pub use settings::{ACK_WAIT, ACKS, COMMAND, OWN_VARIABLES, PARTITIONS, REPLICAS};

/// First level of the topics that a run publishes to: the name of its stream of JetStream and of its topic of Kafka, whose
/// leader a probe asks for.
pub const TOPIC: &str = "verify";

/// The drivers of this build: MQTT, MQTT-SN, HTTP, Kafka, client programs, and NATS with the feature `nats`.
pub fn all() -> Drivers {
    let drivers = Drivers::mqtt().with(host::driver::<mqtt_sn::MqttSn>()).with(host::driver::<http::Http>());
    let drivers = drivers.with(KafkaDriver).with(CommandDriver);
    #[cfg(feature = "nats")]
    let drivers = drivers.with(host::driver::<nats::Nats>()).with(host::driver::<jetstream::Jetstream>());
    drivers
}
