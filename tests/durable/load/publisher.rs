use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use super::answers::Answers;
use super::journal::{Complaint, Journal, What};
use super::ledger::{Number, Sent, Topic};
use super::world::Round;
use crate::support::{Dice, PATIENCE, RawClient, Silence, encode, lasting, text};

/// Characteristics of a publisher.
#[derive(Clone)]
pub(crate) struct Trait {
    pub(crate) version: ProtocolVersion,
    /// Its session outlives its connections.
    pub(crate) has_session: bool,
    pub(crate) qos: Vec<QoS>,
    /// Longest time in milliseconds until it breaks its connection and reconnects.
    pub(crate) breaks_within: Option<u64>,
    /// The broker may refuse its messages for lack of room.
    pub(crate) may_be_refused: bool,
    /// A receiver without room may miss an acknowledged message, because other receivers got it: MQTT 3.1.1 cannot
    /// report that (docs/decisions/0014).
    pub(crate) refused_unheard: bool,
}

/// Publishes, and records the answer to each message.
///
/// With a session, unacknowledged messages are resent with DUP on the next connection `[MQTT-4.4.0-1]`. Without one,
/// their fate stays unknown.
pub(crate) struct Publisher {
    number: usize,
    nature: Trait,
    dice: Dice,
    under_way: VecDeque<UnderWay>,
    releases: Answers,
    last_id: u16,
    /// A connection that the next one takes over.
    taken_over: Option<RawClient>,
    pub(crate) sent: Sent,
    pub(crate) journal: Journal,
}

#[derive(Clone, Copy)]
struct UnderWay {
    id: PacketId,
    message: Number,
    /// PUBREC arrived: from now on PUBREL is resent, and no PUBLISH `[MQTT-4.3.3-5]`, `[MQTT-4.3.3-6]`.
    is_received: bool,
}

