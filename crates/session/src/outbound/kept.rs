//! In-flight messages of a session without a connection.

use std::collections::HashMap;

use tenbin_codec::QoS;

use super::{Outbound, Stage};
use crate::{Delivery, Stored};

impl Outbound {
    /// See [`crate::Session::forget_stored`].
    pub(crate) fn forget_stored(&mut self) -> bool {
        let is_stored = |stage: &Stage| match stage {
            Stage::Published(delivery, _) => {
                delivery.qos == QoS::AtLeastOnce && delivery.stored.is_some() && delivery.share.is_none()
            }
            Stage::Released { .. } | Stage::Late(_) | Stage::Request => false,
        };
        let forgets = self.messages() > 0 && self.stages().all(is_stored);
        if forgets {
            *self = Self::default();
        }
        forgets
    }

    pub(crate) fn has_external(&self) -> bool {
        self.stages().any(|stage| external(stage).is_some())
    }

    /// See [`crate::Session::complete`].
    pub(crate) fn complete(&mut self, mut find: impl FnMut(Stored) -> Option<Delivery>) -> Vec<Stored> {
        let mut lost = Vec::new();
        let mut from = 0;
        while let Some((sequence, id)) = self.next_open(from) {
            from = sequence + 1;
            let Some(stage) = self.stage_mut(id) else { continue };
            let Some(delivery) = external(stage) else { continue };
            let stored = delivery.stored;
            let before = stage.bytes();
            match (stored.and_then(&mut find), &mut *stage) {
                (Some(whole), Stage::Published(delivery, _)) => {
                    delivery.template = whole.template;
                    let after = stage.bytes();
                    self.totals.bytes = self.totals.bytes - before + after;
                }
                _ => {
                    self.close(id);
                    lost.extend(stored);
                }
            }
        }
        lost
    }

    /// See [`crate::Session::detach`].
    pub(crate) fn detach(&mut self) {
        let stretch_of = |delivery: &Delivery| {
            let (address, bytes) = delivery.template.head_place();
            (address / STRETCH_BYTES, bytes)
        };
        let mut used = HashMap::<usize, usize>::new();
        for stage in self.stages() {
            if let Stage::Published(delivery, _) = stage {
                let (stretch, bytes) = stretch_of(delivery);
                *used.entry(stretch).or_default() += bytes;
            }
        }
        let overdue = self.overdue.iter_mut().flat_map(|overdue| overdue.stages_mut());
        for stage in overdue.chain(self.window.iter_mut().flatten()) {
            if let Stage::Published(delivery, _) = stage
                && used.get(&stretch_of(delivery).0).is_none_or(|&bytes| bytes < STRETCH_BYTES / 4)
            {
                *delivery = delivery.detach();
            }
        }
    }
}

/// A sent message whose payload is elsewhere.
fn external(stage: &Stage) -> Option<&Delivery> {
    match stage {
        Stage::Published(delivery, _) => Some(delivery).filter(|delivery| delivery.template.is_external()),
        Stage::Released { .. } | Stage::Late(_) | Stage::Request => None,
    }
}

/// Unit of memory in which a session's use is measured: the size of an encoding block.
const STRETCH_BYTES: usize = 16 * 1024;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests begin somewhere")]
mod tests {
    use std::time::Instant;

    use tenbin_codec::PacketId;

    use super::*;
    use crate::Location;

    fn own(number: u64) -> Stored {
        Location::Own(number).to_stored()
    }

    fn delivery(block: &mut bytes::BytesMut, payload: &[u8]) -> Delivery {
        let topic = tenbin_codec::TopicName::try_from("topic").unwrap();
        let template = tenbin_codec::PublishTemplate::new(&topic, None, &payload.to_vec().into(), block);
        Delivery::new(template, QoS::AtLeastOnce, false)
    }

    /// Addresses of the messages' bytes.
    fn places(outbound: &Outbound) -> Vec<usize> {
        let published = outbound.stages().filter_map(|stage| match stage {
            Stage::Published(delivery, _) => Some(delivery.template.head_place().0),
            _ => None,
        });
        published.collect()
    }

    #[test]
    fn kept_sessions_share_well_used_blocks() {
        let mut block = bytes::BytesMut::new();
        let mut sessions = [Outbound::default(), Outbound::default(), Outbound::default()];
        for number in 0..1000 {
            let message = delivery(&mut block, &[7; 1000]);
            for (place, session) in sessions.iter_mut().enumerate() {
                // The last session gets only a few messages.
                if place < 2 || number % 50 == 0 {
                    session.open_next(Stage::Published(message.clone(), Instant::now())).unwrap();
                }
            }
        }
        let before = sessions.each_ref().map(places);
        sessions.iter_mut().for_each(Outbound::detach);
        let after = sessions.each_ref().map(places);
        let copied =
            |session: usize| before[session].iter().zip(&after[session]).filter(|(one, other)| one != other).count();
        // Except at the ends of blocks.
        assert!(copied(0) < 50 && copied(1) < 50, "{} and {} of 1000 are copied", copied(0), copied(1));
        assert_eq!(copied(2), 20, "a few messages do not keep their blocks");
    }

    #[test]
    fn references_in_flight_become_whole_or_end() {
        let mut block = bytes::BytesMut::new();
        let mut outbound = Outbound::default();
        let whole = |block: &mut _, number| Delivery { stored: Some(own(number)), ..delivery(block, &[7; 5000]) };
        for number in 1..=4 {
            let mut message = whole(&mut block, number);
            if number != 2 {
                let head = bytes::Bytes::from_static(b"\0\x05topic");
                message.template =
                    tenbin_codec::PublishTemplate::external(0, head, 5000, [0; tenbin_codec::REFERENCE_BYTES]).unwrap();
            }
            outbound.open_next(Stage::Published(message, Instant::now())).unwrap();
        }
        assert!(outbound.has_external());
        let lost = outbound.complete(|stored| match stored.location() {
            Location::Own(number) if number != 3 => Some(whole(&mut block, number)),
            _ => None,
        });
        assert_eq!((lost, outbound.messages()), (vec![own(3)], 3));
        assert!(!outbound.has_external());
        assert_eq!(outbound.bytes(), 3 * whole(&mut block, 1).queued_bytes());
        [1, 2, 4].into_iter().for_each(|id| assert!(outbound.close(PacketId::new(id).unwrap())));
        assert_eq!((outbound.messages(), outbound.bytes()), (0, 0));
    }

    #[test]
    fn stored_messages_are_forgotten_together_or_not_at_all() {
        let mut block = bytes::BytesMut::new();
        let mut outbound = Outbound::default();
        assert!(!outbound.forget_stored(), "there are none");
        for stored in [Some(own(1)), None] {
            let message = Delivery { stored, ..delivery(&mut block, b"payload") };
            outbound.open_next(Stage::Published(message, Instant::now())).unwrap();
        }
        assert!(!outbound.forget_stored(), "one is nowhere else");
        assert_eq!(outbound.messages(), 2);
        outbound.close(PacketId::new(2).unwrap());
        assert!(outbound.forget_stored());
        assert_eq!((outbound.messages(), outbound.bytes()), (0, 0));
    }
}
