//! Limits on rates.

use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode, WriteBuffer};

use crate::limits::broker_with;
use crate::support::{BrokerProcess, ConfigFile, RawClient, message, text};

#[test]
fn connects() {
    for key in ["connects_per_second", "connects_per_second_per_address"] {
        let broker = broker_with(&format!("[connections]\n{key} = 5"));
        let began = Instant::now();
        let mut accepted = 0;
        for number in 0..30 {
            let version = if number % 2 == 0 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
            let connect = Connect::new(version, text(&format!("client-{number}")));
            let (mut client, connack) = RawClient::try_connect(broker.address(), connect);
            if connack.reason == ReasonCode::Success {
                accepted += 1;
                continue;
            }
            let refused =
                if version.is_v5() { ReasonCode::ConnectionRateExceeded } else { ReasonCode::ServerUnavailable };
            assert_eq!(connack.reason, refused);
            client.expect_closed();
        }
        let most = 5 + began.elapsed().as_millis() as usize / 200 + 1;
        assert!((5..=most).contains(&accepted), "{key}: {accepted} accepted in {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(400));
        broker.v5("later").settle();
    }
}

/// A publisher that is too fast is throttled without loss, and other clients are not delayed.
#[test]
fn publishes() {
    let broker = broker_with("[connections]\npublishes_per_second = 200");
    let mut reader = broker.v5("reader");
    reader.subscribe("t", QoS::AtMostOnce);
    let mut publisher = broker.connect(Connect {
        keep_alive: 1, // shorter than the whole pause
        ..Connect::new(ProtocolVersion::V5, text("publisher"))
    });
    let mut out = WriteBuffer::new();
    for number in 0..800 {
        Packet::Publish(message("t", &number.to_string())).encode(ProtocolVersion::V5, &mut out);
    }
    let began = Instant::now();
    publisher.send_bytes(&out.to_bytes());
    for number in 0..800 {
        assert_eq!(reader.receive_publish().payload, number.to_string());
        if number == 300 {
            // While the rest of the messages is throttled.
            broker.assert_serves();
        }
    }
    let took = began.elapsed();
    assert!(took > Duration::from_millis(2900), "800 messages took {took:?}");
    publisher.settle();
}

/// A listener's own rate replaces the rate of all connections, whether it is lower or higher.
#[test]
fn publishes_by_listener() {
    let took = |all: u32, own: u32| {
        let file = ConfigFile::new(&format!(
            "[connections]\npublishes_per_second = {all}\n
            [[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\npublishes_per_second = {own}"
        ));
        let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
        let mut client = broker.v5("client");
        let began = Instant::now();
        for _ in 0..200 {
            client.publish("t", "x", QoS::AtLeastOnce);
        }
        began.elapsed()
    };
    // A second's worth goes at once, the rest in 3 s; at the rate of all connections in 1 s.
    let slow = took(100, 50);
    assert!(slow > Duration::from_millis(2900), "200 messages at 50 a second took {slow:?}");
    // At the rate of all connections it would be 9 s.
    let fast = took(20, 0);
    assert!(fast < slow, "200 messages took {fast:?} without limit, {slow:?} at 50 a second");
}

#[test]
fn acknowledged_publishes_are_held_back_too() {
    let broker = broker_with("[connections]\npublishes_per_second = 50");
    let mut publisher = broker.v5("publisher");
    let began = Instant::now();
    for _ in 0..75 {
        publisher.publish("t", "x", QoS::ExactlyOnce);
        publisher.publish("t", "x", QoS::AtLeastOnce);
    }
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1900), "150 messages took {took:?}");
}
