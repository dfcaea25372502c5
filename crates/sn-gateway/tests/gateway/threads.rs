//! Clients whose datagrams reach another thread than the one that serves them.

use std::time::Instant;

use tenbin_codec::{Packet, PacketId, Publish, QoS as MqttQoS, TopicName};
use tenbin_sn_codec::Forwarded;
use tenbin_sn_codec::v1_2::{
    self, Connect, Disconnect, Message, PingReq, PubAck, QoS, RegAck, Register, ReturnCode, Topic,
};
use tenbin_sn_gateway::Gateway;

use crate::client::{Client, PATIENCE, gateway, wait_for, wait_for_gauge};
use crate::fake_broker::{Event, FakeBroker};

const DISCONNECT: Message<'static> = Message::Disconnect(Disconnect { duration: None });

/// A gateway of four threads, whose rates no test reaches.
fn four_threads(broker: &FakeBroker, listener: &str) -> Gateway {
    let rates = "threads = 4\nconnects_per_second_per_address = 0\nunknown_answers_per_second = 1000000";
    gateway(broker.address, "", &format!("{rates}\n{listener}"))
}

/// A message of the broker at QoS 1.
fn message(topic: &str, id: u16, number: u64) -> Packet {
    Packet::Publish(Publish {
        dup: false,
        qos: MqttQoS::AtLeastOnce,
        retain: false,
        topic: TopicName::try_from(topic).expect("a name"),
        packet_id: PacketId::new(id),
        topic_alias: None,
        subscription_identifiers: Vec::new(),
        properties: None,
        payload: number.to_string().into(),
    })
}

/// A socket whose datagrams reach another thread than the one of this client, which is active.
fn elsewhere(gateway: &Gateway, client_id: &str, ip: &str) -> Client {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut client = Client::at(ip, gateway.address());
        let before = gateway.stats().get("handoffs");
        client.send(&Message::PingReq(PingReq { client_id: Some(client_id) }));
        // Active clients do not move by PINGREQ.
        assert_eq!(client.receive(), DISCONNECT);
        if gateway.stats().get("handoffs") > before {
            return client;
        }
    }
    panic!("no address reaches another thread");
}

fn connect(client_id: &str, clean_session: bool) -> Message<'_> {
    Message::Connect(Connect { will: false, clean_session, duration: 60, client_id })
}

fn fall_asleep(client: &mut Client) {
    client.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
    assert_eq!(client.receive(), DISCONNECT);
}

/// Takes the messages of one wake, acknowledges them, and returns their numbers.
fn take_messages(client: &mut Client) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let (topic, id) = match client.receive_proven() {
            Message::Publish(v1_2::Publish { topic, message_id: Some(id), data, .. }) => {
                numbers.push(std::str::from_utf8(data).expect("text").parse().expect("a number"));
                (topic, id)
            }
            Message::PingResp => return numbers,
            other => panic!("{other:?}"),
        };
        let Topic::Normal(topic_id) = topic else { panic!("{topic:?}") };
        client.send(&Message::PubAck(PubAck { topic_id, message_id: Some(id), code: ReturnCode::Accepted }));
    }
}

/// A client that is active at a thread, subscribed to `topic/CLIENT_ID`.
fn subscriber(gateway: &Gateway, client_id: &str) -> Client {
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect(client_id, true), ReturnCode::Accepted);
    client.subscribe(&format!("topic/{client_id}"), QoS::AtLeastOnce);
    client
}

#[test]
fn sleeper_wakes_at_an_address_of_another_thread() {
    let broker = FakeBroker::start();
    for (rebind, near_may, far_may) in [("network", true, false), ("any", true, true), ("never", false, false)] {
        let gateway = four_threads(&broker, &format!("rebind = \"{rebind}\"\nin_flight = 2"));
        let mut old = subscriber(&gateway, "sleeper");
        let near = elsewhere(&gateway, "sleeper", "127.0.0.77");
        let far = elsewhere(&gateway, "sleeper", "127.0.1.1");
        fall_asleep(&mut old);
        let mut rebound = 0;
        for (mut client, may) in [(near, near_may), (far, far_may)] {
            broker.send("sleeper", &message("topic/sleeper", 1, 1));
            broker.send("sleeper", &message("topic/sleeper", 2, 2));
            client.send(&Message::PingReq(PingReq { client_id: Some("sleeper") }));
            if may {
                assert_eq!(take_messages(&mut client), [1, 2], "{rebind}");
                rebound += 1;
            } else {
                assert_eq!(client.receive(), DISCONNECT, "{rebind}");
            }
        }
        assert_eq!(gateway.stats().get("rebound"), rebound, "{rebind}");
        if rebind == "never" {
            old.send(&Message::PingReq(PingReq { client_id: Some("sleeper") }));
            assert_eq!(take_messages(&mut old), [1, 2]);
        }
        assert!(old.is_silent());
        wait_for_gauge(&gateway, "clients", 1);
    }
}

