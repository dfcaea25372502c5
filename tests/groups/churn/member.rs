use std::collections::HashSet;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_codec::{
    Ack, Connect, ConnectProperties, Disconnect, DisconnectProperties, Packet, PacketId, PacketType, PingReq,
    ProtocolVersion, Publish, QoS, ReasonCode, Unsubscribe, WriteBuffer,
};

use super::ledger::{Fate, Receipt};
use super::stage::{FILTER, Stage};
use crate::support::{Dice, RawClient, Silence, filter, number_of, text};

/// How a member joins and leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Has a session, drops its socket, returns.
    Returns,
    /// Has a session. Disconnects without unsubscribing, or drops its socket, and returns.
    Rests,
    /// Has no session. Unsubscribes, completes its handshakes, then disconnects.
    Unsubscribes,
    /// Disconnects for good in the midst of handshakes, with Session Expiry Interval 0 from CONNECT or DISCONNECT.
    Disconnects,
    /// Has no session and drops its socket.
    Dies,
}

impl Habit {
    pub(crate) const AT_QOS_1: [Self; 5] =
        [Self::Returns, Self::Unsubscribes, Self::Disconnects, Self::Dies, Self::Rests];

    /// A sent QoS 2 message belongs to its session and ends with it [MQTT-4.8.2-5]. So at QoS 2 each member returns or
    /// completes its handshakes.
    pub(crate) const AT_QOS_2: [Self; 3] = [Self::Returns, Self::Unsubscribes, Self::Rests];

    fn has_session(self) -> bool {
        matches!(self, Self::Returns | Self::Rests)
    }
}

/// Statistics of one member, or the sum of all.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    joined: usize,
    unsubscribed: usize,
    disconnected: usize,
    killed: usize,
    /// Messages that were sent again to a returning member that already had them.
    repeated: usize,
}

/// One client of the group, which connects again and again until the run is over.
pub(crate) struct Member<'a> {
    stage: &'a Stage,
    number: usize,
    habit: Habit,
    dice: Dice,
    visits: Visits,
    receipts: Vec<Receipt>,
    /// QoS 2 messages received and not released by the broker: the client's half of the session.
    unreleased: HashSet<PacketId>,
    /// True if the broker has a session of this member.
    is_known: bool,
}

/// One connection of a member.
struct Visit {
    client: RawClient,
    /// Acknowledgements not written yet.
    replies: Vec<Packet>,
    /// Index of this visit's first receipt among the member's receipts.
    first_receipt: usize,
    /// Receipts of this visit whose acknowledgement was written, in order.
    acknowledged: usize,
}

impl<'a> Member<'a> {
    pub(crate) fn new(stage: &'a Stage, number: usize, habit: Habit, seed: u64) -> Self {
        Self {
            stage,
            number,
            habit,
            dice: Dice::new(seed, number),
            visits: Visits::default(),
            receipts: Vec::new(),
            unreleased: HashSet::new(),
            is_known: false,
        }
    }

    pub(crate) fn run(mut self) -> (Vec<Receipt>, Visits) {
        while !self.stage.is_over() {
            self.visit();
            self.stay_away();
        }
        if self.habit.has_session() {
            let mut visit = self.come();
            self.finish_handshakes(&mut visit);
            self.disconnect(visit, None);
        }
        (self.receipts, self.visits)
    }

    fn visit(&mut self) {
        let mut visit = self.come();
        if self.visits.joined == 1 {
            self.stage.subscribed_first();
        }
        let end = self.receipts.len() + self.dice.within(1..80) as usize;
        let until = Instant::now() + Duration::from_millis(self.dice.within(5..200));
        // Acknowledgements are collected, so that some are still open when the member leaves.
        let lag = self.dice.within(1..17) as usize;
        while self.receipts.len() < end && Instant::now() < until && !self.stage.is_empty() && !self.stage.is_over() {
            let is_idle = !self.receive(&mut visit, Duration::from_millis(10));
            if is_idle || visit.replies.len() >= lag {
                visit.reply();
            }
        }
        self.leave(visit);
    }

