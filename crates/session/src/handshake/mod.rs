//! CONNECT and CONNACK: the limits that each side derives from them.

mod client;
mod server;

pub use client::{Accepted, RefusedByServer, complete};
pub use server::{Capabilities, Negotiated, negotiate};
