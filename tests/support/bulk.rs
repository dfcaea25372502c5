use tenbin_codec::{Ack, Packet, PacketType, Publish, QoS, ReasonCode, WriteBuffer};

use super::{RawClient, at_qos};

/// Many numbered messages, to check that all arrive once and in order.
pub(crate) struct Numbered<'a> {
    pub(crate) topics: &'a [&'a str],
    /// Total number of messages, which go to the topics in turn.
    pub(crate) count: usize,
    pub(crate) qos: QoS,
}

impl Numbered<'_> {
    /// Publishes all, with at most [`WINDOW`] unacknowledged.
    pub(crate) fn publish(&self, client: &mut RawClient) {
        self.publish_from(client, 0);
    }

    /// As [`Numbered::publish`], from one number on.
    pub(crate) fn publish_from(&self, client: &mut RawClient, first: usize) {
        for first in (first..self.count).step_by(WINDOW) {
            let numbers = first..self.count.min(first + WINDOW);
            let messages = numbers.map(|number| self.message(number)).collect();
            publish_together(client, self.qos, messages);
        }
    }

    /// Receives and acknowledges as many messages. Returns the numbers by topic, in order of arrival.
    pub(crate) fn receive(&self, client: &mut RawClient) -> Vec<Vec<usize>> {
        let mut received = vec![Vec::new(); self.topics.len()];
        let mut count = 0;
        let mut released = 0;
        while count < self.count || (self.qos == QoS::ExactlyOnce && released < self.count) {
            match client.receive() {
                Packet::Publish(publish) => {
                    count += 1;
                    let position = self.topics.iter().position(|topic| publish.topic.as_bytes() == topic.as_bytes());
                    received[position.expect("a topic of ours")].push(number_of(&publish));
                    let Some(id) = publish.packet_id else { continue };
                    let ack = Ack::new(id, ReasonCode::Success);
                    match publish.qos {
                        QoS::ExactlyOnce => client.send(&Packet::PubRec(ack)),
                        _ => client.send(&Packet::PubAck(ack)),
                    }
                }
                Packet::PubRel(ack) => {
                    released += 1;
                    client.send(&Packet::PubComp(ack));
                }
                other => panic!("{other:?} instead of a message"),
            }
        }
        received
    }

    /// Result of [`Numbered::receive`] if no message is lost, repeated or out of order.
    pub(crate) fn in_order(&self) -> Vec<Vec<usize>> {
        let of_topic = |topic| (topic..self.count).step_by(self.topics.len()).collect();
        (0..self.topics.len()).map(of_topic).collect()
    }

    fn message(&self, number: usize) -> Publish {
        at_qos(self.topics[number % self.topics.len()], &number.to_string(), self.qos)
    }
}

/// Parses the number in a payload.
pub(crate) fn number_of(publish: &Publish) -> usize {
    let text = std::str::from_utf8(&publish.payload).expect("a number as text");
    text.parse().expect("a number as text")
}

/// Publishes all messages in one write, then waits for all acknowledgements.
fn publish_together(client: &mut RawClient, qos: QoS, messages: Vec<Publish>) {
    let mut out = WriteBuffer::new();
    let mut ids = Vec::new();
    for mut publish in messages {
        if qos.is_acknowledged() {
            let id = client.next_id();
            publish.packet_id = Some(id);
            ids.push(id);
        }
        Packet::Publish(publish).encode(client.version(), &mut out);
    }
    client.send_bytes(&out.to_bytes());
    let answer = if qos == QoS::ExactlyOnce { PacketType::PubRec } else { PacketType::PubAck };
    for &id in &ids {
        assert!(!client.wait_for_ack(answer, id).is_error());
    }
    if qos == QoS::ExactlyOnce {
        let mut out = WriteBuffer::new();
        ids.iter().for_each(|&id| Packet::PubRel(Ack::new(id, ReasonCode::Success)).encode(client.version(), &mut out));
        client.send_bytes(&out.to_bytes());
        for &id in &ids {
            assert_eq!(client.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success);
        }
    }
}

/// Messages in flight; below the broker's Receive Maximum.
const WINDOW: usize = 256;
