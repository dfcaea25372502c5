//! What the driver of `run` says to a broker, packet by packet, and what it makes of what it hears.

use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::thread::scope;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use std::io::{Read, Write};
use tenbin_codec::{
    Ack, ConnAck, Connect, Decoded, Decoder, Packet, ProtocolVersion, Publish, QoS, ReasonCode, SubAck, WriteBuffer,
};
use tenbin_loadgen::LoadgenError;
use tenbin_loadgen::run::{
    Audience, Broker, ConnectionOptions, CutWhose, Cuts, Outcome, Pace, Plan, Publishers, Schedule, Spread, Stamp,
    Verdict, Version, WillOptions, run_plan,
};

/// The other end of a connection.
struct Peer {
    stream: TcpStream,
    decoder: Decoder,
    input: BytesMut,
}

impl Peer {
    /// The next client to connect, and what its CONNECT says; not answered yet.
    fn accept(listener: &TcpListener) -> (Self, Connect) {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => assert!(Instant::now() < until, "no client connects: {error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stream.set_nonblocking(false).expect("a socket can wait");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        let mut peer = Self { stream, decoder: Decoder::server(u32::MAX), input: BytesMut::new() };
        match peer.receive() {
            Some(Packet::Connect(connect)) => (peer, *connect),
            other => panic!("{other:?} instead of CONNECT"),
        }
    }

    /// As [`Peer::accept`], with an answer.
    fn welcome(listener: &TcpListener, connack: ConnAck) -> (Self, Connect) {
        let (mut peer, connect) = Self::accept(listener);
        peer.send(&Packet::ConnAck(Box::new(connack)));
        (peer, connect)
    }

    /// A client that connects and subscribes at `qos`.
    fn subscriber(listener: &TcpListener, qos: QoS) -> Self {
        let (mut peer, _) = Self::welcome(listener, success());
        let granted = ReasonCode::from_byte(qos.bits()).expect("a level is granted by its number");
        peer.answer_subscribe(granted);
        peer
    }

    fn answer_subscribe(&mut self, reason: ReasonCode) {
        let Some(Packet::Subscribe(subscribe)) = self.receive() else { panic!("SUBSCRIBE was expected") };
        let (packet_id, properties) = (subscribe.packet_id, Default::default());
        self.send(&Packet::SubAck(SubAck { packet_id, properties, reasons: vec![reason] }));
    }

    /// The next packet; `None` at the end of the stream.
    fn receive(&mut self) -> Option<Packet> {
        loop {
            match self.decoder.decode(&mut self.input).expect("the driver keeps to the protocol") {
                Decoded::Packet(packet) => return Some(packet),
                Decoded::NeedMore(_) => {
                    let mut bytes = [0; 4096];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => return None,
                        Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                        Err(error) => panic!("nothing came: {error}"),
                    }
                }
            }
        }
    }

    fn receive_publish(&mut self) -> Publish {
        match self.receive() {
            Some(Packet::Publish(publish)) => publish,
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }

    /// All that is left, up to the end of the stream.
    fn rest(&mut self) -> Vec<Packet> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Whether nothing comes for a moment.
    fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket has that");
        let nothing = self.input.is_empty() && self.stream.peek(&mut [0]).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        nothing
    }

    /// Whether something comes within a few milliseconds.
    fn has_more(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket has that");
        let is_there = !self.input.is_empty() || self.stream.peek(&mut [0]).is_ok();
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        is_there
    }

    fn send(&mut self, packet: &Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(self.decoder.version().unwrap_or(ProtocolVersion::V5), &mut out);
        self.send_bytes(&out.to_bytes());
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the driver listens");
    }
}

