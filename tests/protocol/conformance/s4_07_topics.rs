//! §4.7 Topic Names and Topic Filters.

use tenbin_codec::QoS;

use crate::conformance::byte_client::{ByteClient, body, disconnect_reason, packet, string};
use crate::support::{BrokerProcess, VERSIONS, is_store_durable};

#[test]
fn mqtt_4_7_1_1_and_2_misplaced_wildcards_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for illegal in ["a#", "#a", "#/a", "a/#/b", "a/#b", "##", "+a", "a+", "a/b+", "+b/c", "++", "a/+#", "+#", ""] {
        for (what, first, options) in [("SUBSCRIBE", 0x82, &[0][..]), ("UNSUBSCRIBE", 0xA2, &[])] {
            let mut client = ByteClient::v5(&broker, "client");
            client.send(&packet(first, &[&[0, 1, 0], &string(illegal), options]));
            match client.receive() {
                answer if answer[0] == 0xE0 => {
                    assert!([0x81, 0x82, 0x8F].contains(&disconnect_reason(&answer)), "{what} {illegal:?}");
                    assert_eq!(client.receive_or_end(), None);
                }
                // Refusing only this filter is legal, too.
                answer => assert!(body(&answer)[3] == 0x8F, "{what} {illegal:?}: {answer:02X?}"),
            }
        }
    }
    let mut client = ByteClient::v5(&broker, "client");
    for legal in ["#", "+", "/", "a/#", "+/#", "/+", "+/+/+", "a/+/b", "//", "+//#", " ", "$x/#"] {
        client.subscribe(legal, 1);
    }
}

#[test]
fn mqtt_4_7_3_1_to_3_names_are_not_empty_and_without_nul() {
    let broker = BrokerProcess::start(&[]);
    for (topic, codes) in [(&b""[..], &[0x81, 0x82, 0x90][..]), (b"a\0b", &[0x81]), (b"\0", &[0x81])] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&packet(0x30, &[&string(topic), &[0]]));
        assert!(codes.contains(&disconnect_reason(&client.receive())), "{topic:02X?}");
        assert_eq!(client.receive_or_end(), None);
    }
    // Any one character is legal, and so are 65,535 bytes. A store limits the length of keys.
    let mut client = broker.v5("client");
    let long = "é".repeat(if is_store_durable() { 30_000 } else { 32_767 });
    for topic in ["/", " ", "a", "\u{FEFF}", "\u{10FFFF}", "\u{1}", &long] {
        client.subscribe(topic, QoS::AtLeastOnce);
        client.publish(topic, "x", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().topic.text().as_str(), topic);
        client.unsubscribe(&[topic]);
    }
}

#[test]
fn mqtt_4_7_3_4_names_are_matched_without_normalization() {
    let broker = BrokerProcess::start(&[]);
    // Composed and decomposed, other case, other width, spaces, empty levels.
    let names =
        ["é", "e\u{301}", "É", "a", "A", "\u{FF41}", "a ", " a", "a/", "/a", "a//b", "a/b", "ﬁ", "fi", "ß", "ss"];
    for version in VERSIONS {
        let mut client = broker.client(version, "client");
        let mut publisher = broker.v5("publisher");
        for filter in names {
            client.subscribe(filter, QoS::AtLeastOnce);
            for name in names {
                publisher.publish(name, name, QoS::AtLeastOnce);
            }
            assert_eq!(client.drain_payloads(), [filter], "{filter:?}");
            client.unsubscribe(&[filter]);
        }
    }
}

#[test]
fn mqtt_4_7_2_1_leading_wildcards_do_not_match_dollar() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "client");
        for filter in ["#", "+", "+/#", "+/a", "+/+"] {
            client.subscribe(filter, QoS::AtLeastOnce);
        }
        let mut publisher = broker.client(version, "publisher");
        for topic in ["$", "$other", "$other/a", "$other/a/b"] {
            publisher.publish(topic, topic, QoS::AtLeastOnce);
        }
        client.expect_nothing_waiting();
        client.subscribe("$other/#", QoS::AtLeastOnce);
        publisher.publish("$other/a", "asked for", QoS::AtLeastOnce);
        assert_eq!(client.drain_payloads(), ["asked for"]);
    }
}
