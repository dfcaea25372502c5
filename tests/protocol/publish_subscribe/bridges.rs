//! Bridges of other brokers, which bit 7 of the protocol level marks.

use tenbin_codec::{Connect, ProtocolVersion, Publish, QoS, ReasonCode, Will};

use crate::support::{BrokerProcess, RawClient, at_qos, lasting, retained, share, text, topic};

const ALL: [ProtocolVersion; 3] = [ProtocolVersion::V31, ProtocolVersion::V311, ProtocolVersion::V5];

fn bridge(connect: Connect) -> Connect {
    Connect { is_bridge: true, ..connect }
}

#[test]
fn bridge_gets_retain_as_published_and_none_of_its_own_messages() {
    for version in ALL {
        let broker = BrokerProcess::start(&[]);
        let mut client = broker.connect(bridge(lasting(version, "bridge")));
        client.subscribe("both/#", QoS::AtLeastOnce);
        client.publish_with(retained("both/own", "own"));
        let mut publisher = broker.v5("publisher");
        publisher.publish_with(retained("both/a", "kept"));
        publisher.publish("both/b", "not kept", QoS::AtLeastOnce);
        let expect_both = |client: &mut RawClient| {
            let found = client.receive_messages(2).into_iter().map(|message| (message.payload, message.retain));
            assert_eq!(found.collect::<Vec<_>>(), [("kept".into(), true), ("not kept".into(), false)], "{version}");
        };
        expect_both(&mut client);
        client.disconnect();
        publisher.publish_with(retained("both/a", "kept"));
        publisher.publish("both/b", "not kept", QoS::AtLeastOnce);
        let mut client = broker.connect(bridge(lasting(version, "bridge")));
        expect_both(&mut client);
        // Another client of the same version gets all of it, without the flag.
        let mut ordinary = broker.connect(Connect { client_id: text("ordinary"), ..lasting(version, "") });
        ordinary.subscribe("other", QoS::AtLeastOnce);
        ordinary.publish_with(retained("other", "own"));
        let message = ordinary.receive_message();
        assert_eq!((&message.payload[..], message.retain), (&b"own"[..], false), "{version}");
        // No Local is illegal for a shared subscription [MQTT-3.8.3-4].
        let mut client = broker.connect(bridge(Connect::new(version, text("member"))));
        client.subscribe(&share("g", "own"), QoS::AtLeastOnce);
        client.publish("own", "own", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, "own", "{version}");
    }
}

#[test]
fn bridge_may_tell_its_state() {
    let broker = BrokerProcess::start(&[]);
    for version in ALL {
        let topic = topic("$SYS/broker/connection/edge.one/state");
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: true,
            topic,
            payload: "0".into(),
            delay_interval: None,
            properties: None,
        };
        let mut client = broker.connect(Connect { will: Some(will), ..bridge(Connect::new(version, text("bridge"))) });
        let state = Publish { retain: true, ..at_qos("$SYS/broker/connection/edge.one/state", "1", QoS::AtLeastOnce) };
        assert_eq!(client.publish_with(state), ReasonCode::Success, "{version}");
        client.settle();
        client.cut();
    }
}
