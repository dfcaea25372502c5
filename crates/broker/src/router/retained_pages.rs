use std::collections::BTreeMap;
use std::time::Instant;

use tenbin_codec::{Text, TopicFilter};
use tenbin_session::Delivery;

use super::retained::{Cursor, PageRoom};
use super::{Grant, Router};

/// The retained messages that a session's SUBSCRIBEs have asked for, read from the store page by page as its
/// connection has room for them: however many there are, they neither fill the queue nor hold the store's lock long.
///
/// Bounded by the number of subscriptions: there is one entry for each at most, and no message in it.
#[derive(Debug, Default)]
pub(crate) struct RetainedPages(
    /// `None`: nothing is asked for, as nearly always.
    Option<Box<Pages>>,
);

#[derive(Debug, Default)]
struct Pages {
    /// What was granted QoS 1 or 2, which the send quota may hold back, by the text of the filter.
    acknowledged: Waiting,
    /// What was granted QoS 0.
    unacknowledged: Waiting,
}

type Waiting = BTreeMap<Text, Search>;

#[derive(Debug)]
struct Search {
    filter: TopicFilter,
    grant: Grant,
    /// Where the last page ended; `None` before the first.
    cursor: Option<Cursor>,
}

/// How a search for retained messages came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paged {
    /// Nothing is left, or nothing may go for want of send quota.
    Enough,
    /// To be called again.
    More,
    /// To be called again when the disk has room.
    NoRoom,
}

impl RetainedPages {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// A SUBSCRIBE asks for what matches `filter`, from the beginning.
    pub(crate) fn begin(&mut self, filter: &TopicFilter, grant: Grant) {
        self.cancel(filter);
        let is_acknowledged = grant.options.qos.is_acknowledged();
        let pages = self.0.get_or_insert_default();
        let waiting = if is_acknowledged { &mut pages.acknowledged } else { &mut pages.unacknowledged };
        let filter = filter.detach();
        waiting.insert(filter.text().clone(), Search { filter, grant, cursor: None });
    }

    /// The subscription is gone.
    pub(crate) fn cancel(&mut self, filter: &TopicFilter) {
        self.change(|pages| {
            pages.acknowledged.remove(filter.text());
            pages.unacknowledged.remove(filter.text());
        });
    }

    /// What would be sent at QoS 0 does not wait for the next connection.
    pub(crate) fn connection_ended(&mut self) {
        self.change(|pages| pages.unacknowledged.clear());
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes the next messages: about `bytes` of them, and at most `quota` that are to be acknowledged. Those stay where they
    /// are for which the caller says that it has no room.
    pub(crate) fn take(
        &mut self,
        router: &Router,
        quota: usize,
        bytes: usize,
        now: Instant,
        into: &mut Vec<Delivery>,
        has_room: impl FnMut(&[Delivery]) -> bool,
    ) -> Paged {
        self.change(|pages| pages.take(router, quota, bytes, now, into, has_room)).unwrap_or(Paged::Enough)
    }

    /// Keeps no memory where nothing is left.
    fn change<T>(&mut self, change: impl FnOnce(&mut Pages) -> T) -> Option<T> {
        let pages = self.0.as_mut()?;
        let changed = change(pages);
        if pages.acknowledged.is_empty() && pages.unacknowledged.is_empty() {
            self.0 = None;
        }
        Some(changed)
    }
}

impl Pages {
    fn take(
        &mut self,
        router: &Router,
        quota: usize,
        bytes: usize,
        now: Instant,
        into: &mut Vec<Delivery>,
        mut has_room: impl FnMut(&[Delivery]) -> bool,
    ) -> Paged {
        let mut room = PageRoom { messages: PAGE_MESSAGES, bytes, visits: PAGE_VISITS };
        let mut quota = quota;
        loop {
            let held_back = quota == 0;
            let acknowledged = self.acknowledged.first_entry().filter(|_| !held_back);
            let takes_quota = acknowledged.is_some();
            let Some(mut next) = acknowledged.or_else(|| self.unacknowledged.first_entry()) else {
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
    }
}

/// Messages of one page, and nodes of the store that are looked at for it.
const PAGE_MESSAGES: usize = 256;
const PAGE_VISITS: usize = 2048;
