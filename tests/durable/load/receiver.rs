use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_codec::{
    Ack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, UserProperty,
};

use super::answers::Answers;
use super::journal::{Complaint, Journal, What};
use super::ledger::{EXPIRY_SECONDS, Number, Received, Topic};
use super::world::Round;
use crate::support::{Dice, PATIENCE, RawClient, Silence, encode, lasting, subscription, text};

/// Characteristics of a receiver.
#[derive(Clone, Copy)]
pub(crate) struct Habit {
    pub(crate) version: ProtocolVersion,
    pub(crate) qos: QoS,
    pub(crate) filter: &'static str,
    /// Its session outlives its connections.
    pub(crate) lasts: bool,
    /// Connects and disconnects, and is away for whole rounds.
    pub(crate) wanders: bool,
    /// Probability of delayed answers, in percent.
    pub(crate) hesitates_percent: u64,
    /// Probability of a pause in reading, in permille.
    pub(crate) stalls_permille: u64,
    pub(crate) receive_maximum: Option<u16>,
    /// Messages that it tells to work on at a time, so that others wait with its share group.
    pub(crate) concurrency: Option<u16>,
}

impl Habit {
    /// A receiver that is always connected and answers soon.
    pub(crate) const fn new(version: ProtocolVersion, qos: QoS) -> Self {
        Self {
            version,
            qos,
            filter: "load/#",
            lasts: true,
            wanders: false,
            hesitates_percent: 10,
            stalls_permille: 0,
            receive_maximum: None,
            concurrency: None,
        }
    }
}

/// Receives as `[MQTT-4.3.2-4]` and `[MQTT-4.3.3-8]` demand: a Packet Identifier of QoS 2 stands for the same message
/// until PUBREL, as long as the session lasts.
pub(crate) struct Receiver {
    number: usize,
    habit: Habit,
    dice: Dice,
    answers: Answers,
    unreleased: HashMap<PacketId, Number>,
    client: Option<RawClient>,
    /// A connection that the next one takes over.
    taken_over: Option<RawClient>,
    /// The current transient session.
    life: Option<Life>,
    /// Ended transient sessions that are not checked yet.
    pub(crate) lives: Vec<Life>,
    /// Messages that first arrived after a later one, and the start of their session if it is transient.
    pub(crate) overtaken: Vec<(Complaint, Option<Instant>)>,
    pub(crate) received: Received,
    pub(crate) journal: Journal,
}

/// Messages received in a session that ended with its connection.
pub(crate) struct Life {
    /// Time of its SUBACK.
    pub(crate) subscribed: Instant,
    pub(crate) topics: HashMap<Topic, Arrivals>,
}

#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) numbers: HashSet<usize>,
    /// One more than the highest number.
    pub(crate) end: usize,
}

