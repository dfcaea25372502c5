//! Memory limits that all clients of one owner share.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::limits::broker_with;
use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, VERSIONS, at_qos, hex, lasting, message,
    subscription, text,
};

const MIB: usize = 1 << 20;

/// Start of a QoS 0 PUBLISH of 1 MiB: the fixed header and a few bytes.
const BEGINNING: &str = "30 80 80 40 00 01 74 00 00 00";

/// Small packets are not charged, so they fit within any bound.
const SMALL_PACKETS: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384";

fn without_keep_alive(id: &str) -> Connect {
    Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V5, text(id)) }
}

/// Returns the reason of the DISCONNECT that ends the connection.
fn disconnected(client: &mut RawClient) -> ReasonCode {
    match client.read_to_end().pop() {
        Some(Packet::Disconnect(disconnect)) => disconnect.reason,
        other => panic!("{other:?} instead of DISCONNECT"),
    }
}

/// Waits until a figure below `$SYS/broker/` is as expected.
fn wait_for(broker: &BrokerProcess, name: &str, is_expected: impl Fn(usize) -> bool) {
    let until = Instant::now() + PATIENCE;
    let mut reader = broker.v5("figures");
    reader.subscribe(&format!("$SYS/broker/{name}"), QoS::AtMostOnce);
    loop {
        let publish = reader.receive_publish();
        let value = String::from_utf8_lossy(&publish.payload).parse().expect("a number");
        if is_expected(value) {
            reader.disconnect();
            return;
        }
        assert!(Instant::now() < until, "{name} is {value}");
    }
}

#[test]
fn stalled_packet_ends_its_connection() {
    let broker = broker_with("[connections]\npacket_timeout_ms = 300");
    for beginning in ["30", BEGINNING] {
        let mut client = broker.connect(without_keep_alive("client"));
        client.settle();
        client.send_bytes(&hex(beginning));
        assert_eq!(disconnected(&mut client), ReasonCode::KeepAliveTimeout);
    }
    // A client that sends nothing at all stays connected.
    let mut client = broker.connect(without_keep_alive("client"));
    client.expect_nothing_for(Duration::from_millis(900));
    client.settle();
}

#[test]
fn packet_without_memory_for_too_long_ends_its_connection() {
    let broker = broker_with(
        "[sys]\ninterval_seconds = 1\n[connections]\npacket_timeout_ms = 1000\npacket_bytes_maximum = 1048600\n\
         [limits]\nloopback_address_bytes_maximum = 4200000",
    );
    // There is memory for one of these packets, and none of them continues.
    let mut clients = (0..20).map(|number| broker.connect(without_keep_alive(&number.to_string()))).collect::<Vec<_>>();
    clients.iter_mut().for_each(|client| client.send_bytes(&hex(BEGINNING)));
    let reasons = clients.iter_mut().map(disconnected).collect::<Vec<_>>();
    assert!(reasons.contains(&ReasonCode::QuotaExceeded), "{reasons:?}");
    assert!(reasons.contains(&ReasonCode::KeepAliveTimeout), "{reasons:?}");
    drop(clients);
    wait_for(&broker, "memory/input/bytes", |bytes| bytes == 0);
    let mut client = broker.connect(without_keep_alive("client"));
    let payload = Bytes::from(vec![b'x'; MIB]);
    client.send(&Packet::Publish(Publish { payload, ..message("nobody", "") }));
    client.settle();
}

#[test]
fn large_packets_of_one_address_take_turns() {
    let broker = broker_with("[sys]\ninterval_seconds = 1\n[limits]\nloopback_address_bytes_maximum = 16777216");
    std::thread::scope(|scope| {
        for number in 0..12 {
            let broker = &broker;
            scope.spawn(move || {
                let mut client = broker.v5(&format!("client-{number}"));
                for _ in 0..3 {
                    let payload = Bytes::from(vec![b'x'; MIB]);
                    let packet_id = Some(client.next_id());
                    let publish = Publish { payload, packet_id, ..at_qos("nobody", "", QoS::AtLeastOnce) };
                    client.send(&Packet::Publish(publish));
                    assert!(matches!(client.receive(), Packet::PubAck(_)));
                }
            });
        }
    });
    wait_for(&broker, "memory/input/bytes", |bytes| bytes == 0);
}

#[test]
fn sessions_and_subscriptions_of_an_address_share_its_memory() {
    let broker = broker_with(&format!(
        "{SMALL_PACKETS}\n[limits]\nloopback_address_bytes_maximum = 37400\n[sys]\ninterval_seconds = 1"
    ));
    let filter = |number: usize| format!("{number}{}/+", "/a".repeat(100));
    let granted = |client: &mut RawClient, number| {
        client.subscribe_to(None, vec![subscription(&filter(number), QoS::AtMostOnce)])[0] == ReasonCode::Success
    };
    let (mut first, mut second) = (broker.v5("first"), broker.v5("second"));
    let fit = (0..20).take_while(|&number| granted(&mut first, number)).count();
    assert_eq!(fit, 9, "17 KB each, within nine sixteenths of 37,400 bytes and 68 KiB for each client");
    assert!(!granted(&mut second, 20), "beyond them");
    wait_for(&broker, "memory/subscriptions/refused", |refused| refused == 2);
    broker.log().wait_for(&["memory limit reached", "limit=\"limits.loopback_address_bytes_maximum\""], PATIENCE);
    first.disconnect();
    let until = Instant::now() + PATIENCE;
    while !granted(&mut second, 20) {
        assert!(Instant::now() < until, "no room after the first has left");
    }
}

