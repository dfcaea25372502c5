//! Clients that share connections to the broker.

mod replacing;
mod scripted_broker;

use tenbin_codec::Packet;
use tenbin_sn_codec::v1_2::{
    Connect, Disconnect, Message, MessageId, PingReq, PubAck, Publish, QoS, ReturnCode, Subscribe, Subscribed, Topic,
    Unsubscribe, WillTopic,
};
use tenbin_sn_gateway::Gateway;

use crate::client::{Client, gateway, wait_for_gauge};
use crate::fake_broker::{Event, FakeBroker};
use crate::mosquitto::Mosquitto;

const DISCONNECT: Message<'static> = Message::Disconnect(Disconnect { duration: None });
/// Messages of slow machines are not repeated: some tests count them.
const ANYBODY: &str =
    "connects_per_second_per_address = 0\nper_address_maximum = 0\ntrust_addresses = true\nretry_seconds = 60";

/// A gateway with two trunks, and its broker; `None` if Mosquitto is not installed.
fn stand() -> Option<(Mosquitto, Gateway)> {
    let broker = Mosquitto::start()?;
    let gateway = gateway(broker.address, "aggregate = 2", ANYBODY);
    Some((broker, gateway))
}

fn connected(gateway: &Gateway, client_id: &str, clean_session: bool) -> Client {
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect(client_id, clean_session), ReturnCode::Accepted);
    client
}

/// Takes messages, and acknowledges them, up to one with this payload. Returns the payloads with QoS and RETAIN.
fn take_until(client: &mut Client, last: &[u8]) -> Vec<(Vec<u8>, QoS, bool)> {
    let mut taken = Vec::new();
    loop {
        let (topic, qos, id) = match client.receive_proven() {
            Message::Publish(Publish { topic, qos, retain, message_id, data, .. }) => {
                let qos = qos.expect("not -1");
                taken.push((data.to_vec(), qos, retain));
                (topic, qos, message_id)
            }
            Message::PubRel(id) => {
                client.send(&Message::PubComp(id));
                continue;
            }
            other => panic!("{other:?}"),
        };
        match (qos, id) {
            (QoS::AtLeastOnce, message_id) => {
                let topic_id = topic.field();
                client.send(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }));
            }
            (QoS::ExactlyOnce, Some(id)) => client.send(&Message::PubRec(id)),
            _ => {}
        }
        if taken.last().is_some_and(|(data, ..)| data == last) {
            return taken;
        }
    }
}

fn publish(client: &mut Client, topic: &str, qos: QoS, retain: bool, data: &[u8]) {
    let topic = Topic::Normal(client.register(topic));
    let message_id = if qos == QoS::AtMostOnce { None } else { MessageId::new(3) };
    client.send(&Message::Publish(Publish { dup: false, qos: Some(qos), retain, topic, message_id, data }));
    match qos {
        QoS::AtMostOnce => {}
        QoS::AtLeastOnce => {
            assert!(matches!(client.receive(), Message::PubAck(PubAck { code: ReturnCode::Accepted, .. })));
        }
        QoS::ExactlyOnce => {
            let id = message_id.expect("it has one");
            assert_eq!(client.receive(), Message::PubRec(id));
            client.send(&Message::PubRel(id));
            assert_eq!(client.receive(), Message::PubComp(id));
        }
    }
}

#[test]
fn many_clients_share_two_connections() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "aggregate = 2", ANYBODY);
    let clients: Vec<Client> = (0..50).map(|number| connected(&gateway, &format!("sensor-{number}"), true)).collect();
    wait_for_gauge(&gateway, "clients", 50);
    // A client that keeps its session needs an identity at the broker.
    let mut lasting = connected(&gateway, "lasting", false);
    lasting.disconnect();
    let mut connects = Vec::new();
    loop {
        match broker.event() {
            Event::Connected(connect) => connects.push(connect.client_id.to_string()),
            Event::Closed(client_id) if client_id == "lasting" => break,
            Event::Closed(_) | Event::Packet(_) => {}
        }
    }
    let trunks = connects.iter().filter(|id| id.starts_with("tenbin-sn-")).count();
    assert_eq!((trunks, connects.len()), (2, 3), "{connects:?}");
    drop(clients);
}

