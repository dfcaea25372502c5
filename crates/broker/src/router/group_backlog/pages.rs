//! The on-disk part of a group backlog, read page by page.

use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::SharedFilter;
use tenbin_session::Delivery;

use super::super::share_group::{SharedGroup, beginning};
use crate::backlog::{FailedRead, NextPage, Refilled};
use crate::durable::{Ended, Page, PageOf, Sequence};

impl SharedGroup {
    /// Starts the read of the next page of the on-disk backlog, if memory holds no earlier messages.
    pub(super) fn read_on(self: &Arc<Self>, now: Instant) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        let page = self.change_queued(|queued| {
            let is_next = queued.queue.is_empty() && queued.redeliveries == 0;
            if is_next { queued.spill.next_page(&queue, PAGE_BYTES, now) } else { NextPage::None }
        });
        let NextPage::Read(page) = page else { return };
        let page = PageOf { with_expired: self.dooms_expired(), ..page };
        // The group may end during the read.
        let group = Arc::downgrade(self);
        durable.reader.page_for(page, move |page| {
            if let Some(group) = group.upgrade() {
                group.take_page(page);
            }
        });
    }

    /// Gives a page that was read to the members, on the reading thread.
    ///
    /// That takes no longer than a publisher's batch of as many messages. Pages that other readers wait for come before
    /// this group's next one.
    pub(super) fn take_page(self: &Arc<Self>, page: Page) {
        let now = self.queues.clock.moment(Instant::now());
        let is_broken = page.is_broken;
        let refilled = self.change_queued(|queued| {
            let mut read = Vec::new();
            let put = |delivery| read.push(Delivery { share: Some(self.number()), ..delivery });
            let refilled = queued.spill.refill(page, now.at, put);
            // Behind messages that members gave back in between, which are older.
            for delivery in read {
                match delivery.due().filter(|due| *due > now.at) {
                    Some(due) => self.keep_until_due(queued, &delivery, due, now.at),
                    None => queued.append(delivery),
                }
            }
            refilled
        });
        let Some(Refilled { done, failed }) = refilled else {
            // The read was cancelled, or there was a panic behind it.
            return if is_broken {
                self.read_on(now.at)
            };
        };
        if let Some(failed) = failed {
            self.read_failed(failed);
        }
        self.end_places(done);
        self.schedule_retries(now.at);
        self.dispatch(now, &mut Rng::new(now.nanos.0));
        self.read_on(now.at);
    }

    /// Schedules another read after a failed one.
    #[cold]
    fn read_failed(self: &Arc<Self>, failed: FailedRead) {
        if failed.is_first {
            let SharedFilter { share_name, filter } = self.name();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            tracing::error!(share_name, filter, "messages of the share group cannot be read: they stay on disk");
        }
        self.queues.due.add(self, failed.retry_at);
    }

    /// Repeats a failed read if its pause is over, even if no client publishes or connects.
    #[cold]
    pub(in super::super) fn read_again(self: &Arc<Self>, now: Instant) {
        // From here on, the caller that takes the last message in memory may also start the read. Its clock reading may
        // be older than `now`.
        self.change_queued(|queued| queued.spill.refill.end_pause(now));
        self.read_on(now);
    }

    /// Removes the entries of expired messages, and counts them.
    pub(super) fn end_places(&self, places: Vec<Sequence>) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        self.queues.metrics.dropped_expired.add(places.len() as u64);
        durable.end(Ended::Expired, places.into_iter().map(|sequence| queue.at(sequence)));
    }
}

/// Bytes of message bodies in one read.
pub(super) const PAGE_BYTES: usize = 64 * 1024;