/// A fleet behind a proxy has one address.
#[test]
fn bound_of_an_address_grows_with_its_connected_clients() {
    let broker = broker_with("[limits]\nloopback_address_bytes_maximum = 16777216");
    let fleet = (0..300).map(|number| {
        let mut client = broker.client(VERSIONS[number % 2], &format!("device-{number:05}"));
        let filter = |channel| subscription(&format!("site/{number:05}/{channel}/#"), QoS::AtLeastOnce);
        let reasons = client.subscribe_to(None, (0..50).map(filter).collect());
        assert!(reasons.iter().all(|reason| !reason.is_error()), "client {number}");
        client
    });
    drop(fleet.collect::<Vec<_>>());
    // One client alone gets no more than before, as soon as the others have ended.
    let until = Instant::now() + PATIENCE;
    let granted = || {
        let filter = |number| subscription(&format!("{number}{}/+", "/a".repeat(100)), QoS::AtMostOnce);
        let reasons = broker.v5("greedy").subscribe_to(None, (0..800).map(filter).collect());
        reasons.iter().filter(|reason| !reason.is_error()).count()
    };
    let alone = std::iter::repeat_with(granted).find(|&granted| granted < 600 || Instant::now() > until);
    assert!(alone.is_some_and(|granted| (500..600).contains(&granted)), "{alone:?} of 17 KB within 9 MiB");
}

/// A fleet of battery devices is mostly offline.
#[test]
fn absent_lasting_clients_leave_the_bound_of_their_address() {
    let directory = DataDirectory::new();
    let config = ConfigFile::new("[limits]\nloopback_address_bytes_maximum = 16777216");
    let start = || directory.start_with(&["--config", config.path()]);
    let device = |broker: &BrokerProcess, number: usize, channels: std::ops::Range<usize>| {
        let mut client = broker.connect(lasting(VERSIONS[number % 2], &format!("device-{number:05}")));
        let filter = |channel| subscription(&format!("site/{number:05}/{channel}/#"), QoS::AtLeastOnce);
        let reasons = client.subscribe_to(None, channels.map(filter).collect());
        assert!(reasons.iter().all(|reason| !reason.is_error()), "device {number}");
        client.disconnect();
    };
    let broker = start();
    (0..500).for_each(|number| device(&broker, number, 0..40));
    device(&broker, 0, 40..45);
    drop(broker);
    let broker = start();
    device(&broker, 500, 0..40);
    device(&broker, 1, 40..45);
    // A client alone gets no more than without the fleet.
    let filter = |number| subscription(&format!("{number}{}/+", "/a".repeat(100)), QoS::AtMostOnce);
    let reasons = broker.v5("greedy").subscribe_to(None, (0..800).map(filter).collect());
    let granted = reasons.iter().filter(|reason| !reason.is_error()).count();
    assert!(granted < 710, "{granted}");
}

#[test]
fn stored_state_is_charged_again_after_a_restart() {
    let data = DataDirectory::new();
    let config = ConfigFile::new("[sys]\ninterval_seconds = 1");
    let names = ["memory/sessions/bytes", "memory/subscriptions/bytes", "memory/backlog/bytes"];
    let begun = |broker: &BrokerProcess, bytes: &[usize]| {
        for (name, &bytes) in names.iter().zip(bytes) {
            wait_for(broker, name, |found| found >= bytes);
        }
    };
    let broker = data.start_with(&["--config", config.path()]);
    for number in 0..10 {
        let mut client = broker.connect(lasting(ProtocolVersion::V5, &format!("session-{number}")));
        client.subscribe("t", QoS::AtLeastOnce);
        client.disconnect();
    }
    let mut publisher = broker.v5("publisher");
    for _ in 0..1100 {
        publisher.publish("t", "", QoS::AtLeastOnce);
    }
    let least = [10 * 2048, 10 * 288, 10 * 8192];
    begun(&broker, &least);
    drop(broker);
    let broker = data.start_with(&["--config", config.path()]);
    begun(&broker, &least);
    drop(broker);
    // With a bound far below the stored state, existing state stays and new state is refused.
    let config = ConfigFile::new(&format!("{SMALL_PACKETS}\n[limits]\nloopback_address_bytes_maximum = 2000"));
    let broker = data.start_with(&["--config", config.path()]);
    let mut newcomer = broker.open(ProtocolVersion::V5);
    newcomer.send(&Packet::Connect(Box::new(lasting(ProtocolVersion::V5, "newcomer"))));
    assert!(matches!(newcomer.receive(), Packet::ConnAck(connack) if connack.reason == ReasonCode::QuotaExceeded));
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "session-0"));
    (0..1100).for_each(|_| drop(client.receive_message()));
    client.expect_nothing_waiting();
}
