//! What the driver of `run` says to a broker, packet by packet, and what it makes of what it hears.

mod connecting;
mod peer;
mod publishing;
mod receiving;
mod sessions;
mod stage;
