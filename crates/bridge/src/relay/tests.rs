//! The relay between two brokers' sessions, with connections that end at any byte.

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};
use tenbin_client::Transport;
use tenbin_codec::{AckProperties, Connect, Decoded, Decoder, MessageProperties, PublishTemplate, TopicName};
use tenbin_kit::rng::SplitMix64;
use tenbin_session::{Connection, Delivery, Event, Limits, Role, Sent, Session};

use super::*;
use crate::rule::Direction;
use crate::settings::Endpoint;

/// A broker with one client, the bridge: its session outlives connections.
struct Broker {
    session: Option<Session>,
    connection: Option<Connection>,
    limits: Limits,
    decoder: Decoder,
    input: BytesMut,
    out: WriteBuffer,
    queue: VecDeque<(String, QoS)>,
    received: Vec<Publish>,
}

const BRIDGE_RECEIVE_MAXIMUM: u16 = 20;

impl Broker {
    fn new(limits: Limits) -> Self {
        Self {
            session: None,
            connection: None,
            limits: Limits { peer_receive_maximum: BRIDGE_RECEIVE_MAXIMUM, ..limits },
            decoder: Decoder::server(u32::MAX),
            input: BytesMut::new(),
            out: WriteBuffer::new(),
            queue: VecDeque::new(),
            received: Vec::new(),
        }
    }

    /// Ends the connection, and begins another one.
    fn connect(&mut self, now: Instant) -> Agreed {
        let before = self.connection.take().map(Connection::into_session).or(self.session.take());
        let session_present = before.is_some();
        let mut connection =
            Connection::new(Role::Server, ProtocolVersion::V5, self.limits, before.unwrap_or_default(), now);
        self.decoder = Decoder::server(u32::MAX);
        self.out.clear();
        let mut hello = WriteBuffer::new();
        let connect = Connect::new(ProtocolVersion::V5, Text::from_static("bridge"));
        Packet::Connect(Box::new(connect)).encode(ProtocolVersion::V5, &mut hello);
        self.input = BytesMut::from(&hello.to_bytes()[..]);
        assert!(matches!(self.decoder.decode(&mut self.input), Ok(Decoded::Packet(Packet::Connect(_)))));
        connection.resume(now, &mut self.out);
        self.connection = Some(connection);
        Agreed {
            version: ProtocolVersion::V5,
            keep_alive: None,
            session_present,
            receive_maximum: self.limits.receive_maximum,
            maximum_packet_size: u32::MAX,
            maximum_qos: self.limits.maximum_qos,
            retain_available: true,
        }
    }

    fn send_queue(&mut self, now: Instant) {
        let connection = self.connection.as_mut().expect("it is connected");
        while let Some((number, qos)) = self.queue.front() {
            let topic = TopicName::try_from("t").unwrap();
            let template = PublishTemplate::new(&topic, None, &number.clone().into(), &mut BytesMut::new());
            match connection.send(Delivery::new(template, *qos, false), now, &mut self.out) {
                Sent::Written(_) => self.queue.pop_front(),
                _ => return,
            };
        }
    }

    fn receive(&mut self, now: Instant) {
        let connection = self.connection.as_mut().expect("it is connected");
        while let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).unwrap() {
            let publish = match &packet {
                Packet::Publish(publish) => Some(publish.clone()),
                _ => None,
            };
            match connection.handle_packet(packet, now, &mut self.out).unwrap() {
                Event::Publish(publication) => {
                    self.received.extend(publish);
                    let ack = publication.ack;
                    ack.into_iter()
                        .for_each(|ack| connection.acknowledge(ack, ReasonCode::Success, now, &mut self.out));
                }
                Event::Duplicate(ack) => connection.acknowledge(ack, ReasonCode::Success, now, &mut self.out),
                Event::Subscribe(subscribe) => {
                    let reasons = vec![ReasonCode::GrantedQoS2];
                    let suback =
                        SubAck { packet_id: subscribe.packet_id, properties: AckProperties::default(), reasons };
                    connection.write(&Packet::SubAck(suback), now, &mut self.out);
                }
                _ => {}
            }
        }
        self.send_queue(now);
    }

    fn numbers(&self, qos: QoS) -> Vec<usize> {
        let of_qos = self.received.iter().filter(|publish| publish.qos == qos);
        of_qos.map(|publish| std::str::from_utf8(&publish.payload).unwrap().parse().unwrap()).collect()
    }
}

