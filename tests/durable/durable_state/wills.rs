use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Connect, Disconnect, DisconnectProperties, Packet, ProtocolVersion, QoS, ReasonCode, Will};

use super::{DataDirectory, expiring};
use crate::support::{BrokerProcess, PATIENCE, RawClient, lasting, retained, subscription, text, topic, with_expiry};

#[test]
fn mqtt_3_1_2_8_wills_are_published_after_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut first_heir = heir(&broker);
    first_heir.subscribe("wills/#", QoS::AtLeastOnce);
    let lost = broker.connect(with_will("lost", None, Connect::new(ProtocolVersion::V5, text("lost"))));
    let lasting_one = broker.connect(with_will("lasting", None, lasting(ProtocolVersion::V311, "lasting")));
    let left = broker.connect(with_will("left", None, lasting(ProtocolVersion::V5, "left")));
    left.disconnect();
    let mut replaced = broker.connect(with_will("replaced", None, lasting(ProtocolVersion::V5, "replaced")));
    replaced.settle();
    // The next connection of the session ends this one. Its Will is published now and not again.
    let without = broker.connect(lasting(ProtocolVersion::V5, "replaced"));
    assert_eq!(first_heir.receive_message().payload, "replaced");
    first_heir.settle();
    first_heir.cut();
    // CONNACK confirms that its acknowledgements are stored.
    let first_heir = heir(&broker);
    drop((first_heir, broker));
    drop((lost, lasting_one, without));
    let mut broker = stage.start();
    let mut came = payloads(&mut heir(&broker));
    // A published Will may stay on disk for a while: twice is better than never.
    assert!(came.extract_if(.., |payload| payload == "replaced").count() <= 1);
    assert_eq!(came, ["lasting", "lost"]);
    assert_eq!(payloads(&mut heir(&broker)), [""; 0], "acknowledged");
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    let broker = stage.start();
    assert_eq!(payloads(&mut heir(&broker)), [""; 0], "once");
}

#[test]
fn mqtt_3_1_3_9_will_delay_starts_at_restart_or_continues() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    heir(&broker).subscribe("wills/#", QoS::AtLeastOnce);
    broker.connect(with_will("waits", Some(2), expiring("waits", 600))).cut();
    broker.connect(with_will("is back", Some(2), expiring("is back", 600))).cut();
    let connected = broker.connect(with_will("connected", Some(2), expiring("connected", 600)));
    let ends = broker.connect(with_will("session ends", Some(600), expiring("session ends", 0)));
    broker.v5("afterwards").publish_with(retained("written", "1"));
    drop(broker);
    drop((connected, ends));
    let broker = stage.start();
    let restarted = Instant::now();
    broker.connect(expiring("is back", 600)).settle();
    let mut heir = heir(&broker);
    assert_eq!(heir.receive_message().payload, "session ends", "with the connection");
    assert_eq!(heir.receive_message().payload, "waits");
    assert_eq!(heir.receive_message().payload, "connected");
    assert!(restarted.elapsed() > Duration::from_millis(1500), "{:?}", restarted.elapsed());
    heir.expect_nothing_waiting();
    drop((heir, broker));
    stage.start().assert_serves();
}

