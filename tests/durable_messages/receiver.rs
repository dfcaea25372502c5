use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use super::answers::Answers;
use super::ledger::{Number, Received};
use super::support::{Dice, RawClient, Silence, encode, lasting};
use super::world::Round;

/// What a receiver is like.
#[derive(Clone, Copy)]
pub(crate) struct Habit {
    pub(crate) version: ProtocolVersion,
    pub(crate) qos: QoS,
    pub(crate) filter: &'static str,
    /// Goes and comes, and is away for whole rounds.
    pub(crate) wanders: bool,
    /// How often of a hundred times it lets its answers wait.
    pub(crate) hesitates_percent: u64,
    pub(crate) receive_maximum: Option<u16>,
}

impl Habit {
    /// Is always there and answers soon.
    pub(crate) const fn new(version: ProtocolVersion, qos: QoS) -> Self {
        Self { version, qos, filter: "load/#", wanders: false, hesitates_percent: 10, receive_maximum: None }
    }
}

/// Receives as `[MQTT-4.3.2-4]` and `[MQTT-4.3.3-8]` have it, in a session that outlives its connections: a Packet Identifier
/// that came with QoS 2 stands for the same message until PUBREL.
pub(crate) struct Receiver {
    number: usize,
    habit: Habit,
    dice: Dice,
    answers: Answers,
    unreleased: HashMap<PacketId, Number>,
    client: Option<RawClient>,
    pub(crate) received: Received,
}

