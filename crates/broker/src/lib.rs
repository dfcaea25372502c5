//! The Tenbin MQTT broker, as a library.
//!
//! MQTT 5.0, 3.1.1 and 3.1 over TCP and unix sockets, over TLS with the feature `tls`, and over WebSocket with the feature
//! `websocket`. Share groups are balanced by the members' load, see [`Config::policy`].
//!
//! ```no_run
//! # async fn embed() -> Result<(), tenbin_broker::StartError> {
//! use tenbin_broker::{Broker, Config};
//!
//! let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
//! let broker = Broker::builder().config(config).start().await?;
//! println!("listening on {}", broker.addresses()[0]);
//! broker.shutdown().await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
// All builds count and keep figures for operators. Without admin HTTP nothing reads them.
#![cfg_attr(not(feature = "admin"), allow(dead_code))]

mod admission;
pub mod auth;
mod backlog;
#[doc(hidden)]
pub mod bench;
mod broker;
pub mod config;
mod connection_settings;
#[cfg(feature = "admin")]
mod control;
mod descriptors;
mod durable;
#[cfg(feature = "web")]
mod event_queue;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod gateways;
pub mod hooks;
mod lease;
mod lifecycle;
mod log_limiter;
mod memory;
mod metrics;
mod net;
mod outbox;
mod registry;
mod router;
mod slices;
mod tasks;
#[cfg(feature = "otel")]
mod telemetry;
mod threads;
mod trace;
mod values;
mod webhooks;

pub use auth::{Authenticator, Authorizer};
pub use broker::{Broker, BrokerBuilder, ConfigCheck, OpenSockets, ReloadError, StartError};
pub use config::{Config, ConfigError};
#[cfg(feature = "admin")]
pub use control::{Administration, NodeAdmin, write_process_metrics};
pub use descriptors::raise_descriptor_limit;
pub use durable::{StoreError, administration as session_administration, inspection as store_inspection};
pub use hooks::{Client, Events, Handle, Hooks, Message, Publication, Verdict};
pub use lease::Lease;
pub use log_limiter::LogLimiter;
pub use metrics::MetricsSnapshot;
#[cfg(feature = "tls")]
pub use net::certificate_fault;
pub use net::{ListenError, RelayedStream, TlsError, write_v2 as write_relay_header};
pub use registry::ClientAddresses;
pub use tenbin_balancer::{Candidates, Chooser, ChooserError, Choosers, Dispatch, Policy, Rng};
pub use values::WhenFull;
