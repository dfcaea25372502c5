//! CONNECT and CONNACK: what each side concludes from them.

mod client;
mod server;

pub use client::{Accepted, RefusedByServer, complete};
pub use server::{Capabilities, Negotiated, negotiate};
