use tenbin_store::spool::Position;
use tenbin_store::state::Ticket;

/// When something is so durable that it may be acknowledged: a place in each of the store's parts. What is safe at one is
/// safe at every later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SafeAt {
    pub(super) state: Ticket,
    pub(super) spool: Position,
}

impl SafeAt {
    /// Whatever is not kept on disk.
    pub(crate) const NOW: Self = Self { state: Ticket::NONE, spool: Position::START };

    pub(super) fn of_state(state: Ticket) -> Self {
        Self { state, ..Self::NOW }
    }

    pub(super) fn of_messages(spool: Position) -> Self {
        Self { spool, ..Self::NOW }
    }

    /// When both are.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { state: self.state.max(other.state), spool: self.spool.max(other.spool) }
    }
}

impl Default for SafeAt {
    fn default() -> Self {
        Self::NOW
    }
}
