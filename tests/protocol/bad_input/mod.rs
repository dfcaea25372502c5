//! Malformed and illegal input: the broker tells the sender and closes, and no other client is affected.

mod connect_packets;
mod connect_timeout;
#[cfg(target_os = "linux")]
mod memory;
mod packets;
mod prefixes;
