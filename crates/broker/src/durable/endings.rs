use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tenbin_codec::Text;

use super::CommitPoint;

/// Ends of sessions that may not be durable yet. Until they are, no CONNACK may say that the session is gone.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_client: HashMap<Text, CommitPoint>,
    /// Size at which durable ends are removed.
    full: usize,
}

impl Endings {
    /// Adds the end of the client's session, with its commit point.
    pub(super) fn add(&self, client_id: &Text, commit_point: CommitPoint, is_safe: impl Fn(CommitPoint) -> bool) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.by_client.len() >= inner.full {
            inner.by_client.retain(|_, at| !is_safe(*at));
            inner.by_client.shrink_to(KEPT);
            inner.full = KEPT.max(inner.by_client.len() * 2);
        }
        inner.by_client.insert(client_id.clone(), commit_point);
    }

    /// Commit point of the end of this client's last session.
    pub(super) fn of(&self, client_id: &Text) -> CommitPoint {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.by_client.get(client_id).copied().unwrap_or(CommitPoint::NOW)
    }
}

/// Capacity that is kept for later ends.
const KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tenbin_store::state::Ticket;

    use super::*;

    #[test]
    fn session_endings_are_forgotten_only_once_durable() {
        let endings = Endings::default();
        let text = |number: usize| Text::try_from(number.to_string()).unwrap();
        let later = CommitPoint::of_state(ticket());
        let all_safe = Cell::new(false);
        let is_safe = |at| all_safe.get() || at == CommitPoint::NOW;
        for number in 0..1000 {
            endings.add(&text(number), if number % 2 == 0 { later } else { CommitPoint::NOW }, is_safe);
        }
        for number in (0..1000).step_by(2) {
            assert_eq!(endings.of(&text(number)), later);
        }
        assert_eq!(endings.of(&text(2000)), CommitPoint::NOW);
        all_safe.set(true);
        for number in 0..10_000 {
            endings.add(&text(number), later, is_safe);
        }
        assert!(endings.0.lock().unwrap().by_client.len() <= 2048);
    }

    /// The ticket of a change.
    fn ticket() -> Ticket {
        let directory = tempfile::tempdir().unwrap();
        let locked = tenbin_store::LockedDirectory::open(directory.path()).unwrap();
        let state = tenbin_store::state::State::open(&locked, Default::default(), |_| {}).unwrap();
        state.put(tenbin_store::state::Table::Meta, Box::default(), Box::default())
    }
}
