//! Sessions that take long to end. In tests every step is a separate slice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tenbin_codec::{
    Connect, Disconnect, DisconnectProperties, Packet, PacketId, ProtocolVersion, QoS, ReasonCode, Subscribe,
    Subscription, SubscriptionOptions, Text, TopicFilter, TopicName, Unsubscribe, Will, WriteBuffer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::client::PATIENCE;
use super::in_memory::{PEER, exchange};
use super::taken_over::{packet, until};
use crate::auth::{Action, Authorizer, Decision, Principal};
use crate::lifecycle::BrokerState;
use crate::registry::Client;
use crate::{Broker, Config};

const SUBSCRIPTIONS: usize = 900;
const WILLS: usize = 60;

async fn start() -> Broker {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    Broker::builder().config(config).start().await.unwrap()
}

/// Connects an MQTT 3.1.1 client with a clean session and reads its CONNACK.
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
    send(stream, &subscribe_to_groups()).await;
    // Type, two bytes of length, identifier, Reason Codes.
    let mut suback = [0; 5 + SUBSCRIPTIONS];
    stream.read_exact(&mut suback).await.unwrap();
    assert!(suback[0] == 0x90 && suback[5..] == [1; SUBSCRIPTIONS]);
}

async fn subscribe_to_many_v5(stream: &mut DuplexStream) {
    send_v5(stream, &subscribe_to_groups()).await;
    let (packet_type, suback) = packet(stream).await;
    assert!(packet_type == 9 && suback[3..] == [1; SUBSCRIPTIONS]);
}

fn subscribe_to_groups() -> Packet {
    let options = SubscriptionOptions::at(QoS::AtLeastOnce);
    let subscription = |number| Subscription { filter: group_filter(number), options };
    let subscriptions = (0..SUBSCRIPTIONS).map(subscription).collect();
    let packet_id = PacketId::new(1).unwrap();
    Packet::Subscribe(Subscribe {
        packet_id,
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions,
    })
}

fn group_filter(number: usize) -> TopicFilter {
    TopicFilter::try_from(&format!("$share/g/{number}")[..]).unwrap()
}

/// Counts how often another task runs until `is_so`.
async fn turns_until(is_so: impl Fn() -> bool) -> usize {
    let mut turns = 0;
    while !is_so() {
        turns += 1;
        tokio::task::yield_now().await;
    }
    turns
}

#[tokio::test]
async fn other_tasks_run_while_many_subscriptions_end() {
    let broker = start().await;
    let mut leaver = client(&broker, "leaver", None).await;
    subscribe_to_many(&mut leaver).await;
    drop(leaver);
    let turns = turns_until(|| broker.connections() == 0).await;
    assert!(turns > SUBSCRIPTIONS / 32, "{turns} turns");
    assert_eq!((broker.metrics().subscriptions, broker.sessions()), (0, 0));
}

