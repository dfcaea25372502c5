use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Instant;

use tenbin_codec::{PacketId, QoS};

use crate::{Delivery, SharedDelivery};

/// Everything that we sent and that holds a Packet Identifier, in the order of sending.
///
/// ```text
///   sequence   first          first+1        …                    first+len
///   slots      [ Publish ]    [ done ]       [ Released ] …       next to give
///   packet id  sequence mod 65,535 + 1
/// ```
///
/// A Packet Identifier is a position, so finding one, giving one and resending in order need no search. The
/// price: an identifier comes free only when all older ones are, so a peer that acknowledges everything but one
/// message comes to a halt 65,534 messages later.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    slots: VecDeque<Option<Stage>>,
    /// Sequence number of the front slot.
    first: u64,
    /// Messages that are not done.
    messages: usize,
    /// Bytes of memory that unacknowledged messages stand for.
    bytes: usize,
}

/// What a Packet Identifier waits for.
#[derive(Debug)]
pub(crate) enum Stage {
    /// PUBACK (QoS 1) or PUBREC (QoS 2); and when the message was last written.
    Published(Delivery, Instant),
    /// PUBCOMP: the message is forgotten here, since the peer has it `[MQTT-4.3.3-6]` or is not to have it again; but
    /// for its share group, and where it is stored.
    Released { shared: Option<SharedDelivery>, stored: Option<NonZeroU64> },
    /// SUBACK or UNSUBACK; ends with the connection.
    Request,
}

impl Outbound {
    /// What [`Outbound::open_next`] will give.
    pub(crate) fn next_id(&self) -> Option<PacketId> {
        (self.slots.len() < IDS as usize).then(|| packet_id(self.next_sequence()))
    }

    /// Goes on with what was sent in an earlier life of ours, in the order of sending: `id` is the next, or one after gaps
    /// that are done. Whether it can be: not if so many identifiers are not left.
    pub(crate) fn restore(&mut self, id: PacketId, stage: Stage) -> bool {
        if self.slots.is_empty() {
            self.first = u64::from(id.get() - 1);
        }
        let gap = self.position(id).checked_sub(self.slots.len());
        let Some(gap) = gap.filter(|gap| self.slots.len() + gap < IDS as usize) else { return false };
        self.slots.extend(std::iter::repeat_with(|| None).take(gap));
        self.open_next(stage).is_some()
    }

    /// Gives the next Packet Identifier `[MQTT-2.2.1-4]`; `None` when all are taken.
    pub(crate) fn open_next(&mut self, stage: Stage) -> Option<PacketId> {
        let id = self.next_id()?;
        self.messages += usize::from(stage.is_message());
        self.bytes += stage.bytes();
        self.slots.push_back(Some(stage));
        Some(id)
    }

    /// What `id` waits for.
    pub(crate) fn stage(&self, id: PacketId) -> Option<&Stage> {
        self.slots.get(self.position(id))?.as_ref()
    }

    /// Puts another stage in the place of the one that `id` is in.
    pub(crate) fn advance(&mut self, id: PacketId, stage: Stage) {
        let position = self.position(id);
        if let Some(Some(slot)) = self.slots.get_mut(position) {
            self.bytes = self.bytes + stage.bytes() - slot.bytes();
            *slot = stage;
        }
    }

    /// The message of `id` was written again.
    pub(crate) fn sent_again(&mut self, id: PacketId, now: Instant) {
        let position = self.position(id);
        if let Some(Some(Stage::Published(_, sent_at))) = self.slots.get_mut(position) {
            *sent_at = now;
        }
    }

    /// Messages under way whose receiver a share group chose.
    pub(crate) fn shared(&self) -> impl Iterator<Item = SharedDelivery> {
        self.slots.iter().flatten().filter_map(Stage::shared)
    }

