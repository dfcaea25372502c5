//! MQTT-SN gateway over UDP, before any MQTT broker.
//!
//! Each client is a [`tenbin_sn::GatewayPeer`] with a byte stream to the broker, its [`Upstream`]: a TCP
//! connection, or a pipe in memory to a broker in the same process.
//!
//! ```no_run
//! use tenbin_sn_gateway::{Config, Gateway, Upstream};
//!
//! let config = Config { broker: "127.0.0.1:1883".to_owned(), ..Config::default() };
//! let upstream = Upstream::tcp(&config.broker);
//! let gateway = Gateway::start(config, upstream)?;
//! println!("{} {}", gateway.address(), gateway.stats().to_json());
//! gateway.stop();
//! # Ok::<(), tenbin_sn_gateway::StartError>(())
//! ```
#![forbid(unsafe_code)]

pub mod config;
mod counters;
mod discovery;
#[cfg(feature = "dtls")]
mod dtls;
#[cfg(not(feature = "dtls"))]
#[path = "no_dtls.rs"]
mod dtls;
mod gateway;
mod limits;
mod owners;
mod peers;
mod relay;
mod relay_socket;
mod route;
mod shared;
mod state;
mod thread;
mod udp;
mod upstream;

pub use config::{Config, ConfigError};
pub use counters::Stats;
pub use dtls::Identity;
pub use gateway::{Gateway, StartError};
pub use relay_socket::RelaySocket;
pub use state::{StateCopy, StateError};
pub use upstream::{ClientOrigin, MemoryStream, Upstream};
