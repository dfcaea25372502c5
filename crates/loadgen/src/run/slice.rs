use serde::{Deserialize, Serialize};

/// The part of a run that belongs to one process: client k of each kind is in process k mod `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Number of the process.
    pub index: u32,
    /// Number of processes, at least 1.
    pub of: u32,
}

impl Slice {
    /// A run in one process.
    pub const ALL: Self = Self { index: 0, of: 1 };

    /// Whether client `number` belongs to this process.
    pub fn has(self, number: u32) -> bool {
        number % self.of.max(1) == self.index
    }

    /// Number of clients below `count` that belong to this process.
    pub fn count(self, count: u32) -> u32 {
        self.numbers(count).len() as u32
    }

    /// Numbers below `count` that belong to this process.
    pub fn numbers(self, count: u32) -> impl ExactSizeIterator<Item = u32> {
        (self.index..count).step_by(self.of.max(1) as usize)
    }
}
