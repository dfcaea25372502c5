//! Sockets and the tasks that own them.

mod arrival;
mod authentication;
mod connection;
mod core;
mod deferred_acks;
mod deferred_sends;
mod departure;
#[cfg_attr(not(feature = "tls"), path = "no_door.rs")]
mod door;
mod end;
mod filters;
mod gate;
mod handshake;
mod inbound;
mod input_batch;
mod listener;
mod member;
mod outbound;
mod output;
mod probes;
mod publishing;
mod read_buffer;
mod read_probe;
mod reason_strings;
mod reauthentication;
mod refill;
mod retained;
mod stream;
mod tcp_state;
mod throttle;
#[cfg(feature = "tls")]
mod tls;
mod tls_error;
mod transport;
mod unwritten;
mod weight;
#[cfg(feature = "tls")]
mod wire;
mod work_stealing;

pub(crate) use door::Doors;
pub use tls_error::TlsError;

pub(crate) use listener::{bind, run, serve};
