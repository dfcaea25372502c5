//! The balancer's outstanding counts match the members' messages, whichever way the messages end.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::MemberLoad;
use tenbin_codec::{Ack, Connect, Disconnect, Packet, PacketType, Publish, QoS, ReasonCode};
use tokio::runtime::Runtime;

use super::client::{PATIENCE, TestClient, connect};
use crate::{Broker, Config, Policy};

const ALL: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
const WORK: &str = "$share/group/work";

#[test]
fn acknowledgements_and_writes_end_outstanding() {
    for granted in ALL {
        let bench = Bench::new();
        let mut member = bench.member("member", true, granted);
        let mut publisher = bench.publisher();
        for qos in ALL {
            (0..20).for_each(|_| publisher.publish(qos, 100, None));
            let messages = messages(&mut member, 20);
            let unacknowledged = if granted.min(qos).is_acknowledged() { 20 } else { 0 };
            bench.assert_outstanding("member", unacknowledged);
            for (done, message) in messages.iter().enumerate() {
                member.acknowledge(message);
                bench.assert_outstanding("member", unacknowledged.saturating_sub(done as u64 + 1));
            }
        }
    }
}

#[test]
fn messages_acknowledged_together_share_processing_time() {
    let bench = Bench::new();
    let mut member = bench.member("member", true, QoS::AtLeastOnce);
    let mut publisher = bench.publisher();
    (0..10).for_each(|_| publisher.publish(QoS::AtLeastOnce, 100, None));
    let messages = messages(&mut member, 10);
    std::thread::sleep(Duration::from_millis(50));
    let acks = messages.iter().map(|message| Packet::PubAck(Ack::new(message.packet_id.unwrap(), ReasonCode::Success)));
    member.send_together(acks);
    bench.assert_outstanding("member", 0);
    // Measured one by one, all but the first would take no time.
    let speed = bench.load("member").learned_speed();
    assert!(speed >= Some(Duration::from_millis(5)), "{speed:?} for each of ten in 50 ms or more");
}

#[test]
fn refused_messages_are_not_outstanding() {
    let bench = Bench::new();
    let mut member = bench.member("member", true, QoS::ExactlyOnce);
    let mut publisher = bench.publisher();
    for (qos, refuse) in [(QoS::AtLeastOnce, Packet::PubAck as fn(Ack) -> Packet), (QoS::ExactlyOnce, Packet::PubRec)] {
        publisher.publish(qos, 100, None);
        let id = member.receive().packet_id.unwrap();
        bench.assert_outstanding("member", 1);
        member.send(refuse(Ack::new(id, ReasonCode::QuotaExceeded)));
        bench.assert_outstanding("member", 0);
    }
    let load = bench.load("member").snapshot();
    assert_eq!((load.sent, load.taken_back), (2, 2), "they count as work");
}

#[test]
fn redelivery_from_dead_member_moves_outstanding() {
    for (lasts, qos) in [true, false].into_iter().flat_map(|lasts| ALL.map(|qos| (lasts, qos))) {
        let bench = Bench::new();
        // Takes one message at a time; the rest stay in its queue.
        let mut dies = bench.connect(Connect { properties: one_at_a_time(lasts), ..connect("dies", lasts) });
        dies.subscribe(WORK, QoS::ExactlyOnce);
        let mut publisher = bench.publisher();
        (0..10).for_each(|_| publisher.publish(qos, 100, None));
        let load = bench.load("dies");
        let has = messages(&mut dies, if qos.is_acknowledged() { 1 } else { 10 });
        assert_outstanding(&load, if qos.is_acknowledged() { 10 } else { 0 });
        let mut other = bench.member("other", true, QoS::ExactlyOnce);
        drop(dies);
        // A sent QoS 2 message stays with its session if the session lasts.
        let stays = u64::from(qos == QoS::ExactlyOnce && lasts);
        let goes = if qos.is_acknowledged() { 10 - u64::from(qos == QoS::ExactlyOnce) } else { 0 };
        assert_outstanding(&load, stays);
        let messages = messages(&mut other, goes as usize);
        bench.assert_outstanding("other", goes);
        messages.iter().for_each(|message| other.acknowledge(message));
        bench.assert_outstanding("other", 0);
        if lasts {
            let mut back = bench.connect(connect("dies", true));
            if stays == 1 {
                let again = back.receive();
                assert!(again.dup && again.packet_id == has[0].packet_id);
                back.acknowledge(&again);
            }
            assert_outstanding(&load, 0);
        }
    }
}