impl Publisher {
    pub(crate) fn new(number: usize, nature: Trait, seed: u64) -> Self {
        let dice = |user| Dice::new(seed, 100 + 10 * number + user);
        Self {
            number,
            nature,
            dice: dice(0),
            under_way: VecDeque::new(),
            releases: Answers::new(dice(1), 20),
            last_id: 0,
            taken_over: None,
            sent: Sent::default(),
            journal: Journal::default(),
        }
    }

    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        if self.nature.has_session {
            RawClient::connect(broker, self.connect_packet()).0.disconnect();
        }
    }

    /// Publishes until the round is over or the broker is gone, then reads its remaining answers.
    pub(crate) fn work(&mut self, round: &Round) {
        let Some(mut client) = self.connect(round) else { return };
        let mut next = Instant::now();
        let cuts = round.cuts();
        let breaks = self.nature.breaks_within.map(|most| next + Duration::from_millis(self.dice.within(1..most)));
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
            if !is_over && (breaks.is_some_and(|at| at <= Instant::now()) || round.cuts() != cuts) {
                self.journal.note(None, What::Left("by the client"));
                self.taken_over = self.dice.percent(30).then_some(client);
                return;
            }
            match client.try_receive(Duration::from_millis(1)) {
                Ok(packet) => self.take(packet, round),
                Err(Silence::TimedOut) if !is_over => {}
                Err(Silence::TimedOut | Silence::Closed) => {
                    return self.journal.note(None, What::Left("by the broker"));
                }
                Err(silence) => return round.complain(format!("{}: {silence:?}", self.name())),
            }
        }
    }

    /// Waits for the missing answers.
    pub(crate) fn finish(&mut self, round: &Round) {
        let until = Instant::now() + PATIENCE;
        while !self.is_finished(round) {
            if Instant::now() > until {
                return round.complain(format!("{}: {} messages have no answer", self.name(), self.under_way.len()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for them on one connection. Returns false if the connection ends before.
    fn is_finished(&mut self, round: &Round) -> bool {
        let Some(mut client) = self.connect(round) else { return false };
        while let Some(first) = self.under_way.front().copied() {
            self.releases.send_due(&mut client);
            let patience = if self.releases.is_empty() { PATIENCE } else { Duration::from_millis(1) };
            match client.try_receive(patience) {
                Ok(packet) => self.take(packet, round),
                Err(Silence::TimedOut) if !self.releases.is_empty() => {}
                Err(Silence::Closed) => return false,
                Err(silence) => {
                    let what = if first.is_received { "PUBCOMP" } else { "PUBACK or PUBREC" };
                    let text = format!("{}: {silence:?}, no {what} for {}", self.name(), first.message);
                    round.complain(Complaint { text, message: Some(first.message) });
                    return true;
                }
            }
        }
        true
    }

    fn connect_packet(&self) -> Connect {
        match self.nature.has_session {
            true => lasting(self.nature.version, &self.name()),
            false => Connect::new(self.nature.version, text(&self.name())),
        }
    }

    fn connect(&mut self, round: &Round) -> Option<RawClient> {
        self.releases.forget();
        if !self.nature.has_session {
            self.under_way.clear();
        }
        let reached = RawClient::reach(round.address, self.connect_packet());
        self.taken_over = None;
        let (mut client, connack) = reached?;
        self.journal.note(None, What::Connected { session_present: connack.session_present });
        if connack.session_present != self.nature.has_session {
            round.complain(format!("{}: its session is there: {}", self.name(), connack.session_present));
        }
        for &UnderWay { id, message, is_received } in &self.under_way {
            let packet = match is_received {
                true => Packet::PubRel(Ack::new(id, ReasonCode::Success)),
                false => {
                    self.sent.repeated(message);
                    self.journal.note(Some(message), What::Published { id: Some(id), dup: true });
                    Packet::Publish(Publish { packet_id: Some(id), dup: true, ..message.to_publish() })
                }
            };
            client.try_send_bytes(&encode(&packet, self.nature.version));
        }
        Some(client)
    }

    fn publish(&mut self, client: &mut RawClient, round: &Round) {
        if self.under_way.len() >= WINDOW {
            return;
        }
        let qos = self.nature.qos[self.dice.within(0..self.nature.qos.len() as u64) as usize];
        let which = self.dice.within(0..3);
        let message = self.sent.add(Topic { publisher: self.number, qos, is_shared: which == 2, which }, round.number);
        let id = qos.is_acknowledged().then(|| self.free_id());
        if let Some(id) = id {
            self.under_way.push_back(UnderWay { id, message, is_received: false });
        }
        self.journal.note(Some(message), What::Published { id, dup: false });
        let publish = Publish { packet_id: id, ..message.to_publish() };
        client.try_send_bytes(&encode(&Packet::Publish(publish), self.nature.version));
    }

    /// Returns the next identifier without a message: one may stay in use for long.
    fn free_id(&mut self) -> PacketId {
        loop {
            self.last_id = self.last_id % 1000 + 1;
            let id = PacketId::new(self.last_id).expect("not 0");
            if self.under_way.iter().all(|one| one.id != id) {
                return id;
            }
        }
    }

    fn take(&mut self, packet: Packet, round: &Round) {
        let (ack, wanted) = match &packet {
            Packet::PubAck(ack) => (ack, QoS::AtLeastOnce),
            Packet::PubRec(ack) | Packet::PubComp(ack) => (ack, QoS::ExactlyOnce),
            // The broker announces its end.
            Packet::Disconnect(_) => return,
            other => return round.complain(format!("{}: {other:?} came", self.name())),
        };
        let is_ours = |one: &UnderWay| one.id == ack.packet_id && one.message.topic.qos == wanted;
        let Some(position) = self.under_way.iter().position(is_ours) else {
            return round.complain(format!("{}: {packet:?} answers nothing", self.name()));
        };
        let UnderWay { message, is_received, .. } = self.under_way[position];
        self.journal.note(Some(message), What::Answered(packet.packet_type(), ack.reason));
        if self.nature.may_be_refused && !is_received && ack.reason == ReasonCode::QuotaExceeded {
            self.sent.refused(message);
            self.under_way.remove(position);
            return;
        }
        // After the broker's PUBREC, a PUBREL may find nothing left to release.
        let may_be_unknown = is_received && ack.reason == ReasonCode::PacketIdentifierNotFound;
        let about = |text: String| Complaint { text, message: Some(message) };
        if ack.reason != ReasonCode::Success && !may_be_unknown {
            round.complain(about(format!("{}: {} for {message}", self.name(), ack.reason)));
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
            other => round.complain(about(format!("{}: {other:?} out of turn for {message}", self.name()))),
        }
    }

    /// True if one of several receivers may miss an acknowledged message.
    pub(crate) fn may_miss_some(&self, topic: Topic) -> bool {
        self.nature.refused_unheard && !topic.is_shared
    }

    pub(crate) fn name(&self) -> String {
        format!("publisher-{}", self.number)
    }
}

impl Trait {
    pub(crate) fn new(version: ProtocolVersion, has_session: bool, qos: &[QoS]) -> Self {
        Self {
            version,
            has_session,
            qos: qos.to_vec(),
            breaks_within: None,
            may_be_refused: false,
            refused_unheard: false,
        }
    }
}

/// Messages in flight.
const WINDOW: usize = 32;