fn settings() -> Arc<Settings> {
    let endpoint = |client_id| Endpoint {
        address: "memory".to_owned(),
        transport: Transport::tcp(),
        version: ProtocolVersion::V5,
        is_marked: false,
        client_id: Text::from_static(client_id),
        credentials: None,
        keep_alive: NonZeroU16::MAX,
    };
    Arc::new(Settings {
        name: Text::from_static("b"),
        local: endpoint("local"),
        remote: endpoint("remote"),
        rules: vec![Rule::new(Direction::Both, "#", "", "", QoS::ExactlyOnce).unwrap()],
        receive_maximum: NonZeroU16::new(BRIDGE_RECEIVE_MAXIMUM).unwrap(),
        state_topic: None,
    })
}

/// Two brokers and a relay between them.
struct World {
    brokers: [Broker; 2],
    /// Bytes of each broker that the relay has not decoded.
    inputs: [(Decoder, BytesMut); 2],
    relay: Relay,
    now: Instant,
}

impl World {
    fn new(limits: [Limits; 2]) -> Self {
        let now = Instant::now();
        let mut brokers = limits.map(Broker::new);
        let agreed = brokers.each_mut().map(|broker| broker.connect(now));
        Self { brokers, inputs: inputs(), relay: Relay::new(settings(), Arc::default(), agreed, None), now }
    }

    /// Ends both connections with all bytes under way, as the end of the bridge or of one broker does.
    fn cut(&mut self) {
        let suspect = self.relay.suspect.clone();
        self.cut_with(suspect);
    }

    /// Ends both connections, as one broker does.
    fn cut_by(&mut self, side: Side, kind: FailureKind) {
        let failure = Failure { side, address: String::new(), kind };
        self.cut_with(self.relay.suspect_after(&failure));
    }

    fn cut_with(&mut self, suspect: Option<Suspect>) {
        let agreed = self.brokers.each_mut().map(|broker| broker.connect(self.now));
        self.inputs = inputs();
        self.relay = Relay::new(settings(), Arc::clone(&self.relay.status), agreed, suspect);
        self.brokers.iter_mut().for_each(|broker| broker.send_queue(self.now));
    }

    /// Passes at most `most` bytes on from one broker to the relay, or from the relay to one broker. False if there are none.
    fn pass(&mut self, side: Side, to_broker: bool, most: usize) -> bool {
        let at = side as usize;
        let broker = &mut self.brokers[at];
        let (from, to) = if to_broker {
            (&mut self.relay.halves[at].out, &mut broker.input)
        } else {
            (&mut broker.out, &mut self.inputs[at].1)
        };
        let bytes = from.to_bytes();
        let count = bytes.len().min(most);
        to.extend_from_slice(&bytes[..count]);
        from.advance(count);
        if to_broker {
            broker.receive(self.now);
        } else {
            let (decoder, input) = &mut self.inputs[at];
            while let Decoded::Packet(packet) = decoder.decode(input).unwrap() {
                self.relay.receive(side, packet, self.now).unwrap();
            }
        }
        count > 0
    }

    fn settle(&mut self) {
        self.brokers.iter_mut().for_each(|broker| broker.send_queue(self.now));
        let ways = || Side::BOTH.into_iter().flat_map(|side| [(side, false), (side, true)]);
        while ways().map(|(side, to_broker)| self.pass(side, to_broker, usize::MAX)).fold(false, |any, one| any | one) {
        }
    }
}

fn inputs() -> [(Decoder, BytesMut); 2] {
    [(); 2].map(|()| (Decoder::client(ProtocolVersion::V5, u32::MAX), BytesMut::new()))
}

fn message(number: u16, qos: QoS, dup: bool) -> Packet {
    let publish = Publish::new(TopicName::try_from("t").unwrap(), number.to_string().into());
    Packet::Publish(Publish { packet_id: PacketId::new(number), qos, dup, ..publish })
}

fn assert_delivered(received: &[usize], count: usize, qos: QoS, seed: u64) {
    if qos == QoS::ExactlyOnce {
        assert_eq!(received, (0..count).collect::<Vec<_>>(), "seed {seed}: exactly once and in order");
        return;
    }
    let mut next = 0;
    for &number in received {
        assert!(number <= next, "seed {seed}: {number} overtook {next}");
        next = next.max(number + 1);
    }
    assert_eq!(next, count, "seed {seed}: none is lost");
}