/// Runs `plan` against what `broker` does.
fn run<T: Send>(
    plan: impl FnOnce(&mut Plan),
    broker: impl FnOnce(TcpListener) -> T + Send,
) -> (Result<Outcome, LoadgenError>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket need not wait");
    let port = listener.local_addr().expect("it is bound").port();
    let mut planned = basic(port);
    plan(&mut planned);
    scope(|scope| {
        let broker = scope.spawn(|| broker(listener));
        (run_plan(&planned), broker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// One publisher of QoS 1 with three messages in flight, and nobody else.
fn basic(port: u16) -> Plan {
    Plan {
        tag: 7,
        brokers: vec![Broker { name: "scripted".into(), host: "127.0.0.1".into(), port }],
        connection: ConnectionOptions {
            version: Version::V5,
            user_name: None,
            password: None,
            tls: None,
            keep_alive: 0,
            session_expiry: None,
            client_id_prefix: "wire".into(),
            will: None,
        },
        publishers: Publishers {
            count: 1,
            qos: 1,
            retain: false,
            topic: "wire".into(),
            topics: 1,
            payload: 20,
            messages: Some(4),
            pace: Pace::Unlimited,
            in_flight: 3,
            spread: Spread::InTurns,
        },
        audiences: vec![],
        idle: None,
        cuts: None,
        schedule: Schedule {
            time_limit: PATIENCE,
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: Duration::from_millis(300),
        },
        threads: 1,
        records: false,
    }
}

fn audience(qos: u8) -> Audience {
    let (name, filter) = ("all".into(), "wire".into());
    Audience { name, count: 1, filter, share: None, qos, spread: Spread::InTurns, work: None, slow: None }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64
}

fn due_ns(publish: &Publish) -> u64 {
    Stamp::decode_due_ns(&publish.payload).expect("every payload has it")
}

fn success() -> ConnAck {
    ConnAck::new(false, ReasonCode::Success)
}

fn ack(publish: &Publish, reason: ReasonCode) -> Ack {
    Ack::new(publish.packet_id.expect("above QoS 0"), reason)
}

fn ids(publishes: &[Publish]) -> Vec<u16> {
    publishes.iter().filter_map(|publish| publish.packet_id).map(|id| id.get()).collect()
}

#[test]
fn mqtt_4_4_0_1_what_a_cut_left_unacknowledged_is_sent_again_as_it_was() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(5);
            plan.connection.session_expiry = Some(Duration::from_secs(60));
            let (every, away) = (Duration::from_millis(1500), Duration::from_millis(50));
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, connect) = Peer::welcome(&listener, success());
            assert!(connect.clean_start && connect.properties.session_expiry_interval == Some(60));
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            first.send(&Packet::PubAck(ack(&sent[1], ReasonCode::Success)));
            let fourth = first.receive_publish();
            assert_eq!(first.rest(), [], "cut without DISCONNECT, while there is a fifth to send");

            let (mut second, connect) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert!(!connect.clean_start);
            for unacknowledged in [&sent[0], &sent[2], &fourth] {
                let again = second.receive_publish();
                assert_eq!(again, Publish { dup: true, ..unacknowledged.clone() });
                second.send(&Packet::PubAck(ack(&again, ReasonCode::Success)));
            }
            let fifth = second.receive_publish();
            second.send(&Packet::PubAck(ack(&fifth, ReasonCode::Success)));
            let rest = second.rest();
            let [Packet::Disconnect(disconnect)] = &rest[..] else { panic!("{rest:?}") };
            let properties = disconnect.properties.as_ref().expect("the session is to end");
            assert_eq!(properties.session_expiry_interval, Some(0));
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.published.messages, outcome.connections.cut, outcome.connections.lost), (5, 1, 0));
    assert_eq!(outcome.connections.sessions_present, 1);
}

#[test]
fn mqtt_4_4_0_1_pubrel_is_sent_again_and_publish_is_not() {
    run(
        |plan| {
            plan.publishers.qos = 2;
            plan.connection.session_expiry = Some(Duration::MAX);
            let (every, away) = (Duration::from_millis(1500), Duration::ZERO);
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, connect) = Peer::welcome(&listener, success());
            assert_eq!(connect.properties.session_expiry_interval, Some(u32::MAX));
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            let pubrec = ack(&sent[0], ReasonCode::Success);
            first.send(&Packet::PubRec(pubrec.clone()));
            assert_eq!(first.receive(), Some(Packet::PubRel(pubrec.clone())));
            assert_eq!(first.rest(), []);

            let (mut second, _) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert_eq!(second.receive(), Some(Packet::PubRel(pubrec.clone())));
            for publish in &sent[1..] {
                assert_eq!(second.receive_publish(), Publish { dup: true, ..publish.clone() });
            }
            second.send(&Packet::PubComp(pubrec));
            let fourth = second.receive_publish();
            assert!(!fourth.dup);
            for publish in [&sent[1], &sent[2], &fourth] {
                second.send(&Packet::PubRec(ack(publish, ReasonCode::Success)));
                assert!(matches!(second.receive(), Some(Packet::PubRel(_))));
                second.send(&Packet::PubComp(ack(publish, ReasonCode::Success)));
            }
            assert_eq!(second.rest().len(), 1);
        },
    )
    .0
    .unwrap();
}

