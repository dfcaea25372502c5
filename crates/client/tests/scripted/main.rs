//! The client against a broker that follows a script, over real sockets.

mod connecting;
mod pinging;
mod publishing;
mod receiving;
mod reconnecting;
mod reporting;
mod script;
mod subscribing;