#[tokio::test]
async fn other_tasks_run_between_wills() {
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
async fn returning_client_finds_its_old_session_ended() {
    let broker = start().await;
    let mut watcher = client(&broker, "watcher", None).await;
    send(&mut watcher, &subscribe_to("will")).await;
    watcher.read_exact(&mut [0; 5]).await.unwrap();
    let mut leaver = client(&broker, "leaver", Some("will")).await;
    subscribe_to_many(&mut leaver).await;
    // A second connection takes over while the session of the first still ends; then a third takes over from the
    // second.
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

/// Connects an MQTT 5.0 client whose session and Will last a day. Returns Session Present of its CONNACK too.
async fn lasting_client(broker: &Broker, client_id: &str, delay: Option<u32>) -> (DuplexStream, bool) {
    let mut stream = lasting_client_comes(broker, client_id, delay).await;
    let connack = tokio::time::timeout(PATIENCE, packet(&mut stream)).await;
    let (packet_type, connack) = connack.expect("CONNACK comes");
    assert!(packet_type == 2 && connack[1] == 0, "{connack:?}");
    (stream, connack[0] == 1)
}

async fn lasting_client_comes(broker: &Broker, client_id: &str, delay: Option<u32>) -> DuplexStream {
    let mut connect = Connect::new(ProtocolVersion::V5, Text::try_from(client_id).unwrap());
    connect.clean_start = false;
    connect.properties.session_expiry_interval = Some(86_400);
    connect.will = Some(Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic: TopicName::try_from("will").unwrap(),
        payload: "gone".into(),
        delay_interval: delay,
        properties: None,
    });
    let (mut stream, other_end) = duplex(1 << 20);
    broker.serve(other_end, PEER);
    send_v5(&mut stream, &Packet::Connect(Box::new(connect))).await;
    stream
}

async fn send_v5(stream: &mut DuplexStream, packet: &Packet) {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    stream.write_all(&out.to_bytes()).await.unwrap();
}

fn session(broker: &Broker, client_id: &'static str) -> Arc<Client> {
    broker.parts.shared.sessions.registry.find(&Text::from_static(client_id)).unwrap()
}

/// Waits until the session has no connection.
async fn until_away(client: &Client) {
    until(|| client.outbox.sample().is_none()).await;
}

#[tokio::test]
async fn returning_client_overtakes_queued_session_ends() {
    let mut broker = start().await;
    broker.long_ends.shutdown().await;
    let _nobody_works = broker.parts.shared.sessions.long_ends.open();
    let mut watcher = client(&broker, "watcher", None).await;
    send(&mut watcher, &subscribe_to("will")).await;
    watcher.read_exact(&mut [0; 5]).await.unwrap();
    let (client, was_there) = lasting_client(&broker, "client", Some(86_400)).await;
    assert!(!was_there);
    drop(client);
    let (client, was_there) = lasting_client(&broker, "client", None).await;
    assert!(was_there, "it was back in time");
    exchange(&mut watcher, &[0xC0, 0], &[0xD0, 0]).await;
    // A Will without a delay is published even if the client reconnects.
    drop(client);
    let (_client, was_there) = lasting_client(&broker, "client", None).await;
    assert!(was_there);
    exchange(&mut watcher, &[], b"\x30\x0a\0\x04willgone").await;
}

#[tokio::test]
async fn connect_before_expiry_resumes_session() {
    let broker = start().await;
    let mut watcher = client(&broker, "watcher", None).await;
    send(&mut watcher, &subscribe_to("will")).await;
    watcher.read_exact(&mut [0; 5]).await.unwrap();
    let (client, _) = lasting_client(&broker, "client", Some(86_400)).await;
    drop(client);
    let session = session(&broker, "client");
    until_away(&session).await;
    until(|| session.try_lease().is_some()).await;
    let mut lease = session.try_lease().unwrap();
    let claims = session.claims();
    let mut back = lasting_client_comes(&broker, "client", None).await;
    until(|| session.claims() > claims).await;
    let now = Instant::now();
    lease.state.expires_at = Some(now);
    lease.state.will.as_mut().unwrap().due = now;
    drop(lease);
    assert_eq!(packet(&mut back).await.1[..2], [1, 0], "its session is there");
    exchange(&mut watcher, &[0xC0, 0], &[0xD0, 0]).await;
}

#[tokio::test]
async fn disconnect_is_stored_while_session_ends_are_queued() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let mut broker = Broker::builder().config(config).store(directory.path()).start().await.unwrap();
    broker.long_ends.shutdown().await;
    let _nobody_works = broker.parts.shared.sessions.long_ends.open();
    let durable = broker.parts.shared.storage.durable.clone().unwrap();
    let (mut stays, _) = lasting_client(&broker, "stays", None).await;
    subscribe_to_many_v5(&mut stays).await;
    let (mut ends, _) = lasting_client(&broker, "ends", None).await;
    subscribe_to_many_v5(&mut ends).await;
    durable.wait_for_state();
    assert_eq!((durable.sessions_on_disk(), durable.wills_on_disk()), (2, 2));
    send_v5(&mut stays, &Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties: None })).await;
    let properties = DisconnectProperties { session_expiry_interval: Some(0), ..DisconnectProperties::default() };
    let disconnect = Disconnect { reason: ReasonCode::Success, properties: Some(Box::new(properties)) };
    send_v5(&mut ends, &Packet::Disconnect(disconnect)).await;
    for client in ["stays", "ends"] {
        until_away(&session(&broker, client)).await;
    }
    until(|| (durable.sessions_on_disk(), durable.wills_on_disk()) == (1, 0)).await;
}

