//! Bounds, and datagrams that are no messages.

use std::time::{Duration, Instant};

use tenbin_codec::{Packet, PacketId, TopicName};
use tenbin_sn_codec::v1_2::{
    Connect, Disconnect, Message, PingReq, PubAck, Publish, QoS, RegAck, Register, ReturnCode, ShortName, Topic,
};

use crate::addresses::message;
use crate::client::{Client, PATIENCE, gateway, wait_for, wait_for_gauge};
use crate::fake_broker::{Event, FakeBroker};

#[test]
fn damaged_datagrams_are_counted_and_not_answered() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let mut client = Client::new(gateway.address());
    for (datagram, counter) in [
        (&b""[..], "malformed_empty"),
        (b"\x00\x0C", "malformed_length_too_short"),
        (b"\x09\x0C\x00", "malformed_length_mismatch"),
        (b"\x02\x11", "malformed_reserved_type"),
        (b"\x04\x0C\x00\x00", "malformed_truncated"),
        (b"\x08\x04\x04\x01\x00\x3C\xFF\xFF", "malformed_utf8"),
    ] {
        client.send_bytes(datagram);
        wait_for(&gateway, counter, 1);
    }
    assert!(client.is_silent());
    // Draft 2.0 has protocol id 2.
    client.send_bytes(b"\x07\x04\x04\x02\x00\x3Cc");
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::NotSupported));
    assert_eq!(client.connect("still-served", true), ReturnCode::Accepted);
}

#[test]
fn clients_beyond_the_bound_get_congestion() {
    let broker = FakeBroker::start();
    for listener in
        ["clients_maximum = 2", "per_address_maximum = 1\nper_shared_address_maximum = 2", "connects_per_second = 2"]
    {
        let gateway = gateway(broker.address, "", listener);
        // Clients that have proven their address make no room.
        let codes = ["a", "b", "c"].map(|client_id| {
            let mut client = Client::new(gateway.address());
            let code = client.connect(client_id, true);
            if code == ReturnCode::Accepted {
                client.subscribe("topic", QoS::AtMostOnce);
                broker.send(client_id, &message("topic", "1"));
                assert!(matches!(client.receive_proven(), Message::Publish(_)));
                client.send(&Message::PingReq(PingReq { client_id: None }));
                while client.receive_proven() != Message::PingResp {}
            }
            code
        });
        if listener.contains("connects_per_second") && codes[2] == ReturnCode::Accepted {
            continue; // A second has passed on a loaded machine.
        }
        assert_eq!(codes, [ReturnCode::Accepted, ReturnCode::Accepted, ReturnCode::Congestion], "{listener}");
        assert_eq!(gateway.stats().get("connects_refused"), 1);
    }
}

#[test]
fn silent_unproven_client_makes_room() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "unconfirmed_maximum = 2");
    let mut clients = ["a", "b", "c"].map(|_| Client::new(gateway.address()));
    assert_eq!(clients[0].connect("a", true), ReturnCode::Accepted);
    for (client, client_id) in clients[1..].iter_mut().zip(["b", "c"]) {
        assert_eq!(client.connect(client_id, true), ReturnCode::Accepted);
    }
    // The one that goes is the one that is silent for the longest time.
    wait_for(&gateway, "unconfirmed_evicted", 1);
    clients[1].send(&Message::PingReq(PingReq { client_id: None }));
    while clients[1].receive_proven() != Message::PingResp {}
    assert_eq!(Client::new(gateway.address()).connect("d", true), ReturnCode::Accepted);
    wait_for(&gateway, "unconfirmed_evicted", 2);
    clients[1].send(&Message::PingReq(PingReq { client_id: None }));
    while clients[1].receive_proven() != Message::PingResp {}
    for client in [0, 2] {
        clients[client].send(&Message::PingReq(PingReq { client_id: None }));
        while !matches!(clients[client].receive_proven(), Message::Disconnect(_)) {}
    }
}

