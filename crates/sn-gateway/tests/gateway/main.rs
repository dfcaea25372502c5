//! The gateway on real sockets, before a broker made for tests and before Mosquitto.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod addresses;
mod bisquitt;
mod bounds;
mod broker;
mod client;
mod credentials;
mod discovery;
#[cfg(feature = "dtls")]
mod dtls;
mod fake_broker;
mod mosquitto;
mod relays;
mod stock_clients;
mod threads;
