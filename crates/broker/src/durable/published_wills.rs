use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenbin_codec::Text;
use tokio::sync::Notify;

use super::CommitPoint;

/// Wills that were published and are still on disk.
///
/// The log has the published message, and the state has the Will. The Will stays until the message is durable: before
/// that, a crash could lose both.
#[derive(Debug, Default)]
pub(super) struct PublishedWills {
    wills: Mutex<BTreeMap<WillOf, CommitPoint>>,
    /// Notified when a Will was added.
    pub(super) added: Notify,
}

/// Client Identifier and number of a Will.
pub(super) type WillOf = (Box<[u8]>, u16);

impl PublishedWills {
    /// Adds a Will that may be forgotten once `commit_point` is durable.
    pub(super) fn add(&self, client_id: &Text, number: u16, commit_point: CommitPoint) {
        self.wills().insert((client_id.as_bytes().into(), number), commit_point);
        self.added.notify_one();
    }

    /// The earliest commit point at which a Will may be forgotten.
    pub(super) fn first(&self) -> Option<CommitPoint> {
        self.wills().values().min_by_key(|commit_point| commit_point.spool).copied()
    }

    /// Number of the client's next Will, above those that were published: the newest Will has the highest.
    pub(super) fn number_behind(&self, client_id: &Text) -> u16 {
        let wills = self.wills();
        if wills.is_empty() {
            return 0;
        }
        let of_client = |number| (client_id.as_bytes().into(), number);
        let mut published = wills.range(of_client(0)..=of_client(u16::MAX));
        published.next_back().map_or(0, |((_, last), _)| last.saturating_add(1))
    }

    /// Removes the Wills that may be forgotten. `forget` gets them before one of their numbers is given again.
    pub(super) fn take(&self, is_safe: impl Fn(CommitPoint) -> bool, forget: impl FnOnce(Vec<WillOf>)) {
        let mut wills = self.wills();
        let taken: Vec<_> = wills.extract_if(.., |_, at| is_safe(*at)).map(|(will, _)| will).collect();
        forget(taken);
    }

    fn wills(&self) -> MutexGuard<'_, BTreeMap<WillOf, CommitPoint>> {
        self.wills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