/// Live clients without messages for them fill the places. They keep them while others come: forged ones, and ones that
/// are as live.
#[test]
fn live_clients_keep_their_places() {
    let broker = FakeBroker::start();
    let bounds = ["unconfirmed_maximum = 12", "clients_maximum = 12", "per_shared_address_maximum = 12"];
    for bound in bounds {
        let listener =
            format!("{bound}\nconnects_per_second_per_address = 0\nevents_per_second_per_shared_address = 0");
        let gateway = gateway(broker.address, "", &listener);
        let mut sensors: Vec<Client> = (0..12).map(|_| Client::new(gateway.address())).collect();
        for (number, sensor) in sensors.iter_mut().enumerate() {
            assert_eq!(sensor.connect(&format!("sensor-{number}"), true), ReturnCode::Accepted, "{bound}");
            match number % 2 {
                0 => drop(sensor.register("up/1")),
                // It sleeps, and hears no question.
                _ => {
                    sensor.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
                    assert!(matches!(sensor.receive_proven(), Message::Disconnect(_)));
                }
            }
        }
        // All others need the places of those that are there.
        let others: Vec<Client> = (0..60).map(|_| Client::new(gateway.address())).collect();
        for (number, other) in others.iter().enumerate() {
            let client_id = &*format!("other-{number}");
            other.send(&Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id }));
            other.send(&Message::PingReq(PingReq { client_id: None }));
        }
        // Behind all of them.
        Client::new(gateway.address()).send_bytes(b"\x00\x0C");
        wait_for(&gateway, "malformed_length_too_short", 1);
        for (number, sensor) in sensors.iter_mut().enumerate() {
            let client_id = &*format!("sensor-{number}");
            let client_id = (number % 2 == 1).then_some(client_id);
            sensor.send(&Message::PingReq(PingReq { client_id }));
            loop {
                match sensor.receive_proven() {
                    Message::PingResp => break,
                    other => {
                        assert!(!matches!(other, Message::Disconnect(_)), "sensor {number} has lost its place: {bound}")
                    }
                }
            }
        }
    }
}

#[test]
fn client_that_does_not_answer_makes_room_after_the_retry_time() {
    let broker = FakeBroker::start();
    let stand = |retry: f64| {
        let gateway = gateway(broker.address, "", &format!("unconfirmed_maximum = 2\nretry_seconds = {retry}"));
        let begun = Instant::now();
        let clients = ["a", "b"].map(|client_id| {
            let mut client = Client::new(gateway.address());
            assert_eq!(client.connect(client_id, true), ReturnCode::Accepted);
            client.send(&Message::PingReq(PingReq { client_id: None }));
            client
        });
        let mut late = Client::new(gateway.address());
        let is_refused = late.connect("c", true) == ReturnCode::Congestion;
        assert!(is_refused || begun.elapsed().as_secs_f64() > retry, "both were just asked");
        is_refused.then_some((gateway, clients, late))
    };
    // A busy machine may take longer than the short times.
    let stand = [0.5, 2.0, 8.0, 32.0].into_iter().find_map(stand);
    let (_gateway, mut clients, mut late) = stand.expect("the answer within 32 s");
    // One answers before that.
    clients[0].send(&Message::PingReq(PingReq { client_id: None }));
    while clients[0].receive_proven() != Message::PingResp {}
    let deadline = Instant::now() + PATIENCE;
    while late.connect("c", true) != ReturnCode::Accepted {
        assert!(Instant::now() < deadline, "a place");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn qos_0_messages_beyond_the_rate_are_dropped() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "publishes_per_second = 3");
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect("a", true), ReturnCode::Accepted);
    let topic = Topic::Normal(client.register("topic"));
    // Fewer than three a second can come only from a machine that needs five minutes for them.
    for _ in 0..1000 {
        client.publish(topic, QoS::AtMostOnce, 0, b"");
    }
    wait_for(&gateway, "rate_exceeded", 1);
}

#[test]
fn repeated_connect_gets_the_same_answer() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let mut client = Client::new(gateway.address());
    let connect = Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id: "a" });
    client.send(&connect);
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    client.send(&connect);
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    assert_eq!(gateway.stats().get("connects"), 1);
}

