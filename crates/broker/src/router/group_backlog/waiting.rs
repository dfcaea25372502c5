//! Messages of a group backlog that an operator looks at, or takes out.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tenbin_session::Delivery;

use super::super::share_group::SharedGroup;
use super::pages::PAGE_BYTES;
use crate::durable::{Page, PageOf, QueueKind, Sequence};

/// Where a message of a group backlog waits. Messages in memory are older than messages on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitingAt {
    /// In memory, with this number.
    Memory(u64),
    /// On disk, at this offset.
    Disk(u64),
}

/// Messages of a group backlog, in order, and where the others begin.
#[derive(Debug)]
pub(crate) struct WaitingPage {
    pub(crate) messages: Vec<(WaitingAt, Delivery)>,
    /// `None`: there are no others.
    pub(crate) next: Option<WaitingAt>,
}

impl SharedGroup {
    /// Reads messages of the backlog from this place on, which stay there: all in memory, or some of the disk. `None`: they
    /// cannot be read for now.
    ///
    /// Left out are messages of keys that are pinned to full members, and messages in their pause.
    pub(crate) async fn waiting_page(&self, from: WaitingAt) -> Option<WaitingPage> {
        let from = match from {
            WaitingAt::Memory(from) => {
                let queued = self.backlog.lock();
                let is_wanted =
                    |(number, delivery): &(u64, &Delivery)| *number >= from && !delivery.template.is_external();
                let in_memory = queued.queue.numbered().filter(is_wanted);
                let mut messages: Vec<_> =
                    in_memory.map(|(number, delivery)| (WaitingAt::Memory(number), delivery.clone())).collect();
                messages.sort_unstable_by_key(|(at, _)| *at);
                let next = (!queued.spill.entries.is_empty()).then_some(WaitingAt::Disk(0));
                return Some(WaitingPage { messages, next });
            }
            WaitingAt::Disk(from) => Sequence(from),
        };
        let nothing = WaitingPage { messages: Vec::new(), next: None };
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return Some(nothing) };
        let ranges = self.backlog.lock().spill.entries.page_from(from);
        let Some(Sequence(end)) = ranges.last().map(|range| *range.end()) else { return Some(nothing) };
        let page = PageOf {
            queue: queue.id(),
            kind: QueueKind::Group,
            ranges,
            bytes: PAGE_BYTES,
            by_reference: None,
            with_expired: false,
        };
        let Page { messages, is_broken, .. } = durable.reader.page(page).await.ok()?;
        let next = match messages.last() {
            Some((Sequence(last), _)) => last + 1,
            None if is_broken => return None,
            None => end + 1, // none of these is on disk any more
        };
        let read = messages
            .into_iter()
            .filter_map(|(Sequence(sequence), delivery)| Some((WaitingAt::Disk(sequence), delivery?)));
        Some(WaitingPage { messages: read.collect(), next: Some(WaitingAt::Disk(next)) })
    }

    /// Takes messages out of the backlog, with their sizes, and returns the places of those that were still there. Their
    /// entries on disk stay.
    pub(crate) fn take_waiting(&self, wanted: &[(WaitingAt, usize)]) -> BTreeSet<WaitingAt> {
        self.change_queued(|queued| {
            let taken = RefCell::new(BTreeSet::new());
            let in_memory: BTreeSet<_> = wanted.iter().map(|(at, _)| *at).collect();
            queued.queue.remove_where(|number, _| {
                let at = WaitingAt::Memory(number);
                in_memory.contains(&at) && taken.borrow_mut().insert(at)
            });
            let mut taken = taken.into_inner();
            for &(at, bytes) in wanted {
                if let WaitingAt::Disk(sequence) = at
                    && queued.spill.entries.take(Sequence(sequence), bytes)
                {
                    taken.insert(at);
                }
            }
            taken
        })
    }

    /// Puts a letter back at the front of the backlog, from which it was taken.
    pub(crate) fn put_letter_back(&self, letter: Delivery) {
        self.change_queued(|queued| {
            self.announce();
            self.keep_first(queued, Delivery { share: Some(self.number()), ..letter });
        });
    }
}