#[test]
fn qos_2_awaiting_pubcomp_completes_on_next_connection() {
    for clean_start in [false, true] {
        let bench = Bench::new();
        let mut member = bench.member("member", true, QoS::ExactlyOnce);
        let mut publisher = bench.publisher();
        publisher.publish(QoS::ExactlyOnce, 100, None);
        let id = member.receive().packet_id.unwrap();
        member.send(Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        member.wait_for(PacketType::PubRel);
        bench.assert_outstanding("member", 1);
        let load = bench.load("member");
        // Takes the session over.
        let mut again = bench.connect(Connect { clean_start, ..connect("member", true) });
        if clean_start {
            assert_outstanding(&load, 0);
            continue;
        }
        again.wait_for(PacketType::PubRel);
        assert_outstanding(&load, 1);
        again.send(Packet::PubComp(Ack::new(id, ReasonCode::Success)));
        assert_outstanding(&load, 0);
    }
}

#[test]
fn takeovers_under_load_leave_nothing_outstanding() {
    let bench = Bench::new();
    let mut other = bench.member("other", true, QoS::ExactlyOnce);
    let mut publisher = bench.publisher();
    let mut member = bench.member("member", true, QoS::ExactlyOnce);
    for round in 0..20 {
        for qos in ALL {
            (0..3).for_each(|_| publisher.publish(qos, 100, None));
        }
        member = bench.connect(Connect { clean_start: round % 5 == 4, ..connect("member", true) });
        member.subscribe(WORK, QoS::ExactlyOnce);
        finish(&mut member);
        finish(&mut other);
    }
    finish(&mut member);
    bench.assert_outstanding("member", 0);
    bench.assert_outstanding("other", 0);
}

#[test]
fn expired_messages_are_not_outstanding() {
    let bench = Bench::new();
    let mut member = bench.connect(Connect { properties: one_at_a_time(true), ..connect("member", true) });
    member.subscribe(WORK, QoS::AtLeastOnce);
    let mut publisher = bench.publisher();
    publisher.publish(QoS::AtLeastOnce, 100, None);
    (0..5).for_each(|_| publisher.publish(QoS::AtLeastOnce, 100, Some(1)));
    let first = member.receive();
    bench.assert_outstanding("member", 6);
    std::thread::sleep(Duration::from_millis(1100));
    member.acknowledge(&first);
    bench.assert_outstanding("member", 0);
    assert_eq!(bench.broker.metrics().dropped_expired, 5);
}

#[test]
fn messages_dropped_at_full_queue_are_not_outstanding() {
    let bench = Bench::with("[queue]\nmessages_maximum = 4");
    let mut member = bench.connect(Connect { properties: one_at_a_time(true), ..connect("member", true) });
    member.subscribe(WORK, QoS::AtLeastOnce);
    let mut publisher = bench.publisher();
    publisher.publish(QoS::AtLeastOnce, 100, None);
    let first = member.receive();
    (0..4).for_each(|_| publisher.publish(QoS::AtLeastOnce, 100, Some(1)));
    // The fifth and sixth stay in the group backlog, which counts for no member.
    (0..2).for_each(|_| publisher.publish(QoS::AtLeastOnce, 100, None));
    bench.assert_outstanding("member", 5);
    std::thread::sleep(Duration::from_millis(1100));
    publisher.publish(QoS::AtLeastOnce, 100, None);
    member.acknowledge(&first);
    let mut left = 3;
    while left > 0 {
        let message = member.receive();
        member.acknowledge(&message);
        left -= 1;
    }
    bench.assert_outstanding("member", 0);
}

#[test]
fn dropped_oversized_messages_are_not_outstanding() {
    let bench = Bench::new();
    let mut small = connect("small", true);
    small.properties.maximum_packet_size = NonZeroU32::new(100);
    let mut member = bench.connect(small);
    member.subscribe(WORK, QoS::AtLeastOnce);
    let mut publisher = bench.publisher();
    ALL.iter().for_each(|&qos| publisher.publish(qos, 1000, None));
    bench.assert_outstanding("small", 0);
    assert_eq!(bench.broker.metrics().dropped_too_large, 3);
}

#[test]
fn unsubscribed_member_completes_its_messages() {
    let bench = Bench::new();
    let mut member = bench.connect(Connect { properties: one_at_a_time(true), ..connect("member", true) });
    member.subscribe(WORK, QoS::AtLeastOnce);
    let mut publisher = bench.publisher();
    (0..3).for_each(|_| publisher.publish(QoS::AtLeastOnce, 100, None));
    member.unsubscribe(WORK);
    bench.assert_outstanding("member", 3);
    (0..3).for_each(|_| {
        let message = member.receive();
        member.acknowledge(&message);
    });
    bench.assert_outstanding("member", 0);
}

#[test]
fn unread_messages_are_outstanding_until_disconnect() {
    let bench = Bench::new();
    let member = bench.member("member", true, QoS::AtMostOnce);
    let mut publisher = bench.publisher();
    let load = bench.load("member");
    let mut published = 0;
    while load.snapshot().outstanding_messages < 40 {
        (0..10).for_each(|_| publisher.publish(QoS::AtMostOnce, 100_000, None));
        published += 10;
        assert!(published < 2000, "its socket takes no end");
    }
    let snapshot = load.snapshot();
    assert!(snapshot.outstanding_bytes > snapshot.outstanding_messages * 100_000, "{snapshot:?}");
    drop(member);
    assert_outstanding(&load, 0);
}

#[test]
fn messages_read_slowly_are_not_outstanding() {
    let bench = Bench::new();
    let mut member = bench.member("member", true, QoS::AtMostOnce);
    let mut publisher = bench.publisher();
    (0..150).for_each(|_| publisher.publish(QoS::AtMostOnce, 100_000, None));
    (0..150).for_each(|_| drop(member.receive()));
    bench.assert_outstanding("member", 0);
}

#[test]
fn redelivery_from_draining_member_moves_outstanding() {
    let bench = Bench::new();
    let mut drains = bench.connect(Connect { properties: one_at_a_time(true), ..connect("drains", true) });
    drains.subscribe(WORK, QoS::ExactlyOnce);
    let mut publisher = bench.publisher();
    (0..10).for_each(|n| publisher.publish(ALL[1 + n % 2], 100, None));
    bench.assert_outstanding("drains", 10);
    let mut other = bench.member("other", true, QoS::ExactlyOnce);
    drains.report(r#"{"msgsInQueue":1,"processingTimePerMsg":5,"draining":true}"#);
    bench.assert_outstanding("drains", 1);
    bench.assert_outstanding("other", 9);
    let first = drains.receive();
    drains.acknowledge(&first);
    finish(&mut other);
    bench.assert_outstanding("drains", 0);
    bench.assert_outstanding("other", 0);
}

#[test]
fn redelivery_from_stuck_member_moves_outstanding() {
    let bench = Bench::new();
    let mut stuck = bench.connect(Connect { properties: one_at_a_time(true), ..connect("stuck", true) });
    stuck.subscribe(WORK, QoS::ExactlyOnce);
    let mut publisher = bench.publisher();
    (0..10).for_each(|n| publisher.publish(ALL[1 + n % 2], 100, None));
    bench.assert_outstanding("stuck", 10);
    let mut other = bench.member("other", true, QoS::ExactlyOnce);
    bench.assert_outstanding("other", 9);
    bench.assert_outstanding("stuck", 1);
    let first = stuck.receive();
    stuck.acknowledge(&first);
    finish(&mut other);
    bench.assert_outstanding("stuck", 0);
    bench.assert_outstanding("other", 0);
}

#[test]
fn normal_disconnect_ends_outstanding() {
    let bench = Bench::new();
    let mut member = bench.member("member", false, QoS::ExactlyOnce);
    let mut publisher = bench.publisher();
    ALL.iter().for_each(|&qos| publisher.publish(qos, 100, None));
    let load = bench.load("member");
    messages(&mut member, 3);
    assert_outstanding(&load, 2);
    member.send(Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
    assert_outstanding(&load, 0);
}

/// A broker for one test.
struct Bench {
    broker: Broker,
    _runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    fn with(config: &str) -> Self {
        let config = Config::parse(&format!("listen = [\"127.0.0.1:0\"]\n{config}")).unwrap();
        let config = Config { policy: Policy::RoundRobin, ..config };
        let runtime = Runtime::new().unwrap();
        let broker = runtime.block_on(Broker::builder().config(config).start()).unwrap();
        Self { broker, _runtime: runtime }
    }

    fn address(&self) -> SocketAddr {
        self.broker.addresses()[0]
    }

    fn connect(&self, connect: Connect) -> TestClient {
        TestClient::connect(self.address(), connect)
    }

    fn member(&self, client_id: &str, lasts: bool, qos: QoS) -> TestClient {
        let mut member = self.connect(connect(client_id, lasts));
        member.subscribe(WORK, qos);
        member
    }

    fn publisher(&self) -> TestClient {
        self.connect(connect("publisher", false))
    }

    fn load(&self, client_id: &str) -> Arc<MemberLoad> {
        let mut load = None;
        self.broker.parts.shared.sessions.registry.for_each(|client| {
            if client.id.as_str() == client_id {
                load = Some(Arc::clone(&client.load));
            }
        });
        load.expect("a session of that name")
    }

    fn assert_outstanding(&self, client_id: &str, messages: u64) {
        assert_outstanding(&self.load(client_id), messages);
    }
}

/// Waits until `messages` are outstanding, and checks that the outstanding bytes agree.
#[track_caller]
fn assert_outstanding(load: &MemberLoad, messages: u64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let snapshot = load.snapshot();
        if snapshot.outstanding_messages == messages {
            assert_eq!(snapshot.outstanding_bytes > 0, messages > 0, "{snapshot:?}");
            return;
        }
        assert!(Instant::now() < until, "{messages} should be outstanding: {snapshot:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn messages(client: &mut TestClient, count: usize) -> Vec<Publish> {
    (0..count).map(|_| client.receive()).collect()
}

/// Receives and acknowledges messages until none arrive.
fn finish(client: &mut TestClient) {
    loop {
        let messages = client.receive_all();
        if messages.is_empty() {
            return;
        }
        messages.iter().for_each(|message| client.acknowledge(message));
    }
}

fn one_at_a_time(lasts: bool) -> tenbin_codec::ConnectProperties {
    let mut properties = connect("", lasts).properties;
    properties.receive_maximum = NonZeroU16::new(1);
    properties
}