#[test]
fn messages_pass_once_and_in_order_whenever_connections_end() {
    const MESSAGES: usize = 60;
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let mut below = |bound: u64| random.next_u64() % bound;
        let limits = [(); 2].map(|()| Limits { receive_maximum: 1 + below(30) as u16, ..Limits::default() });
        let mut world = World::new(limits);
        for number in 0..MESSAGES {
            for broker in &mut world.brokers {
                for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                    broker.queue.push_back((number.to_string(), qos));
                }
            }
        }
        world.brokers.iter_mut().for_each(|broker| broker.send_queue(world.now));
        for _ in 0..400 {
            match below(20) {
                0 => world.cut(),
                dice => {
                    let side = if dice % 2 == 0 { Side::Local } else { Side::Remote };
                    world.pass(side, below(2) == 0, below(60) as usize);
                }
            }
        }
        world.settle();
        for broker in &world.brokers {
            assert!(broker.queue.is_empty(), "seed {seed}");
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                assert_delivered(&broker.numbers(qos), MESSAGES, qos, seed);
            }
        }
        assert!(Side::BOTH.iter().all(|&side| world.relay.half(side).flow.len() == 0), "seed {seed}");
    }
}

#[test]
fn message_of_a_new_session_is_none_of_a_lost_session() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    world.brokers[0].queue.push_back(("0".to_owned(), QoS::ExactlyOnce));
    world.brokers[0].send_queue(world.now);
    world.pass(Side::Local, false, usize::MAX);
    world.pass(Side::Remote, true, usize::MAX);
    assert_eq!(world.brokers[1].numbers(QoS::ExactlyOnce), [0], "and its PUBREC is under way");
    world.brokers[0].connection = None; // The local broker has lost the session.
    world.brokers[0].queue.push_back(("1".to_owned(), QoS::ExactlyOnce));
    world.cut();
    world.settle();
    assert_eq!(world.brokers[1].numbers(QoS::ExactlyOnce), [0, 1], "the Packet Identifier is the same");
    assert_eq!(world.relay.half(Side::Local).flow.len(), 0);
}

#[test]
fn message_passes_at_the_qos_of_the_other_broker() {
    for maximum_qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut world = World::new([Limits::default(), Limits { maximum_qos, ..Limits::default() }]);
        for (number, qos) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().enumerate() {
            world.brokers[0].queue.push_back((number.to_string(), qos));
        }
        world.settle();
        let received = &world.brokers[1].received;
        assert_eq!(received.len(), 3, "{maximum_qos}");
        assert!(received.iter().all(|publish| publish.qos <= maximum_qos));
        let connection = world.brokers[0].connection.as_ref().unwrap();
        assert_eq!(connection.session().in_flight(), 0, "all are acknowledged at QoS up to {maximum_qos}");
    }
}

#[test]
fn message_that_has_passed_this_bridge_ends_here() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    let properties = |name: &'static str| {
        let property = UserProperty::new(Text::from_static(PASSED), Text::from_static(name));
        MessageProperties { user_properties: vec![property], ..MessageProperties::default() }.boxed()
    };
    for (name, qos) in [("b", QoS::ExactlyOnce), ("b", QoS::AtLeastOnce), ("other", QoS::ExactlyOnce)] {
        let topic = TopicName::try_from("t").unwrap();
        let template = PublishTemplate::new(&topic, properties(name).as_deref(), &name.into(), &mut BytesMut::new());
        let connection = world.brokers[1].connection.as_mut().unwrap();
        connection.send(Delivery::new(template, qos, true), world.now, &mut world.brokers[1].out);
    }
    world.settle();
    let [passed] = &world.brokers[0].received[..] else { panic!("{:?}", world.brokers[0].received) };
    let names: Vec<_> =
        passed.properties.as_ref().unwrap().user_properties.iter().map(|property| property.value.as_str()).collect();
    assert_eq!((names, passed.retain), (vec!["other", "b"], true));
    assert_eq!(world.brokers[1].connection.as_ref().unwrap().session().in_flight(), 0);
    assert_eq!(world.relay.status.dropped(Dropped::Loop), 2);
}