#[test]
fn what_was_in_flight_is_gone_with_its_session() {
    let (outcome, ()) = run(
        |plan| {
            let (every, away) = (Duration::from_millis(1500), Duration::ZERO);
            plan.cuts = Some(Cuts { every, whose: CutWhose::Publishers, away });
        },
        |listener| {
            let (mut first, _) = Peer::welcome(&listener, success());
            let sent: Vec<_> = (0..3).map(|_| first.receive_publish()).collect();
            assert_eq!(ids(&sent), [1, 2, 3]);
            assert_eq!(first.rest(), []);
            let (mut second, connect) = Peer::welcome(&listener, success());
            assert!(connect.clean_start);
            let fourth = second.receive_publish();
            assert!(!fourth.dup);
            second.send(&Packet::PubAck(ack(&fourth, ReasonCode::Success)));
            assert_eq!(second.rest().len(), 1);
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 1);
}

#[test]
fn mqtt_4_3_3_10_what_is_sent_again_before_pubrel_has_come_once() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(1);
            plan.audiences = vec![audience(2)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::ExactlyOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let message = publisher.receive_publish();
            let id = ack(&message, ReasonCode::Success);
            let message = Publish { qos: QoS::ExactlyOnce, ..message };
            for dup in [false, true, true] {
                subscriber.send(&Packet::Publish(Publish { dup, ..message.clone() }));
                assert_eq!(subscriber.receive(), Some(Packet::PubRec(id.clone())));
            }
            subscriber.send(&Packet::PubRel(id.clone()));
            assert_eq!(subscriber.receive(), Some(Packet::PubComp(id.clone())));
            publisher.send(&Packet::PubAck(id));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let expected = Verdict { expected: 1, received: 1, exact: true, ..Verdict::default() };
    assert_eq!(outcome.unwrap().verdict, expected);
}

#[test]
fn a_copy_at_qos_1_is_acknowledged_and_counted() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(1);
            plan.audiences = vec![audience(1)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let message = publisher.receive_publish();
            for dup in [false, true, false] {
                subscriber.send(&Packet::Publish(Publish { dup, ..message.clone() }));
                assert_eq!(subscriber.receive(), Some(Packet::PubAck(ack(&message, ReasonCode::Success))));
            }
            publisher.send(&Packet::PubAck(ack(&message, ReasonCode::Success)));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.duplicated, verdict.duplicated_unmarked), (1, 2, 1));
}

#[test]
fn mqtt_3_8_4_2_messages_before_suback_are_taken_and_acknowledged() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.count = 0;
            plan.audiences = vec![audience(1)];
        },
        |listener| {
            let (mut subscriber, _) = Peer::welcome(&listener, success());
            let Some(Packet::Subscribe(subscribe)) = subscriber.receive() else { panic!("SUBSCRIBE was expected") };
            let payload = |id: u8| [&now_ns().to_be_bytes()[..], &[0; 11], &[id]].concat();
            let publish = |id: u8| [&[0x32, 29, 0, 4, b'w', b'i', b'r', b'e', 0, id, 0][..], &payload(id)].concat();
            subscriber.send_bytes(&[publish(1), publish(2)].concat());
            // In another segment, with a message behind it.
            std::thread::sleep(Duration::from_millis(50));
            let suback = [&[0x90, 4][..], &subscribe.packet_id.get().to_be_bytes(), &[0, 1]].concat();
            subscriber.send_bytes(&[suback, publish(3)].concat());
            for id in 1..=3 {
                let Some(Packet::PubAck(puback)) = subscriber.receive() else { panic!("PUBACK was expected") };
                assert_eq!(puback.packet_id.get(), id);
            }
            subscriber.rest();
        },
    );
    assert_eq!(outcome.unwrap().received.messages, 3);
}

#[test]
fn copies_and_foreign_messages_are_not_taken_for_those_that_are_missing() {
    let (outcome, ()) = run(
        |plan| {
            plan.audiences = vec![audience(1)];
            plan.schedule.subscriber_timeout = PATIENCE;
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let sent: Vec<_> = (0..3).map(|_| publisher.receive_publish()).collect();
            let foreign = Publish { payload: b"of somebody else".to_vec().into(), retain: true, ..sent[0].clone() };
            for early in [&foreign, &foreign, &sent[0], &sent[0], &sent[0], &foreign] {
                subscriber.send(&Packet::Publish(early.clone()));
            }
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::Success)));
            // Longer than what is waited for when all has come.
            std::thread::sleep(Duration::from_millis(300));
            for late in [&sent[1], &sent[2], &last] {
                subscriber.send(&Packet::Publish(late.clone()));
            }
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 6 + 3 + 1]);
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost, verdict.duplicated, verdict.foreign), (4, 0, 2, 3));
}

