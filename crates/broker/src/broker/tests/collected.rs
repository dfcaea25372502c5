//! Messages that a publisher collects before it hands them over are bounded even without a receiver.

use std::time::Instant;

use tenbin_codec::{QoS, Text, TopicName};
use tenbin_session::Publication;
use tokio::runtime::Runtime;

use super::client::{TestClient, connect};
use crate::router::{Collector, Publisher};
use crate::{Broker, Config};

const GROUPS: usize = 3;
const MESSAGES: usize = 3000;

#[test]
fn messages_collected_for_share_groups_are_bounded() {
    for has_store in [false, true] {
        let runtime = Runtime::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = "listen = [\"127.0.0.1:0\"]\n[queue]\nmessages_maximum = 100000\nbytes_maximum = 100000000\n";
        let builder = Broker::builder().config(Config::parse(config).unwrap());
        let builder = if has_store { builder.store(directory.path()) } else { builder };
        let broker = runtime.block_on(builder.start()).unwrap();
        let mut member = TestClient::connect(broker.addresses()[0], connect("away", true));
        for group in 0..GROUPS {
            member.subscribe(&format!("$share/{group}/topic"), QoS::AtLeastOnce);
        }
        drop(member);
        runtime.block_on(async {
            while broker.connections() > 0 {
                tokio::task::yield_now().await;
            }
        });
        let router = &broker.parts.shared.routing.router;
        let mut publisher = Publisher::new(router, 0, &Text::try_from("publisher").unwrap());
        let topic = TopicName::try_from("topic").unwrap();
        let publication = Publication { qos: QoS::AtLeastOnce, ..Publication::new(topic, "payload".into()) };
        let (mut most, mut collector) = (0, Collector::new());
        for _ in 0..MESSAGES {
            publisher.publish(router, &mut collector, &publication, broker.parts.shared.clock.moment(Instant::now()));
            most = most.max(collector.len());
        }
        assert!((GROUPS..=2048).contains(&most), "{most}");
        publisher.flush(router, &mut collector, Instant::now());
        assert_eq!(
            (collector.len(), router.waiting_with_groups()),
            (0, GROUPS * MESSAGES),
            "with a store: {has_store}"
        );
    }
}
