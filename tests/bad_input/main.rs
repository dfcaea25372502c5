//! Malformed and illegal bytes, and clients that are up to no good: the one who sent them is told and closed, and
//! nobody else is affected.

#[path = "../support/mod.rs"]
mod support;

mod connect_packets;
mod connect_timeout;
#[cfg(target_os = "linux")]
mod memory;
mod packets;
mod prefixes;
