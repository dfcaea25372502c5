//! Two connections with the same Client Identifier: the newer one gets the session.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tenbin_codec::{Connect, Packet, PingReq, ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, PATIENCE, RawClient, Silence, VERSIONS, encode, lasting, text};

#[test]
fn mqtt_3_1_4_3_takeover_disconnects_the_old_connection() {
    for old in VERSIONS {
        for new in VERSIONS {
            let broker = BrokerProcess::start(&[]);
            let mut first = broker.connect(lasting(old, "client"));
            first.subscribe("topic", QoS::AtLeastOnce);
            let (mut second, connack) = RawClient::connect(broker.address(), lasting(new, "client"));
            assert!(connack.session_present, "{old} to {new}");
            first.expect_end(ReasonCode::SessionTakenOver);
            second.publish("topic", "mine now", QoS::AtLeastOnce);
            assert_eq!(second.drain_payloads(), ["mine now"]);
        }
    }
}

#[test]
fn in_flight_messages_continue_after_a_takeover() {
    let broker = BrokerProcess::start(&[]);
    let mut first = broker.connect(lasting(ProtocolVersion::V5, "client"));
    first.subscribe("topic", QoS::AtLeastOnce);
    broker.v5("publisher").publish("topic", "open", QoS::AtLeastOnce);
    let open = first.receive_publish();
    let mut second = broker.connect(lasting(ProtocolVersion::V5, "client"));
    let again = second.receive_message();
    assert_eq!((again.packet_id, again.dup, &again.payload[..]), (open.packet_id, true, &b"open"[..]));
}

#[test]
fn a_client_that_does_not_read_cannot_keep_its_session() {
    let broker = BrokerProcess::start(&[]);
    let mut first = broker.v5("client");
    first.subscribe("topic", QoS::AtMostOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..16 {
        publisher.publish("topic", &"x".repeat(1 << 20), QoS::AtMostOnce);
    }
    publisher.settle();
    let asked = Instant::now();
    broker.v5("client").settle();
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
}

#[test]
fn a_storm_of_takeovers_leaves_one_client_and_a_working_session() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut first = broker.connect(lasting(version, "client"));
        first.subscribe("topic", QoS::AtLeastOnce);
        let answers = storm(&broker, version);
        first.read_to_end();

        let accepted = |answer: &Answer| matches!(answer, Ok(Packet::ConnAck(connack)) if !connack.reason.is_error());
        let accepted = answers.into_iter().filter(|(_, answer)| accepted(answer));
        let mut alive: Vec<_> = accepted.map(|(client, _)| client).filter_map(alive).collect();
        assert_eq!(alive.len(), 1, "{version}: clients left");
        let survivor = &mut alive[0];
        let mut publisher = broker.v5("publisher");
        publisher.publish("topic", "kept", QoS::AtLeastOnce);
        survivor.subscribe("other", QoS::AtLeastOnce);
        publisher.publish("other", "works", QoS::AtLeastOnce);
        assert_eq!(survivor.drain_payloads(), ["kept", "works"]);
        let (_next, connack) = RawClient::connect(broker.address(), lasting(version, "client"));
        assert!(connack.session_present);
    }
}

