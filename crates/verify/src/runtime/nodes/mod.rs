//! Machines on several hosts, the nodes. Each node has a lab; trunks connect the labs to one network.
//!
//! ```text
//! controller ── ssh ── `tenbin-verify node` ── lab (guard, switch, machines)
//!           lines of JSON        │ trunk: one TCP connection for each pair of nodes
//!           ── ssh ── `tenbin-verify node` ── lab
//! ```
//!
//! A node undoes everything when its standard input ends, or is silent for 5 s.

mod connection;
mod logs;
mod node;
mod relay;
mod ssh;
mod token;
mod trunk;
mod wire;
mod world;

pub(crate) use node::serve;
pub(crate) use relay::relay;
pub(crate) use ssh::{Ssh, hash_of};
pub(crate) use world::Nodes;
