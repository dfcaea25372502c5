use std::collections::VecDeque;

use tenbin_codec::{PacketType, QoS};

use super::frame::Frame;

/// Messages of one publisher between PUBLISH and the last acknowledgement, by Packet Identifier.
///
/// ```text
/// QoS 1   Published ──PUBACK──► done
/// QoS 2   Published ──PUBREC──► Released (PUBREL) ──PUBCOMP──► done
/// ```
#[derive(Debug)]
pub(super) struct InFlight {
    qos: QoS,
    limit: usize,
    /// Slot k belongs to Packet Identifier k + 1.
    slots: Vec<Slot>,
    /// Free Packet Identifiers, the longest free one first.
    free: VecDeque<u16>,
}

/// A message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    /// Its number among the messages of its publisher.
    pub(super) message: u64,
    pub(super) due_ns: u64,
    pub(super) late_us: u32,
}

/// Effect of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckStep {
    /// The broker has accepted the message.
    Done(Sent),
    /// The broker has refused the message.
    Refused(Sent),
    /// PUBREL is due for this Packet Identifier.
    Release(u16),
    /// No effect, as for a repeated acknowledgement.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Published(Sent),
    Released(Sent),
}

/// A packet to send again on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Publish(u16, Sent),
    Release(u16),
}

impl InFlight {
    /// An empty table for at most `limit` messages. At QoS 0 it is unlimited and unused.
    pub(super) fn new(qos: QoS, limit: u16) -> Self {
        Self { qos, limit: limit.into(), slots: Vec::new(), free: VecDeque::new() }
    }

    /// Number of messages that may be sent now.
    pub(super) fn room(&self) -> u64 {
        if self.qos.is_acknowledged() { self.limit.saturating_sub(self.len()) as u64 } else { u64::MAX }
    }

    /// Sets the limit that the broker of a new connection gives.
    pub(super) fn set_limit(&mut self, limit: u16) {
        self.limit = limit.into();
    }

