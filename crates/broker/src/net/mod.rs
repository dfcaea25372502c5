//! Sockets and the tasks that own them.

mod apply;
mod arrival;
mod authentication;
mod connection;
mod deferred_acks;
mod ending;
mod filters;
mod handshake;
mod input;
mod listener;
mod load_reports;
mod moving;
mod read_probe;
mod reason_strings;
mod reauthentication;
mod sending;
mod storing;
mod stream;
mod tcp_state;
mod throttle;
mod transport;
mod unwritten;
mod verdicts;
mod weight;
mod work_stealing;

pub(crate) use listener::{bind, run, serve};
pub(crate) use stream::Foreign;