impl Receiver {
    pub(crate) fn new(number: usize, habit: Habit, seed: u64) -> Self {
        let dice = |user| Dice::new(seed, 1000 + 10 * number + user);
        Self {
            number,
            habit,
            dice: dice(0),
            answers: Answers::new(dice(1), habit.hesitates_percent),
            unreleased: HashMap::new(),
            client: None,
            taken_over: None,
            life: None,
            lives: Vec::new(),
            overtaken: Vec::new(),
            received: Received::default(),
            journal: Journal::default(),
        }
    }

    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        if self.habit.lasts {
            let (mut client, _) = RawClient::connect(broker, self.connect_packet());
            client.subscribe(self.habit.filter, self.habit.qos);
            client.disconnect();
        }
    }

    /// Receives until the round is over or the broker is gone, then reads its remaining packets.
    pub(crate) fn work(&mut self, round: &Round) {
        if self.habit.wanders && self.dice.percent(25) {
            while !round.is_over() && round.may_return() {
                std::thread::sleep(Duration::from_millis(2));
            }
            return;
        }
        while !round.is_over() {
            if self.habit.wanders {
                self.stay_away(round);
            }
            let length = if self.habit.wanders { self.dice.within(5..200) } else { u64::MAX >> 20 };
            let until = Instant::now() + Duration::from_millis(length);
            let cuts = round.cuts();
            let is_over = |round: &Round| round.is_over() || round.cuts() != cuts || until <= Instant::now();
            if !self.connect(round) || !self.listen(round, is_over) {
                break;
            }
            if !round.is_over() {
                self.leave();
            }
        }
        while self.take_next(round, Duration::from_millis(1)) == Some(true) {}
        self.end_connection("with the round");
    }

    /// Receives until nothing has arrived for a while, and stays connected.
    pub(crate) fn drain(&mut self, round: &Round) {
        self.answers.hurry();
        // A larger window drains the queue faster.
        self.habit.receive_maximum = None;
        let patience = Instant::now() + PATIENCE;
        while self.client.is_none() && !self.connect(round) {
            if Instant::now() > patience {
                return round.complain(format!("{}: the broker is gone", self.name()));
            }
            std::thread::sleep(Duration::from_millis(5));
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

    /// True if the receiver knows of no half-way delivery.
    pub(crate) fn is_done(&self) -> bool {
        self.unreleased.is_empty() && self.answers.is_empty()
    }

    /// Reports deliveries that are still half-way, since nothing more arrives.
    pub(crate) fn end(&mut self, round: &Round) {
        for &message in self.unreleased.values() {
            let text = format!("{}: no PUBREL for {message}", self.name());
            round.complain(Complaint { text, message: Some(message) });
        }
    }

    /// True for a member of the share group.
    pub(crate) fn is_member(&self) -> bool {
        self.habit.filter.starts_with("$share/")
    }

    /// True if all acknowledged messages must arrive here.
    pub(crate) fn lasts(&self) -> bool {
        self.habit.lasts
    }

    pub(crate) fn qos(&self) -> QoS {
        self.habit.qos
    }

    pub(crate) fn name(&self) -> String {
        let Habit { version, qos, filter, wanders, lasts, .. } = self.habit;
        let wanders = if wanders { ", comes and goes" } else { "" };
        let lasts = if lasts { "" } else { ", session ends with its connection" };
        format!("{} ({filter} at QoS {qos}, MQTT {version}{wanders}{lasts})", self.client_id())
    }

    pub(crate) fn client_id(&self) -> String {
        format!("receiver-{}", self.number)
    }

    fn connect_packet(&self) -> Connect {
        let Habit { version, lasts, receive_maximum, concurrency, .. } = self.habit;
        let client_id = self.client_id();
        let mut connect = if lasts { lasting(version, &client_id) } else { Connect::new(version, text(&client_id)) };
        connect.properties.receive_maximum = receive_maximum.and_then(NonZeroU16::new);
        let told = concurrency.map(|messages| UserProperty::new(text("concurrency"), text(&messages.to_string())));
        connect.properties.user_properties.extend(told.filter(|_| version == ProtocolVersion::V5));
        connect
    }

    fn connect(&mut self, round: &Round) -> bool {
        self.answers.forget();
        let reached = RawClient::reach(round.address, self.connect_packet());
        self.taken_over = None;
        let Some((client, connack)) = reached else { return false };
        self.journal.note(None, What::Connected { session_present: connack.session_present });
        if connack.session_present != self.habit.lasts {
            round.complain(format!("{}: its session is there: {}", self.name(), connack.session_present));
        }
        if !connack.session_present {
            self.unreleased.clear();
        }
        self.client = Some(client);
        self.habit.lasts || self.subscribe(round)
    }

    /// Subscribes in a new session. Returns false if the broker is gone.
    fn subscribe(&mut self, round: &Round) -> bool {
        let Some(client) = &mut self.client else { return false };
        let packet_id = client.next_id();
        let (user_properties, subscriptions) = (Vec::new(), vec![subscription(self.habit.filter, self.habit.qos)]);
        let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
        client.try_send_bytes(&encode(&Packet::Subscribe(subscribe), self.habit.version));
        self.life = Some(Life { subscribed: Instant::now(), topics: HashMap::new() });
        loop {
            match self.client.as_mut().map(|client| client.try_receive(PATIENCE)) {
                Some(Ok(Packet::SubAck(suback))) => {
                    if suback.reasons.iter().any(|reason| reason.is_error()) {
                        round.complain(format!("{}: SUBACK {:?}", self.name(), suback.reasons));
                    }
                    // All messages published from here on must arrive.
                    self.life.iter_mut().for_each(|life| life.subscribed = Instant::now());
                    return true;
                }
                Some(Ok(packet)) => self.take(packet, round),
                _ => {
                    self.end_connection("by the broker");
                    return false;
                }
            }
        }
    }

    fn stay_away(&mut self, round: &Round) {
        let until = Instant::now() + Duration::from_millis(self.dice.within(1..200));
        while !round.is_over() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Disconnects in order, breaks the connection, or leaves it for the next one to take over.
    fn leave(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        match self.dice.within(0..4) {
            0 | 1 => {
                let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
                client.try_send_bytes(&encode(&disconnect, self.habit.version));
            }
            2 => self.taken_over = Some(client),
            _ => drop(client),
        }
        self.end_connection("by the client");
    }

    fn end_connection(&mut self, how: &'static str) {
        self.client = None;
        self.journal.note(None, What::Left(how));
        self.lives.extend(self.life.take());
    }

    /// Receives until `is_over`. Returns false if the broker is gone.
    fn listen(&mut self, round: &Round, is_over: impl Fn(&Round) -> bool) -> bool {
        while !is_over(round) {
            match self.take_next(round, Duration::from_millis(1)) {
                None => return false,
                Some(true) if self.habit.stalls_permille > self.dice.within(0..1000) && !round.is_over() => {
                    std::thread::sleep(Duration::from_millis(self.dice.within(50..700)));
                }
                Some(_) => {}
            }
            if let Some(client) = &mut self.client {
                self.answers.send_due(client);
            }
        }
        true
    }

    /// Handles the next packet. Returns whether one arrived, or `None` if the broker is gone.
    fn take_next(&mut self, round: &Round, patience: Duration) -> Option<bool> {
        match self.client.as_mut()?.try_receive(patience) {
            Ok(packet) => self.take(packet, round),
            Err(Silence::TimedOut) => return Some(false),
            Err(Silence::Closed) => {
                self.end_connection("by the broker");
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
                // Released before, but the broker has not recorded the PUBCOMP.
                let known = self.unreleased.remove(&packet_id);
                if known.is_some() {
                    self.journal.note(known, What::Released);
                }
                let reason = match known.is_some() || !self.habit.version.is_v5() {
                    true => ReasonCode::Success,
                    false => ReasonCode::PacketIdentifierNotFound,
                };
                self.answers.push(Packet::PubComp(Ack::new(packet_id, reason)));
            }
            // The broker announces its end.
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
        let Publish { packet_id: id, qos, dup, .. } = *publish;
        self.journal.note(Some(message), What::Received { id, qos, dup });
        let complain = |text: String| round.complain(Complaint { text, message: Some(message) });
        let expected = message.topic.qos.min(self.habit.qos);
        if publish.qos != expected || publish.retain {
            let got = format!("QoS {qos}, RETAIN {}, not QoS {expected}", publish.retain);
            complain(format!("{}: {message} with {got}", self.name()));
        }
        let expiry = publish.properties.as_ref().and_then(|properties| properties.message_expiry_interval);
        if let Some(seconds) = expiry.filter(|&seconds| seconds > EXPIRY_SECONDS) {
            let text = format!("{}: {message} has Message Expiry Interval {seconds}", self.name());
            complain(format!("{text}, more than {EXPIRY_SECONDS} [MQTT-3.3.2-6]"));
        }
        let Some(id) = id else { return self.count(message, publish, round) };
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
                complain(format!("{}: {message} with {before}", self.name()));
            }
            Some(_) if !publish.dup => {
                complain(format!("{}: {message} again, without DUP [MQTT-3.3.1-1]", self.name()));
            }
            Some(_) => {}
        }
    }

    fn count(&mut self, message: Number, publish: &Publish, round: &Round) {
        let (count, end) = match &mut self.life {
            None => self.received.add(message),
            Some(life) => {
                self.received.deliveries += 1;
                let arrivals = life.topics.entry(message.topic).or_default();
                let end = arrivals.end;
                arrivals.end = end.max(message.number + 1);
                (if arrivals.numbers.insert(message.number) { 1 } else { 2 }, end)
            }
        };
        if self.life.is_some() {
            self.received.add_uncounted(message);
        }
        if count == 1 && message.number < end && !message.topic.is_shared {
            let text = format!("{}: {message} came first after message {}", self.name(), end - 1);
            let subscribed = self.life.as_ref().map(|life| life.subscribed);
            self.overtaken.push((Complaint { text, message: Some(message) }, subscribed));
        }
        // A publisher may have resent a QoS 1 message, but never a QoS 0 one.
        let once = [QoS::AtMostOnce, QoS::ExactlyOnce].contains(&message.topic.qos) && message.topic.qos == publish.qos;
        if count > 1 && once {
            let Publish { dup, packet_id, .. } = publish;
            let text = format!("{}: {message} came again, with DUP {dup}, identifier {packet_id:?}", self.name());
            round.complain(Complaint { text, message: Some(message) });
        }
    }
}

/// Pause after which nothing more arrives, most of the time.
const QUIET: Duration = Duration::from_millis(100);
