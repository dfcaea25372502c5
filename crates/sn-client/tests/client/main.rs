//! The client over real UDP sockets, against a gateway that loses a third of the datagrams.

mod gateway;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gateway::{RETRY, TestGateway};
use socket2::{Domain, SockRef, Socket, Type};
use tenbin_sn_client::{
    Client, ClientErrorKind, ClientEvent, ClientOptions, DisconnectReason, Events, OutgoingMessage, QoS, ReturnCode,
    Search, ShortName, Topic, Will, publish_unconnected, search,
};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// A third of the datagrams is lost.
const LOSSY: bool = true;
const LONG: Duration = Duration::from_secs(60);

fn options(gateway: &TestGateway, id: &str) -> ClientOptions {
    ClientOptions::new(&gateway.address, id).retry(RETRY, 100).reconnect(Some(RETRY))
}

async fn connect(options: ClientOptions) -> (Client, Events) {
    let (client, mut events) = timeout(LONG, Client::connect(options)).await.expect("in time").expect("a connection");
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { .. }));
    (client, events)
}

async fn next(events: &mut Events) -> ClientEvent {
    timeout(LONG, events.recv()).await.expect("in time").expect("an event")
}

/// Topic and payload of the next message.
async fn message(events: &mut Events) -> (String, String) {
    match next(events).await {
        ClientEvent::Message(message) => {
            (message.topic.to_string(), String::from_utf8(message.payload.to_vec()).expect("text"))
        }
        other => panic!("{other:?} is no message"),
    }
}

fn short(name: &str) -> Topic {
    Topic::Short(ShortName::new(name).expect("two bytes"))
}

#[tokio::test]
async fn qos_2_messages_come_once_and_in_order_despite_loss() {
    let gateway = TestGateway::start(LOSSY).await;
    let (subscriber, mut events) = connect(options(&gateway, "subscriber")).await;
    let (publisher, _events) = connect(options(&gateway, "publisher")).await;
    assert_eq!(subscriber.subscribe("a/+", QoS::ExactlyOnce).await.expect("granted"), QoS::ExactlyOnce);
    let mut tickets = Vec::new();
    for number in 0..20 {
        let topic = ["a/b", "a/c"][number % 2];
        let message = OutgoingMessage::new(topic, number.to_string()).at(QoS::ExactlyOnce);
        tickets.push(publisher.publish(message).await.expect("room"));
    }
    for number in 0..20 {
        let topic = ["a/b", "a/c"][number % 2];
        assert_eq!(message(&mut events).await, (topic.to_owned(), number.to_string()));
    }
    for ticket in tickets {
        ticket.await.expect("accepted");
    }
    publisher.disconnect().await.expect("the gateway answers");
    subscriber.disconnect().await.expect("the gateway answers");
    assert!(events.recv().await.is_none());
}

#[tokio::test]
async fn qos_1_messages_all_come_despite_loss() {
    let gateway = TestGateway::start(LOSSY).await;
    let (client, mut events) = connect(options(&gateway, "c")).await;
    client.subscribe("#", QoS::AtLeastOnce).await.expect("granted");
    client.register("a/b").await.expect("accepted");
    let topics = ["a/b".into(), Topic::Predefined(7), short("xy")];
    for number in 0..12 {
        let message = OutgoingMessage::new(topics[number % 3].clone(), number.to_string()).at(QoS::AtLeastOnce);
        client.publish(message).await.expect("room").await.expect("accepted");
    }
    let mut received = Vec::new();
    while received.len() < 12 {
        let (topic, payload) = message(&mut events).await;
        if !received.contains(&payload) {
            let number: usize = payload.parse().expect("a number");
            // The gateway prefers the form that the client knows.
            assert!(["a/b", "predefined", "xy"].iter().any(|start| topic.starts_with(start)), "{topic} {number}");
            received.push(payload);
        }
    }
    assert!(received.iter().map(String::as_str).eq((0..12).map(|number| number.to_string()).collect::<Vec<_>>()));
}

#[tokio::test]
async fn subscriptions_by_name_predefined_id_and_short_name() {
    let gateway = TestGateway::start(false).await;
    let (client, mut events) = connect(options(&gateway, "c")).await;
    for filter in ["a/b".into(), Topic::Predefined(7), short("xy")] {
        client.subscribe(filter, QoS::AtMostOnce).await.expect("granted");
    }
    for (sent, received) in [("a/b", "a/b"), ("predefined/seven", "predefined:7"), ("xy", "xy")] {
        gateway.publish(sent, "1", tenbin_codec::QoS::AtMostOnce).await;
        assert_eq!(message(&mut events).await, (received.to_owned(), "1".to_owned()));
    }
    client.unsubscribe(Topic::Predefined(7)).await.expect("accepted");
    gateway.publish("predefined/seven", "2", tenbin_codec::QoS::AtMostOnce).await;
    gateway.publish("a/b", "3", tenbin_codec::QoS::AtMostOnce).await;
    assert_eq!(message(&mut events).await, ("a/b".to_owned(), "3".to_owned()));
}

