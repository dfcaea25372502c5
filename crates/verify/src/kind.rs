//! Kinds of systems that the tool knows how to start.

use serde::{Deserialize, Serialize};
use tenbin_loadgen::run::Version;

/// Kind of a system under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Apache Kafka in KRaft mode.
    Kafka,
    /// NATS without persistence.
    Nats,
    /// NATS with JetStream.
    Jetstream,
    /// This project's broker.
    Tenbin,
    /// etcd, which names the leader of a pair or cluster of Tenbin.
    Etcd,
    /// Eclipse Mosquitto.
    Mosquitto,
    /// RabbitMQ with its MQTT plug-in.
    Rabbitmq,
    /// Any broker of MQTT, started by a command of the template.
    Mqtt,
    /// Any program, with clients of the template.
    Command,
}

/// Protocol between clients and a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// MQTT 5.0 or 3.1.1.
    Mqtt,
    /// Kafka's own.
    Kafka,
    /// NATS without persistence.
    Nats,
    /// NATS with JetStream.
    Jetstream,
    /// A client program of the template speaks it.
    Command,
}

impl Protocol {
    /// True if its clients count the connections that they lose. Client programs, as that of Kafka, do not tell of them.
    pub(crate) fn counts_losses(self) -> bool {
        !matches!(self, Self::Kafka | Self::Command)
    }
}

/// Form of a system of several brokers of Tenbin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Two nodes; etcd on a third machine is their witness.
    Pair,
    /// Three nodes or more.
    Cluster,
}

/// Names of all modes in templates.
pub(crate) const MODES: [(&str, Mode); 2] = [("pair", Mode::Pair), ("cluster", Mode::Cluster)];

impl Mode {
    /// Fewest and most nodes. Fewest is the default.
    pub(crate) const fn nodes(self) -> (u32, u32) {
        match self {
            Self::Pair => (2, 2),
            Self::Cluster => (3, 9),
        }
    }
}

/// Names of all kinds in templates.
pub(crate) const KINDS: [(&str, Kind); 9] = [
    ("kafka", Kind::Kafka),
    ("nats", Kind::Nats),
    ("jetstream", Kind::Jetstream),
    ("tenbin", Kind::Tenbin),
    ("etcd", Kind::Etcd),
    ("mosquitto", Kind::Mosquitto),
    ("rabbitmq", Kind::Rabbitmq),
    ("mqtt", Kind::Mqtt),
    ("command", Kind::Command),
];

impl Kind {
    /// Name in templates.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Version of MQTT that its clients speak by default. RabbitMQ before 3.13 has no other than 3.1.1.
    pub(crate) const fn version(self) -> Version {
        match self {
            Self::Rabbitmq => Version::V311,
            _ => Version::V5,
        }
    }

    /// Protocol of its clients.
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Kafka => Protocol::Kafka,
            Self::Nats => Protocol::Nats,
            Self::Jetstream => Protocol::Jetstream,
            Self::Tenbin | Self::Mosquitto | Self::Rabbitmq | Self::Mqtt => Protocol::Mqtt,
            Self::Command | Self::Etcd => Protocol::Command,
        }
    }

    /// Port of its clients.
    pub const fn port(self) -> u16 {
        match self.protocol() {
            Protocol::Kafka => 9092,
            Protocol::Nats | Protocol::Jetstream => 4222,
            Protocol::Mqtt => 1883,
            Protocol::Command if matches!(self, Self::Etcd) => 2379,
            Protocol::Command => 7000,
        }
    }

    /// Port of its instances among each other, if they have one.
    pub const fn peer_port(self) -> Option<u16> {
        match self {
            Self::Kafka => Some(9093),
            Self::Nats | Self::Jetstream => Some(6222),
            Self::Rabbitmq => Some(25672),
            Self::Tenbin => Some(7883),
            Self::Etcd => Some(2380),
            Self::Mosquitto | Self::Mqtt | Self::Command => None,
        }
    }

    /// Program that an instance of it runs; `None` if the template names the command.
    pub const fn program(self) -> Option<&'static str> {
        match self {
            Self::Kafka => Some("java"),
            Self::Nats | Self::Jetstream => Some("nats-server"),
            Self::Tenbin => Some("tenbin"),
            Self::Etcd => Some("etcd"),
            Self::Mosquitto => Some("mosquitto"),
            Self::Rabbitmq => Some("rabbitmq-server"),
            Self::Mqtt | Self::Command => None,
        }
    }

    /// True if its program is linked statically, so that libfaketime cannot change its clock.
    pub const fn is_static(self) -> bool {
        matches!(self, Self::Nats | Self::Jetstream | Self::Etcd)
    }

    /// True if the tool can ask which instance leads.
    pub const fn has_leader(self) -> bool {
        matches!(self, Self::Kafka | Self::Jetstream | Self::Tenbin)
    }

    /// True if several of its instances form one system. The user's own program may do so; the tool only passes `{peers}`.
    /// Instances of Tenbin do so with a [`Mode`].
    pub const fn forms_cluster(self) -> bool {
        !matches!(self, Self::Tenbin | Self::Mosquitto)
    }
}
