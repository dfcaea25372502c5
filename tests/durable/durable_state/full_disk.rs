//! A full disk: no change is acknowledged before it is stored, and other traffic continues.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_codec::{
    Ack, Connect, Disconnect, DisconnectProperties, Packet, PacketId, PingReq, ProtocolVersion, Publish, QoS,
    ReasonCode, Subscribe, Will,
};

use super::expiring;

use crate::support::{
    BrokerProcess, ConfigFile, Filler, PATIENCE, RawClient, Silence, SmallDisk, at_qos, lasting, message, retained,
    subscription, text, topic,
};

/// A disk that becomes full, and brokers on it.
struct FullDisk {
    filler: Option<Filler>,
    disk: SmallDisk,
    config: ConfigFile,
}

impl FullDisk {
    fn mount(mebibytes: usize) -> Option<Self> {
        let config = ConfigFile::new("[connections]\nconnect_timeout_ms = 2000\n");
        Some(Self { disk: SmallDisk::mount(mebibytes)?, config, filler: None })
    }

    fn start(&self) -> BrokerProcess {
        let data = self.disk.data();
        let data = data.to_str().expect("a target directory with a readable name");
        BrokerProcess::start(&["--data", data, "--config", self.config.path()])
    }

    fn fill(&mut self) {
        self.filler = Some(self.disk.fill());
    }

    /// Fills the disk and makes the broker notice.
    fn fail(&mut self, broker: &BrokerProcess) -> RawClient {
        self.fill();
        let mut client = broker.v5("noticing");
        retain_until_full(broker, &mut client, "noticed");
        client
    }

    fn free(&mut self) {
        drop(self.filler.take().expect("it was filled"));
    }
}

/// Publishes retained messages of 100,000 bytes to `topic` until the state cannot be written. The last one has no
/// PUBACK.
///
/// A message exceeds the free room of a page, but may still find room that the broker gave back.
fn retain_until_full(broker: &BrokerProcess, client: &mut RawClient, topic: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let packet_id = Some(client.next_id());
        client.send(&Packet::Publish(Publish { packet_id, ..retained(topic, &"x".repeat(100_000)) }));
        loop {
            if let Ok(packet) = client.try_receive(Duration::from_millis(10)) {
                assert!(matches!(&packet, Packet::PubAck(ack) if Some(ack.packet_id) == packet_id), "{packet:?}");
                break;
            }
            if broker.log().all().iter().any(|line| line.contains("the state cannot be written")) {
                return;
            }
            assert!(Instant::now() < until, "neither PUBACK nor an error: {}", broker.log().all().join("\n"));
        }
        assert!(Instant::now() < until, "the disk is never full");
    }
}

#[test]
fn full_disk_delays_acks_of_state_changes_only() {
    let Some(disk) = SmallDisk::mount(200) else { return };
    let data = disk.data();
    let data = data.to_str().expect("a target directory with a readable name");
    let config = ConfigFile::new("[connections]\nconnect_timeout_ms = 2000\n");
    let broker = BrokerProcess::start(&["--data", data, "--config", config.path()]);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("before", QoS::AtLeastOnce);
    let mut other = broker.v5("other");
    other.subscribe("goes/on", QoS::AtLeastOnce);

    let filler = disk.fill();
    retain_until_full(&broker, &mut other, "retained");
    let packet_id = client.next_id();
    let (user_properties, subscriptions) = (Vec::new(), vec![subscription("during", QoS::AtLeastOnce)]);
    let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
    client.send(&Packet::Subscribe(subscribe));
    // Traffic without disk writes continues, on the same connections too.
    client.settle();
    other.settle();
    other.send(&Packet::Publish(message("goes/on", "1")));
    assert_eq!(other.receive_message().payload, "1");
    assert_eq!(client.publish("goes/on", "2", QoS::AtLeastOnce).byte(), 0);
    assert_eq!(other.receive_message().payload, "2");
    assert_eq!(client.try_receive(Duration::from_millis(1500)), Err(Silence::TimedOut), "no SUBACK");
    assert_eq!(other.try_receive(Duration::from_millis(1)), Err(Silence::TimedOut), "no PUBACK");

    // A persistent session is refused, a transient one accepted.
    let (_, connack) = RawClient::try_connect(broker.address(), lasting(ProtocolVersion::V5, "new"));
    assert_eq!(connack.reason, ReasonCode::ServerUnavailable);
    broker.assert_serves();

    drop(filler);
    assert!(matches!(client.receive(), Packet::SubAck(_)));
    assert!(matches!(other.receive(), Packet::PubAck(_)));
    wait_for_log(&broker, "the state can be written again");
    broker.connect(lasting(ProtocolVersion::V5, "new")).settle();
    drop((client, other, broker));
    let broker = BrokerProcess::start(&["--data", data]);
    let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "client"));
    assert!(connack.session_present);
    let mut publisher = broker.v5("publisher");
    for topic in ["before", "during"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, topic);
    }
    publisher.subscribe("retained", QoS::AtMostOnce);
    assert_eq!(publisher.receive_publish().payload.len(), 100_000);
}

