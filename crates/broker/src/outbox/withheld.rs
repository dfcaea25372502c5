//! Queued messages that a connected receiver may not get at present.
//!
//! A missing right deletes nothing. The messages leave the queue, so that others can pass them, and join it again when the
//! rights change or the connection ends. Then they are judged anew. Until then, messages on disk leave memory.

use tenbin_session::Delivery;

use super::hints::Hint;
use super::{Booked, Outbox, State};
use crate::backlog::{Entries, Usage};
use crate::durable::{Location, Sequence};

/// Messages of QoS 1 and 2 that are withheld from the receiver.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// Those on disk.
    pub(super) entries: Entries,
    /// The others, oldest first.
    messages: Vec<Delivery>,
}

impl Withheld {
    /// Adds a message that is read from disk, or in memory.
    pub(super) fn add(&mut self, delivery: Delivery) {
        match delivery.location() {
            Some(Location::Own(sequence) | Location::Transient(sequence)) => {
                self.entries.add(Sequence(sequence), delivery.template.whole_len());
            }
            _ => self.messages.push(delivery.detach()),
        }
    }

    fn len(&self) -> usize {
        self.entries.messages() + self.messages.len()
    }

    fn usage(&self) -> Usage {
        Usage { messages: self.messages.len(), bytes: self.messages.iter().map(Delivery::queued_bytes).sum() }
    }
}

impl Outbox {
    /// Receiver: withholds the queued messages for which `is_forbidden` holds, and gives back those that were withheld
    /// before. Returns the forbidden messages of share groups, which other members may get, and the number of withheld
    /// ones. Forbidden messages of QoS 0 are dropped.
    ///
    /// Without a connection nothing is sent, and nothing is withheld.
    pub(crate) fn withhold(&self, is_forbidden: impl Fn(&Delivery) -> bool) -> (Vec<Delivery>, usize) {
        let mut state = self.state();
        self.give_back_withheld(&mut state);
        if !state.consumer.is_connected() {
            return (Vec::new(), 0);
        }
        state.queue.split_runs();
        let forbidden = state.queue.withdraw(is_forbidden, &self.common.budget);
        let mut shared = Vec::new();
        let mut withheld = Withheld::default();
        for delivery in forbidden {
            match delivery.share {
                Some(_) => shared.push(delivery),
                None if delivery.qos.is_acknowledged() => withheld.add(delivery),
                None => {}
            }
        }
        let count = withheld.len();
        if count > 0 {
            self.count_withheld(&Withheld::default(), &withheld);
            state.withheld = Some(Box::new(withheld));
        }
        self.publish(&mut state);
        self.hints.put(Hint::AT_REST, false);
        drop(state);
        self.take_back(shared.iter().map(Booked::of).sum());
        (shared, count)
    }

    /// Receiver: whether messages are withheld from it.
    pub(crate) fn withholds(&self) -> bool {
        self.state().withheld.is_some()
    }

    /// Withholds a message of QoS 1 or 2 that was read from disk.
    pub(super) fn withhold_read(&self, withheld: &mut Option<Box<Withheld>>, delivery: Delivery) {
        withheld.get_or_insert_default().add(delivery);
        self.common.metrics.messages_withheld.add(1);
    }

    /// Puts the withheld messages back into the queue, before newer ones of their topics.
    pub(super) fn give_back_withheld(&self, state: &mut State) {
        let Some(withheld) = state.withheld.take() else { return };
        self.count_withheld(&withheld, &Withheld::default());
        let Withheld { entries, messages } = *withheld;
        messages.into_iter().rev().for_each(|delivery| state.queue.push_front(delivery, &self.common.budget));
        if !entries.is_empty() {
            // Messages in memory would overtake them.
            self.give_head_to_tail(state);
            state.spill.get_or_insert_default().entries.join(entries);
        }
        self.publish(state);
    }

    fn count_withheld(&self, before: &Withheld, now: &Withheld) {
        self.common.metrics.messages_withheld.subtract(before.len() as u64);
        self.common.metrics.messages_withheld.add(now.len() as u64);
        self.common.budget.change(before.usage(), now.usage());
    }
}