#[test]
fn each_client_gets_the_messages_of_its_filters_at_its_qos() {
    let Some((_broker, gateway)) = stand() else { return };
    let [mut all, mut one, mut both, mut none] =
        ["all", "one", "both", "none"].map(|client_id| connected(&gateway, client_id, true));
    let mut sender = connected(&gateway, "sender", true);
    all.subscribe("plant/#", QoS::AtLeastOnce);
    one.subscribe("plant/1", QoS::AtMostOnce);
    both.subscribe("plant/+", QoS::ExactlyOnce);
    both.subscribe("plant/1", QoS::AtMostOnce);
    none.subscribe("plant/2", QoS::ExactlyOnce);
    for (qos, data) in
        [(QoS::AtMostOnce, &b"0"[..]), (QoS::AtLeastOnce, b"1"), (QoS::ExactlyOnce, b"2"), (QoS::AtLeastOnce, b"end")]
    {
        publish(&mut sender, "plant/1", qos, false, data);
    }
    publish(&mut sender, "plant/2", QoS::AtLeastOnce, false, b"end");
    let payloads = |taken: Vec<(Vec<u8>, QoS, bool)>| -> Vec<_> {
        taken.into_iter().map(|(data, qos, _)| (String::from_utf8(data).expect("text"), qos)).collect()
    };
    let text = |data: &str, qos| (data.to_owned(), qos);
    assert_eq!(
        payloads(take_until(&mut all, b"end")),
        [
            text("0", QoS::AtMostOnce),
            text("1", QoS::AtLeastOnce),
            text("2", QoS::AtLeastOnce),
            text("end", QoS::AtLeastOnce)
        ]
    );
    let zero = ["0", "1", "2", "end"].map(|data| text(data, QoS::AtMostOnce));
    assert_eq!(payloads(take_until(&mut one, b"end")), zero);
    assert_eq!(payloads(take_until(&mut none, b"end")), [text("end", QoS::AtLeastOnce)]);
    // The broker may send a copy for each of its two filters.
    let of_both = payloads(take_until(&mut both, b"end"));
    assert!(of_both.contains(&text("2", QoS::ExactlyOnce)), "{of_both:?}");

    one.send(&Message::Unsubscribe(Unsubscribe {
        message_id: MessageId::new(9).expect("not 0"),
        topic: Subscribed::Name("plant/1"),
    }));
    assert!(matches!(one.receive(), Message::UnsubAck(_)));
    one.subscribe("other", QoS::AtMostOnce);
    publish(&mut sender, "plant/1", QoS::AtLeastOnce, false, b"for the others");
    publish(&mut sender, "other", QoS::AtLeastOnce, false, b"end");
    assert_eq!(payloads(take_until(&mut one, b"end")), [text("end", QoS::AtMostOnce)]);
}

#[test]
fn retained_message_comes_once_to_each_new_subscriber() {
    let Some((_broker, gateway)) = stand() else { return };
    let mut sender = connected(&gateway, "sender", true);
    publish(&mut sender, "state/door", QoS::AtLeastOnce, true, b"open");
    let mut clients: Vec<Client> = (0..200).map(|number| connected(&gateway, &format!("c{number}"), true)).collect();
    // All at once, as after a restart.
    let (message_id, topic) = (MessageId::new(8).expect("not 0"), Subscribed::Name("state/+"));
    for client in &clients {
        client.send(&Message::Subscribe(Subscribe { dup: false, qos: QoS::AtLeastOnce, message_id, topic }));
    }
    for client in &mut clients {
        assert!(matches!(client.receive(), Message::SubAck(_)));
        assert_eq!(take_until(client, b"open"), [(b"open".to_vec(), QoS::AtLeastOnce, true)]);
    }
    publish(&mut sender, "state/door", QoS::AtLeastOnce, false, b"closed");
    for client in &mut clients {
        assert_eq!(take_until(client, b"closed"), [(b"closed".to_vec(), QoS::AtLeastOnce, false)], "and no other copy");
    }
}

/// Mosquitto takes 20 messages of a connection at a time.
#[test]
fn unreleased_messages_hold_nobody_up() {
    let Some(broker) = Mosquitto::start() else { return };
    let gateway = gateway(broker.address, "aggregate = 1", ANYBODY);
    let mut slow: Vec<Client> = (0..50).map(|number| connected(&gateway, &format!("slow-{number}"), true)).collect();
    for client in &mut slow {
        let topic = Topic::Normal(client.register("plant/slow"));
        client.publish(topic, QoS::ExactlyOnce, 5, b"unreleased");
        assert_eq!(client.receive(), Message::PubRec(MessageId::new(5).expect("not 0")));
    }
    let mut quick = connected(&gateway, "quick", true);
    publish(&mut quick, "plant/quick", QoS::AtLeastOnce, false, b"1");
    publish(&mut quick, "plant/quick", QoS::ExactlyOnce, false, b"2");
    for client in &mut slow {
        let id = MessageId::new(5).expect("not 0");
        client.send(&Message::PubRel(id));
        assert_eq!(client.receive(), Message::PubComp(id));
    }
}

/// A client with a Will on `gone`, which is lost after 1.5 times this duration without messages, in seconds.
fn with_will(gateway: &Gateway, client_id: &str, duration: u16, will: &[u8]) -> Client {
    let mut client = Client::new(gateway.address());
    client.send(&Message::Connect(Connect { will: true, clean_session: true, duration, client_id }));
    assert_eq!(client.receive(), Message::WillTopicReq);
    client.send(&Message::WillTopic(Some(WillTopic { qos: QoS::AtLeastOnce, retain: false, topic: "gone" })));
    assert_eq!(client.receive(), Message::WillMsgReq);
    client.send(&Message::WillMsg(will));
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    client.send(&Message::PingReq(PingReq { client_id: None }));
    assert_eq!(client.receive(), Message::PingResp);
    client
}