#[tokio::test]
async fn messages_without_a_connection_reach_subscribers() {
    let gateway = TestGateway::start(false).await;
    let (client, mut events) = connect(options(&gateway, "c")).await;
    client.subscribe("#", QoS::AtMostOnce).await.expect("granted");
    publish_unconnected(&gateway.address, &short("xy"), false, b"1").await.expect("sent");
    assert_eq!(message(&mut events).await, ("xy".to_owned(), "1".to_owned()));
    publish_unconnected(&gateway.address, &Topic::Predefined(7), false, b"2").await.expect("sent");
    assert_eq!(message(&mut events).await.1, "2");
    let error = publish_unconnected(&gateway.address, &"a/b".into(), false, b"").await.expect_err("a name");
    assert!(error.to_string().contains("a/b"), "{error}");
}

#[tokio::test]
async fn sleeper_gets_its_messages_at_each_wake() {
    let gateway = TestGateway::start(LOSSY).await;
    let (client, mut events) = connect(options(&gateway, "c")).await;
    client.subscribe("a/b", QoS::ExactlyOnce).await.expect("granted");
    assert!(matches!(client.wake().await.expect_err("it is active").kind(), ClientErrorKind::NotAsleep));
    client.sleep(LONG).await.expect("asleep");
    for round in 0..2 {
        for number in 0..3 {
            gateway.publish("a/b", &format!("{round} {number}"), tenbin_codec::QoS::ExactlyOnce).await;
        }
        client.wake().await.expect("awake");
        for number in 0..3 {
            assert_eq!(message(&mut events).await.1, format!("{round} {number}"));
        }
    }
    let refused = client.publish(OutgoingMessage::new("a/b", "4")).await.expect("queued").await;
    assert!(matches!(refused.expect_err("it sleeps").kind(), ClientErrorKind::Asleep));
    client.activate().await.expect("active");
    let awake = OutgoingMessage::new("a/b", "5").at(QoS::ExactlyOnce);
    client.publish(awake).await.expect("queued").await.expect("accepted");
    assert_eq!(message(&mut events).await.1, "5");
}

#[tokio::test]
async fn will_is_set_updated_and_deleted_despite_loss() {
    let gateway = TestGateway::start(LOSSY).await;
    let will = |text: &'static str| Will {
        topic: format!("gone/{text}"),
        message: text.into(),
        qos: QoS::AtLeastOnce,
        retain: false,
    };
    let (client, _events) = connect(options(&gateway, "c").will(will("one"))).await;
    client.update_will(Some(will("two"))).await.expect("accepted");
    client.update_will(None).await.expect("accepted");
    let wills = gateway.wills.lock().expect("no panic").clone();
    let stated = |text: &str| Some((format!("gone/{text}"), text.as_bytes().to_vec()));
    assert_eq!(wills.first(), Some(&stated("one")));
    assert!(wills.contains(&stated("two")), "{wills:?}");
    assert_eq!(wills.last(), Some(&None));
}

#[tokio::test]
async fn refusals_and_illegal_requests_name_their_cause() {
    let gateway = TestGateway::start(false).await;
    let (client, _events) = connect(options(&gateway, "c")).await;
    let error = client.subscribe("forbidden", QoS::AtMostOnce).await.expect_err("refused");
    assert!(matches!(error.kind(), ClientErrorKind::Rejected(ReturnCode::NotSupported)), "{error}");
    let error = client.subscribe("a#", QoS::AtMostOnce).await.expect_err("illegal");
    assert!(error.to_string().contains("a#"), "{error}");
    let error = client.publish(OutgoingMessage::new("a/+", "")).await.expect_err("illegal");
    assert!(error.to_string().contains("a/+"), "{error}");
    let error = client.publish(OutgoingMessage::new("a", vec![0; 70_000])).await.expect_err("too large");
    assert!(error.to_string().contains("70000"), "{error}");
    let error = client.sleep(Duration::ZERO).await.expect_err("too short");
    assert!(error.to_string().contains("0 s"), "{error}");
}

