use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use super::answers::Answers;
use super::ledger::{Number, Sent, Topic};
use super::support::{Dice, PATIENCE, RawClient, Silence, encode, lasting, text};
use super::world::Round;

/// Publishes, and knows of each message what it was told. What is not acknowledged when the connection breaks goes again
/// with DUP in the next one `[MQTT-4.4.0-1]`, if there is a session; else nobody will know what became of it.
pub(crate) struct Publisher {
    number: usize,
    version: ProtocolVersion,
    has_session: bool,
    qos: &'static [QoS],
    dice: Dice,
    under_way: VecDeque<UnderWay>,
    releases: Answers,
    last_id: u16,
    pub(crate) sent: Sent,
}

#[derive(Clone, Copy)]
struct UnderWay {
    id: PacketId,
    message: Number,
    /// PUBREC came: PUBREL goes again, and no PUBLISH `[MQTT-4.3.3-5]`, `[MQTT-4.3.3-6]`.
    is_received: bool,
}

impl Publisher {
    pub(crate) fn new(
        number: usize,
        version: ProtocolVersion,
        has_session: bool,
        qos: &'static [QoS],
        seed: u64,
    ) -> Self {
        let dice = |user| Dice::new(seed, 100 + 10 * number + user);
        Self {
            number,
            version,
            has_session,
            qos,
            dice: dice(0),
            under_way: VecDeque::new(),
            releases: Answers::new(dice(1), 20),
            last_id: 0,
            sent: Sent::default(),
        }
    }

    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        if self.has_session {
            RawClient::connect(broker, self.connect_packet()).0.disconnect();
        }
    }

    /// Publishes until the round is over or the broker gone; then reads what it has still answered.
    pub(crate) fn work(&mut self, round: &Round) {
        let Some(mut client) = self.connect(round) else { return };
        let mut next = Instant::now();
        loop {
            let is_over = round.is_over();
            if !is_over && next <= Instant::now() {
                for _ in 0..self.dice.within(1..9) {
                    self.publish(&mut client, round);
                }
                next = Instant::now() + Duration::from_millis(self.dice.within(0..10));
            }
            if !is_over {
                self.releases.send_due(&mut client);
            }
            match client.try_receive(Duration::from_millis(1)) {
                Ok(packet) => self.take(packet, round),
                Err(Silence::TimedOut) if !is_over => {}
                Err(Silence::TimedOut | Silence::Closed) => return,
                Err(silence) => return round.complain(format!("{}: {silence:?}", self.name())),
            }
        }
    }

    /// Gets the answers that are still missing.
    pub(crate) fn finish(&mut self, round: &Round) {
        let Some(mut client) = self.connect(round) else {
            return round.complain(format!("{}: the broker is gone", self.name()));
        };
        while let Some(first) = self.under_way.front().copied() {
            self.releases.send_due(&mut client);
            let patience = if self.releases.is_empty() { PATIENCE } else { Duration::from_millis(1) };
            match client.try_receive(patience) {
                Ok(packet) => self.take(packet, round),
                Err(Silence::TimedOut) if !self.releases.is_empty() => {}
                Err(silence) => {
                    let what = if first.is_received { "PUBCOMP" } else { "PUBACK or PUBREC" };
                    return round.complain(format!("{}: {silence:?}, no {what} for {}", self.name(), first.message));
                }
            }
        }
    }

    fn connect_packet(&self) -> Connect {
        match self.has_session {
            true => lasting(self.version, &self.name()),
            false => Connect::new(self.version, text(&self.name())),
        }
    }

    fn connect(&mut self, round: &Round) -> Option<RawClient> {
        self.releases.forget();
        if !self.has_session {
            self.under_way.clear();
        }
        let (mut client, connack) = RawClient::reach(round.address, self.connect_packet())?;
        if connack.session_present != self.has_session {
            round.complain(format!("{}: its session is there: {}", self.name(), connack.session_present));
        }
        for &UnderWay { id, message, is_received } in &self.under_way {
            let packet = match is_received {
                true => Packet::PubRel(Ack::new(id, ReasonCode::Success)),
                false => Packet::Publish(Publish { packet_id: Some(id), dup: true, ..message.to_publish() }),
            };
            client.try_send_bytes(&encode(&packet, self.version));
        }
        Some(client)
    }

    fn publish(&mut self, client: &mut RawClient, round: &Round) {
        if self.under_way.len() >= WINDOW {
            return;
        }
        let qos = self.qos[self.dice.within(0..self.qos.len() as u64) as usize];
        let which = self.dice.within(0..3);
        let message = self.sent.add(Topic { publisher: self.number, qos, is_shared: which == 2, which }, round.number);
        self.last_id = self.last_id % 1000 + 1;
        let id = PacketId::new(self.last_id).expect("not 0");
        self.under_way.push_back(UnderWay { id, message, is_received: false });
        let publish = Publish { packet_id: Some(id), ..message.to_publish() };
        client.try_send_bytes(&encode(&Packet::Publish(publish), self.version));
    }

    fn take(&mut self, packet: Packet, round: &Round) {
        let (ack, wanted) = match &packet {
            Packet::PubAck(ack) => (ack, QoS::AtLeastOnce),
            Packet::PubRec(ack) | Packet::PubComp(ack) => (ack, QoS::ExactlyOnce),
            // It says that it ends.
            Packet::Disconnect(_) => return,
            other => return round.complain(format!("{}: {other:?} came", self.name())),
        };
        let is_ours = |one: &UnderWay| one.id == ack.packet_id && one.message.topic.qos == wanted;
        let Some(position) = self.under_way.iter().position(is_ours) else {
            return round.complain(format!("{}: {packet:?} answers nothing", self.name()));
        };
        let UnderWay { message, is_received, .. } = self.under_way[position];
        // After a PUBREC that the broker has sent a PUBREL may find nothing left to release.
        let may_be_unknown = is_received && ack.reason == ReasonCode::PacketIdentifierNotFound;
        if ack.reason != ReasonCode::Success && !may_be_unknown {
            round.complain(format!("{}: {} for {message}", self.name(), ack.reason));
        }
        match packet {
            Packet::PubRec(ref ack) if !is_received => {
                self.sent.acknowledged(message, round.number);
                self.under_way[position].is_received = true;
                self.releases.push(Packet::PubRel(Ack::new(ack.packet_id, ReasonCode::Success)));
            }
            Packet::PubAck(_) => {
                self.sent.acknowledged(message, round.number);
                self.under_way.remove(position);
            }
            Packet::PubComp(_) if is_received => {
                self.under_way.remove(position);
            }
            other => round.complain(format!("{}: {other:?} out of turn for {message}", self.name())),
        }
    }

    fn name(&self) -> String {
        format!("publisher-{}", self.number)
    }
}

/// Messages under way at a time.
const WINDOW: usize = 32;