fn wait_for_log(broker: &BrokerProcess, words: &str) {
    let until = Instant::now() + PATIENCE;
    while !broker.log().all().iter().any(|line| line.contains(words)) {
        assert!(Instant::now() < until, "{words}: {}", broker.log().all().join("\n"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn mqtt_3_1_2_4_clean_start_is_refused_if_it_is_not_durable() {
    let Some(mut disk) = FullDisk::mount(200) else { return };
    let broker = disk.start();
    let address = broker.address();
    for client in ["v5", "other"] {
        broker.connect(lasting(ProtocolVersion::V5, client)).subscribe(client, QoS::AtLeastOnce);
    }
    broker.connect(lasting(ProtocolVersion::V311, "v311")).subscribe("v311", QoS::AtLeastOnce);
    let leaves = broker.connect(expiring("leaves", 600));
    let stays = broker.connect(expiring("stays", 600));
    let _noticing = disk.fail(&broker);
    // The client ends its session with DISCONNECT, which has no answer.
    let properties = DisconnectProperties { session_expiry_interval: Some(0), ..DisconnectProperties::default() };
    leaves.disconnect_with(Disconnect { reason: ReasonCode::Success, properties: Some(Box::new(properties)) });
    let properties =
        DisconnectProperties { session_expiry_interval: Some(u32::MAX), ..DisconnectProperties::default() };
    stays.disconnect_with(Disconnect { reason: ReasonCode::Success, properties: Some(Box::new(properties)) });
    let clean = |version, client| Connect { clean_start: true, ..Connect::new(version, text(client)) };
    for connect in [
        clean(ProtocolVersion::V5, "v5"),
        clean(ProtocolVersion::V311, "v311"),
        expiring("other", 0),
        clean(ProtocolVersion::V5, "leaves"),
    ] {
        let client = connect.client_id.clone();
        let (_, connack) = RawClient::try_connect(address, connect);
        assert!(connack.reason.is_error(), "{client:?}");
    }
    // The stored expiry of this session may be the old one.
    let (stays, connack) = RawClient::connect(address, lasting(ProtocolVersion::V5, "stays"));
    assert!(connack.session_present);
    drop(stays);
    // A client without stored session is accepted.
    broker.connect(clean(ProtocolVersion::V5, "new")).settle();
    drop(broker);
    disk.free();
    let broker = disk.start();
    for connect in [
        lasting(ProtocolVersion::V5, "v5"),
        lasting(ProtocolVersion::V311, "v311"),
        expiring("other", 600),
        expiring("stays", 600),
    ] {
        let (_, connack) = RawClient::connect(broker.address(), connect);
        assert!(connack.session_present);
    }
}

#[test]
fn refused_connect_on_a_full_disk_changes_no_session() {
    let Some(mut disk) = FullDisk::mount(200) else { return };
    let broker = disk.start();
    let address = broker.address();
    let with_will = |connect: Connect, delay, bytes: usize| {
        let (topic, payload) = (topic("wills"), "x".repeat(bytes).into());
        let will =
            Will { qos: QoS::AtLeastOnce, retain: false, topic, payload, delay_interval: delay, properties: None };
        Connect { will: Some(will), ..connect }
    };
    let mut heir = broker.v5("heir");
    heir.subscribe("wills", QoS::AtLeastOnce);
    let clients = ["at once", "in vain"];
    // Long enough for all refusals below.
    let delay = Some(10);
    let wills = clients.map(|client| broker.connect(with_will(expiring(client, 600), delay, 10)));
    disk.fill();
    wills.into_iter().for_each(RawClient::cut);
    // There is no room for the new Wills of these clients.
    for client in ["in vain", "new"] {
        let (_, connack) = RawClient::try_connect(address, with_will(expiring(client, 0), None, 60_000));
        assert_eq!(connack.reason, ReasonCode::ServerUnavailable, "{client}");
    }
    wait_for_log(&broker, "the state cannot be written");
    for client in ["at once", "in vain", "newer"] {
        let (_, connack) = RawClient::try_connect(address, expiring(client, 700));
        assert_eq!(connack.reason, ReasonCode::ServerUnavailable, "{client}");
    }
    // No client was accepted before the delay was over.
    for _ in clients {
        assert_eq!(heir.receive_message().payload.len(), 10);
    }
    heir.expect_nothing_waiting();
    disk.free();
    wait_for_log(&broker, "the state can be written again");
    for (client, is_there) in [("at once", true), ("in vain", true), ("new", false), ("newer", false)] {
        let (_, connack) = RawClient::connect(address, expiring(client, 600));
        assert_eq!(connack.session_present, is_there, "{client}");
    }
}

#[test]
fn mqtt_4_3_3_resent_qos_2_message_is_not_acked_before_storage() {
    let Some(mut disk) = FullDisk::mount(200) else { return };
    let broker = disk.start();
    let connect = || broker.connect(lasting(ProtocolVersion::V5, "client"));
    let mut client = connect();
    let _noticing = disk.fail(&broker);
    let publish = |topic: &str, id: u16, dup| {
        let packet_id = PacketId::new(id);
        Packet::Publish(Publish { retain: id == 7, dup, packet_id, ..at_qos(topic, "x", QoS::ExactlyOnce) })
    };
    client.send(&publish("kept", 7, false));
    client.send(&publish("$SYS/forbidden", 8, false));
    client.settle();
    assert_eq!(client.try_receive(Duration::from_millis(300)), Err(Silence::TimedOut), "no PUBREC");
    client.cut();
    let mut client = connect();
    client.send(&publish("$SYS/forbidden", 8, true));
    assert_eq!(
        client.wait_for_ack(tenbin_codec::PacketType::PubRec, PacketId::new(8).expect("8")),
        ReasonCode::NotAuthorized
    );
    client.send(&publish("kept", 7, true));
    client.settle();
    assert_eq!(client.try_receive(Duration::from_millis(300)), Err(Silence::TimedOut), "no PUBREC");
    disk.free();
    assert_eq!(client.receive(), Packet::PubRec(Ack::new(PacketId::new(7).expect("7"), ReasonCode::Success)));
    drop((client, broker));
    let broker = disk.start();
    let mut client = broker.v5("observer");
    client.subscribe("kept", QoS::AtMostOnce);
    assert_eq!(client.receive_publish().payload, "x");
}

#[test]
fn mqtt_3_1_2_22_deferred_acks_do_not_break_keep_alive() {
    let Some(mut disk) = FullDisk::mount(200) else { return };
    let broker = disk.start();
    let lasts = lasting(ProtocolVersion::V5, "subscriber");
    broker.connect(lasts.clone()).disconnect();
    let _noticing = disk.fail(&broker);
    // From here on both clients send packets often.
    let connect = |connect| broker.connect(Connect { keep_alive: 4, ..connect });
    let mut publisher = connect(Connect::new(ProtocolVersion::V5, text("publisher")));
    let mut subscriber = connect(lasts);
    // The broker's Receive Maximum of messages, and more requests than the broker reads at once.
    for number in 0..1024 {
        let packet_id = Some(publisher.next_id());
        publisher.send(&Packet::Publish(Publish { packet_id, ..retained("window", &number.to_string()) }));
    }
    for _ in 0..1500 {
        let packet_id = subscriber.next_id();
        let (user_properties, subscriptions) = (Vec::new(), vec![subscription("again", QoS::AtLeastOnce)]);
        let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
        subscriber.send(&Packet::Subscribe(subscribe));
    }
    let until = Instant::now() + Duration::from_millis(6500);
    while Instant::now() < until {
        // The broker reads from this connection and answers.
        publisher.settle();
        subscriber.send(&Packet::PingReq(PingReq::PLAIN));
        std::thread::sleep(Duration::from_millis(200));
    }
    disk.free();
    for _ in 0..1024 {
        assert!(matches!(publisher.wait_for(tenbin_codec::PacketType::PubAck), Packet::PubAck(_)));
    }
    for _ in 0..1500 {
        assert!(matches!(subscriber.wait_for(tenbin_codec::PacketType::SubAck), Packet::SubAck(_)));
    }
}

#[test]
fn congested_state_refuses_changes_and_delivers_messages() {
    let Some(mut disk) = FullDisk::mount(500) else { return };
    let broker = disk.start();
    let mut lasting_one = broker.connect(lasting(ProtocolVersion::V5, "lasting"));
    let mut live = broker.v5("live");
    for filter in ["live/#", "will"] {
        live.subscribe(filter, QoS::AtLeastOnce);
    }
    let (topic, payload) = (topic("will"), "gone".into());
    let will = Will { qos: QoS::AtMostOnce, retain: true, topic, payload, delay_interval: None, properties: None };
    let mortal = broker.connect(Connect { will: Some(will), ..Connect::new(ProtocolVersion::V5, text("mortal")) });
    let _noticing = disk.fail(&broker);
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        let big = Publish { qos: QoS::AtMostOnce, ..retained(&format!("big/{number}"), &"x".repeat(3_500_000)) };
        publisher.send(&Packet::Publish(big));
    }
    publisher.settle();
    assert_eq!(publisher.publish_with(retained("live/1", "refused")), ReasonCode::QuotaExceeded);
    publisher.send(&Packet::Publish(Publish { retain: true, ..message("live/0", "not kept") }));
    let mut older = broker.v311("older");
    assert_eq!(live.receive_message().payload, "refused");
    assert_eq!(live.receive_message().payload, "not kept");
    older.send(&Packet::Publish(Publish { retain: true, ..message("live/0", "not kept of 3.1.1") }));
    assert_eq!(live.receive_message().payload, "not kept of 3.1.1");
    older.settle();
    mortal.cut();
    assert_eq!(live.receive_message().payload, "gone");
    let reasons = lasting_one.subscribe_to(None, vec![subscription("more", QoS::AtLeastOnce)]);
    assert_eq!(reasons, [ReasonCode::QuotaExceeded]);
    live.subscribe("more", QoS::AtLeastOnce);
    disk.free();
    wait_for_log(&broker, "the state can be written again");
    lasting_one.subscribe("more", QoS::AtLeastOnce);
    drop((lasting_one, live, publisher, older, broker));
    let broker = disk.start();
    let mut observer = broker.v5("observer");
    for filter in ["live/#", "will"] {
        observer.subscribe(filter, QoS::AtMostOnce);
    }
    let found = observer.drain_payloads();
    assert_eq!(found, ["gone"], "a Will is kept all the same");
}

#[test]
fn stored_session_resumes_on_a_full_disk() {
    let Some(mut disk) = FullDisk::mount(200) else { return };
    let broker = disk.start();
    let address = broker.address();
    let mut receiver = broker.connect(expiring("receiver", 600));
    receiver.subscribe("waits", QoS::AtLeastOnce);
    receiver.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..3 {
        assert_eq!(publisher.publish("waits", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
    let _noticing = disk.fail(&broker);
    let will = Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic: topic("will"),
        payload: "gone".into(),
        delay_interval: None,
        properties: None,
    };
    for connect in [expiring("new", 600), Connect { will: Some(will), ..expiring("receiver", 600) }] {
        let (_, connack) = RawClient::try_connect(address, connect);
        assert_eq!(connack.reason, ReasonCode::ServerUnavailable, "something has to be kept");
    }
    // The session resumes with another expiry, and once more before that expiry is stored.
    for seconds in [700, 800] {
        let (mut receiver, connack) = RawClient::connect(address, expiring("receiver", seconds));
        assert!(connack.session_present);
        if seconds == 700 {
            for number in 0..3 {
                assert_eq!(receiver.receive_message().payload, number.to_string());
            }
            receiver.settle();
        }
        receiver.expect_nothing_waiting();
        receiver.cut();
    }
    let (mut receiver, _) = RawClient::connect(address, expiring("receiver", 900));
    receiver.settle();
    disk.free();
    wait_for_log(&broker, "the state can be written again");
    publisher.publish_with(retained("written", "1")); // commits all earlier changes, too
    drop(broker);
    let dumped =
        Command::new(env!("CARGO_BIN_EXE_tenbin")).args(["store", "dump"]).arg(disk.disk.path().join("data")).output();
    let dumped = String::from_utf8(dumped.expect("the built command can be started").stdout).expect("text");
    let lines = dumped.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is an object"));
    let session = lines.into_iter().find(|line| line["record"] == "session" && line["client_id"] == "receiver");
    let session = session.expect("it is on disk");
    assert_eq!((&session["expiry_seconds"], &session["ended"]), (&json!(900), &Value::Null));
}
