//! §3.8 to §3.11 SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK.

use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_codec::{Packet, QoS, ReasonCode, RetainHandling, Subscription, SubscriptionOptions};

use crate::conformance::byte_client::{ByteClient, body, disconnect_reason, packet, string};
use crate::support::{BrokerProcess, VERSIONS, at_qos, filter, number_of, retained, subscription};

#[test]
fn mqtt_3_8_1_1_and_3_10_1_1_flags_of_subscribe_and_unsubscribe() {
    let broker = BrokerProcess::start(&[]);
    for (kind, legal, options) in [(0x80, 0x82, &[0][..]), (0xA0, 0xA2, &[])] {
        for first in (kind..=kind + 0x0F).filter(|&first| first != legal) {
            let mut client = ByteClient::v5(&broker, "client");
            client.send(&packet(first, &[&[0, 1, 0], &string("a"), options]));
            assert_eq!(disconnect_reason(&client.receive()), 0x81, "{first:#X}");
            assert_eq!(client.receive_or_end(), None, "{first:#X}");
        }
    }
}

#[test]
fn mqtt_3_8_3_5_illegal_subscription_options() {
    let broker = BrokerProcess::start(&[]);
    let mut lawful = ByteClient::v5(&broker, "lawful");
    for options in 0..=u8::MAX {
        let legal = options & 0x03 != 3 && options & 0x30 != 0x30 && options & 0xC0 == 0;
        let subscribe = packet(0x82, &[&[0, 1, 0], &string("a"), &[options]]);
        if legal {
            lawful.send(&subscribe);
            lawful.expect(&[0x90, 4, 0, 1, 0, options & 3]);
            continue;
        }
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&subscribe);
        assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{options:#X}");
        assert_eq!(client.receive_or_end(), None, "{options:#X}");
    }
}

#[test]
fn mqtt_3_8_3_2_and_3_10_3_2_empty_filter_lists_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for first in [0x82, 0xA2] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&[first, 3, 0, 1, 0]);
        assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{first:#X}");
        assert_eq!(client.receive_or_end(), None, "{first:#X}");
    }
}

#[test]
fn mqtt_3_8_4_1_2_5_6_and_3_9_3_1_one_suback_code_per_filter() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    let deep = "a/".repeat(2000);
    let filters = [("a", 2), (&deep[..], 1), ("b", 0), ("#", 1), ("a", 1), ("$share/g/a", 2)];
    let payload: Vec<u8> = filters.iter().flat_map(|(filter, qos)| [string(filter), vec![*qos]].concat()).collect();
    client.send(&packet(0x82, &[&[0x12, 0x34, 0], &payload]));
    let suback = client.receive();
    assert_eq!((suback[0], &body(&suback)[..2]), (0x90, &[0x12, 0x34][..]));
    let codes = &body(&suback)[3 + usize::from(body(&suback)[2])..]; // after the Reason String
    assert_eq!(codes, [2, 0x8F, 0, 1, 1, 2]); // [MQTT-3.8.4-7], [MQTT-3.9.3-2]
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new(), "one SUBACK");
}

/// A filter is subscribed to again and again while messages flow: none is lost or doubled.
#[test]
fn mqtt_3_8_4_4_replacing_a_subscription_loses_no_message() {
    const MESSAGES: usize = 2000;
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut subscriber = broker.client(version, "subscriber");
        subscriber.subscribe("topic", QoS::AtLeastOnce);
        let mut publisher = broker.client(version, "publisher");
        let done = AtomicBool::new(false);
        let mut numbers = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    publisher.publish("topic", &number.to_string(), QoS::AtLeastOnce);
                }
                done.store(true, Ordering::SeqCst);
            });
            let mut numbers = Vec::new();
            while !done.load(Ordering::SeqCst) {
                subscriber.subscribe("topic", QoS::AtLeastOnce);
                numbers.extend(subscriber.drain().iter().map(number_of));
            }
            numbers
        });
        numbers.extend(subscriber.drain().iter().map(number_of));
        assert!(numbers.iter().copied().eq(0..MESSAGES), "{version}: {} of {MESSAGES}", numbers.len());
    }
}

#[test]
fn mqtt_3_8_4_4_replaced_subscription_gets_retained_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.publish_with(retained("state", "x"));
    for (retain_handling, expected) in [
        (RetainHandling::Always, 1),
        (RetainHandling::Always, 1),
        (RetainHandling::IfNew, 0),
        (RetainHandling::Always, 1),
    ] {
        let options = SubscriptionOptions { retain_handling, qos: QoS::AtLeastOnce, ..SubscriptionOptions::default() };
        client.subscribe_to(None, vec![Subscription { filter: filter("state"), options }]);
        assert_eq!(client.drain().len(), expected);
    }
}

