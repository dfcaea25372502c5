use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tenbin_codec::Text;

use super::SafeAt;

/// Sessions that are over, of which the disk may not know yet: a client may not be told that it has none before.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_client: HashMap<Text, SafeAt>,
    /// At so many, those are forgotten that are safe.
    full: usize,
}

impl Endings {
    /// The session of this client is over, and that is safe then.
    pub(super) fn add(&self, client_id: &Text, safe_at: SafeAt, is_safe: impl Fn(SafeAt) -> bool) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.by_client.len() >= inner.full {
            inner.by_client.retain(|_, at| !is_safe(*at));
            inner.by_client.shrink_to(KEPT);
            inner.full = KEPT.max(inner.by_client.len() * 2);
        }
        inner.by_client.insert(client_id.clone(), safe_at);
    }

    /// When it is safe that this client's last session is over.
    pub(super) fn of(&self, client_id: &Text) -> SafeAt {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.by_client.get(client_id).copied().unwrap_or(SafeAt::NOW)
    }
}

/// Places that are kept for later.
const KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tenbin_store::state::Ticket;

    use super::*;

    #[test]
    fn what_is_safe_is_forgotten_and_nothing_else() {
        let endings = Endings::default();
        let text = |number: usize| Text::try_from(number.to_string()).unwrap();
        let later = SafeAt::of_state(ticket());
        let all_safe = Cell::new(false);
        let is_safe = |at| all_safe.get() || at == SafeAt::NOW;
        for number in 0..1000 {
            endings.add(&text(number), if number % 2 == 0 { later } else { SafeAt::NOW }, is_safe);
        }
        for number in (0..1000).step_by(2) {
            assert_eq!(endings.of(&text(number)), later);
        }
        assert_eq!(endings.of(&text(2000)), SafeAt::NOW);
        all_safe.set(true);
        for number in 0..10_000 {
            endings.add(&text(number), later, is_safe);
        }
        assert!(endings.0.lock().unwrap().by_client.len() <= 2048);
    }

    /// One of a change.
    fn ticket() -> Ticket {
        let directory = tempfile::tempdir().unwrap();
        let locked = tenbin_store::LockedDirectory::open(directory.path()).unwrap();
        let state = tenbin_store::state::State::open(&locked, Default::default(), |_| {}).unwrap();
        state.put(tenbin_store::state::Table::Meta, Box::default(), Box::default())
    }
}
