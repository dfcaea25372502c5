//! Rules of the standard: each is violated on the wire and refused with its Reason Code.

#[path = "../receiver/mod.rs"]
mod receiver;

mod acknowledgement;
mod all_packets;
mod connect;
mod fixed_header;
mod publish;