#[test]
fn sleeper_returns_by_connect_at_an_address_of_another_thread() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "in_flight = 2");
    let mut old = Client::new(gateway.address());
    assert_eq!(old.connect("sleeper", false), ReturnCode::Accepted);
    old.subscribe("topic/sleeper", QoS::AtLeastOnce);
    let mut new = elsewhere(&gateway, "sleeper", "127.0.0.1");
    fall_asleep(&mut old);
    broker.send("sleeper", &message("topic/sleeper", 1, 1));
    new.connect_to_session("sleeper", false);
    assert_eq!(new.receive(), Message::ConnAck(ReturnCode::Accepted));
    let Message::Publish(publish) = new.receive_proven() else { panic!("PUBLISH") };
    assert_eq!(publish.data, b"1");
    // An active client whose datagrams are handed off.
    let (topic_id, message_id) = (publish.topic.field(), publish.message_id);
    new.send(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }));
    let topic = Topic::Normal(new.register("topic/other"));
    new.publish(topic, QoS::AtLeastOnce, 9, b"x");
    assert!(matches!(new.receive(), Message::PubAck(PubAck { code: ReturnCode::Accepted, .. })));
    new.disconnect();
    wait_for_gauge(&gateway, "clients", 0);
    // Its home serves the address from now on, for any client id.
    assert_eq!(new.connect("sleeper", false), ReturnCode::Accepted);
    new.disconnect();
    assert_eq!(new.connect("another", true), ReturnCode::Accepted);
    wait_for_gauge(&gateway, "clients", 1);
    let handoffs = gateway.stats().get("handoffs");
    new.register("topic");
    assert_eq!(gateway.stats().get("handoffs"), handoffs);
}

#[test]
fn wireless_node_wakes_at_a_forwarder_of_another_thread() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "forwarders = [\"127.0.0.1\"]");
    let envelope = |message: &Message<'_>| {
        let (mut bytes, mut envelope) = (Vec::new(), Vec::new());
        message.encode(&mut bytes);
        Forwarded { radius: 0, node_id: b"node", message: &bytes }.encode(&mut envelope);
        envelope
    };
    let mut old = Client::new(gateway.address());
    for (message, answer) in [
        (connect("sleeper", true), Message::ConnAck(ReturnCode::Accepted)),
        (Message::PingReq(PingReq { client_id: None }), Message::PingResp),
    ] {
        old.send_bytes(&envelope(&message));
        assert_eq!(old.receive_bytes(), envelope(&answer));
    }
    let mut new = elsewhere(&gateway, "sleeper", "127.0.0.1");
    old.send_bytes(&envelope(&Message::Disconnect(Disconnect { duration: Some(600) })));
    assert_eq!(old.receive_bytes(), envelope(&DISCONNECT));
    let handoffs = gateway.stats().get("handoffs");
    new.send_bytes(&envelope(&Message::PingReq(PingReq { client_id: Some("sleeper") })));
    let question = Forwarded::decode(new.receive_bytes()).expect("an envelope");
    let Ok(Message::Register(Register { topic_id, message_id, .. })) = Message::decode(question.message) else {
        panic!("{question:?}")
    };
    let answer = Message::RegAck(RegAck { topic_id, message_id, code: ReturnCode::Accepted });
    new.send_bytes(&envelope(&answer));
    assert_eq!(new.receive_bytes(), envelope(&Message::PingResp));
    new.send_bytes(&envelope(&Message::PingReq(PingReq { client_id: Some("sleeper") })));
    assert_eq!(new.receive_bytes(), envelope(&Message::PingResp));
    assert_eq!(gateway.stats().get("handoffs"), handoffs + 3);
    assert_eq!(gateway.stats().get("rebound"), 1);
}

#[test]
fn answering_client_of_another_thread_keeps_its_session() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "");
    let mut old = Client::new(gateway.address());
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    let mut new = elsewhere(&gateway, "sensor", "127.0.0.1");
    for _ in 0..3 {
        new.send(&connect("sensor", false));
        assert_eq!(old.receive(), Message::PingReq(PingReq { client_id: None }));
        old.send(&Message::PingResp);
        assert_eq!(new.receive(), Message::ConnAck(ReturnCode::Congestion));
    }
    old.register("still/here");
    wait_for_gauge(&gateway, "clients", 1);
    assert_eq!(gateway.stats().get("connects"), 1);
}

#[test]
fn session_of_a_silent_client_moves_to_another_thread() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "");
    let mut old = Client::new(gateway.address());
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    let other = old.register("other");
    let mut new = elsewhere(&gateway, "sensor", "127.0.0.1");
    new.send(&connect("sensor", false));
    // Repetitions change nothing.
    new.send(&connect("sensor", false));
    assert_eq!(new.receive(), Message::ConnAck(ReturnCode::Accepted));
    new.prove();
    assert!(old.questions_before_disconnect() > 0);
    assert_eq!(new.register("other"), other, "topic ids belong to the session");
    wait_for_gauge(&gateway, "clients", 1);
    assert_eq!(gateway.stats().get("taken_over"), 1);
}