#[test]
fn qos_minus_one_needs_no_connection_and_has_a_rate() {
    let broker = FakeBroker::start();
    let listener =
        "qos_minus_one = true\nevents_per_second_per_shared_address = 20\n[listener.topics]\n7 = \"plant/seven\"";
    let gateway = gateway(broker.address, "", listener);
    let mut client = Client::new(gateway.address());
    let send = |topic| {
        let publish = Publish { dup: false, qos: None, retain: false, topic, message_id: None, data: b"x" };
        client.send(&Message::Publish(publish));
    };
    let short = ShortName::new("ab").expect("two bytes");
    for (topic, name) in [(Topic::Predefined(7), "plant/seven"), (Topic::Short(short), "ab")] {
        let deadline = Instant::now() + PATIENCE;
        // A message before the gateway's own client is connected is lost, as QoS −1 allows.
        let published = std::iter::repeat_with(|| {
            assert!(Instant::now() < deadline, "{name} is published");
            send(topic);
            std::thread::sleep(Duration::from_millis(100));
            std::iter::from_fn(|| broker.try_event()).collect::<Vec<_>>()
        });
        let is_it = |event: &Event| {
            matches!(event, Event::Packet(packet)
                if matches!(&**packet, Packet::Publish(publish) if publish.topic.text().as_str() == name))
        };
        assert!(published.flatten().any(|event| is_it(&event)));
    }
    send(Topic::Normal(1));
    wait_for(&gateway, "dropped_qos_minus_one", 1);
    (0..1000).for_each(|_| send(Topic::Predefined(7)));
    wait_for(&gateway, "rate_exceeded", 1);
    assert!(client.is_silent());
}

/// It is unknown whether the waiting client's session is new.
#[test]
fn client_that_waits_for_the_broker_makes_no_room() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gateway = gateway(silent.local_addr().expect("an address"), "timeout_seconds = 60", "unconfirmed_maximum = 1");
    let (first, mut second) = (Client::new(gateway.address()), Client::new(gateway.address()));
    first.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 60, client_id: "a" }));
    wait_for(&gateway, "connects", 1);
    assert_eq!(second.connect("b", false), ReturnCode::Congestion);
    assert_eq!(gateway.stats().get("unconfirmed_evicted"), 0);
    // Else the gateway waits for the end of the stream.
    drop(silent);
}

#[test]
fn topics_beyond_the_bound_reach_a_subscriber() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "topics_maximum = 4\ntrust_addresses = true");
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect("subscriber", true), ReturnCode::Accepted);
    client.subscribe("plant/#", QoS::AtLeastOnce);
    for number in 0..20 {
        let topic = TopicName::try_from(&*format!("plant/{number}")).expect("a name");
        let mut publish = tenbin_codec::Publish::new(topic, number.to_string().into());
        (publish.qos, publish.packet_id) = (tenbin_codec::QoS::AtLeastOnce, PacketId::new(1));
        broker.send("subscriber", &Packet::Publish(publish));
        let Message::Register(Register { topic_id, message_id, topic }) = client.receive() else { panic!("REGISTER") };
        assert_eq!(topic, format!("plant/{number}"));
        client.send(&Message::RegAck(RegAck { topic_id, message_id, code: ReturnCode::Accepted }));
        let Message::Publish(publish) = client.receive() else { panic!("PUBLISH") };
        assert_eq!((publish.topic, publish.data), (Topic::Normal(topic_id), number.to_string().as_bytes()));
        let message_id = publish.message_id;
        client.send(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }));
    }
    wait_for(&gateway, "topics_freed", 16);
    assert_eq!(gateway.stats().get("dropped_topic_table_full"), 0);
}

#[test]
fn clients_that_come_and_go_leave_no_timers() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "connects_per_second_per_address = 0\nper_address_maximum = 0");
    for number in 0..200 {
        let mut client = Client::new(gateway.address());
        assert_eq!(client.connect(&format!("visitor-{number}"), true), ReturnCode::Accepted);
        client.register("up/1");
        client.disconnect();
    }
    wait_for_gauge(&gateway, "timers", 0);
    wait_for_gauge(&gateway, "clients", 0);
}