#[test]
fn a_message_at_two_members_of_a_share_group_is_not_taken_for_one_that_is_missing() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.messages = Some(2);
            plan.audiences = vec![Audience { share: Some("g".into()), count: 2, ..audience(1) }];
            plan.schedule.subscriber_timeout = Duration::from_secs(2);
        },
        |listener| {
            let mut members = [(); 2].map(|()| Peer::subscriber(&listener, QoS::AtLeastOnce));
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let sent = [publisher.receive_publish(), publisher.receive_publish()];
            members[0].send(&Packet::Publish(sent[0].clone()));
            members[1].send(&Packet::Publish(Publish { dup: true, ..sent[0].clone() }));
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            std::thread::sleep(Duration::from_millis(300));
            members[0].send(&Packet::Publish(sent[1].clone()));
            publisher.rest();
            members.iter_mut().for_each(|member| drop(member.rest()));
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost, verdict.to_another_member), (2, 0, 1));
}

#[test]
fn a_run_does_not_wait_for_the_end_of_what_somebody_else_publishes() {
    let (outcome, ()) = run(
        |plan| plan.audiences = vec![audience(0)],
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            for _ in 0..4 {
                let publish = publisher.receive_publish();
                publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
                subscriber.send(&Packet::Publish(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish }));
            }
            let foreign = b"\x30\x09\x00\x04wire\x00no";
            while subscriber.stream.write_all(foreign).is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.verdict.received, outcome.verdict.lost), (4, 0));
    assert!(outcome.verdict.foreign > 0 && outcome.notes.is_empty(), "{:?}", outcome.notes);
}

#[test]
fn no_more_is_in_flight_than_the_broker_takes() {
    let mut connack = success();
    connack.properties.receive_maximum = NonZeroU16::new(2);
    let (outcome, ()) = run(
        |_| {},
        |listener| {
            let (mut publisher, _) = Peer::welcome(&listener, connack);
            let mut sent = vec![publisher.receive_publish(), publisher.receive_publish()];
            assert!(publisher.is_silent());
            while let Some(publish) = sent.pop() {
                publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
            }
            sent = vec![publisher.receive_publish(), publisher.receive_publish()];
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            assert_eq!(publisher.rest().len(), 1);
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 4);
}

#[test]
fn a_closed_loop_lets_out_a_window_and_no_more() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.pace = Pace::Closed { window: 10 };
            plan.publishers.in_flight = 1000;
            plan.publishers.messages = Some(35);
            plan.audiences = vec![audience(0)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            let take = |count, publisher: &mut Peer| -> Vec<_> {
                let taken: Vec<_> = (0..count).map(|_| publisher.receive_publish()).collect();
                taken.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
                taken
            };
            let first = take(10, &mut publisher);
            let given_ns = now_ns();
            for publish in &first[..5] {
                subscriber.send(&Packet::Publish(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish.clone() }));
            }
            // Acknowledgements are no deliveries. Where the test is slow, the window has been given up before.
            let second = take(5, &mut publisher);
            let given_up_ns = due_ns(&first[0]) + 200_000_000;
            assert!(second.iter().all(|publish| due_ns(publish) >= given_ns.min(given_up_ns)));
            // Nothing comes any more: what is outstanding is given up, and the window opens again.
            let rest = take(20, &mut publisher);
            assert!(rest.iter().all(|publish| due_ns(publish) >= given_up_ns));
            assert_eq!([publisher.rest().len(), subscriber.rest().len()], [1, 1]);
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((outcome.published.messages, outcome.verdict.lost), (35, 30));
}

