//! Disk operations that follow from changes of a backlog.

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use crate::durable::{Durable, Ended, Outcomes, Room, StoredQueue};

/// Disk operations of one batch, executed once the backlog is unlocked.
#[derive(Debug, Default)]
pub(crate) struct DiskWork {
    /// Messages in transient spill that are to be written.
    pub(super) placed: Vec<Delivery>,
    /// Disk space booked for them.
    room: Option<Room>,
    /// Entries to be ended: their messages are in memory or dropped.
    done: Vec<(Ended, Sequence)>,
}

impl DiskWork {
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.placed.is_empty() && self.done.is_empty() && self.room.is_none()
    }

    /// Ends these entries.
    pub(crate) fn end(&mut self, cause: Ended, entries: impl IntoIterator<Item = Sequence>) {
        self.done.extend(entries.into_iter().map(|sequence| (cause, sequence)));
    }

    /// Books `bytes` of disk space for messages that are about to be placed; returns whether there is any.
    pub(crate) fn book(&mut self, durable: Option<&Durable>, bytes: usize) -> bool {
        let Some(room) = durable.and_then(|durable| durable.take_room(bytes, false)) else { return false };
        match &mut self.room {
            Some(booked) => booked.join(room),
            None => self.room = Some(room),
        }
        true
    }

    /// Executes it for this queue, and returns the number of placed messages. Without a queue, the entries are gone.
    pub(crate) fn run(self, durable: &Durable, queue: Option<&StoredQueue>) -> usize {
        let Self { placed, room, done } = self;
        if let Some(queue) = queue {
            let mut outcomes = Outcomes::default();
            done.into_iter().for_each(|(cause, sequence)| outcomes.end(cause, queue.at(sequence)));
            if !outcomes.is_empty() {
                durable.settle(&mut outcomes);
            }
            if let Some(room) = &room {
                durable.append_placed(queue, &placed, room);
            }
        }
        if let Some(room) = room {
            durable.give_room(room);
        }
        placed.len()
    }
}
