//! Shared parts of the end-to-end tests: the built broker as a child process, and a simple client.
#![allow(dead_code, unused_imports, reason = "every test binary takes its own part of it")]

mod broker_process;
mod bulk;
mod certificates;
mod changes;
mod client_stream;
mod config_file;
mod data_directory;
mod delay_proxy;
mod dice;
mod disk_image;
mod gateway_process;
mod http;
mod kubernetes_api;
mod lines;
mod raw_client;
mod slow_member;
mod small_disk;
mod web_server;
mod websocket;
mod wire;
mod witness;

pub(crate) use broker_process::{BrokerProcess, is_store_durable};
pub(crate) use bulk::{Numbered, number_of};
pub(crate) use certificates::{Certificates, TLS_VERSIONS};
pub(crate) use changes::Changes;
pub(crate) use client_stream::ClientStream;
pub(crate) use config_file::ConfigFile;
pub(crate) use data_directory::DataDirectory;
pub(crate) use delay_proxy::DelayProxy;
pub(crate) use dice::{Dice, seed};
pub(crate) use disk_image::DiskImage;
pub(crate) use gateway_process::GatewayProcess;
pub(crate) use http::{HttpAnswer, exchange, read_answer};
pub(crate) use kubernetes_api::{Fault, KubernetesApi, Rule};
pub(crate) use lines::Lines;
pub(crate) use raw_client::{RawClient, Silence};
pub(crate) use slow_member::assert_slow_member_gets_few;
pub(crate) use small_disk::{Filler, SmallDisk};
pub(crate) use web_server::{WebAnswer, WebRequest, WebServer};
pub(crate) use websocket::WebSocketClient;
pub(crate) use wire::{
    QOS_ALL, VERSIONS, at_qos, encode, filter, hex, lasting, message, retained, share, subscription, text, topic,
    with_expiry,
};
pub(crate) use witness::WitnessedBroker;

use std::time::Duration;

/// Longest wait for a reply before a test fails. Only failing tests wait so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
