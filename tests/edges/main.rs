//! Bounds and hostile clients, on every transport.

mod abuse;
mod limits;
mod listeners;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod websocket;