/// As above with fewer clients and more rounds: the first client at one lock need not be the first at the next.
#[test]
fn one_of_several_simultaneous_clients_keeps_the_session() {
    let broker = BrokerProcess::start(&[]);
    let version = ProtocolVersion::V311;
    let (at_once, answered) = (Barrier::new(RIVALS), Barrier::new(RIVALS));
    let unanswered = AtomicBool::new(false);
    // For each round true if this rival stayed connected, or `None` without an answer, which ends the rounds. Nothing
    // may panic between the barriers, or the others would wait for ever.
    let rival = || -> Vec<Option<bool>> {
        let mut outcomes = Vec::new();
        while outcomes.len() < ROUNDS && !unanswered.load(Ordering::SeqCst) {
            let connect = Packet::Connect(Box::new(lasting(version, &format!("client {}", outcomes.len()))));
            let mut client = broker.open(version);
            at_once.wait();
            client.try_send_bytes(&encode(&connect, version));
            let answer = client.try_receive(PATIENCE);
            unanswered.fetch_or(answer == Err(Silence::TimedOut), Ordering::SeqCst);
            answered.wait();
            outcomes.push(match answer {
                Ok(_) => Some(alive(client).is_some()),
                Err(Silence::TimedOut) => None,
                Err(_) => Some(false),
            });
        }
        outcomes
    };
    let rivals: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RIVALS).map(|_| scope.spawn(rival)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rival")).collect()
    });
    let outcomes = (0..rivals[0].len()).map(|round| rivals.iter().map(|rival| rival[round]).collect::<Vec<_>>());
    let wrong = |outcomes: &Vec<_>| {
        outcomes.contains(&None) || outcomes.iter().filter(|&&alive| alive == Some(true)).count() != 1
    };
    let wrong: Vec<_> = outcomes.enumerate().filter(|(_, outcomes)| wrong(outcomes)).collect();
    assert!(wrong.is_empty(), "rounds, and who was left connected: {wrong:?}");
}

#[test]
fn mqtt_3_2_2_8_takeover_during_connect_gets_a_legal_code() {
    let broker = BrokerProcess::start(&[]);
    let _first = broker.connect(lasting(ProtocolVersion::V5, "client"));
    for (_, answer) in storm(&broker, ProtocolVersion::V5) {
        assert!(matches!(answer, Ok(Packet::ConnAck(_)) | Err(Silence::Closed)), "{answer:?}");
    }
}

#[test]
fn a_storm_of_clean_starts_and_ends_leaves_nothing() {
    let broker = BrokerProcess::start(&[]);
    let version = ProtocolVersion::V5;
    let at_once = Barrier::new(STORM);
    std::thread::scope(|scope| {
        for number in 0..STORM {
            let (broker, at_once) = (&broker, &at_once);
            scope.spawn(move || {
                at_once.wait();
                for _ in 0..10 {
                    let mut client = RawClient::open(broker.address(), version);
                    let clean_start = number % 2 == 0;
                    let connect = Connect { clean_start, ..Connect::new(version, text("client")) };
                    client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), version));
                    let subscribe = b"\x82\x0A\x00\x01\x00\x00\x04left\x01";
                    client.try_send_bytes(subscribe);
                    assert_ne!(client.try_receive(PATIENCE), Err(Silence::TimedOut), "CONNECT without an answer");
                }
            });
        }
    });
    let (client, _) = RawClient::connect(broker.address(), Connect::new(version, text("client")));
    client.disconnect();
    let (_client, connack) = RawClient::connect(broker.address(), lasting(version, "client"));
    assert!(!connack.session_present);
    let reason = broker.v5("publisher").publish("left", "", QoS::AtLeastOnce);
    assert_eq!(reason, ReasonCode::NoMatchingSubscribers, "a subscription outlived its session");
}

/// First packet after CONNECT.
type Answer = Result<Packet, Silence>;

/// Connects many clients with one id at once. Returns when all have their answer, so that the storm is over.
fn storm(broker: &BrokerProcess, version: ProtocolVersion) -> Vec<(RawClient, Answer)> {
    let at_once = Barrier::new(STORM);
    let connect = || {
        let mut client = broker.open(version);
        at_once.wait();
        client.send(&Packet::Connect(Box::new(lasting(version, "client"))));
        let answer = client.try_receive(PATIENCE);
        assert_ne!(answer, Err(Silence::TimedOut), "CONNECT without an answer");
        (client, answer)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..STORM).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a storming client")).collect()
    })
}

/// The client, if the broker still answers it.
fn alive(mut client: RawClient) -> Option<RawClient> {
    client.try_send_bytes(&encode(&Packet::PingReq(PingReq::PLAIN), client.version()));
    loop {
        match client.try_receive(PATIENCE) {
            Ok(Packet::PingResp) => return Some(client),
            Ok(_) => {}
            Err(Silence::TimedOut) => panic!("neither an answer nor the end"),
            Err(_) => return None,
        }
    }
}

const STORM: usize = 20;
const RIVALS: usize = 3;
const ROUNDS: usize = 3000;
