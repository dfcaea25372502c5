//! Drivers of protocols other than MQTT, for loads of the load generator.
//!
//! ```text
//! Plan ─► host ─► a thread for subscribers ─► receiving ─► Inlet  ┐ of nats, jetstream, kafka
//!           └───► a thread for publishers ──► publishing ─► Outlet ┘
//! ```
//!
//! The shared part has the schedule, the window, records and counters. A protocol only sends and receives payloads.
//! Its names come from the topics of the plan (see `names`), its options from [`Plan::settings`].
//!
//! [`Plan::settings`]: tenbin_loadgen::run::Plan::settings

#[cfg(feature = "nats")]
mod connection;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod host;
#[cfg(feature = "nats")]
mod jetstream;
#[cfg(feature = "kafka")]
mod kafka;
mod names;
#[cfg(feature = "nats")]
mod nats;
mod probe;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod protocol;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod publishing;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod receiving;
mod settings;
#[cfg(all(test, feature = "kafka", feature = "nats"))]
mod tests;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod window;

use tenbin_loadgen::run::Drivers;

#[cfg(feature = "nats")]
pub use jetstream::JetstreamDriver;
#[cfg(feature = "kafka")]
pub use kafka::KafkaDriver;
pub use names::first_level;
#[cfg(feature = "nats")]
pub use nats::NatsDriver;
pub use probe::{leader, probe};
pub use settings::{ACK_WAIT, ACKS, PARTITIONS, REPLICAS};

/// First level of the topics that a run publishes to: the name of its stream of JetStream and of its topic of Kafka, whose
/// leader a probe asks for.
pub const TOPIC: &str = "verify";

/// The drivers of this build: MQTT, and those of the features `nats` and `kafka`.
pub fn all() -> Drivers {
    let drivers = Drivers::mqtt();
    #[cfg(feature = "nats")]
    let drivers = drivers.with(NatsDriver).with(JetstreamDriver);
    #[cfg(feature = "kafka")]
    let drivers = drivers.with(KafkaDriver);
    drivers
}