#[test]
fn broker_decides_on_keep_alive() {
    let ours = NonZeroU16::new(60).unwrap();
    for (theirs, seconds) in [(None, Some(60)), (Some(5), Some(5)), (Some(0), None)] {
        let mut connack = ConnAck::new(false, ReasonCode::Success);
        connack.properties.server_keep_alive = theirs;
        let agreed = Agreed::new(ProtocolVersion::V5, ours, &connack);
        assert_eq!(agreed.keep_alive.map(NonZeroU16::get), seconds, "{theirs:?}");
    }
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let mut world = World::new([Limits::default(); 2]);
    let relay = &mut world.relay;
    for _ in 0..3 {
        relay.ping(Side::Remote, 1).unwrap();
        relay.hear(Side::Remote);
    }
    relay.ping(Side::Remote, 1).unwrap();
    relay.hear(Side::Local);
    assert!(matches!(relay.ping(Side::Remote, 1), Err(FailureKind::NoAnswer(1))));
}

#[test]
fn side_that_is_not_read_is_not_called_silent() {
    let mut world = World::new([Limits::default(), Limits { receive_maximum: 1, ..Limits::default() }]);
    let relay = &mut world.relay;
    relay.half(Side::Local).agreed.version = ProtocolVersion::V311;
    for number in 1..=BRIDGE_RECEIVE_MAXIMUM + 1 {
        assert!(relay.is_read(Side::Local), "{number}");
        relay.receive(Side::Local, message(number, QoS::AtLeastOnce, false), world.now).unwrap();
    }
    assert!(!relay.is_read(Side::Local));
    (0..3).for_each(|_| relay.ping(Side::Local, 1).unwrap());
}

#[test]
fn message_with_lowered_qos_waits_for_room() {
    let mut world = World::new([Limits::default(), Limits { maximum_qos: QoS::AtMostOnce, ..Limits::default() }]);
    world.settle();
    let topic = TopicName::try_from("t").unwrap();
    let filler = Publish::new(topic, vec![0; SLOW_BYTES].into());
    world.relay.receive(Side::Local, Packet::Publish(filler), world.now).unwrap();
    world.relay.receive(Side::Local, message(1, QoS::AtLeastOnce, true), world.now).unwrap();
    world.relay.send_waiting(Side::Local, world.now);
    assert!(world.relay.half(Side::Local).out.is_empty(), "it is not acknowledged");

    world.pass(Side::Remote, true, usize::MAX);
    world.relay.send_waiting(Side::Local, world.now);
    world.pass(Side::Remote, true, usize::MAX);
    let last = world.brokers[1].received.last().unwrap();
    assert_eq!((&last.payload[..], last.qos, last.dup), (&b"1"[..], QoS::AtMostOnce, false));
    assert!(!world.relay.half(Side::Local).out.is_empty(), "it is acknowledged");
}

#[test]
fn connect_leaves_out_what_was_refused() {
    let topic = TopicName::try_from("state").unwrap();
    let endpoint = Endpoint { version: ProtocolVersion::V311, is_marked: true, ..settings().remote.clone() };
    let level = ReasonCode::UnsupportedProtocolVersion;
    for (refused, is_bridge, retain, qos) in [
        (vec![], true, true, QoS::AtLeastOnce),
        (vec![level], false, true, QoS::AtLeastOnce),
        (vec![ReasonCode::RetainNotSupported], true, false, QoS::AtLeastOnce),
        (vec![ReasonCode::RetainNotSupported, ReasonCode::QoSNotSupported], true, false, QoS::AtMostOnce),
    ] {
        let mut connect = crate::link::connect(&endpoint, 1, Some(&topic));
        crate::link::leave_out(&mut connect, &refused.into_iter().collect());
        let will = connect.will.unwrap();
        assert_eq!((connect.is_bridge, will.retain, will.qos), (is_bridge, retain, qos));
    }
}

