//! Runs on several machines: `loadgen agent` on each, and one controller.
//!
//! An agent listens for controllers, or serves the one at its standard input and output.
//!
//! The controller runs no clients. Each agent gets the whole plan and a slice of it: client k of each kind
//! belongs to agent k mod n. Its clock is adjusted to the controller's before it connects. The agents' results are
//! merged by number, so that the run has one outcome, as on a single machine.

mod controller;
mod link;
mod message;
mod serve;
mod session;
mod stream;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use controller::Agents;
pub use serve::AgentArgs;
pub(crate) use serve::serve;
pub use stream::AgentStream;

/// Default port of agents.
const PORT: u16 = 4500;
