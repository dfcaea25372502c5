use serde::{Deserialize, Serialize};

use super::{Layout, Plan};

/// The part of a run that belongs to one process: client k of each of its kinds is in process k mod `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Number of the process among those with the same kinds of clients.
    pub index: u32,
    /// Number of these processes, at least 1.
    pub of: u32,
    /// Kinds of clients.
    #[serde(default)]
    pub clients: ClientKinds,
}

/// Kinds of clients of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClientKinds {
    /// All of the run.
    #[default]
    All,
    /// Publishers only.
    Publishers,
    /// Members of the audience with this number in the plan.
    Audience(u32),
}

impl Slice {
    /// A run in one process.
    pub const ALL: Self = Self { index: 0, of: 1, clients: ClientKinds::All };

    /// Whether client `number` belongs to this process.
    pub fn has(self, number: u32) -> bool {
        number % self.of.max(1) == self.index
    }

    /// Number of clients below `count` that belong to this process.
    pub fn count(self, count: u32) -> u32 {
        self.numbers(count).len() as u32
    }

    /// Numbers of the publishers that belong to this process.
    pub fn publishers(self, plan: &Plan) -> impl ExactSizeIterator<Item = u32> {
        self.numbers(if matches!(self.clients, ClientKinds::Audience(_)) { 0 } else { plan.publishers.count })
    }

    /// Numbers, in `layout`, of the receivers that belong to this process.
    pub fn receivers(self, layout: &Layout) -> Vec<u32> {
        let receivers = layout.receivers();
        match self.clients {
            ClientKinds::All => self.numbers(receivers.len() as u32).collect(),
            ClientKinds::Publishers => Vec::new(),
            ClientKinds::Audience(audience) => {
                let members = (0..).zip(receivers).filter(|(_, receiver)| receiver.audience == audience as usize);
                let own = (0..).zip(members).filter(|(place, _)| self.has(*place));
                own.map(|(_, (number, _))| number).collect()
            }
        }
    }

    /// Numbers below `count` that belong to this process.
    pub fn numbers(self, count: u32) -> impl ExactSizeIterator<Item = u32> {
        (self.index..count).step_by(self.of.max(1) as usize)
    }
}
