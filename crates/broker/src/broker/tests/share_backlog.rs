//! Messages of a share group's on-disk backlog go to the same members as messages that are sent at once.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::{Availability, Rng};
use tenbin_codec::{Packet, PacketId, PacketType, Publish, QoS, Text, TopicFilter, TopicName};
use tokio::runtime::Runtime;

use super::client::{PATIENCE, TestClient, connect};
use crate::outbox::Batch;
use crate::registry::Client;
use crate::{Broker, Config};

const MEMBERS: [&str; 2] = ["one", "other"];
const WORK: &str = "$share/group/work/+";
/// Each name is a topic and its publisher. Enough names that both members get some with any random hash key.
const NAMES: usize = 50;
/// Each name has two consecutive messages.
const MESSAGES: usize = 300;

/// An ordering key, and a policy that depends on the publisher.
const RULES: [&str; 2] =
    ["[[share]]\nkey = \"topic\"\npolicy = \"round_robin\"", "[[share]]\npolicy = \"hash_client_id\""];

#[test]
fn keyed_messages_reach_one_member_in_order() {
    for rules in RULES {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::start(rules, directory.path());
        bench.begin_sessions();
        bench.publish(0..MESSAGES);
        bench.assert_together(MESSAGES);
    }
}

#[test]
fn keyed_messages_keep_member_and_order_across_restart() {
    for rules in RULES {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::start(rules, directory.path());
        bench.begin_sessions();
        bench.publish(0..MESSAGES);
        bench.stop();
        let bench = Bench::start(rules, directory.path());
        bench.publish(MESSAGES..2 * MESSAGES);
        bench.assert_together(2 * MESSAGES);
    }
}

#[test]
fn restart_writes_no_records_for_known_groups() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::start("", directory.path());
    bench.begin_sessions();
    bench.stop();
    let bench = Bench::start("", directory.path());
    let changes = bench.broker.parts.shared.storage.durable.as_ref().unwrap().stats().changes;
    assert_eq!(changes, 1, "the number of the run");
    let group = bench.broker.parts.shared.routing.router.queue_of_group(NonZeroU64::MIN).unwrap();
    bench.publish(0..1);
    bench.stop();
    // The group has the same queue with its message.
    let bench = Bench::start("", directory.path());
    assert_eq!(bench.broker.parts.shared.routing.router.queue_of_group(NonZeroU64::MIN).unwrap().id(), group.id());
    bench.assert_taken(1);
}

struct Bench {
    broker: Broker,
    runtime: Runtime,
}

impl Bench {
    fn start(rules: &str, directory: &Path) -> Self {
        let queue = "[queue]\nmessages_maximum = 100000\nbytes_maximum = 100000000\n";
        let config = Config::parse(&format!("listen = [\"127.0.0.1:0\"]\n{queue}{rules}")).unwrap();
        let runtime = Runtime::new().unwrap();
        let broker = runtime.block_on(Broker::builder().config(config).store(directory).start()).unwrap();
        Self { broker, runtime }
    }

    fn stop(self) {
        self.runtime.block_on(self.broker.shutdown());
    }

    fn client(&self, name: &str) -> Arc<Client> {
        self.broker.parts.shared.sessions.registry.find(&Text::try_from(name).unwrap()).expect("a session")
    }

    /// Begins disconnected sessions of both members.
    fn begin_sessions(&self) {
        for name in MEMBERS {
            let mut member = TestClient::connect(self.broker.addresses()[0], connect(name, true));
            member.subscribe(WORK, QoS::AtLeastOnce);
            drop(member);
            let until = Instant::now() + PATIENCE;
            while self.client(name).load.availability() != Availability::Offline {
                assert!(Instant::now() < until, "{name} stays");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn publish(&self, numbers: std::ops::Range<usize>) {
        let address = self.broker.addresses()[0];
        let mut publishers: Vec<_> =
            (0..NAMES).map(|name| TestClient::connect(address, connect(&format!("publisher {name}"), false))).collect();
        for number in numbers {
            let name = number / 2 % NAMES;
            let topic = TopicName::try_from(&*format!("work/{name}")).unwrap();
            let publish = Publish::new(topic, format!("{number} {}", "x".repeat(1000)).into());
            let (qos, packet_id) = (QoS::AtLeastOnce, PacketId::new(1));
            publishers[name].send(Packet::Publish(Publish { qos, packet_id, ..publish }));
            publishers[name].wait_for(PacketType::PubAck);
        }
    }

    fn assert_together(&self, messages: usize) {
        let taken = self.assert_taken(messages);
        assert!(taken.iter().all(|taken| !taken.is_empty()), "{:?}", taken.each_ref().map(Vec::len));
        assert!(taken.iter().all(|taken| taken.is_sorted()), "{taken:?}");
        let mut of = HashMap::<_, HashSet<_>>::new();
        for (member, taken) in taken.iter().enumerate() {
            for number in taken {
                of.entry(number / 2 % NAMES).or_default().insert(member);
            }
        }
        assert!(of.len() == NAMES && of.values().all(|members| members.len() == 1), "{of:?}");
    }

    /// Connects both members at the same moment and takes `messages` without acknowledging. Returns each member's
    /// messages.
    fn assert_taken(&self, messages: usize) -> [Vec<usize>; 2] {
        let members = MEMBERS.map(|name| self.client(name));
        members.iter().for_each(|member| member.outbox.attach(u32::MAX, None));
        let filter = TopicFilter::try_from(WORK).unwrap();
        self.broker.parts.shared.routing.router.connected([&filter].into_iter(), Instant::now(), &mut Rng::new(1));
        let mut taken = members.map(|_| Vec::new());
        let until = Instant::now() + PATIENCE;
        while taken.iter().map(Vec::len).sum::<usize>() < messages {
            assert!(Instant::now() < until, "{:?}", taken.each_ref().map(Vec::len));
            for (name, taken) in MEMBERS.iter().zip(&mut taken) {
                let mut batch = Batch::default();
                self.client(name).outbox.take_now(usize::MAX, usize::MAX, &mut batch);
                taken.extend(batch.into_singles().iter().map(|delivery| {
                    let payload = String::from_utf8_lossy(delivery.template.payload()).into_owned();
                    payload.split(' ').next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
                }));
            }
        }
        taken
    }
}
