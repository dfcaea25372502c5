//! Sockets and the tasks that own them.

mod apply;
mod arrival;
mod authentication;
mod connection;
mod ending;
mod filters;
mod handshake;
mod held_back;
mod input;
mod lag;
mod listener;
mod load_reports;
mod moving;
mod reauthentication;
mod relief;
mod sending;
mod storing;
mod stream;
mod tcp_state;
mod throttle;
mod transport;
mod unwritten;
mod verdicts;
mod weight;
mod words;

pub(crate) use listener::{bind, run, serve};
pub(crate) use stream::Foreign;
