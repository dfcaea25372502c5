//! Sessions whose end takes long. In tests every piece of it is a slice.

use tenbin_codec::{
    Connect, Packet, PacketId, ProtocolVersion, QoS, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter,
    TopicName, Will, WriteBuffer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::in_memory::PEER;
use crate::{Broker, Config};

const SUBSCRIPTIONS: usize = 900;
const WILLS: usize = 60;

async fn start() -> Broker {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    Broker::builder().config(config).start().await.unwrap()
}

/// A client of MQTT 3.1.1 with a clean session; it has its CONNACK.
async fn client(broker: &Broker, client_id: &str, will: Option<&str>) -> DuplexStream {
    let mut connect = Connect::new(ProtocolVersion::V311, Text::try_from(client_id).unwrap());
    connect.will = will.map(|topic| Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic: TopicName::try_from(topic).unwrap(),
        payload: "gone".into(),
        delay_interval: None,
        properties: None,
    });
    let (mut stream, other_end) = duplex(1 << 20);
    broker.serve(other_end, PEER);
    send(&mut stream, &Packet::Connect(Box::new(connect))).await;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await.unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    stream
}

async fn send(stream: &mut DuplexStream, packet: &Packet) {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V311, &mut out);
    stream.write_all(&out.to_bytes()).await.unwrap();
}

async fn subscribe_to_many(stream: &mut DuplexStream) {
    let filter = |number| TopicFilter::try_from(&format!("$share/g/{number}")[..]).unwrap();
    let options = SubscriptionOptions::at(QoS::AtLeastOnce);
    let subscriptions = (0..SUBSCRIPTIONS).map(|number| Subscription { filter: filter(number), options }).collect();
    let packet_id = PacketId::new(1).unwrap();
    let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties: Vec::new(), subscriptions };
    send(stream, &Packet::Subscribe(subscribe)).await;
    // Type, two bytes of length, identifier, codes.
    let mut suback = [0; 5 + SUBSCRIPTIONS];
    stream.read_exact(&mut suback).await.unwrap();
    assert!(suback[0] == 0x90 && suback[5..] == [1; SUBSCRIPTIONS]);
}

/// Turns that another task gets until this is so.
async fn turns_until(is_so: impl Fn() -> bool) -> usize {
    let mut turns = 0;
    while !is_so() {
        turns += 1;
        tokio::task::yield_now().await;
    }
    turns
}

#[tokio::test]
async fn others_run_while_many_subscriptions_end() {
    let broker = start().await;
    let mut leaver = client(&broker, "leaver", None).await;
    subscribe_to_many(&mut leaver).await;
    drop(leaver);
    let turns = turns_until(|| broker.connections() == 0).await;
    assert!(turns > SUBSCRIPTIONS / 32, "{turns} turns");
    assert_eq!((broker.metrics().subscriptions, broker.sessions()), (0, 0));
}

#[tokio::test]
async fn others_run_between_wills() {
    let broker = start().await;
    let mut mortals = Vec::new();
    for number in 0..WILLS {
        mortals.push(client(&broker, &format!("mortal-{number}"), Some("will")).await);
    }
    drop(mortals);
    let turns = turns_until(|| broker.connections() == 0).await;
    assert!(turns > WILLS, "{turns} turns");
}

#[tokio::test]
async fn will_and_subscriptions_are_over_when_client_is_back() {
    let broker = start().await;
    let mut watcher = client(&broker, "watcher", None).await;
    send(&mut watcher, &subscribe_to("will")).await;
    watcher.read_exact(&mut [0; 5]).await.unwrap();
    let mut leaver = client(&broker, "leaver", Some("will")).await;
    subscribe_to_many(&mut leaver).await;
    // Another connection takes over, with the end of the first one under way, and a third one takes over from it.
    drop(leaver);
    let mut back = client(&broker, "leaver", None).await;
    assert_eq!((broker.metrics().subscriptions, broker.sessions()), (1, 2));
    subscribe_to_many(&mut back).await;
    let again = client(&broker, "leaver", None).await;
    assert_eq!((broker.metrics().subscriptions, broker.sessions()), (1, 2));
    let mut publish = [0; 12];
    watcher.read_exact(&mut publish).await.unwrap();
    assert_eq!(&publish, b"\x30\x0a\0\x04willgone");
    drop(again);
}

fn subscribe_to(filter: &str) -> Packet {
    let options = SubscriptionOptions::at(QoS::AtMostOnce);
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::new(1).unwrap(),
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions: vec![Subscription { filter: TopicFilter::try_from(filter).unwrap(), options }],
    })
}
