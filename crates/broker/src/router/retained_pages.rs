use std::collections::VecDeque;
use std::time::Instant;

use tenbin_codec::TopicFilter;
use tenbin_session::Delivery;

use super::retained::{Cursor, PageRoom};
use super::{Grant, Router};

/// The retained messages that a session's SUBSCRIBEs have asked for, read from the store page by page as its
/// connection has room for them: however many there are, they neither fill the queue nor hold the store's lock long.
///
/// Bounded by the number of subscriptions: there is one entry for each at most, and no message in it.
#[derive(Debug, Default)]
pub(crate) struct RetainedPages {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
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
}

impl RetainedPages {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A SUBSCRIBE asks for what matches `filter`, from the beginning.
    pub(crate) fn begin(&mut self, filter: &TopicFilter, grant: Grant) {
        self.cancel(filter);
        self.waiting.push_back(Waiting { filter: filter.detach(), grant, cursor: None });
    }

    /// The subscription is gone.
    pub(crate) fn cancel(&mut self, filter: &TopicFilter) {
        self.waiting.retain(|waiting| waiting.filter != *filter);
    }

    /// What would be sent at QoS 0 does not wait for the next connection.
    pub(crate) fn connection_ended(&mut self) {
        self.waiting.retain(|waiting| waiting.grant.options.qos.is_acknowledged());
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Takes the next messages: about `bytes` of them, and at most `quota` that are to be acknowledged.
    pub(crate) fn take(
        &mut self,
        router: &Router,
        quota: usize,
        bytes: usize,
        now: Instant,
        into: &mut Vec<Delivery>,
    ) -> Paged {
        let mut room = PageRoom { messages: PAGE_MESSAGES, bytes, visits: PAGE_VISITS };
        let mut quota = quota;
        while let Some(next) = self.waiting.front_mut() {
            if room.is_used_up() {
                return Paged::More;
            }
            let takes_quota = next.grant.options.qos.is_acknowledged();
            if takes_quota && quota == 0 {
                // The others get their turn; each acknowledgement comes back here.
                let Some(position) = self.waiting.iter().position(|other| !other.grant.options.qos.is_acknowledged())
                else {
                    return Paged::Enough;
                };
                self.waiting.swap(0, position);
                continue;
            }
            let messages = if takes_quota { room.messages.min(quota) } else { room.messages };
            let grant = next.grant;
            let before = into.len();
            let page = PageRoom { messages, ..room };
            let left = router.retained.page(&next.filter, &mut next.cursor, page, now, |message| {
                into.push(message.delivery(grant));
            });
            let is_done = next.cursor.is_none();
            let taken = into.len() - before;
            if takes_quota {
                quota -= into[before..].iter().filter(|delivery| delivery.qos.is_acknowledged()).count();
            }
            room = PageRoom { messages: room.messages - taken, ..left };
            if is_done {
                self.waiting.pop_front();
            }
        }
        Paged::Enough
    }
}

/// Messages of one page, and nodes of the store that are looked at for it.
const PAGE_MESSAGES: usize = 256;
const PAGE_VISITS: usize = 2048;