    /// Number of messages that wait for their last acknowledgement.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Enters a message; returns its Packet Identifier, 0 at QoS 0. Call it only while there is room.
    #[inline]
    pub(super) fn begin(&mut self, sent: Sent) -> u16 {
        if !self.qos.is_acknowledged() {
            return 0;
        }
        let id = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            u16::try_from(self.slots.len()).expect("the limit is a u16")
        });
        self.slots[usize::from(id) - 1] = Slot::Published(sent);
        id
    }

    /// Applies an acknowledgement; `None` if `frame` is another packet, or malformed.
    #[inline]
    pub(super) fn acknowledge(&mut self, frame: &Frame<'_>) -> Option<AckStep> {
        let (packet_type, id) = (frame.packet_type()?, frame.ack_packet_id()?);
        let slot = self.slots.get_mut(usize::from(id.checked_sub(1)?));
        let step = match (packet_type, slot.as_deref()) {
            (PacketType::PubAck, Some(&Slot::Published(sent))) if self.qos == QoS::AtLeastOnce => {
                if frame.is_refusal() { AckStep::Refused(sent) } else { AckStep::Done(sent) }
            }
            (PacketType::PubRec, Some(&Slot::Published(sent))) if self.qos == QoS::ExactlyOnce => {
                if frame.is_refusal() { AckStep::Refused(sent) } else { AckStep::Release(id) }
            }
            (PacketType::PubRec, Some(Slot::Released(_))) => AckStep::Release(id),
            (PacketType::PubComp, Some(&Slot::Released(sent))) => AckStep::Done(sent),
            (PacketType::PubAck | PacketType::PubRec | PacketType::PubComp, _) => AckStep::Nothing,
            _ => return None,
        };
        match (step, slot) {
            (AckStep::Done(_) | AckStep::Refused(_), Some(slot)) => {
                *slot = Slot::Free;
                self.free.push_back(id);
            }
            (AckStep::Release(_), Some(slot)) => {
                if let Slot::Published(sent) = *slot {
                    *slot = Slot::Released(sent);
                }
            }
            _ => {}
        }
        Some(step)
    }

    /// Packets to send again on a new connection with the old session [MQTT-4.4.0-1], in sending order [MQTT-4.6.0-1].
    pub(super) fn again(&self) -> Vec<Again> {
        let mut again: Vec<_> = (1..)
            .zip(&self.slots)
            .filter_map(|(id, slot)| match *slot {
                Slot::Free => None,
                Slot::Published(sent) => Some((sent.message, Again::Publish(id, sent))),
                Slot::Released(sent) => Some((sent.message, Again::Release(id))),
            })
            .collect();
        again.sort_by_key(|(message, _)| *message);
        again.into_iter().map(|(_, again)| again).collect()
    }

    /// Forgets all messages, as the session is gone. They may have reached the broker or not.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::append_ack;
    use super::*;

    fn sent(message: u64) -> Sent {
        Sent { message, due_ns: 100 + message, late_us: 1 }
    }

    fn acknowledge(in_flight: &mut InFlight, packet_type: PacketType, id: u16) -> Option<AckStep> {
        let mut bytes = Vec::new();
        append_ack(packet_type, id, &mut bytes);
        in_flight.acknowledge(&Frame::split(&bytes).unwrap().unwrap().0)
    }

    #[test]
    fn at_qos_1_a_message_is_done_with_puback() {
        let mut in_flight = InFlight::new(QoS::AtLeastOnce, 2);
        assert_eq!([in_flight.begin(sent(0)), in_flight.begin(sent(1))], [1, 2]);
        assert_eq!((in_flight.room(), in_flight.len()), (0, 2));
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubAck, 2), Some(AckStep::Done(sent(1))));
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubAck, 2), Some(AckStep::Nothing));
        assert_eq!((in_flight.room(), in_flight.begin(sent(2))), (1, 2));
        let refusal = Frame { first: 0x40, body: &[0, 1, 0x97] };
        assert_eq!(in_flight.acknowledge(&refusal), Some(AckStep::Refused(sent(0))));
        assert_eq!(in_flight.len(), 1);
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubRec, 2), Some(AckStep::Nothing));
    }

    #[test]
    fn at_qos_2_a_message_is_done_with_pubcomp() {
        let mut in_flight = InFlight::new(QoS::ExactlyOnce, 10);
        in_flight.begin(sent(0));
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubComp, 1), Some(AckStep::Nothing));
        for _ in 0..2 {
            assert_eq!(acknowledge(&mut in_flight, PacketType::PubRec, 1), Some(AckStep::Release(1)));
        }
        assert_eq!(in_flight.len(), 1);
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubComp, 1), Some(AckStep::Done(sent(0))));
        assert_eq!((in_flight.len(), in_flight.room()), (0, 10));
    }

    #[test]
    fn frame_without_acknowledgement_is_none() {
        let mut in_flight = InFlight::new(QoS::AtLeastOnce, 10);
        in_flight.begin(sent(0));
        for frame in [
            Frame { first: 0x40, body: &[0] },
            Frame { first: 0x40, body: &[0, 0] },
            Frame { first: 0x30, body: &[0, 1] },
            Frame { first: 0x00, body: &[0, 1] },
        ] {
            assert_eq!(in_flight.acknowledge(&frame), None, "{frame:?}");
        }
        assert_eq!(acknowledge(&mut in_flight, PacketType::PubAck, u16::MAX), Some(AckStep::Nothing));
    }

    #[test]
    fn mqtt_4_4_0_1_unacknowledged_packets_are_resent_in_order() {
        let mut in_flight = InFlight::new(QoS::ExactlyOnce, 10);
        assert_eq!([0, 1, 2].map(|message| in_flight.begin(sent(message))), [1, 2, 3]);
        acknowledge(&mut in_flight, PacketType::PubRec, 1);
        acknowledge(&mut in_flight, PacketType::PubComp, 1);
        in_flight.begin(sent(3));
        acknowledge(&mut in_flight, PacketType::PubRec, 2);
        let again = [Again::Release(2), Again::Publish(3, sent(2)), Again::Publish(1, sent(3))];
        assert_eq!(in_flight.again(), again);
        in_flight.clear();
        assert_eq!((in_flight.again(), in_flight.room()), (vec![], 10));
    }

    #[test]
    fn at_qos_0_there_is_nothing_in_flight() {
        let mut in_flight = InFlight::new(QoS::AtMostOnce, 1);
        assert_eq!([in_flight.begin(sent(0)), in_flight.begin(sent(1))], [0, 0]);
        assert_eq!((in_flight.len(), in_flight.room()), (0, u64::MAX));
    }
}