    fn stay_away(&mut self) {
        std::thread::sleep(Duration::from_millis(self.dice.within(0..30)));
        while self.stage.is_empty() && !self.stage.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connects, and subscribes unless the session still has the subscription.
    fn come(&mut self) -> Visit {
        let has_session = self.habit.has_session();
        let expiry = has_session || (self.habit == Habit::Disconnects && self.dice.percent(50));
        let connect = Connect {
            clean_start: !has_session,
            properties: ConnectProperties {
                session_expiry_interval: expiry.then_some(u32::MAX),
                receive_maximum: NonZeroU16::new(RECEIVE_MAXIMUM),
                ..ConnectProperties::default()
            },
            ..Connect::new(ProtocolVersion::V5, text(&format!("member {}", self.number)))
        };
        let (client, connack) = RawClient::connect(self.stage.address, connect);
        assert_eq!(connack.session_present, has_session && self.is_known, "{:?}", self.habit);
        let first_receipt = self.receipts.len();
        let mut visit = Visit { client, replies: Vec::new(), first_receipt, acknowledged: 0 };
        if !connack.session_present {
            // Messages that arrive before SUBACK are set aside and received later.
            visit.client.subscribe(FILTER, self.stage.qos);
        }
        self.is_known = has_session;
        self.visits.joined += 1;
        visit
    }

    fn leave(&mut self, mut visit: Visit) {
        match self.habit {
            Habit::Unsubscribes => {
                visit.reply();
                self.unsubscribe(&mut visit);
                self.finish_handshakes(&mut visit);
                self.visits.unsubscribed += 1;
                self.disconnect(visit, None);
            }
            Habit::Disconnects => self.disconnect(visit, Some(0)),
            Habit::Rests if self.dice.percent(50) => self.disconnect(visit, None),
            Habit::Rests | Habit::Returns | Habit::Dies => self.die(visit),
        }
    }

    fn unsubscribe(&mut self, visit: &mut Visit) {
        let packet_id = visit.client.next_id();
        let unsubscribe = Unsubscribe { packet_id, user_properties: Vec::new(), filters: vec![filter(FILTER)] };
        visit.client.send(&Packet::Unsubscribe(unsubscribe));
        match visit.client.wait_for(PacketType::UnsubAck) {
            Packet::UnsubAck(unsuback) => assert_eq!(unsuback.reasons, [ReasonCode::Success]),
            other => panic!("{other:?} instead of UNSUBACK"),
        }
    }

    /// Receives and acknowledges until a PINGREQ without preceding acknowledgement is answered and nothing else
    /// arrives. All send quota is free then, so no message waits at the broker either.
    fn finish_handshakes(&mut self, visit: &mut Visit) {
        loop {
            let mut is_quiet = visit.replies.is_empty();
            visit.reply();
            visit.client.send(&Packet::PingReq(PingReq::PLAIN));
            loop {
                match visit.client.receive() {
                    Packet::PingResp => break,
                    packet => self.take(packet, visit),
                }
                is_quiet = false;
            }
            if is_quiet {
                assert!(self.unreleased.is_empty(), "PUBREC is answered by PUBREL [MQTT-4.3.3-4]");
                return;
            }
        }
    }

    /// Sends DISCONNECT. Unwritten acknowledgements stay unwritten.
    fn disconnect(&mut self, visit: Visit, session_expiry_interval: Option<u32>) {
        self.end(&visit, Fate::LeftBefore, Fate::Settled);
        let properties = DisconnectProperties { session_expiry_interval, ..DisconnectProperties::default() };
        let properties = session_expiry_interval.map(|_| Box::new(properties));
        visit.client.disconnect_with(Disconnect { reason: ReasonCode::Success, properties });
        self.visits.disconnected += 1;
    }

    /// Drops the socket with everything in it.
    fn die(&mut self, mut visit: Visit) {
        if self.dice.percent(50) {
            visit.reply(); // which may or may not arrive
        }
        self.end(&visit, Fate::Killed, Fate::Killed);
        self.visits.killed += 1;
    }

    /// Sets the fate of this visit's receipts, by whether they were acknowledged.
    fn end(&mut self, visit: &Visit, open: Fate, acknowledged: Fate) {
        let receipts = &mut self.receipts[visit.first_receipt..];
        for (position, receipt) in receipts.iter_mut().enumerate() {
            receipt.fate = if position < visit.acknowledged { acknowledged } else { open };
        }
    }

    /// Handles the next packet. Returns `false` if none arrives within `patience`.
    fn receive(&mut self, visit: &mut Visit, patience: Duration) -> bool {
        match visit.client.try_receive(patience) {
            Ok(packet) => self.take(packet, visit),
            Err(Silence::TimedOut) => return false,
            Err(silence) => panic!("{silence:?}: the broker ended the connection of a legal member"),
        }
        true
    }

    fn take(&mut self, packet: Packet, visit: &mut Visit) {
        match packet {
            Packet::Publish(publish) => self.take_message(&publish, visit),
            Packet::PubRel(ack) => {
                // An unknown one was released before, and its PUBCOMP was lost.
                self.unreleased.remove(&ack.packet_id);
                visit.replies.push(Packet::PubComp(Ack::new(ack.packet_id, ReasonCode::Success)));
            }
            other => panic!("{other:?} is nothing for a member"),
        }
    }

    fn take_message(&mut self, publish: &Publish, visit: &mut Visit) {
        assert_eq!(publish.qos, self.stage.qos);
        let id = publish.packet_id.expect("at QoS 1 and 2 there is one");
        let ack = Ack::new(id, ReasonCode::Success);
        let is_new = match publish.qos {
            QoS::ExactlyOnce => {
                visit.replies.push(Packet::PubRec(ack));
                self.unreleased.insert(id)
            }
            _ => {
                visit.replies.push(Packet::PubAck(ack));
                true
            }
        };
        if is_new {
            let number = number_of(publish);
            let stamp = self.stage.receipt(number);
            self.receipts.push(Receipt { number, stamp, fate: Fate::Killed });
        } else {
            assert!(publish.dup, "[MQTT-3.3.1-1]");
            self.visits.repeated += 1;
        }
    }
}

impl Visit {
    /// Writes the collected acknowledgements.
    fn reply(&mut self) {
        let mut out = WriteBuffer::new();
        for reply in self.replies.drain(..) {
            self.acknowledged += usize::from(matches!(reply, Packet::PubAck(_)));
            reply.encode(ProtocolVersion::V5, &mut out);
        }
        self.client.send_bytes(&out.to_bytes());
    }
}

impl Visits {
    pub(crate) fn add(&mut self, other: Self) {
        self.joined += other.joined;
        self.unsubscribed += other.unsubscribed;
        self.disconnected += other.disconnected;
        self.killed += other.killed;
        self.repeated += other.repeated;
    }
}

/// Receive Maximum of a member.
const RECEIVE_MAXIMUM: u16 = 32;
