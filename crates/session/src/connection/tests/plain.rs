//! The quick ways of usual packets have the results of the general way.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroU64;

use super::*;
use crate::Location;

/// Two sides with the same history: one takes packets the quick way where it can.
struct Pair {
    general: Side,
    quick: Side,
    /// Packets that went the quick way.
    taken: usize,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let [general, quick] = [(); 2].map(|()| Side::server(limits));
        Self { general, quick, taken: 0 }
    }

    fn reconnect(self, limits: Limits) -> Self {
        Self { general: self.general.reconnect(limits), quick: self.quick.reconnect(limits), ..self }
    }

    /// Returns whether the connections go on.
    fn publish(&mut self, id: u16, qos: QoS) -> bool {
        let general = self.general.take(Packet::Publish(publish(id, qos)));
        if self.quick.connection.take_acknowledged(PendingAck { packet_id: packet_id(id), qos }) {
            assert!(matches!(general, Ok(Event::Publish(_))), "{general:?}");
            self.taken += 1;
        } else {
            let slow = self.quick.take(Packet::Publish(publish(id, qos)));
            assert_eq!(format!("{general:?}"), format!("{slow:?}"));
        }
        general.is_ok()
    }

    fn ack(&mut self, packet: &Packet, id: u16) -> bool {
        let general = self.general.take(packet.clone());
        let Side { connection, now, out } = &mut self.quick;
        let quick = match connection.take_ack((packet.packet_type(), packet_id(id)), *now, out) {
            Some(taken) => {
                self.taken += 1;
                Ok(match taken {
                    TakenAck::Handled => Event::Handled,
                    TakenAck::Delivered { shared, stored } => {
                        Event::Delivered { packet_id: packet_id(id), reason: ReasonCode::Success, shared, stored }
                    }
                })
            }
            None => self.quick.take(packet.clone()),
        };
        assert_eq!(format!("{general:?}"), format!("{quick:?}"));
        general.is_ok()
    }

    fn both(&mut self, act: impl Fn(&mut Side)) {
        act(&mut self.general);
        act(&mut self.quick);
    }

    fn check(&mut self) {
        let now = self.general.now;
        self.general.connection.handle_plain(now);
        self.quick.connection.handle_plain(now);
        let [general, quick] = [&self.general, &self.quick];
        let figures = |side: &Side| {
            let Connection { received_open, sent_open, session, .. } = &side.connection;
            (
                *received_open,
                *sent_open,
                session.in_flight_bytes(),
                side.connection.send_quota(),
                format!("{session:?}"),
            )
        };
        assert_eq!(figures(general), figures(quick));
        assert_eq!(self.general.written(), self.quick.written());
    }
}

#[test]
fn quick_ways_do_what_the_general_one_does() {
    let mut taken = 0;
    for round in 0..100_u64 {
        let random = |step: u64| BuildHasherDefault::<DefaultHasher>::default().hash_one((round, step));
        let limits = Limits { receive_maximum: 4, peer_receive_maximum: 3, ..Limits::default() };
        let mut pair = Pair::new(limits);
        pair.general.now = pair.quick.now;
        pair.both(|side| side.connection.session.is_stored = round % 2 == 0);
        for step in 0..60 {
            let random = random(step);
            let (id, qos) = ((random >> 8) as u16 % 5 + 1, QOS[1 + (random >> 16) as usize % 2]);
            let goes_on = match random % 10 {
                0..=2 => pair.publish(id, qos),
                3 => {
                    let open = pair.general.connection.received_open;
                    if open > 0 && qos == QoS::AtLeastOnce {
                        pair.both(|side| side.acknowledge(id, qos, ReasonCode::Success));
                    }
                    true
                }
                4 => {
                    let share = NonZeroU64::new(random >> 41 & 1);
                    let stored = (random & 1 << 42 != 0).then(|| Location::Own(step).to_stored());
                    pair.both(|side| drop(side.send(Delivery { share, stored, ..delivery("topic", qos) })));
                    true
                }
                5..=8 => {
                    let packet = [puback, pubrec, pubrel, pubcomp][(random >> 32) as usize % 4](id);
                    pair.ack(&packet, id)
                }
                _ if random & 1 << 40 == 0 => {
                    pair = pair.reconnect(limits);
                    true
                }
                _ => true,
            };
            pair.check();
            if !goes_on {
                break;
            }
        }
        taken += pair.taken;
    }
    assert!(taken > 500, "{taken}");
}

#[test]
fn acknowledgements_are_taken_again_after_the_last_resend() {
    let mut side = Side::server(Limits { peer_receive_maximum: 2, ..Limits::default() });
    let ids = [QoS::AtLeastOnce; 2].map(|qos| side.sent(qos).expect("an identifier"));
    let mut side = side.reconnect(Limits { peer_receive_maximum: 1, ..Limits::default() });
    let mut take = |id| {
        let Side { connection, now, out } = &mut side;
        connection.take_ack((PacketType::PubAck, packet_id(id)), *now, out)
    };
    assert_eq!(take(ids[0]), None, "the second message waits to be sent again");
    assert_delivered(side.take(puback(ids[0])), ids[0], ReasonCode::Success);
    let Side { connection, now, out } = &mut side;
    assert!(connection.take_ack((PacketType::PubAck, packet_id(ids[1])), *now, out).is_some());
}