/// A session with many subscriptions is removed in parts. `kill -9` comes before, during or after the removal.
#[test]
fn killed_end_of_a_session_is_whole_and_its_will_comes() {
    const PACKETS: usize = 4;
    const FILTERS: usize = 1000;
    let filters = |packet: usize| (0..FILTERS).map(move |number| format!("leaver/{packet}/{number}/+"));
    for moment in ["at once", "after the will", "when all is written"] {
        let stage = DataDirectory::new();
        let broker = stage.start();
        let mut first_heir = heir(&broker);
        first_heir.subscribe("wills/#", QoS::AtLeastOnce);
        let mut leaver = broker.connect(with_will("leaver", None, expiring("leaver", 600)));
        for packet in 0..PACKETS {
            let subscriptions = filters(packet).map(|filter| subscription(&filter, QoS::AtLeastOnce)).collect();
            leaver.subscribe_to(None, subscriptions);
        }
        let properties = DisconnectProperties { session_expiry_interval: Some(0), ..DisconnectProperties::default() };
        let reason = ReasonCode::DisconnectWithWill;
        leaver.send(&Packet::Disconnect(Disconnect { reason, properties: Some(Box::new(properties)) }));
        let mut wills = 0;
        if moment != "at once" {
            assert_eq!(first_heir.receive_message().payload, "leaver");
            first_heir.settle();
            first_heir.cut();
            // CONNACK confirms that its acknowledgements are stored.
            first_heir = heir(&broker);
            wills += 1;
        }
        if moment == "when all is written" {
            first_heir.subscribe("another", QoS::AtLeastOnce);
        }
        drop(broker);
        drop((leaver, first_heir));
        let mut broker = stage.start();
        let came = payloads(&mut heir(&broker));
        assert!(came.iter().all(|payload| payload == "leaver"), "{came:?}");
        wills += came.len();
        // A published Will may stay on disk for a while: twice is better than never.
        assert!((1..=2).contains(&wills), "{moment}: {wills} times");
        let mut back = broker.connect(expiring("leaver", 600));
        let mut there = 0;
        for packet in 0..PACKETS {
            let filters = filters(packet).collect::<Vec<_>>();
            let reasons = back.unsubscribe(&filters.iter().map(String::as_str).collect::<Vec<_>>());
            there += reasons.iter().filter(|&&reason| reason == ReasonCode::Success).count();
        }
        let is_whole =
            if moment == "when all is written" { there == 0 } else { [0, PACKETS * FILTERS].contains(&there) };
        assert!(is_whole, "{moment}: {there} subscriptions");
        assert_eq!(payloads(&mut heir(&broker)), [""; 0], "{moment}: acknowledged");
        broker.signal("TERM");
        assert!(broker.wait_for_exit(PATIENCE).success());
        assert_eq!(payloads(&mut heir(&stage.start())), [""; 0], "{moment}: not again");
    }
}

#[test]
fn failed_start_keeps_wills_for_the_next_start() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    heir(&broker).subscribe("wills/#", QoS::AtLeastOnce);
    let lost = broker.connect(with_will("lost", None, Connect::new(ProtocolVersion::V5, text("lost"))));
    drop((broker, lost));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let path = stage.path().to_str().expect("a readable name");
    let (status, said) = BrokerProcess::fail_to_start(&["--listen", &address, "--data", path]);
    assert!(!status.success() && said.iter().any(|line| line.contains("cannot listen")), "{said:?}");
    assert_eq!(payloads(&mut heir(&stage.start())), ["lost"]);
}

#[test]
fn retained_will_replaces_an_expired_retained_message() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut connect = with_will("lost", None, Connect::new(ProtocolVersion::V5, text("lost")));
    connect.will.as_mut().expect("just set").retain = true;
    let lost = broker.connect(connect);
    broker.v5("client").publish_with(with_expiry(retained("wills/lost", "before"), 1));
    drop((broker, lost));
    std::thread::sleep(Duration::from_millis(1100));
    for _ in 0..2 {
        let broker = stage.start();
        let mut client = broker.v5("client");
        client.subscribe("wills/#", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, "lost");
        client.publish_with(retained("written", "1")); // commits all earlier changes, too
    }
}

fn heir(broker: &BrokerProcess) -> RawClient {
    broker.connect(lasting(ProtocolVersion::V5, "heir"))
}

fn payloads(heir: &mut RawClient) -> Vec<String> {
    let mut payloads = heir.drain_payloads();
    payloads.sort();
    payloads
}

fn with_will(payload: &'static str, delay_interval: Option<u32>, connect: Connect) -> Connect {
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic(&format!("wills/{payload}")),
        payload: Bytes::from_static(payload.as_bytes()),
        delay_interval,
        properties: None,
    };
    Connect { will: Some(will), ..connect }
}