#[test]
fn copies_and_foreign_messages_do_not_open_the_window() {
    let (outcome, ()) = run(
        |plan| {
            plan.publishers.pace = Pace::Closed { window: 2 };
            plan.publishers.in_flight = 1000;
            plan.publishers.messages = Some(40);
            plan.audiences = vec![audience(0)];
        },
        |listener| {
            let mut subscriber = Peer::subscriber(&listener, QoS::AtMostOnce);
            let (mut publisher, _) = Peer::welcome(&listener, success());
            // Each message comes three times, and something of somebody else with it; never more than two are out.
            let (mut out, mut begun) = (std::collections::VecDeque::new(), 0);
            while begun < 40 {
                while out.len() < 2 && begun < 40 {
                    let publish = publisher.receive_publish();
                    publisher.send(&Packet::PubAck(ack(&publish, ReasonCode::Success)));
                    out.push_back(Publish { packet_id: None, qos: QoS::AtMostOnce, ..publish });
                    begun += 1;
                }
                // A slow machine may have given a window up by now, and then there are more.
                let is_young = now_ns() < due_ns(&out[0]) + 50_000_000;
                assert!(begun == 40 || !is_young || !publisher.has_more(), "after {begun} messages");
                let Some(publish) = out.pop_front() else { break };
                for _ in 0..3 {
                    subscriber.send(&Packet::Publish(publish.clone()));
                }
                subscriber.send_bytes(b"\x30\x09\x00\x04wire\x00no");
            }
            out.into_iter().for_each(|publish| subscriber.send(&Packet::Publish(publish)));
            publisher.rest();
            subscriber.rest();
        },
    );
    let verdict = outcome.unwrap().verdict;
    assert_eq!((verdict.received, verdict.lost), (40, 0));
    assert!(verdict.duplicated > 0 && verdict.foreign > 0, "{verdict:?}");
}

#[test]
fn what_a_broker_refuses_is_not_published() {
    let (outcome, ()) = run(
        |_| {},
        |listener| {
            let (mut publisher, _) = Peer::welcome(&listener, success());
            for reason in [ReasonCode::QuotaExceeded, ReasonCode::Success, ReasonCode::NoMatchingSubscribers] {
                let publish = publisher.receive_publish();
                publisher.send(&Packet::PubAck(ack(&publish, reason)));
            }
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::NotAuthorized)));
            assert_eq!(publisher.rest().len(), 1);
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!(outcome.published.messages, 2);
    assert_eq!(outcome.notes, ["2 messages were not taken by the broker"]);
}

#[test]
fn a_silent_connection_is_kept_alive_as_the_broker_wants_it() {
    let mut connack = success();
    connack.properties.server_keep_alive = Some(1);
    let (outcome, ()) = run(
        |plan| plan.connection.keep_alive = 600,
        |listener| {
            let (mut publisher, connect) = Peer::welcome(&listener, connack);
            assert_eq!(connect.keep_alive, 600);
            let sent: Vec<_> = (0..3).map(|_| publisher.receive_publish()).collect();
            for _ in 0..2 {
                assert!(matches!(publisher.receive(), Some(Packet::PingReq(_))));
                publisher.send(&Packet::PingResp);
            }
            sent.iter().for_each(|publish| publisher.send(&Packet::PubAck(ack(publish, ReasonCode::Success))));
            let last = publisher.receive_publish();
            publisher.send(&Packet::PubAck(ack(&last, ReasonCode::Success)));
            publisher.rest();
        },
    );
    assert_eq!(outcome.unwrap().published.messages, 4);
}

#[test]
fn connect_says_what_the_plan_says() {
    let (_, connect) = run(
        |plan| {
            plan.connection.user_name = Some("user".into());
            plan.connection.password = Some("secret".into());
            plan.connection.keep_alive = 33;
            plan.connection.will = Some(WillOptions { topic: "gone".into(), qos: 1 });
            plan.publishers.messages = Some(0);
        },
        |listener| {
            // Who counts the Wills.
            let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
            let (mut publisher, connect) = Peer::welcome(&listener, success());
            publisher.rest();
            subscriber.rest();
            connect
        },
    );
    assert_eq!(connect.client_id.as_str(), "wire-pub-0");
    assert_eq!(connect.user_name.as_ref().map(AsRef::as_ref), Some("user"));
    assert_eq!((connect.password.as_deref(), connect.keep_alive), (Some(&b"secret"[..]), 33));
    let will = connect.will.expect("publishers have one");
    assert_eq!((will.topic.to_string().as_str(), will.qos), ("gone", QoS::AtLeastOnce));
}

