use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};

use tenbin_codec::SharedFilter;
use tenbin_store::state::Table;

use super::queue::{QueueKind, StoredQueue};
use super::{Changes, Durable};

impl Durable {
    /// The queue of a share group that stores its messages from now on: that of the last run, if any.
    ///
    /// Call it before the first subscription to the group is stored. State is written in the order in which it changes,
    /// so that the group is durable when any of its subscriptions is.
    pub(crate) fn queue_of_group(&self, name: &SharedFilter) -> Arc<StoredQueue> {
        let key = key(name);
        let known = self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let number = known.unwrap_or_else(|| {
            let number = self.next_number();
            self.state.put(Table::Meta, key.into(), number.get().to_le_bytes().into());
            number
        });
        StoredQueue::new(QueueKind::Group, number, self.first_place())
    }

    /// Ends the group, and drops the messages in its queue.
    pub(crate) fn forget_group(&self, name: &SharedFilter, queue: &StoredQueue) {
        self.remove(Table::Meta, &key(name));
        self.end_queue(queue);
    }

    /// Notes a group of the last run. Returns the number of its queue; `None`: the record has none.
    pub(super) fn know_group(&self, key: &[u8], value: &[u8]) -> Option<NonZeroU64> {
        let number = NonZeroU64::new(u64::from_le_bytes(value.try_into().ok()?))?;
        self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), number);
        Some(number)
    }

    /// Forgets the groups of the last run that have no member any more.
    pub(super) fn forget_unknown_groups(&self, changes: &mut Changes) {
        let left = std::mem::take(&mut *self.known_groups.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_keys().for_each(|key| changes.remove(Table::Meta, key));
    }
}

/// Key of a group: ShareName and filter, as a subscription names them.
fn key(SharedFilter { share_name, filter }: &SharedFilter) -> Vec<u8> {
    [GROUP_KEY, share_name.text().as_bytes(), b"/", filter.as_bytes()].concat()
}

/// Prefix of the keys of groups.
pub(super) const GROUP_KEY: &[u8] = b"group ";
