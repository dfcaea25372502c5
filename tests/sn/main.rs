//! MQTT-SN: listeners, the gateway, and the commands of its client.

mod mqtt_sn;
mod sn_abuse;
mod sn_commands;
#[path = "../support/mod.rs"]
mod support;