#[test]
fn what_a_broker_refuses_in_connack_and_suback_is_named() {
    let refuse = |plan: fn(&mut Plan), connack: ConnAck, suback: Option<ReasonCode>| {
        let (outcome, ()) = run(plan, |listener| {
            let (mut peer, _) = Peer::welcome(&listener, connack);
            if let Some(reason) = suback {
                peer.answer_subscribe(reason);
            }
            peer.rest();
        });
        let error = outcome.expect_err("it was refused").to_string();
        let (_, what) = error.split_once(": ").expect("where: what");
        what.to_owned()
    };
    let refused = ConnAck::new(false, ReasonCode::BadUserNameOrPassword);
    assert_eq!(refuse(|_| {}, refused, None), "wire-pub-0: refused: Bad User Name or Password (0x86)");

    let share = |plan: &mut Plan| plan.audiences = vec![Audience { share: Some("g".into()), ..audience(1) }];
    let error = refuse(share, success(), Some(ReasonCode::NotAuthorized));
    assert_eq!(error, "wire-sub-0: subscription to $share/g/wire: Not authorized (0x87)");
    let error = refuse(share, success(), Some(ReasonCode::Success));
    assert_eq!(error, "wire-sub-0: subscription to $share/g/wire at QoS 1: QoS 0 granted");

    let mut connack = success();
    connack.properties.maximum_qos = Some(QoS::AtMostOnce);
    assert_eq!(refuse(|_| {}, connack, None), "wire-pub-0: QoS 1 is not taken");
    let mut connack = success();
    connack.properties.retain_available = Some(false);
    assert_eq!(
        refuse(|plan| plan.publishers.retain = true, connack, None),
        "wire-pub-0: retained messages are not taken"
    );
    let mut connack = success();
    connack.properties.maximum_packet_size = std::num::NonZeroU32::new(20);
    assert_eq!(refuse(|_| {}, connack, None), "wire-pub-0: packets of 31 bytes are not taken, 20 at most");
}

#[test]
fn nonsense_of_a_broker_ends_the_run_with_the_name_of_the_client() {
    for (nonsense, complaint) in [
        (&b"\x30\xFF\xFF\xFF\xFF\x01"[..], "malformed packet"),
        (b"\x30\x02\x00\x09", "malformed PUBLISH"),
        (b"\x36\x04\x00\x01t\x00", "malformed PUBLISH"),
        (b"\x62\x01\x00", "malformed PUBREL"),
        (b"\x00\x00", "malformed packet"),
        (b"\x10\x00", "unexpected CONNECT"),
        (b"\x40\x02\x00\x01", "unexpected PUBACK"),
        (b"\xE0\x02\x8B\x00", "DISCONNECT: Server shutting down (0x8B)"),
    ] {
        let (outcome, ()) = run(
            |plan| {
                plan.publishers.count = 0;
                plan.audiences = vec![audience(1)];
                plan.schedule.subscriber_timeout = PATIENCE;
            },
            |listener| {
                let mut subscriber = Peer::subscriber(&listener, QoS::AtLeastOnce);
                subscriber.send_bytes(nonsense);
                subscriber.rest();
            },
        );
        let error = outcome.expect_err(complaint).to_string();
        assert_eq!(error, format!("wire-sub-0 lost its connection: {complaint}"));
    }
}

#[test]
fn a_session_of_an_earlier_run_is_forgotten_at_3_1_1_too() {
    run(
        |plan| {
            plan.connection.version = Version::V311;
            plan.connection.session_expiry = Some(Duration::from_secs(60));
            plan.publishers.messages = Some(0);
        },
        |listener| {
            // The session is there: it is forgotten, and the client comes again.
            let forget = |listener: &TcpListener| {
                let (mut peer, connect) = Peer::welcome(listener, success());
                assert!(connect.clean_start && connect.will.is_none());
                assert!(matches!(peer.rest()[..], [Packet::Disconnect(_)]));
            };
            let (mut stale, connect) = Peer::welcome(&listener, ConnAck::new(true, ReasonCode::Success));
            assert!(!connect.clean_start);
            assert!(matches!(stale.rest()[..], [Packet::Disconnect(_)]));
            forget(&listener);
            let (mut fresh, connect) = Peer::welcome(&listener, success());
            assert!(!connect.clean_start);
            assert!(matches!(fresh.rest()[..], [Packet::Disconnect(_)]));
            // It leaves nothing behind.
            forget(&listener);
        },
    )
    .0
    .unwrap();
}

/// How long the other end may take. Only failing tests wait so long.
const PATIENCE: Duration = Duration::from_secs(20);
