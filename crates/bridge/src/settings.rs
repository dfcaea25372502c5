use std::num::NonZeroU16;

use tenbin_client::Transport;
use tenbin_codec::{ProtocolVersion, Secret, Text, TopicName};

use crate::rule::Rule;

/// Settings of a bridge.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name, by which the bridge recognises messages that it has passed on. Bridges whose brokers are connected, directly or
    /// over others, need different names.
    pub name: Text,
    /// The broker on whose side the bridge is. Its version is 5.0.
    pub local: Endpoint,
    /// The other broker.
    pub remote: Endpoint,
    /// Messages that are passed on. The first rule about a topic decides.
    pub rules: Vec<Rule>,
    /// Most unacknowledged QoS 1 and 2 messages that the bridge takes from one side.
    pub receive_maximum: NonZeroU16,
    /// Retained topic at the remote broker that has "1" while the bridge is connected, else "0"; `None` = there is none.
    pub state_topic: Option<TopicName>,
}

/// A broker, and how the bridge connects to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// "host:port"; a name if the transport opens streams by itself.
    pub address: String,
    /// Layers below MQTT.
    pub transport: Transport,
    /// Protocol version, at least 3.1.1.
    pub version: ProtocolVersion,
    /// Whether bit 7 of the protocol level marks the bridge, before 5.0.
    pub is_marked: bool,
    /// Client Identifier, under which the broker keeps the session.
    pub client_id: Text,
    /// User Name and perhaps a password.
    pub credentials: Option<(Text, Option<Secret>)>,
    /// Keep Alive in seconds, at least 1.
    pub keep_alive: NonZeroU16,
}