#[test]
fn mqtt_3_8_4_5_subscribe_with_many_filters_equals_many_packets() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    for topic in ["a", "b", "c"] {
        publisher.publish_with(retained(topic, topic));
    }
    let filters = [subscription("a", QoS::AtLeastOnce), subscription("+", QoS::AtMostOnce)];
    let mut together = broker.v5("together");
    together.subscribe_to(Some(5), filters.to_vec());
    let mut apart = broker.v5("apart");
    for filter in filters {
        apart.subscribe_to(Some(5), vec![filter]);
    }
    let mut seen = [together, apart].map(|mut client| {
        let mut seen: Vec<_> = client
            .drain()
            .into_iter()
            .map(|message| (message.payload, message.qos, message.subscription_identifiers))
            .collect();
        seen.sort();
        seen
    });
    assert_eq!(seen[0].len(), 4);
    let (together, apart) = seen.split_at_mut(1);
    assert_eq!(together, apart);
}

#[test]
fn mqtt_3_10_4_1_filters_are_compared_character_by_character() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.subscribe("a/+/é", QoS::AtLeastOnce);
    for other in ["a/b/é", "a/#", "A/+/é", "a/+/e\u{301}", "a/+/é/", "/a/+/é", "#", "$share/g/a/+/é"] {
        assert_eq!(client.unsubscribe(&[other]), [ReasonCode::NoSubscriptionExisted], "{other}");
    }
    client.publish("a/b/é", "x", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["x"]);
    assert_eq!(client.unsubscribe(&["a/+/é"]), [ReasonCode::Success]);
    client.publish("a/b/é", "x", QoS::AtLeastOnce);
    client.expect_nothing_waiting(); // [MQTT-3.10.4-2]
}

#[test]
fn mqtt_3_10_4_3_a_qos_2_handshake_goes_on_after_unsubscribe() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 2);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "1", QoS::ExactlyOnce);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    let (first, second) = (client.receive(), client.receive());
    let (first, second) = (&body(&first)[3..5], &body(&second)[3..5]);
    client.send(&packet(0x50, &[first]));
    assert_eq!(client.receive()[0], 0x62);
    client.send(&packet(0xA2, &[&[0, 2, 0], &string("a")]));
    client.expect(&[0xB0, 4, 0, 2, 0, 0]);
    client.send(&packet(0x70, &[first]));
    client.send(&packet(0x50, &[second]));
    let pubrel = client.receive();
    assert_eq!((pubrel[0], &body(&pubrel)[..2]), (0x62, second));
    client.send(&packet(0x70, &[second]));
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_3_10_4_6_and_3_11_3_1_one_unsuback_code_per_filter() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 0);
    client.subscribe("b/#", 0);
    let filters = ["x", "a", "b/#", "a", "b/+"].map(string).concat();
    client.send(&packet(0xA2, &[&[0x12, 0x34, 0], &filters]));
    // [MQTT-3.11.3-2]
    client.expect(&[0xB0, 8, 0x12, 0x34, 0, 0x11, 0, 0, 0x11, 0x11]);
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new(), "one UNSUBACK");
}

/// §3.8.2.1.2: an identifier belongs to its subscription, and accompanies retained messages too.
#[test]
fn subscription_identifier_applies_until_the_next_subscribe() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.publish_with(retained("state", "x"));
    for identifier in [Some(1), Some(268_435_455), None] {
        client.subscribe_to(identifier, vec![subscription("state", QoS::AtLeastOnce)]);
        let expected: Vec<u32> = identifier.into_iter().collect();
        assert_eq!(client.receive_message().subscription_identifiers, expected);
        client.publish("state", "live", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().subscription_identifiers, expected);
    }
}

#[test]
fn zero_or_repeated_subscription_identifier_is_refused() {
    let broker = BrokerProcess::start(&[]);
    for properties in [&[0x0B, 0][..], &[0x0B, 1, 0x0B, 2], &[0x0B, 1, 0x0B, 1]] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&packet(0x82, &[&[0, 1, properties.len() as u8], properties, &string("a"), &[0]]));
        assert_eq!(disconnect_reason(&client.receive()), 0x82, "{properties:02X?}");
        assert_eq!(client.receive_or_end(), None);
    }
}

#[test]
fn mqtt_3_8_4_3_replaced_subscription_takes_the_new_options() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    let subscribe = |no_local, retain_as_published, qos| {
        let options =
            SubscriptionOptions { no_local, retain_as_published, qos, retain_handling: RetainHandling::Never };
        vec![Subscription { filter: filter("a"), options }]
    };
    client.subscribe_to(None, subscribe(true, false, QoS::ExactlyOnce));
    client.publish("a", "own", QoS::AtLeastOnce);
    client.expect_nothing_waiting();
    client.subscribe_to(None, subscribe(false, true, QoS::AtLeastOnce));
    client.publish_with(tenbin_codec::Publish { retain: true, ..at_qos("a", "own", QoS::ExactlyOnce) });
    let messages = client.drain();
    assert_eq!(
        messages.iter().map(|message| (message.qos, message.retain)).collect::<Vec<_>>(),
        [(QoS::AtLeastOnce, true)]
    );
    client.subscribe_to(None, subscribe(true, false, QoS::AtLeastOnce));
    client.publish("a", "own", QoS::AtLeastOnce);
    client.expect_nothing_waiting();
}

#[test]
fn mqtt_3_12_4_1_every_pingreq_has_its_pingresp() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "client");
        client.send_bytes(&[0xC0, 0].repeat(100));
        for _ in 0..100 {
            assert_eq!(client.receive(), Packet::PingResp);
        }
    }
}
