use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenbin_codec::Text;
use tokio::sync::Notify;

use super::SafeAt;

/// Wills that were published and are still on disk: what was published is in the other of the store's logs, and until it is
/// safe there a crash would leave neither.
#[derive(Debug, Default)]
pub(super) struct PublishedWills {
    wills: Mutex<BTreeMap<WillOf, SafeAt>>,
    /// There may be one.
    pub(super) added: Notify,
}

/// A client's name, and which of its Wills it is.
pub(super) type WillOf = (Box<[u8]>, u16);

impl PublishedWills {
    /// This one may be forgotten when that is safe.
    pub(super) fn add(&self, client_id: &Text, number: u16, safe_at: SafeAt) {
        self.wills().insert((client_id.as_bytes().into(), number), safe_at);
        self.added.notify_one();
    }

    /// When the first of them may be forgotten.
    pub(super) fn first(&self) -> Option<SafeAt> {
        self.wills().values().min_by_key(|safe_at| safe_at.spool).copied()
    }

    /// The client's next Will: behind all that were published, so that the last one is known as that.
    pub(super) fn number_behind(&self, client_id: &Text) -> u16 {
        let wills = self.wills();
        if wills.is_empty() {
            return 0;
        }
        let of_client = |number| (client_id.as_bytes().into(), number);
        let mut published = wills.range(of_client(0)..=of_client(u16::MAX));
        published.next_back().map_or(0, |((_, last), _)| last.saturating_add(1))
    }

    /// Has `forget` remove those that may be forgotten: before any of their numbers is given again.
    pub(super) fn take(&self, is_safe: impl Fn(SafeAt) -> bool, forget: impl FnOnce(Vec<WillOf>)) {
        let mut wills = self.wills();
        let taken: Vec<_> = wills.extract_if(.., |_, at| is_safe(*at)).map(|(will, _)| will).collect();
        forget(taken);
    }

    fn wills(&self) -> MutexGuard<'_, BTreeMap<WillOf, SafeAt>> {
        self.wills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
