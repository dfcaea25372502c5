//! Packet Identifiers of withdrawn messages, for the case that they come back to their session.

use std::collections::VecDeque;

use tenbin_codec::PacketId;

use crate::Delivery;

/// Packet Identifiers of messages that were sent, not acknowledged, and withdrawn.
///
/// Each withdrawn message has a number in [`Delivery::message`]. A message that another session has sent since has
/// another number or none, and is new here. Ranges take no more memory than a few messages.
#[derive(Debug, Default)]
pub(crate) struct Withdrawn(VecDeque<Range>);

/// Messages with consecutive numbers and Packet Identifiers.
#[derive(Debug)]
struct Range {
    number: u32,
    first: PacketId,
    count: u16,
}

impl Withdrawn {
    /// Adds the message with this number.
    pub(crate) fn add(&mut self, number: u32, id: PacketId) {
        if let Some(last) = self.0.back_mut()
            && distance(last.number, number) == u32::from(last.count)
            && last.first.get().checked_add(last.count) == Some(id.get())
        {
            last.count += 1;
            return;
        }
        if self.0.len() == RANGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Range { number, first: id, count: 1 });
    }

    /// Returns the Packet Identifier under which this session has sent the message; `None` if it is new here.
    pub(crate) fn id_of(&self, delivery: &Delivery) -> Option<PacketId> {
        if delivery.message < Delivery::WITHDRAWN {
            return None;
        }
        let place = |range: &Range| {
            let distance = distance(range.number, delivery.message);
            let place = u16::try_from(distance).ok().filter(|place| *place < range.count)?;
            PacketId::new(range.first.get() + place)
        };
        self.0.iter().rev().find_map(place)
    }

    /// Returns the Packet Identifier that was assigned last.
    pub(crate) fn last(&self) -> Option<PacketId> {
        let range = self.0.back()?;
        PacketId::new(range.first.get() + (range.count - 1))
    }
}

/// Returns the number of the message at `place` of those that begin with `first`.
pub(crate) fn number(first: u32, place: u32) -> u32 {
    first.wrapping_add(place) | Delivery::WITHDRAWN
}

fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & !Delivery::WITHDRAWN
}

/// Largest number of ranges; messages of the oldest ones come back as new.
const RANGES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use tenbin_codec::{QoS, TopicName};

    use super::*;
    use crate::Publication;

    fn id(id: u16) -> PacketId {
        PacketId::new(id).unwrap()
    }

    #[test]
    fn messages_are_known_by_their_numbers() {
        let topic = TopicName::try_from("t").unwrap();
        let template = Publication::new(topic, Bytes::new()).template(&mut BytesMut::new());
        let mut withdrawn = Withdrawn::default();
        let of = |withdrawn: &Withdrawn, message| {
            withdrawn.id_of(&Delivery { message, ..Delivery::new(template.clone(), QoS::AtLeastOnce, false) })
        };
        assert_eq!(withdrawn.last(), None);
        // The numbers wrap; the identifiers 65,535 and 1 do not follow each other in a range.
        let numbers: Vec<_> = (0..4).map(|place| number(u32::MAX - 1, place)).collect();
        for (message, at) in numbers.iter().zip([7, 8, 65_535, 1]) {
            withdrawn.add(*message, id(at));
        }
        assert_eq!(withdrawn.0.len(), 3);
        assert_eq!(
            numbers.iter().map(|&message| of(&withdrawn, message).map(PacketId::get)).collect::<Vec<_>>(),
            [Some(7), Some(8), Some(65_535), Some(1)]
        );
        for unknown in [0, 1, 2, u32::MAX - 2, number(2, 0)] {
            assert_eq!(of(&withdrawn, unknown), None, "{unknown}");
        }
        assert_eq!(withdrawn.last(), Some(id(1)));
        for place in 0..RANGES_MAX as u32 {
            withdrawn.add(number(100, 2 * place), id(place as u16 + 100));
        }
        assert_eq!((withdrawn.0.len(), of(&withdrawn, numbers[0])), (RANGES_MAX, None));
    }
}