#[test]
fn client_id_has_one_peer_when_threads_compete() {
    const IDS: u64 = 32;
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "");
    let ids: Vec<String> = (0..IDS).map(|number| format!("sensor-{number}")).collect();
    let clients: Vec<Client> = std::thread::scope(|scope| {
        let compete = |_| {
            scope.spawn(|| {
                let compete = |id| {
                    let client = Client::new(gateway.address());
                    client.send(&connect(id, true));
                    client
                };
                ids.iter().map(|id| compete(id)).collect::<Vec<_>>()
            })
        };
        let threads = [0; 4].map(compete);
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let deadline = Instant::now() + PATIENCE;
    // One connection of each client stays.
    let mut open = std::collections::BTreeMap::<String, i32>::new();
    while open.len() < IDS as usize || open.values().any(|&count| count != 1) {
        assert!(Instant::now() < deadline, "{open:?}");
        match broker.event() {
            Event::Connected(connect) => *open.entry(connect.client_id.to_string()).or_default() += 1,
            Event::Closed(client_id) if !client_id.is_empty() => *open.entry(client_id).or_default() -= 1,
            // Or a connection that ended before its CONNECT.
            Event::Packet(_) | Event::Closed(_) => {}
        }
    }
    wait_for_gauge(&gateway, "clients", IDS);
    drop(clients);
}

#[test]
fn connects_with_the_id_of_another_thread_leave_nothing() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "");
    let mut old = Client::new(gateway.address());
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    let old = std::thread::spawn(move || {
        while old.receive() == Message::PingReq(PingReq { client_id: None }) {
            old.send(&Message::PingResp);
        }
    });
    let strangers: Vec<Client> = (0..200).map(|_| Client::new(gateway.address())).collect();
    for round in 1..=20 {
        strangers.iter().for_each(|stranger| stranger.send(&connect("sensor", false)));
        // No more than the buffers of the sockets take.
        wait_for(&gateway, "datagrams_received", 200 * round);
    }
    for (mut stranger, number) in strangers.into_iter().zip(0..) {
        stranger.connect_past_others(&format!("free-{number}"));
    }
    wait_for_gauge(&gateway, "clients", 201);
    assert_eq!(gateway.stats().get("taken_over"), 0);
    gateway.stop();
    old.join().expect("no panic");
}

#[test]
fn stop_ends_clients_of_other_threads_too() {
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "");
    let mut old = subscriber(&gateway, "sleeper");
    let mut new = elsewhere(&gateway, "sleeper", "127.0.0.1");
    fall_asleep(&mut old);
    new.send(&Message::PingReq(PingReq { client_id: Some("sleeper") }));
    assert_eq!(new.receive_proven(), Message::PingResp);
    // Handoffs under way when the threads stop. The client's socket has room for all answers, and the farewell.
    (0..200).for_each(|_| new.send(&Message::PingReq(PingReq { client_id: Some("sleeper") })));
    gateway.stop();
    while new.receive() != DISCONNECT {}
}

/// Lets sleeping clients wake at a new address each time, with two messages for each wake.
fn migrate(migrations: u64) {
    const SLEEPERS: usize = 10;
    let broker = FakeBroker::start();
    let gateway = four_threads(&broker, "in_flight = 2");
    let ids: Vec<String> = (0..SLEEPERS).map(|number| format!("sleeper-{number}")).collect();
    let mut clients: Vec<Client> = ids.iter().map(|id| subscriber(&gateway, id)).collect();
    clients.iter_mut().for_each(fall_asleep);
    let rounds = migrations / SLEEPERS as u64;
    for first in (0..rounds).map(|round| 2 * round) {
        for id in &ids {
            for number in [first, first + 1] {
                broker.send(id, &message(&format!("topic/{id}"), (number % 60_000) as u16 + 1, number));
            }
        }
        // All wake at the same time. The sockets of the last addresses close.
        clients = ids.iter().map(|_| Client::new(gateway.address())).collect();
        for (client, id) in clients.iter().zip(&ids) {
            client.send(&Message::PingReq(PingReq { client_id: Some(id) }));
        }
        for client in &mut clients {
            assert_eq!(take_messages(client), [first, first + 1]);
        }
        let acknowledged = std::iter::repeat_with(|| broker.packet());
        let acknowledged = acknowledged.filter(|packet| matches!(packet, Packet::PubAck(_)));
        assert_eq!(acknowledged.take(2 * SLEEPERS).count(), 2 * SLEEPERS);
    }
    let stats = gateway.stats();
    assert_eq!(stats.get("rebound"), migrations, "{stats:?}");
    assert!(stats.get("handoffs") > migrations / 4, "{stats:?}");
    assert_eq!((stats.get("handoffs_dropped"), stats.get("connects")), (0, SLEEPERS as u64), "{stats:?}");
    wait_for_gauge(&gateway, "clients", SLEEPERS as u64);
    clients.iter_mut().for_each(Client::disconnect);
    wait_for_gauge(&gateway, "clients", 0);
}

#[test]
fn migrations_between_threads_lose_no_message() {
    migrate(300);
}

/// `cargo test -p tenbin-sn-gateway --test gateway -- --ignored ten_thousand`
#[test]
#[ignore = "the long form of `migrations_between_threads_lose_no_message`"]
fn ten_thousand_migrations_lose_no_message() {
    migrate(10_000);
}
