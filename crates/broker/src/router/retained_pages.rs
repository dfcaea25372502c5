use std::collections::BTreeMap;
use std::time::Instant;

use tenbin_codec::{Text, TopicFilter};
use tenbin_session::Delivery;

use super::Router;
use super::retained::{Cursor, PageRoom};
use crate::values::Grant;

/// The retained messages that a session's SUBSCRIBEs requested, read from the store in pages.
///
/// The connection reads a page when it has room. So any number of messages neither fills the queue nor holds the
/// store's lock long. Bounded by the number of subscriptions: each has at most one entry, without messages.
#[derive(Debug, Default)]
pub(crate) struct RetainedPages(
    /// `None`: nothing is requested, the usual case.
    Option<Box<Pages>>,
);

#[derive(Debug, Default)]
struct Pages {
    /// Searches granted QoS 1 or 2, which the send quota may block, by the text of the filter.
    acknowledged: Waiting,
    /// Searches granted QoS 0.
    unacknowledged: Waiting,
}

type Waiting = BTreeMap<Text, Search>;

#[derive(Debug)]
struct Search {
    filter: TopicFilter,
    grant: Grant,
    /// End of the last page; `None` before the first.
    cursor: Option<Cursor>,
}

/// Result of reading a page of retained messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paged {
    /// Nothing is left, or the send quota blocks the rest.
    Enough,
    /// Call again.
    More,
    /// Call again when the disk has room.
    NoRoom,
}

impl RetainedPages {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Starts a search for messages that match `filter`, from the beginning.
    pub(crate) fn begin(&mut self, filter: &TopicFilter, grant: Grant) {
        self.cancel(filter);
        let is_acknowledged = grant.options.qos.is_acknowledged();
        let pages = self.0.get_or_insert_default();
        let waiting = if is_acknowledged { &mut pages.acknowledged } else { &mut pages.unacknowledged };
        let filter = filter.detach();
        waiting.insert(filter.text().clone(), Search { filter, grant, cursor: None });
    }

    /// Ends the search of a removed subscription.
    pub(crate) fn cancel(&mut self, filter: &TopicFilter) {
        self.change(|pages| {
            pages.acknowledged.remove(filter.text());
            pages.unacknowledged.remove(filter.text());
        });
    }

    /// Ends the QoS 0 searches, which do not wait for the next connection.
    pub(crate) fn connection_ended(&mut self) {
        self.change(|pages| pages.unacknowledged.clear());
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes the next messages: about `bytes`, with at most `quota` that need an acknowledgement. Messages for which
    /// `has_room` returns `false` stay in the store.
    pub(crate) fn take(
        &mut self,
        router: &Router,
        mut quota: usize,
        bytes: usize,
        now: Instant,
        into: &mut Vec<Delivery>,
        mut has_room: impl FnMut(&[Delivery]) -> bool,
    ) -> Paged {
        let take = |pages: &mut Pages| {
            let mut room = PageRoom { messages: PAGE_MESSAGES, bytes, visits: PAGE_VISITS };
            loop {
                let acknowledged = pages.acknowledged.first_entry().filter(|_| quota > 0);
                let takes_quota = acknowledged.is_some();
                let Some(mut next) = acknowledged.or_else(|| pages.unacknowledged.first_entry()) else {
                    return Paged::Enough;
                };
                if room.is_used_up() {
                    return Paged::More;
                }
                let Search { filter, grant, cursor } = next.get_mut();
                let messages = if takes_quota { room.messages.min(quota) } else { room.messages };
                let before = into.len();
                let began = cursor.clone();
                let left = router.retained.page(filter, cursor, PageRoom { messages, ..room }, now, |message| {
                    into.push(message.delivery(*grant));
                });
                if takes_quota && !has_room(&into[before..]) {
                    *cursor = began;
                    into.truncate(before);
                    return Paged::NoRoom;
                }
                if cursor.is_none() {
                    next.remove();
                }
                let taken = &into[before..];
                quota -= taken.iter().filter(|delivery| delivery.qos.is_acknowledged()).count();
                room = PageRoom { messages: room.messages - taken.len(), ..left };
            }
        };
        self.change(take).unwrap_or(Paged::Enough)
    }

    /// Applies a change, and frees the memory when no search is left.
    fn change<T>(&mut self, change: impl FnOnce(&mut Pages) -> T) -> Option<T> {
        let pages = self.0.as_mut()?;
        let changed = change(pages);
        if pages.acknowledged.is_empty() && pages.unacknowledged.is_empty() {
            self.0 = None;
        }
        Some(changed)
    }
}

/// Limits of one page: messages, and tree nodes visited for them.
const PAGE_MESSAGES: usize = 256;
const PAGE_VISITS: usize = 2048;