#[tokio::test]
async fn lost_gateway_is_replaced_by_the_next_one() {
    let (first, second) = (TestGateway::start(false).await, TestGateway::start(false).await);
    let fast = options(&first, "c").gateway(&second.address).keep_alive(Duration::from_secs(1)).retry(RETRY, 20);
    let (client, mut events) = connect(fast).await;
    client.subscribe("a/b", QoS::AtLeastOnce).await.expect("granted");
    client.publish(OutgoingMessage::new("a/b", "1")).await.expect("room").await.expect("sent");
    assert_eq!(message(&mut events).await.1, "1");
    let lost_address = first.address.clone();
    drop(first);
    match next(&mut events).await {
        ClientEvent::Disconnected(failure) => {
            assert_eq!(&*failure.gateway, lost_address);
            assert!(matches!(failure.reason, DisconnectReason::NoAnswer), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    match next(&mut events).await {
        ClientEvent::Connected { gateway } => assert_eq!(gateway, second.address),
        other => panic!("{other:?}"),
    }
    // The subscription is made again, and the topic registered again.
    let message_2 = OutgoingMessage::new("a/b", "2").at(QoS::AtLeastOnce);
    client.publish(message_2).await.expect("room").await.expect("accepted");
    assert_eq!(message(&mut events).await.1, "2");
}

#[tokio::test]
async fn forgotten_client_connects_and_subscribes_again() {
    let gateway = TestGateway::start(LOSSY).await;
    let (client, mut events) = connect(options(&gateway, "c")).await;
    client.subscribe("a/b", QoS::AtLeastOnce).await.expect("granted");
    gateway.forget().await;
    // The gateway answers DISCONNECT, and the message follows on the new connection.
    let lasting = OutgoingMessage::new("a/b", "1").at(QoS::AtLeastOnce);
    client.publish(lasting).await.expect("room").await.expect("accepted");
    assert!(matches!(
        next(&mut events).await,
        ClientEvent::Disconnected(failure) if matches!(failure.reason, DisconnectReason::ByGateway)
    ));
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { .. }));
    let second = OutgoingMessage::new("a/b", "2").at(QoS::AtLeastOnce);
    client.publish(second).await.expect("room").await.expect("accepted");
    while message(&mut events).await.1 != "2" {}
}

#[tokio::test]
async fn each_unreachable_gateway_is_named() {
    let closed = TestGateway::start(false).await;
    let address = closed.address.clone();
    drop(closed);
    let options = ClientOptions::new(&address, "c").gateway("127.0.0.1").retry(RETRY, 1);
    let error = Client::connect(options).await.expect_err("nobody there").to_string();
    assert!(error.contains(&address) && error.contains("127.0.0.1: "), "{error}");
    let gateway = TestGateway::start(false).await;
    let error = Client::connect(ClientOptions::new(&gateway.address, "")).await.expect_err("no id").to_string();
    assert!(error.contains("client id"), "{error}");
}

#[tokio::test]
async fn client_ends_when_its_only_gateway_is_gone() {
    let gateway = TestGateway::start(false).await;
    let once = options(&gateway, "c").retry(RETRY, 20).reconnect(None);
    let (client, mut events) = connect(once).await;
    drop(gateway);
    let waiting = client.publish(OutgoingMessage::new("a", "1").at(QoS::AtLeastOnce)).await.expect("room");
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected(_)));
    assert!(events.recv().await.is_none());
    let error = waiting.await.expect_err("the client has ended");
    assert!(matches!(error.kind(), ClientErrorKind::Ended(Some(_))), "{error}");
    assert!(matches!(client.disconnect().await.expect_err("no connection").kind(), ClientErrorKind::Ended(Some(_))));
}

#[tokio::test]
async fn search_finds_a_gateway_by_its_address() {
    let gateway = TestGateway::start(false).await;
    let target = gateway.address.parse().expect("an address");
    let terms = |wait| Search { target, interface: None, radius: 0, wait, enough: 1 };
    let found = search(&terms(LONG)).await.expect("sockets");
    assert_eq!(found.iter().map(|gateway| (gateway.id, gateway.address)).collect::<Vec<_>>(), [(9, target)]);
    drop(gateway);
    assert_eq!(search(&terms(LONG / 200)).await.expect("sockets"), []);
}

/// A socket on the loopback interface for clients, whose multicast datagrams stay there.
async fn gateway_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("the interface");
    socket
}

#[tokio::test]
async fn search_finds_answering_and_advertised_gateways() {
    let port = gateway_socket().await.local_addr().expect("an address").port();
    let group = Ipv4Addr::new(239, 255, 77, 77);
    let target = SocketAddr::from((group, port));
    let member = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    member.set_reuse_address(true).expect("a shared port");
    member.set_nonblocking(true).expect("no blocking");
    member.bind(&target.into()).expect("the port");
    member.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).expect("the group");
    let member = UdpSocket::from_std(member.into()).expect("a socket");
    let (answering, advertised) = (gateway_socket().await, gateway_socket().await);
    let addresses = [&answering, &advertised].map(|socket| socket.local_addr().expect("an address"));
    let gateways = tokio::spawn(async move {
        let mut buffer = [0; 64];
        loop {
            let (size, from) = member.recv_from(&mut buffer).await.expect("a datagram");
            if buffer[..size] == *b"\x03\x01\x01" {
                answering.send_to(b"\x03\x02\x04", from).await.expect("sent");
                advertised.send_to(b"\x05\x00\x03\x03\x84", target).await.expect("sent");
            }
        }
    });
    let interface = Some(Ipv4Addr::LOCALHOST);
    let found = search(&Search { target, interface, radius: 1, wait: LONG, enough: 2 }).await.expect("sockets");
    gateways.abort();
    let of = |id| found.iter().find(|gateway| gateway.id == id).expect("found");
    assert_eq!((of(4).address, of(4).advertised), (addresses[0], None));
    assert_eq!((of(3).address, of(3).advertised), (addresses[1], Some(Duration::from_secs(900))));
}
