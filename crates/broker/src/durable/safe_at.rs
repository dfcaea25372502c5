use tenbin_store::state::Ticket;

/// When something is so durable that it may be acknowledged: a place in each of the store's parts. What is safe at one is
/// safe at every later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SafeAt {
    pub(super) state: Ticket,
}

impl SafeAt {
    /// Whatever is not kept on disk.
    pub(crate) const NOW: Self = Self { state: Ticket::NONE };

    /// When both are.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { state: self.state.max(other.state) }
    }
}
