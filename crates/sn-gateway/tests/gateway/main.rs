//! The gateway on real sockets, before a broker made for tests and before Mosquitto.

mod client;
mod fake_broker;
mod fake_tests;
mod mosquitto;
