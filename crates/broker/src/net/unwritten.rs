use std::collections::VecDeque;

use crate::outbox::Booked;

/// QoS 0 messages of share groups that are encoded but not in the socket yet, in sending order.
#[derive(Debug, Default)]
pub(super) struct Unwritten(VecDeque<Batch>);

/// Messages that are reported as written together.
#[derive(Debug)]
struct Batch {
    booked: Booked,
    /// Bytes of the connection once the first, and once the last of the messages is written.
    first_end: u64,
    end: u64,
}

impl Unwritten {
    /// Adds messages that are fully written once `end` bytes of the connection are.
    pub(super) fn push(&mut self, booked: Booked, end: u64) {
        if booked.is_nothing() {
            return;
        }
        match self.0.back_mut() {
            // Merging bounds the list while the socket is blocked.
            Some(last) if end - last.first_end <= BATCH_BYTES => {
                last.booked += booked;
                last.end = end;
            }
            _ => self.0.push_back(Batch { booked, first_end: end, end }),
        }
    }

    /// Removes and returns messages that are written, now that `written` bytes of the connection are.
    pub(super) fn take_written(&mut self, written: u64) -> Booked {
        let mut booked = Booked::NOTHING;
        while let Some(batch) = self.0.pop_front_if(|batch| batch.end <= written) {
            booked += batch.booked;
        }
        booked
    }

    /// Removes and returns all messages, which will not be written.
    pub(super) fn take_all(&mut self) -> Booked {
        std::mem::take(&mut self.0).into_iter().map(|batch| batch.booked).sum()
    }
}

/// Maximum span in bytes of messages reported together: at most 64 batches fill a connection's output.
const BATCH_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn booked(messages: u32) -> Booked {
        Booked { messages, bytes: u64::from(messages) * 10 }
    }

    #[test]
    fn written_messages_are_reported_exactly_once() {
        let mut unwritten = Unwritten::default();
        unwritten.push(Booked::NOTHING, 50);
        assert_eq!(unwritten.take_written(u64::MAX), Booked::NOTHING);
        unwritten.push(booked(3), 100);
        unwritten.push(booked(2), 100 + BATCH_BYTES);
        unwritten.push(booked(1), 101 + BATCH_BYTES);
        assert_eq!(unwritten.take_written(99 + BATCH_BYTES), Booked::NOTHING);
        assert_eq!(unwritten.take_written(100 + BATCH_BYTES), booked(5));
        assert_eq!(unwritten.take_all(), booked(1));
        assert_eq!(unwritten.take_all(), Booked::NOTHING);
    }

    #[test]
    fn blocked_socket_does_not_grow_the_list() {
        let mut unwritten = Unwritten::default();
        (0..100_000).for_each(|n| unwritten.push(booked(1), n * 10));
        assert!(unwritten.0.len() <= 250);
        assert_eq!(unwritten.take_all(), booked(100_000));
    }
}
