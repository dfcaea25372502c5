//! Sockets and the tasks that own them.

mod apply;
mod connection;
mod handshake;
mod listener;
mod throttle;
mod transport;

pub(crate) use listener::{bind, run};
