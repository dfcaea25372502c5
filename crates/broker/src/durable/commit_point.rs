use tenbin_store::spool::Position;
use tenbin_store::state::Ticket;

/// Commit point: a position in the state and one in the log, at which a change may be acknowledged.
///
/// A change that is durable at one commit point is durable at every later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitPoint {
    pub(super) state: Ticket,
    pub(super) spool: Position,
}

impl CommitPoint {
    /// Commit point of anything that is not stored on disk.
    pub(crate) const NOW: Self = Self { state: Ticket::NONE, spool: Position::START };

    pub(super) fn of_state(state: Ticket) -> Self {
        Self { state, ..Self::NOW }
    }

    pub(super) fn of_messages(spool: Position) -> Self {
        Self { spool, ..Self::NOW }
    }

    /// Commit point that covers both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { state: self.state.max(other.state), spool: self.spool.max(other.spool) }
    }
}

impl Default for CommitPoint {
    fn default() -> Self {
        Self::NOW
    }
}