#[test]
fn will_of_a_lost_client_is_published() {
    let Some((_broker, gateway)) = stand() else { return };
    let mut watcher = connected(&gateway, "watcher", true);
    watcher.subscribe("gone", QoS::AtLeastOnce);
    let mut leaving = with_will(&gateway, "leaving", 60, b"never seen");
    leaving.disconnect();
    let mut changing = with_will(&gateway, "changing", 3, b"never seen");
    changing.subscribe("to/changing", QoS::AtMostOnce);
    changing.send(&Message::WillMsgUpd(b"new"));
    assert_eq!(changing.receive(), Message::WillMsgResp(ReturnCode::Accepted));
    publish(&mut watcher, "to/changing", QoS::AtMostOnce, false, b"still subscribed");
    assert_eq!(take_until(&mut changing, b"still subscribed").len(), 1);
    assert_eq!(take_until(&mut watcher, b"new").len(), 1);
    let _lost = with_will(&gateway, "lost", 2, b"lost");
    assert_eq!(take_until(&mut watcher, b"lost").len(), 1);
}

#[test]
fn client_that_keeps_its_session_has_it_at_the_broker() {
    let Some((_broker, gateway)) = stand() else { return };
    let mut lasting = connected(&gateway, "lasting", false);
    lasting.subscribe("to/lasting", QoS::AtLeastOnce);
    lasting.disconnect();
    let mut sender = connected(&gateway, "sender", true);
    publish(&mut sender, "to/lasting", QoS::AtLeastOnce, false, b"meanwhile");
    assert_eq!(lasting.connect("lasting", false), ReturnCode::Accepted);
    assert_eq!(take_until(&mut lasting, b"meanwhile").len(), 1);
}

#[test]
fn members_of_a_share_group_divide_its_messages() {
    const MESSAGES: usize = 40;
    let Some((_broker, gateway)) = stand() else { return };
    let mut workers: Vec<Client> =
        (0..2).map(|number| connected(&gateway, &format!("worker-{number}"), true)).collect();
    let mut sender = connected(&gateway, "sender", true);
    for worker in &mut workers {
        worker.subscribe("end", QoS::AtLeastOnce);
        worker.subscribe("$share/group/jobs", QoS::AtLeastOnce);
    }
    for number in 0..MESSAGES {
        publish(&mut sender, "jobs", QoS::AtLeastOnce, false, number.to_string().as_bytes());
    }
    publish(&mut sender, "end", QoS::AtLeastOnce, false, b"end");
    let mut numbers: Vec<usize> = Vec::new();
    for worker in &mut workers {
        // The subscription from before the shared one is still there.
        let taken = take_until(worker, b"end");
        assert!(taken.len() > 1, "each has a part");
        numbers.extend(
            taken[..taken.len() - 1]
                .iter()
                .map(|(data, ..)| std::str::from_utf8(data).expect("text").parse::<usize>().expect("a number")),
        );
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn end_of_a_trunk_ends_its_clients_and_the_next_one_opens_it() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "aggregate = 1", ANYBODY);
    let mut clients: Vec<Client> = (0..5).map(|number| connected(&gateway, &format!("c{number}"), true)).collect();
    let address = broker.stop();
    for client in &mut clients {
        assert_eq!(client.receive(), DISCONNECT);
    }
    assert_eq!(clients[0].connect("c0", true), ReturnCode::Congestion);
    let broker = FakeBroker::start_at(address);
    for (client, number) in clients.iter_mut().zip(0..) {
        client.connect_in_the_end(&format!("c{number}"), true);
    }
    clients[0].publish(
        Topic::Short(tenbin_sn_codec::v1_2::ShortName::new("xy").expect("two bytes")),
        QoS::AtMostOnce,
        0,
        b"1",
    );
    loop {
        if let Event::Packet(packet) = broker.event()
            && let Packet::Publish(publish) = *packet
        {
            assert_eq!(publish.payload, "1");
            break;
        }
    }
}

/// A client that leaves in the middle of an exchange, and a stop with Wills that wait.
#[test]
fn packets_of_clients_that_leave_reach_the_broker() {
    let Some((broker, gateway)) = stand() else { return };
    let mut watcher = Client::new(gateway.address());
    assert_eq!(watcher.connect("watcher", false), ReturnCode::Accepted);
    watcher.subscribe("#", QoS::ExactlyOnce);
    watcher.disconnect();
    let mut leaving = connected(&gateway, "leaving", true);
    let topic = Topic::Normal(leaving.register("left"));
    leaving.publish(topic, QoS::ExactlyOnce, 5, b"unreleased");
    leaving.send(&DISCONNECT);
    let _lost = with_will(&gateway, "stopped", 60, b"a will");
    gateway.stop();
    let gateway = crate::client::gateway(broker.address, "", ANYBODY);
    assert_eq!(watcher_at(&gateway).connect("other", true), ReturnCode::Accepted);
    let mut watcher = watcher_at(&gateway);
    assert_eq!(watcher.connect("watcher", false), ReturnCode::Accepted);
    let taken = take_until(&mut watcher, b"a will");
    assert_eq!(taken.iter().filter(|(data, ..)| data == b"unreleased").count(), 1, "{taken:?}");
}

fn watcher_at(gateway: &Gateway) -> Client {
    Client::new(gateway.address())
}
