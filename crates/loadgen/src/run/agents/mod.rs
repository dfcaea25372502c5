//! Several machines in one run: `loadgen agent` on each, and one controller that tells them what to do.
//!
//! The controller has no clients of its own. Each agent gets the whole plan and a slice of it, client k of each kind
//! going to agent k mod n, and its clock is set right by the controller's before it connects. What they have recorded is
//! put together by number, so that a run of several machines has one outcome like that of a single one.

mod controller;
mod link;
mod message;
mod serve;
mod session;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use controller::Agents;
pub use serve::AgentArgs;
pub(crate) use serve::serve;

/// Where an agent listens, and is looked for, if nothing else is said.
const PORT: u16 = 4500;
