//! The messages that the last run left in a queue.

use tenbin_store::spool::Sequence;

use super::message::HEAD_BYTES;
use super::queue::{QueueKind, StoredQueue};
use super::spooled::Mark;
use super::{Durable, Ended};

/// Entries of a queue whose messages are not in flight.
#[derive(Debug, Default)]
pub(crate) struct WaitingEntries {
    /// First and last offset of each range, in order.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) messages: usize,
    /// Approximate bytes of message bodies.
    pub(crate) bytes: u64,
}

impl Durable {
    /// Returns the messages that the last run left in a queue, but those in flight.
    ///
    /// A QoS 2 message of a share group that was sent to a member whose session ended with the last run goes to no
    /// other member `[MQTT-4.8.2-5]`.
    pub(crate) fn waiting_entries(&self, queue: &StoredQueue) -> WaitingEntries {
        if queue.kind() == QueueKind::Group {
            let sent = self.spool.marks(queue.id()).into_iter().filter(|marked| Mark::of(marked.mark).is_some());
            self.end(Ended::Session, sent.map(|marked| queue.at(marked.sequence)));
        }
        let mut waiting = WaitingEntries::default();
        let Some(content) = self.spool.queue(queue.id()) else { return waiting };
        let Some((Sequence(first), Sequence(last))) = content.ends else { return waiting };
        let marks = self.spool.marks(queue.id());
        waiting.messages = content.waiting.saturating_sub(marks.len());
        if waiting.messages == 0 {
            return waiting;
        }
        let mut next = first;
        for marked in &marks {
            if marked.sequence.0 > next {
                waiting.ranges.push((next, marked.sequence.0 - 1));
            }
            next = marked.sequence.0 + 1;
        }
        if next <= last {
            waiting.ranges.push((next, last));
        }
        // A message that is read counts without its head, so heads do not count. Messages in flight are left out at
        // average size.
        let under_way = marks.iter().filter(|marked| marked.has_body).count();
        let average = content.bytes / (waiting.messages + under_way).max(1) as u64;
        let not_counted = average * under_way as u64 + (HEAD_BYTES * waiting.messages) as u64;
        waiting.bytes = content.bytes.saturating_sub(not_counted);
        waiting
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tenbin_codec::{QoS, TopicName};
    use tenbin_session::{Delivery, Publication};

    use super::*;

    #[test]
    fn messages_in_flight_do_not_count_as_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let durable = Durable::open(directory.path(), tenbin_store::Sync::Never, 0).unwrap();
        let queue = StoredQueue::numbered(1);
        let topic = TopicName::try_from("topic").unwrap();
        let publication = Publication::new(topic, vec![b'x'; 100].into());
        let template = publication.template(&mut BytesMut::new());
        let bytes = template.len();
        let room = durable.take_room(0, false).unwrap();
        let mut log = durable.append();
        for _ in 0..10 {
            let qos = QoS::AtLeastOnce;
            log.place(&queue, &mut Delivery::new(template.clone(), qos, false), &room);
            log.close(None);
        }
        drop(log);
        let id = tenbin_session::SentId { packet_id: tenbin_codec::PacketId::new(7).unwrap(), round: 0 };
        let sent = vec![(queue.at(Sequence(1)), id), (queue.at(Sequence(4)), id)];
        durable.settle(&mut crate::durable::Outcomes { sent, ..Default::default() });
        let WaitingEntries { ranges, messages, bytes: all } = durable.waiting_entries(&queue);
        assert_eq!((ranges, messages, all), (vec![(2, 3), (5, 10)], 8, 8 * bytes as u64));
    }
}
