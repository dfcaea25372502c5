use std::collections::VecDeque;

use crate::outbox::Booked;

/// QoS 0 messages of share groups that are encoded and wait for the socket, in the order of sending.
#[derive(Debug, Default)]
pub(super) struct Unwritten(VecDeque<Batch>);

/// Messages that count as written together.
#[derive(Debug)]
struct Batch {
    booked: Booked,
    /// Bytes of the connection that are written when the first, and when the last of them is.
    first_end: u64,
    end: u64,
}

impl Unwritten {
    /// `booked` is wholly written when `end` bytes of the connection are.
    pub(super) fn push(&mut self, booked: Booked, end: u64) {
        if booked.is_nothing() {
            return;
        }
        match self.0.back_mut() {
            // A socket that takes nothing for long does not make this long.
            Some(last) if end - last.first_end <= BATCH_BYTES => {
                last.booked += booked;
                last.end = end;
            }
            _ => self.0.push_back(Batch { booked, first_end: end, end }),
        }
    }

    /// What has been written now that `written` bytes of the connection are.
    pub(super) fn take_written(&mut self, written: u64) -> Booked {
        let mut booked = Booked::NOTHING;
        while let Some(batch) = self.0.pop_front_if(|batch| batch.end <= written) {
            booked += batch.booked;
        }
        booked
    }

    /// What will never be.
    pub(super) fn take_all(&mut self) -> Booked {
        std::mem::take(&mut self.0).into_iter().map(|batch| batch.booked).sum()
    }
}

/// Span of the messages that are told together at most, while they wait: at most 64 batches fill what a connection has
/// unwritten.
const BATCH_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn booked(messages: u32) -> Booked {
        Booked { messages, bytes: u64::from(messages) * 10 }
    }

    #[test]
    fn what_is_written_is_told_once_and_whole() {
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
    fn a_blocked_socket_does_not_make_it_long() {
        let mut unwritten = Unwritten::default();
        (0..100_000).for_each(|n| unwritten.push(booked(1), n * 10));
        assert!(unwritten.0.len() <= 250);
        assert_eq!(unwritten.take_all(), booked(100_000));
    }
}