impl Receiver {
    pub(crate) fn new(number: usize, habit: Habit, seed: u64) -> Self {
        let dice = |user| Dice::new(seed, 1000 + 10 * number + user);
        let answers = Answers::new(dice(1), habit.hesitates_percent);
        let received = Received::default();
        Self { number, habit, dice: dice(0), answers, unreleased: HashMap::new(), client: None, received }
    }

    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        let (mut client, _) = RawClient::connect(broker, self.connect_packet());
        client.subscribe(self.habit.filter, self.habit.qos);
        client.disconnect();
    }

    /// Receives until the round is over or the broker gone; then reads what it has still sent.
    pub(crate) fn work(&mut self, round: &Round) {
        if self.habit.wanders && self.dice.percent(25) {
            return;
        }
        while !round.is_over() {
            if self.habit.wanders {
                self.stay_away(round);
            }
            let length = if self.habit.wanders { self.dice.within(5..200) } else { u64::MAX >> 20 };
            let until = Instant::now() + Duration::from_millis(length);
            if !self.connect(round) || !self.listen(round, |round| round.is_over() || until <= Instant::now()) {
                break;
            }
            if !round.is_over() {
                self.leave();
            }
        }
        while self.take_next(round, Duration::from_millis(1)) == Some(true) {}
        self.client = None;
    }

    /// Receives until nothing has come for a while, and stays connected.
    pub(crate) fn drain(&mut self, round: &Round) {
        self.answers.hurry();
        if self.client.is_none() && !self.connect(round) {
            return round.complain(format!("{}: the broker is gone", self.name()));
        }
        let mut until = Instant::now() + QUIET;
        let mut deliveries = self.received.deliveries;
        self.listen(round, |_| until <= Instant::now());
        while deliveries != self.received.deliveries {
            deliveries = self.received.deliveries;
            until = Instant::now() + QUIET;
            self.listen(round, |_| until <= Instant::now());
        }
    }

    /// Whether no delivery is half-way, as far as it knows.
    pub(crate) fn is_done(&self) -> bool {
        self.unreleased.is_empty() && self.answers.is_empty()
    }

    /// Nothing more comes: says what is still half-way.
    pub(crate) fn end(&mut self, round: &Round) {
        for message in self.unreleased.values() {
            round.complain(format!("{}: no PUBREL for {message}", self.name()));
        }
    }

    /// Whether it is a member of the share group.
    pub(crate) fn is_member(&self) -> bool {
        self.habit.filter.starts_with("$share/")
    }

    pub(crate) fn name(&self) -> String {
        let Habit { version, qos, filter, wanders, .. } = self.habit;
        let wanders = if wanders { ", comes and goes" } else { "" };
        format!("{} ({filter} at QoS {qos}, MQTT {version}{wanders})", self.client_id())
    }

    fn client_id(&self) -> String {
        format!("receiver-{}", self.number)
    }

    fn connect_packet(&self) -> Connect {
        let mut connect = lasting(self.habit.version, &self.client_id());
        connect.properties.receive_maximum = self.habit.receive_maximum.and_then(NonZeroU16::new);
        connect
    }

    fn connect(&mut self, round: &Round) -> bool {
        self.answers.forget();
        let Some((client, connack)) = RawClient::reach(round.address, self.connect_packet()) else { return false };
        if !connack.session_present {
            round.complain(format!("{}: its session is gone", self.name()));
            self.unreleased.clear();
        }
        self.client = Some(client);
        true
    }

    fn stay_away(&mut self, round: &Round) {
        let until = Instant::now() + Duration::from_millis(self.dice.within(1..200));
        while !round.is_over() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// In order, or by breaking the connection.
    fn leave(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        if self.dice.percent(50) {
            let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
            client.try_send_bytes(&encode(&disconnect, self.habit.version));
        }
    }

    /// Receives until `is_over`; whether the broker is still there.
    fn listen(&mut self, round: &Round, is_over: impl Fn(&Round) -> bool) -> bool {
        while !is_over(round) {
            if self.take_next(round, Duration::from_millis(1)).is_none() {
                return false;
            }
            if let Some(client) = &mut self.client {
                self.answers.send_due(client);
            }
        }
        true
    }

    /// Whether a packet came; `None` where the broker is gone.
    fn take_next(&mut self, round: &Round, patience: Duration) -> Option<bool> {
        match self.client.as_mut()?.try_receive(patience) {
            Ok(packet) => self.take(packet, round),
            Err(Silence::TimedOut) => return Some(false),
            Err(Silence::Closed) => {
                self.client = None;
                return None;
            }
            Err(silence) => {
                round.complain(format!("{}: {silence:?}", self.name()));
                return None;
            }
        }
        Some(true)
    }

    fn take(&mut self, packet: Packet, round: &Round) {
        match packet {
            Packet::Publish(publish) => self.take_publish(&publish, round),
            Packet::PubRel(Ack { packet_id, .. }) => {
                // One that was released before, but the broker does not know that PUBCOMP was sent.
                let is_known = self.unreleased.remove(&packet_id).is_some();
                let reason = match is_known || !self.habit.version.is_v5() {
                    true => ReasonCode::Success,
                    false => ReasonCode::PacketIdentifierNotFound,
                };
                self.answers.push(Packet::PubComp(Ack::new(packet_id, reason)));
            }
            // It says that it ends.
            Packet::Disconnect(_) => {}
            other => round.complain(format!("{}: {other:?} came", self.name())),
        }
    }

    fn take_publish(&mut self, publish: &Publish, round: &Round) {
        let Some(message) = Number::of(publish) else {
            let Publish { topic, payload, .. } = publish;
            let length = payload.len();
            return round.complain(format!("{}: {topic:?}, {length} bytes: nobody published that", self.name()));
        };
        let expected = message.topic.qos.min(self.habit.qos);
        if publish.qos != expected || publish.retain {
            let Publish { qos, retain, .. } = publish;
            let got = format!("QoS {qos}, RETAIN {retain}, not QoS {expected}");
            round.complain(format!("{}: {message} with {got}", self.name()));
        }
        let Some(id) = publish.packet_id else { return };
        let ack = Ack::new(id, ReasonCode::Success);
        if publish.qos != QoS::ExactlyOnce {
            self.answers.push(Packet::PubAck(ack));
            return self.count(message, publish, round);
        }
        self.answers.push(Packet::PubRec(ack));
        match self.unreleased.insert(id, message) {
            None => self.count(message, publish, round),
            Some(before) if before != message => {
                let before = format!("identifier {id}, which stands for {before} and was not released");
                round.complain(format!("{}: {message} with {before}", self.name()));
            }
            Some(_) if !publish.dup => {
                round.complain(format!("{}: {message} again, without DUP [MQTT-3.3.1-1]", self.name()));
            }
            Some(_) => {}
        }
    }

    fn count(&mut self, message: Number, publish: &Publish, round: &Round) {
        let (count, end) = self.received.add(message);
        if count == 1 && message.number < end && !message.topic.is_shared {
            round.complain(format!("{}: {message} came first after message {}", self.name(), end - 1));
        }
        if count > 1 && publish.qos == QoS::ExactlyOnce {
            let Publish { dup, packet_id, .. } = publish;
            let how = format!("came {count} times, now with DUP {dup}, identifier {packet_id:?}");
            round.complain(format!("{}: {message} {how}", self.name()));
        }
    }
}

/// How long nothing comes where nothing is left, most of the time.
const QUIET: Duration = Duration::from_millis(100);
