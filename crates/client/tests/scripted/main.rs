//! Tests of the client against a scripted broker, over real sockets.

mod connecting;
mod pinging;
mod publishing;
mod receiving;
mod reconnecting;
mod reporting;
mod script;
mod subscribing;
