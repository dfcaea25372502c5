//! The broker's side: its loss and return, lost clients, state across restarts, and streams in memory.

use tenbin_codec::Packet;
use tenbin_sn_codec::v1_2::{Connect, Disconnect, Message, PingReq, PubAck, QoS, ReturnCode, Topic, WillTopic};
use tenbin_sn_gateway::{Config, Gateway, Upstream};
use tokio::net::TcpStream;

use crate::client::{Client, gateway, wait_for};
use crate::fake_broker::{Event, FakeBroker};

fn published_topic(broker: &FakeBroker) -> String {
    loop {
        if let Packet::Publish(publish) = broker.packet() {
            return publish.topic.text().to_string();
        }
    }
}

#[test]
fn broker_gone_is_congestion_until_it_returns() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "connects_per_second_per_address = 0");
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect("sensor", false), ReturnCode::Accepted);
    let topic = Topic::Normal(client.register("other"));
    let address = broker.stop();
    assert_eq!(client.receive(), Message::Disconnect(Disconnect { duration: None }));
    assert_eq!(client.connect("sensor", false), ReturnCode::Congestion);
    let broker = FakeBroker::start_at(address);
    client.connect_in_the_end("sensor", false);
    client.publish(topic, QoS::AtMostOnce, 0, b"on a known id");
    assert_eq!(published_topic(&broker), "other");
}

#[test]
fn topic_ids_and_wills_survive_a_restart() {
    let broker = FakeBroker::start();
    let directory = tempfile::tempdir().expect("a directory");
    let head = format!("state = {:?}", directory.path().display().to_string());
    let first = gateway(broker.address, &head, "");
    let mut client = Client::new(first.address());
    client.send(&Message::Connect(Connect { will: true, clean_session: false, duration: 60, client_id: "sensor" }));
    assert_eq!(client.receive(), Message::WillTopicReq);
    client.send(&Message::WillTopic(Some(WillTopic { qos: QoS::AtLeastOnce, retain: true, topic: "gone" })));
    assert_eq!(client.receive(), Message::WillMsgReq);
    client.send(&Message::WillMsg(b"bye"));
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    let (first_id, other) = (client.register("first"), client.register("other"));
    assert_ne!(first_id, other);
    assert!(broker.connect().will.is_some());
    first.stop();
    assert_eq!(client.receive(), Message::Disconnect(Disconnect { duration: None }));

    let second = gateway(broker.address, &head, "");
    let mut client = Client::new(second.address());
    client.connect_to_session("sensor", false);
    let will = broker.connect().will.expect("the stored Will");
    assert_eq!((will.topic.text().as_str(), &will.payload[..], will.retain), ("gone", &b"bye"[..], true));
    client.publish(Topic::Normal(other), QoS::AtMostOnce, 0, b"on an old id");
    assert_eq!(published_topic(&broker), "other");
    let locked = Config::parse(&format!("{head}\n[listener]\naddress = \"127.0.0.1:0\"")).expect("legal");
    let error = Gateway::start(locked, Upstream::tcp("127.0.0.1:1")).expect_err("the directory is in use");
    assert!(error.to_string().contains("another gateway uses it"), "{error}");
    client.disconnect();

    // Clean Session ends the stored state.
    assert_eq!(client.connect("sensor", true), ReturnCode::Accepted);
    client.publish(Topic::Normal(other), QoS::AtMostOnce, 0, b"on a forgotten id");
    let Message::PubAck(PubAck { code, .. }) = client.receive() else { panic!("PUBACK") };
    assert_eq!(code, ReturnCode::InvalidTopicId);
}

#[test]
fn lost_client_leaves_the_broker_without_disconnect() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let mut client = Client::new(gateway.address());
    client.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 3, client_id: "sensor" }));
    assert_eq!(broker.connect().client_id, "sensor");
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    // A second datagram shows that the address is no forged one.
    client.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(client.receive(), Message::PingResp);
    match broker.event() {
        Event::Closed(client_id) => assert_eq!(client_id, "sensor"),
        other => panic!("{other:?}"),
    }
    wait_for(&gateway, "clients_lost", 1);
}

#[test]
fn client_that_leaves_during_a_will_update_has_no_will() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "connects_per_second_per_address = 0");
    let mut client = Client::new(gateway.address());
    for _ in 0..10 {
        client.send(&Message::Connect(Connect { will: true, clean_session: true, duration: 60, client_id: "sensor" }));
        assert_eq!(client.receive(), Message::WillTopicReq);
        client.send(&Message::WillTopic(Some(WillTopic { qos: QoS::AtMostOnce, retain: false, topic: "gone" })));
        assert_eq!(client.receive(), Message::WillMsgReq);
        client.send(&Message::WillMsg(b"old"));
        assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
        client.send(&Message::WillMsgUpd(b"new"));
        client.send(&Message::Disconnect(Disconnect { duration: None }));
        // The answer to the update may come before.
        while client.receive() != Message::Disconnect(Disconnect { duration: None }) {}
        let mut left = false;
        loop {
            match broker.event() {
                Event::Packet(packet) if matches!(*packet, Packet::Disconnect(_)) => left = true,
                Event::Closed(_) => break,
                Event::Packet(_) | Event::Connected(_) => {}
            }
        }
        assert!(left, "the stream closes after DISCONNECT");
    }
}

#[test]
fn upstream_can_be_a_stream_in_memory() {
    let broker = FakeBroker::start();
    let address = broker.address;
    let upstream = Upstream::memory(move |mut stream, _client| {
        tokio::spawn(async move {
            let mut connection = TcpStream::connect(address).await.expect("the broker listens");
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut connection).await;
        });
    });
    let config = Config::parse("[listener]\naddress = \"127.0.0.1:0\"").expect("legal");
    let gateway = Gateway::start(config, upstream).expect("started");
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect("sensor", true), ReturnCode::Accepted);
    let topic = Topic::Normal(client.register("in/memory"));
    client.publish(topic, QoS::AtLeastOnce, 1, b"x");
    let Message::PubAck(PubAck { code, .. }) = client.receive() else { panic!("PUBACK") };
    assert_eq!((code, published_topic(&broker)), (ReturnCode::Accepted, "in/memory".to_owned()));
    client.disconnect();
}

#[test]
fn threads_share_one_address() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "threads = 4\nconnects_per_second_per_address = 0");
    for number in 0..32 {
        let mut client = Client::new(gateway.address());
        assert_eq!(client.connect(&format!("sensor-{number}"), true), ReturnCode::Accepted);
        let topic = Topic::Normal(client.register("topic"));
        client.publish(topic, QoS::AtLeastOnce, 1, b"x");
        let Message::PubAck(PubAck { code, .. }) = client.receive() else { panic!("PUBACK") };
        assert_eq!(code, ReturnCode::Accepted);
        client.disconnect();
    }
    assert_eq!(gateway.stats().get("connects"), 32);
}
