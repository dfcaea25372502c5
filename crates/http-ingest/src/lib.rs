//! HTTP/1.1 before an MQTT broker: `POST /topics/TOPIC` publishes a message, `GET` reads the retained one.
//!
//! Each HTTP connection is an MQTT 5.0 client whose packets travel through memory, so that the broker's rights, limits
//! and durability apply to it. The client connects with the first legal request, by the credentials of that request.
//!
//! ```text
//!   HTTP client ──TCP──► hyper ──request──► Mqtt ──tenbin_client──► pipe in memory ──► broker
//! ```
//!
//! ```no_run
//! use std::net::TcpListener;
//! use tenbin_http_ingest::{MemoryStream, Server, Settings, Upstream};
//!
//! # fn serve(_stream: MemoryStream, _client: std::net::SocketAddr) {}
//! let upstream = Upstream::memory(|stream, client| serve(stream, client));
//! let server = Server::start(TcpListener::bind("127.0.0.1:8080")?, Settings::default(), upstream)?;
//! println!("http://{}/topics/", server.address());
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod body;
mod connection;
mod credentials;
mod mqtt;
mod places;
mod request;
mod server;
mod settings;
mod upstream;

pub use server::Server;
pub use settings::Settings;
pub use upstream::{MemoryStream, Upstream};
