//! When a worker acknowledges its messages.

use std::collections::VecDeque;

use tenbin_balancer::Nanos;

use super::Sent;
use crate::scenario::Acknowledges;

/// An acknowledged message, and the service time that the acknowledgement tells. The time is 0 before the work.
pub(crate) type Acknowledged = (Sent, u64);

/// Decides which messages of a worker are acknowledged together, and when.
#[derive(Debug)]
pub(crate) struct Acknowledger {
    habit: Acknowledges,
    /// Received messages in the order of receipt that wait for the end of their work, or for an earlier message; the
    /// service time of completed ones.
    unacknowledged: VecDeque<(Sent, Option<u64>)>,
    /// Messages whose acknowledgement waits for a common write.
    unwritten: Vec<Acknowledged>,
    /// True if acknowledgements waited already when the present work began.
    is_write_due: bool,
    /// When the oldest waiting acknowledgement is written at the latest.
    due: Option<Nanos>,
}

impl Acknowledger {
    pub(super) fn new(habit: Acknowledges) -> Self {
        let (unacknowledged, unwritten) = (VecDeque::new(), Vec::new());
        Self { habit, unacknowledged, unwritten, is_write_due: false, due: None }
    }

    /// Takes note of a received message. Returns it if it is acknowledged at once.
    pub(crate) fn received(&mut self, sent: Sent) -> Option<Acknowledged> {
        match self.habit {
            Acknowledges::OnArrival => return Some((sent, 0)),
            Acknowledges::CompletionOrder => {}
            Acknowledges::AfterProcessing | Acknowledges::AfterNextRead | Acknowledges::Batched { .. } => {
                self.unacknowledged.push_back((sent, None));
            }
        }
        None
    }

    /// The worker begins with a message.
    pub(crate) fn begun(&mut self) {
        self.is_write_due = !self.unwritten.is_empty();
    }

    /// Returns the messages to acknowledge after this one is completed, in the order of their acknowledgements.
    /// `is_next_received`: another message is at the worker already.
    pub(crate) fn completed(
        &mut self,
        sent: Sent,
        service_ns: u64,
        is_next_received: bool,
        now: Nanos,
    ) -> Vec<Acknowledged> {
        match self.habit {
            Acknowledges::OnArrival => return Vec::new(),
            Acknowledges::CompletionOrder => return vec![(sent, service_ns)],
            Acknowledges::AfterProcessing | Acknowledges::AfterNextRead | Acknowledges::Batched { .. } => {}
        }
        self.release(sent.message, service_ns);
        let is_written = match self.habit {
            Acknowledges::AfterNextRead => self.is_write_due || !is_next_received,
            Acknowledges::Batched { messages, within } => {
                if self.due.is_none() && !self.unwritten.is_empty() {
                    self.due = within.map(|within| Nanos(now.0 + within.ns()));
                }
                self.unwritten.len() >= messages.get() as usize
            }
            _ => true,
        };
        if is_written { self.write() } else { Vec::new() }
    }

    /// When waiting acknowledgements are written even if no further message is completed.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Returns all messages whose acknowledgements wait for a common write.
    pub(crate) fn write(&mut self) -> Vec<Acknowledged> {
        self.due = None;
        std::mem::take(&mut self.unwritten)
    }

    /// Marks a message as completed. Acknowledgements keep the order of receipt `[MQTT-4.6.0-2]`: those of later messages
    /// wait for the first one.
    fn release(&mut self, message: u32, service_ns: u64) {
        let completed = self.unacknowledged.iter_mut().find(|(sent, _)| sent.message == message);
        completed.into_iter().for_each(|(_, known)| *known = Some(service_ns));
        while let Some(&(sent, Some(service_ns))) = self.unacknowledged.front() {
            self.unacknowledged.pop_front();
            self.unwritten.push((sent, service_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenbin_kit::Span;

    use super::*;

    const NONE: [u32; 0] = [];

    fn sent(message: u32) -> Sent {
        Sent { message, at: Nanos(0), received: Nanos(0), ahead: 0 }
    }

    /// An acknowledger that has received three messages.
    fn with_three(habit: Acknowledges) -> Acknowledger {
        let mut acknowledger = Acknowledger::new(habit);
        for message in 0..3 {
            assert_eq!(acknowledger.received(sent(message)).is_some(), habit == Acknowledges::OnArrival);
        }
        acknowledger
    }

    fn complete(acknowledger: &mut Acknowledger, message: u32, is_next_received: bool, at: u64) -> Vec<u32> {
        numbers(acknowledger.completed(sent(message), 1, is_next_received, Nanos(at)))
    }

    fn numbers(acknowledged: Vec<Acknowledged>) -> Vec<u32> {
        acknowledged.into_iter().map(|(sent, _)| sent.message).collect()
    }

    #[test]
    fn later_messages_wait_for_the_first_except_in_completion_order() {
        let mut in_order = with_three(Acknowledges::AfterProcessing);
        assert_eq!([1, 0, 2].map(|of| complete(&mut in_order, of, false, 0)), [vec![], vec![0, 1], vec![2]]);
        let mut any_order = with_three(Acknowledges::CompletionOrder);
        assert_eq!([1, 0, 2].map(|of| complete(&mut any_order, of, false, 0)), [[1], [0], [2]]);
        let mut early = with_three(Acknowledges::OnArrival);
        assert_eq!(complete(&mut early, 0, false, 0), NONE);
    }

    #[test]
    fn after_next_read_two_messages_are_acknowledged_together() {
        let mut acknowledger = with_three(Acknowledges::AfterNextRead);
        let mut work = |message, is_next_received| {
            acknowledger.begun();
            complete(&mut acknowledger, message, is_next_received, 0)
        };
        assert_eq!(work(0, true), NONE, "the next is read first");
        assert_eq!(work(1, true), [0, 1], "the socket could be written before this read");
        assert_eq!(work(2, false), [2], "nothing to read");
    }

    #[test]
    fn batches_are_acknowledged_by_number_or_time() {
        let messages = NonZeroU32::new(2).unwrap();
        let mut acknowledger = with_three(Acknowledges::Batched { messages, within: Some(Span::from_ns(100)) });
        assert_eq!(complete(&mut acknowledger, 1, true, 10), NONE);
        assert_eq!(acknowledger.due(), None, "the first message is not completed");
        assert_eq!(complete(&mut acknowledger, 0, true, 20), [0, 1]);
        assert_eq!(acknowledger.due(), None);
        assert_eq!(complete(&mut acknowledger, 2, false, 30), NONE);
        assert_eq!(acknowledger.due(), Some(Nanos(130)));
        assert_eq!(numbers(acknowledger.write()), [2]);
        assert_eq!(acknowledger.due(), None);
    }
}
