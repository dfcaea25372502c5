//! The server with real sockets, before a real broker in the same process.

mod broker;
mod credentials;
mod http;
mod publishing;
mod refusals;
mod retained;