#[test]
fn identifier_in_use_by_the_message_itself_is_no_refusal() {
    for (dup, told) in [(true, ReasonCode::Success), (false, ReasonCode::PacketIdentifierInUse)] {
        let mut world = World::new([Limits::default(); 2]);
        world.relay.half(Side::Local).out.clear();
        world.relay.receive(Side::Local, message(1, QoS::ExactlyOnce, dup), world.now).unwrap();
        let ack = Ack::new(PacketId::new(1).unwrap(), ReasonCode::PacketIdentifierInUse);
        world.relay.receive(Side::Remote, Packet::PubRec(ack), world.now).unwrap();
        let (mut decoder, mut input) = (Decoder::client(ProtocolVersion::V5, u32::MAX), BytesMut::new());
        input.extend_from_slice(&world.relay.half(Side::Local).out.to_bytes());
        let Decoded::Packet(Packet::PubRec(ack)) = decoder.decode(&mut input).unwrap() else { panic!("no PUBREC") };
        assert_eq!((ack.reason, world.relay.status.dropped(Dropped::Refused)), (told, u64::from(!dup)));
    }
}

#[test]
fn message_that_is_answered_by_disconnect_is_dropped() {
    const POISON: &str = "222222";
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut world = World::new([Limits::default(); 2]);
        world.settle();
        for number in ["0", "1", POISON, "3", "4"] {
            world.brokers[0].queue.push_back((number.to_owned(), qos));
        }
        world.brokers[0].send_queue(world.now);
        let is_refused = |world: &World| world.relay.status.dropped(Dropped::Refused) == 1;
        for _ in 0..20 {
            world.pass(Side::Local, false, usize::MAX);
            let to_remote = world.relay.half(Side::Remote).out.to_bytes();
            if to_remote.windows(POISON.len()).any(|bytes| bytes == POISON.as_bytes()) {
                assert!(!is_refused(&world));
                // A broker that is killed says nothing about the message.
                world.cut_by(Side::Remote, FailureKind::Closed);
                world.pass(Side::Local, false, usize::MAX);
                assert!(!is_refused(&world));
                let reason = ReasonCode::QuotaExceeded;
                world.cut_by(Side::Remote, FailureKind::Disconnected { reason, detail: None });
                continue;
            }
            world.pass(Side::Remote, true, usize::MAX);
            world.pass(Side::Remote, false, usize::MAX);
            world.pass(Side::Local, true, usize::MAX);
        }
        assert!(is_refused(&world), "{qos}");
        world.settle();
        assert_eq!(world.brokers[1].numbers(qos), [0, 1, 3, 4], "{qos}");
        assert_eq!(world.brokers[0].connection.as_ref().unwrap().session().in_flight(), 0);
    }
}

#[test]
fn broker_that_ignores_receive_maximum_is_told() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    let release = Packet::PubRel(Ack::new(PacketId::new(100).unwrap(), ReasonCode::Success));
    world.relay.receive(Side::Local, release, world.now).unwrap(); // Of an earlier connection.
    let mut send = |number| world.relay.receive(Side::Local, message(number, QoS::ExactlyOnce, false), world.now);
    (1..=BRIDGE_RECEIVE_MAXIMUM).for_each(|number| send(number).unwrap());
    assert!(matches!(send(BRIDGE_RECEIVE_MAXIMUM + 1), Err(FailureKind::TooMany(BRIDGE_RECEIVE_MAXIMUM))));
}

#[test]
fn one_broker_bounds_the_packets_of_the_other_one() {
    for (bytes, told) in [(None, None), (NonZeroU32::new(1000), NonZeroU32::new(1000 + 65_535))] {
        let mut connack = ConnAck::new(false, ReasonCode::Success);
        connack.properties.maximum_packet_size = bytes;
        let agreed = Agreed::new(ProtocolVersion::V5, NonZeroU16::MIN, &connack);
        assert_eq!(agreed.packet_size_from_other(), told);
    }
}

#[test]
fn refused_subscription_is_told() {
    let mut world = World::new([Limits::default(); 2]);
    for (side, reasons) in [(Side::Local, ReasonCode::GrantedQoS2), (Side::Remote, ReasonCode::NotAuthorized)] {
        let packet_id = PacketId::new(u16::MAX).unwrap();
        let suback = SubAck { packet_id, properties: AckProperties::default(), reasons: vec![reasons] };
        assert!(!world.relay.is_subscribed() && world.relay.refusals().is_none());
        world.relay.receive(side, Packet::SubAck(suback), world.now).unwrap();
    }
    assert!(world.relay.is_subscribed());
    let told = format!("remote broker: it refuses the subscription \"#\": {}", ReasonCode::NotAuthorized);
    assert_eq!(world.relay.refusals(), Some(told));
}

mod hostile;
