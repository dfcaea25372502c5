//! Sockets and the tasks that own them.

#[cfg(feature = "admin")]
mod admin_tls;
mod arrival;
mod authentication;
mod connection;
mod core;
#[cfg(any(feature = "tls", feature = "websocket"))]
mod counted;
mod deferred_acks;
mod deferred_sends;
mod departure;
mod door;
mod end;
mod filters;
mod gate;
mod handshake;
mod hooked;
mod inbound;
mod input_batch;
mod listener;
mod listening;
mod member;
mod outbound;
mod output;
mod port_holder;
mod probes;
mod proxy;
mod proxy_header;
mod publishing;
mod read_buffer;
mod read_probe;
mod reason_strings;
mod reauthentication;
mod references;
mod refill;
mod relayed;
mod retained;
#[cfg_attr(not(feature = "otel"), path = "no_spans.rs")]
mod spans;
mod stream;
mod tcp_state;
mod throttle;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod tls_error;
mod transport;
mod unix_socket;
mod unwritten;
#[cfg_attr(not(feature = "websocket"), path = "no_websocket.rs")]
mod upgrade;
#[cfg(feature = "websocket")]
mod websocket;
mod weight;
mod wire;
mod work_stealing;

#[cfg(feature = "admin")]
pub(crate) use admin_tls::AdminTls;
pub(crate) use door::{Door, Doors};
pub use listening::ListenError;
pub(crate) use listening::{Acceptor, ListeningSocket, ResolvedNames, check_unix};
#[cfg(fuzzing)]
pub use proxy_header::for_fuzzing as read_proxy_header;
pub use proxy_header::write_v2;
pub use relayed::RelayedStream;
pub(crate) use relayed::{RelayedListener, serve as serve_relayed};
#[cfg(feature = "tls")]
pub use tls::certificate_fault;
pub use tls_error::TlsError;
pub(crate) use unix_socket::NewRights;

pub(crate) use listener::{run, serve, serve_from_gateway};
pub(crate) use stream::Embedded;
