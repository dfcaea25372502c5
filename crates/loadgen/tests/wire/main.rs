//! Packet-level tests of the driver of `run`: the packets it sends to a broker, and its reactions to received ones.

mod connecting;
mod peer;
mod publishing;
mod receiving;
mod sessions;
mod stage;
