//! Nothing that a subscription causes arrives before its SUBACK.

use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_codec::{Connect, Packet, PacketType, ProtocolVersion, QoS, Subscribe, Subscription};

use crate::support::{BrokerProcess, DataDirectory, QOS_ALL, RawClient, VERSIONS, lasting, retained, share, text};
use crate::support::{message, subscription};

/// Clients of each kind, as one broken order may be luck.
const ATTEMPTS: usize = 10;

/// Sends SUBSCRIBE, and returns the type of the next packet.
fn first_answer(client: &mut RawClient, identifier: Option<u32>, subscriptions: Vec<Subscription>) -> PacketType {
    let packet_id = client.next_id();
    let (subscription_identifier, user_properties) = (identifier, Vec::new());
    client.send(&Packet::Subscribe(Subscribe { packet_id, subscription_identifier, user_properties, subscriptions }));
    client.receive().packet_type()
}

/// Clients whose sessions last, and clients whose sessions do not.
fn kinds(name: &str) -> Vec<Connect> {
    let both = |version| [lasting(version, "client"), Connect::new(version, text("client"))];
    let named =
        |(number, connect): (usize, Connect)| Connect { client_id: text(&format!("{name}-{number}")), ..connect };
    VERSIONS.into_iter().flat_map(both).enumerate().map(named).collect()
}

#[test]
fn retained_messages_follow_suback() {
    let data = DataDirectory::new();
    let broker = data.start();
    let mut publisher = broker.v5("publisher");
    for qos in QOS_ALL {
        publisher.publish_with(retained(&format!("kept/{}", qos.bits()), "kept"));
    }
    let mut early = 0;
    for attempt in 0..ATTEMPTS {
        for connect in kinds(&attempt.to_string()) {
            let identifier = connect.version.is_v5().then_some(7);
            let qos = QOS_ALL[attempt % 3];
            let mut client = broker.connect(connect);
            let answer = first_answer(&mut client, identifier, vec![subscription("kept/#", qos)]);
            early += usize::from(answer != PacketType::SubAck);
            if answer == PacketType::SubAck {
                client.receive_messages(3);
            }
        }
    }
    assert_eq!(early, 0, "messages before SUBACK, of {} attempts", 4 * ATTEMPTS);
}

#[test]
fn group_backlog_follows_suback() {
    let data = DataDirectory::new();
    let broker = data.start();
    let mut publisher = broker.v5("publisher");
    let mut early = 0;
    for attempt in 0..ATTEMPTS {
        for connect in kinds(&attempt.to_string()) {
            let topic = format!("work/{}", connect.client_id.as_str());
            let mut away = broker.connect(lasting(ProtocolVersion::V5, &format!("away {topic}")));
            away.subscribe(&share("g", &topic), QoS::AtLeastOnce);
            away.disconnect();
            for _ in 0..3 {
                publisher.publish(&topic, "waits", QoS::AtLeastOnce);
            }
            let mut client = broker.connect(connect);
            let answer = first_answer(&mut client, None, vec![subscription(&share("g", &topic), QoS::AtLeastOnce)]);
            early += usize::from(answer != PacketType::SubAck);
            if answer == PacketType::SubAck {
                client.receive_messages(3);
            }
        }
    }
    assert_eq!(early, 0, "messages before SUBACK, of {} attempts", 4 * ATTEMPTS);
}

#[test]
fn new_messages_follow_suback() {
    let data = DataDirectory::new();
    let broker = data.start();
    let is_over = AtomicBool::new(false);
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = broker.v5("publisher");
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..50 {
                    publisher.publish("live/now", "new", QoS::AtMostOnce);
                }
                publisher.settle();
            }
        });
        let mut early = 0;
        for attempt in 0..ATTEMPTS {
            for connect in kinds(&attempt.to_string()) {
                let mut client = broker.connect(connect);
                let answer = first_answer(&mut client, None, vec![subscription("live/#", QoS::AtLeastOnce)]);
                early += usize::from(answer != PacketType::SubAck);
                client.wait_for(PacketType::Publish);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        early
    });
    assert_eq!(early, 0, "messages before SUBACK, of {} attempts", 4 * ATTEMPTS);
}

#[test]
fn suback_of_many_filters_precedes_their_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    publisher.publish_with(retained("first", "kept"));
    let filters = ["first".into()].into_iter().chain((0..900).map(|number| format!("other/{number}")));
    let subscriptions: Vec<_> = filters.map(|filter: String| subscription(&filter, QoS::AtMostOnce)).collect();
    for version in VERSIONS {
        let mut client = broker.client(version, "client");
        assert_eq!(first_answer(&mut client, None, subscriptions.clone()), PacketType::SubAck, "{version}");
        assert_eq!(client.receive_message().payload, "kept");
        // Older subscriptions go on once the answer is out.
        client.send(&Packet::Publish(message("other/1", "own")));
        assert_eq!(client.receive_message().payload, "own");
    }
}
