//! Many connections that fight for one Client Identifier.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ConnectProperties, Packet, ProtocolVersion, QoS, WriteBuffer};

use crate::abuse::broker_with;
use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, PATIENCE, RawClient, Silence, at_qos, encode, message, subscription, text};

/// 8 connections take one session over from each other for 5 s and at least 100 times, while they subscribe,
/// unsubscribe and publish as fast as they can. The counters of clients and subscriptions return to their old values;
/// growth ≤ 48 MiB.
#[test]
fn takeover_subscribe_and_publish_storm() {
    let broker = broker_with("[sys]\ninterval_seconds = 1");
    let mut growth = Growth::of(&broker);
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (stop, rounds, broker) = (&stop, &rounds, &broker);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    fight(broker, thread, rounds.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
        let began = Instant::now();
        let has_enough = || began.elapsed() >= Duration::from_secs(5) && rounds.load(Ordering::Relaxed) > 100;
        while !has_enough() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
            growth.look();
            let began = broker.cpu_time();
            broker.assert_serves();
            let worked = broker.cpu_time() - began;
            assert!(worked < Duration::from_secs(4), "other clients wait while the broker works for {worked:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) > 100, "{rounds:?} rounds");
    // Ends the session and everything that belongs to it.
    broker.v5("victim").disconnect();
    growth.assert_within(48, "takeover storm");
    let until = Instant::now() + PATIENCE;
    let mut reader = broker.v5("reader");
    for (name, expected) in [("clients/total", "1"), ("clients/connected", "1"), ("subscriptions/count", "1")] {
        let name = format!("$SYS/broker/{name}");
        reader.subscribe(&name, QoS::AtMostOnce);
        while reader.receive_message().payload != expected {
            assert!(Instant::now() < until, "{name} is not {expected}");
        }
        reader.unsubscribe(&[&name]);
        reader.drain();
    }
}

fn fight(broker: &BrokerProcess, thread: usize, round: usize) {
    let version = if round.is_multiple_of(3) { ProtocolVersion::V311 } else { ProtocolVersion::V5 };
    let connect = Connect {
        clean_start: round.is_multiple_of(4),
        properties: ConnectProperties {
            session_expiry_interval: version.is_v5().then_some(60),
            ..ConnectProperties::default()
        },
        ..Connect::new(version, text("victim"))
    };
    let mut client = RawClient::open(broker.address(), version);
    client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), version));
    let mut out = WriteBuffer::new();
    for number in 0..20 {
        let filter = format!("storm/{}", (round + number) % 7);
        let filters = [filter.clone(), "storm/#".to_owned(), format!("$share/g/{filter}")];
        let packet_id = client.next_id();
        if (round + number).is_multiple_of(2) {
            Packet::Subscribe(tenbin_codec::Subscribe {
                packet_id,
                subscription_identifier: None,
                user_properties: Vec::new(),
                subscriptions: filters.iter().map(|filter| subscription(filter, QoS::AtLeastOnce)).collect(),
            })
            .encode(version, &mut out);
        } else {
            Packet::Unsubscribe(tenbin_codec::Unsubscribe {
                packet_id,
                user_properties: Vec::new(),
                filters: filters.iter().map(|filter| crate::support::filter(filter)).collect(),
            })
            .encode(version, &mut out);
        }
        let mut publish = at_qos(&filter, "x", QoS::AtLeastOnce);
        publish.packet_id = Some(client.next_id());
        Packet::Publish(publish).encode(version, &mut out);
        Packet::Publish(message(&filter, "y")).encode(version, &mut out);
    }
    client.try_send_bytes(&out.to_bytes());
    // Some read, some leave at once, some stay until the broker disconnects them.
    match (thread + round) % 3 {
        0 => {}
        1 => {
            let _ = client.try_receive(Duration::from_millis(20));
        }
        _ => {
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until {
                if let Err(Silence::Closed) = client.try_receive(Duration::from_millis(20)) {
                    break;
                }
            }
        }
    }
}