#[tokio::test]
async fn departed_member_gets_nothing_while_its_end_is_queued() {
    let mut broker = start().await;
    broker.long_ends.shutdown().await;
    let _nobody_works = broker.parts.shared.sessions.long_ends.open();
    let mut leaver = client(&broker, "leaver", Some("will")).await;
    let mut stayer = client(&broker, "stayer", None).await;
    for stream in [&mut leaver, &mut stayer] {
        send(stream, &subscribe_to("$share/g/t")).await;
        stream.read_exact(&mut [0; 5]).await.unwrap();
    }
    let left = session(&broker, "leaver");
    drop(leaver);
    until_away(&left).await;
    let mut publisher = client(&broker, "publisher", None).await;
    for number in 0..8_u8 {
        let publish = [0x30, 4, 0, 1, b't', number];
        publisher.write_all(&publish).await.unwrap();
        exchange(&mut stayer, &[], &publish).await;
    }
}

#[tokio::test]
async fn other_tasks_run_while_plain_sessions_expire() {
    let broker = start().await;
    let now = Instant::now();
    for number in 0..WILLS {
        let (mut stream, _) = lasting_client(&broker, &format!("client-{number}"), None).await;
        send_v5(&mut stream, &Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties: None })).await;
    }
    until(|| broker.connections() == 0).await;
    broker.parts.shared.sessions.registry.for_each(|client| {
        client.try_lease().unwrap().state.expires_at = Some(now);
        broker.parts.shared.sessions.expiry.push(now, client);
    });
    let turns = turns_until(|| broker.sessions() == 0).await;
    assert!(turns > WILLS / 2, "{turns} turns");
}

#[tokio::test]
async fn other_tasks_run_while_many_filters_are_applied() {
    let broker = start().await;
    let mut client = client(&broker, "client", None).await;
    send(&mut client, &subscribe_to_groups()).await;
    let turns = turns_until(|| broker.metrics().subscriptions == SUBSCRIPTIONS as u64).await;
    assert!(turns > SUBSCRIPTIONS / 100, "SUBSCRIBE took {turns} turns");
    let (packet_type, suback) = packet(&mut client).await;
    assert!(packet_type == 9 && suback[2..] == [1; SUBSCRIPTIONS]);
    let filters = (0..SUBSCRIPTIONS).map(group_filter).collect();
    let unsubscribe = Unsubscribe { packet_id: PacketId::new(2).unwrap(), user_properties: Vec::new(), filters };
    send(&mut client, &Packet::Unsubscribe(unsubscribe)).await;
    // A packet behind it waits until it is applied.
    send(&mut client, &subscribe_to("t")).await;
    let turns = turns_until(|| broker.metrics().subscriptions < 2).await;
    assert!(turns > SUBSCRIPTIONS / 100, "UNSUBSCRIBE took {turns} turns");
    assert_eq!(packet(&mut client).await, (11, vec![0, 2]));
    assert_eq!(packet(&mut client).await, (9, vec![0, 1, 0]));
}

/// Allows everything, and counts the calls that were made with the index locked.
#[derive(Default)]
struct Questions {
    shared: OnceLock<Arc<BrokerState>>,
    asked: AtomicUsize,
    under_lock: AtomicUsize,
}

impl Authorizer for Arc<Questions> {
    fn authorize(&self, _who: &Principal, action: Action<'_>) -> Decision {
        if let (Action::SubscribeShared(_), Some(shared)) = (action, self.shared.get()) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.under_lock.fetch_add(usize::from(shared.routing.router.is_being_edited()), Ordering::Relaxed);
        }
        Decision::Allow
    }
}

#[tokio::test]
async fn authorizer_is_called_without_index_lock() {
    let questions = Arc::<Questions>::default();
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config).authorizer(Arc::clone(&questions)).start().await.unwrap();
    let _ = questions.shared.set(Arc::clone(&broker.parts.shared));
    subscribe_to_many(&mut client(&broker, "client", None).await).await;
    assert_eq!(questions.asked.load(Ordering::Relaxed), SUBSCRIPTIONS);
    assert_eq!(questions.under_lock.load(Ordering::Relaxed), 0);
}