    /// Messages under way that are stored, and their share groups.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (NonZeroU64, Option<NonZeroU64>)> {
        let stages = self.slots.iter().flatten();
        stages.filter_map(|stage| Some((stage.stored()?, stage.shared().map(|shared| shared.share))))
    }

    /// `id` is done and can be given again; whether it was open.
    pub(crate) fn close(&mut self, id: PacketId) -> bool {
        let position = self.position(id);
        let Some(slot) = self.slots.get_mut(position) else { return false };
        let Some(stage) = slot else { return false };
        self.messages -= usize::from(stage.is_message());
        self.bytes -= stage.bytes();
        *slot = None;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        true
    }

    /// Closes what does not outlive a connection.
    pub(crate) fn drop_requests(&mut self) {
        for sequence in self.first..self.next_sequence() {
            let id = packet_id(sequence);
            if matches!(self.stage(id), Some(Stage::Request)) {
                self.close(id);
            }
        }
    }

    /// Takes out the QoS 1 messages that wait for PUBACK and that `wanted` says, oldest first.
    pub(crate) fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        let mut withdrawn = Vec::new();
        for sequence in self.first..self.next_sequence() {
            let id = packet_id(sequence);
            let Some(Stage::Published(delivery, _)) = self.stage(id) else { continue };
            if delivery.qos == QoS::AtLeastOnce && wanted(delivery) {
                withdrawn.push(delivery.clone());
                self.close(id);
            }
        }
        withdrawn
    }

    /// Gives up what is `unwanted` among the messages of `sequences` that wait for PUBACK or PUBREC; how many. At
    /// QoS 2 the peer may have the message and keep its Packet Identifier until PUBREL, which is what is left to be
    /// said: to a peer that does not have it, an identifier that is not found is no error during recovery
    /// (MQTT 5.0 §3.7.2.1).
    pub(crate) fn give_up(
        &mut self,
        sequences: Range<u64>,
        unwanted: impl Fn(PacketId, &Delivery) -> bool,
        mut released: impl FnMut(PacketId),
    ) -> usize {
        let mut given_up = 0;
        for id in sequences.map(packet_id) {
            let Some(stage @ Stage::Published(delivery, _)) = self.stage(id) else { continue };
            if !unwanted(id, delivery) {
                continue;
            }
            given_up += 1;
            if delivery.qos == QoS::ExactlyOnce {
                let next = stage.released();
                self.advance(id, next);
                released(id);
            } else {
                self.close(id);
            }
        }
        given_up
    }

    /// Copies what waits for an acknowledgement out of the buffers that it was read into.
    pub(crate) fn detach(&mut self) {
        for stage in self.slots.iter_mut().flatten() {
            if let Stage::Published(delivery, _) = stage {
                *delivery = delivery.detach();
            }
        }
    }

    /// Packet Identifiers that can be given now.
    pub(crate) fn free(&self) -> u16 {
        (IDS - self.slots.len() as u64) as u16
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sequence number of `id`, if it is open.
    pub(crate) fn sequence(&self, id: PacketId) -> u64 {
        self.first + self.position(id) as u64
    }

    /// The oldest sequence number that may be open.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.first
    }

    /// One past the newest sequence number.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    fn position(&self, id: PacketId) -> usize {
        let front = self.first % IDS;
        ((u64::from(id.get() - 1) + IDS - front) % IDS) as usize
    }
}

impl Stage {
    fn is_message(&self) -> bool {
        !matches!(self, Self::Request)
    }

    pub(crate) fn shared(&self) -> Option<SharedDelivery> {
        match self {
            Self::Published(delivery, sent_at) => delivery.shared(*sent_at),
            Self::Released { shared, .. } => *shared,
            Self::Request => None,
        }
    }

    pub(crate) fn stored(&self) -> Option<NonZeroU64> {
        match self {
            Self::Published(delivery, _) => delivery.stored,
            Self::Released { stored, .. } => *stored,
            Self::Request => None,
        }
    }

    /// The stage after this one.
    pub(crate) fn released(&self) -> Self {
        Self::Released { shared: self.shared(), stored: self.stored() }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Published(delivery, _) => delivery.queued_bytes(),
            Self::Released { .. } | Self::Request => 0,
        }
    }
}

/// Packet Identifiers there are: 1 to 65,535.
const IDS: u64 = u16::MAX as u64;

/// The Packet Identifier of a sequence number.
pub(crate) fn packet_id(sequence: u64) -> PacketId {
    PacketId::new((sequence % IDS) as u16 + 1).expect("1 to 65,535")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mqtt_2_2_1_4_identifiers_are_never_zero_and_never_given_twice() {
        let mut outbound = Outbound::default();
        let mut open = std::collections::HashSet::new();
        for round in 0..200_000u32 {
            let id = outbound.open_next(Stage::Released { shared: None, stored: None }).unwrap();
            assert!(open.insert(id), "{id} is taken");
            // leave every third one open for a while
            if round % 3 != 0 {
                assert!(outbound.close(id));
                open.remove(&id);
            } else if open.len() > 100 {
                open.drain().for_each(|id| assert!(outbound.close(id)));
            }
        }
        assert_eq!(outbound.messages(), open.len());
    }

    #[test]
    fn all_65535_can_be_open_at_once_and_no_more() {
        let mut outbound = Outbound::default();
        let ids = (0..65_535).map(|_| outbound.open_next(Stage::Request).unwrap()).collect::<Vec<_>>();
        assert_eq!(outbound.open_next(Stage::Request), None);
        outbound.close(ids[1]);
        assert_eq!(outbound.open_next(Stage::Request), None, "an older one is open");
        outbound.close(ids[0]);
        assert_eq!(outbound.open_next(Stage::Request), Some(ids[0]));
    }

    #[test]
    fn unknown_identifiers_are_nothing() {
        let mut outbound = Outbound::default();
        let id = outbound.open_next(Stage::Request).unwrap();
        assert!(outbound.stage(PacketId::new(9).unwrap()).is_none());
        assert!(!outbound.close(PacketId::new(9).unwrap()));
        assert!(outbound.close(id));
        assert!(!outbound.close(id));
    }
}
