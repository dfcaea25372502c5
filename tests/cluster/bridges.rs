//! Bridges of a cluster: the node that leads runs them, and the next leader goes on with their sessions.

use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::harness::Cluster;
use crate::support::{BrokerProcess, PATIENCE, text};

#[test]
fn bridge_goes_on_at_the_next_leader() {
    let hub = BrokerProcess::start(&[]);
    let mut sink = hub.v5("sink");
    sink.subscribe("jobs", QoS::ExactlyOnce);
    let bridge = format!("[[bridge]]\nname = \"b\"\nremote = \"mqtt://{}\"\nreceive_maximum = 5\n", hub.address());
    let topics = "[[bridge.topics]]\ndirection = \"out\"\nfilter = \"jobs\"\n";
    let Some(mut cluster) = Cluster::start_with(2, &format!("{bridge}{topics}")) else { return };
    let mut leader = cluster.wait_for_copies();
    for round in 0..3 {
        cluster.nodes[leader].log().wait_for(&["bridge connected"], PATIENCE);
        let connect = Connect::new(ProtocolVersion::V5, text("publisher"));
        let (mut publisher, _) = cluster.connect(leader, &connect);
        for number in 0..20 {
            publisher.publish("jobs", &format!("{round} {number}"), QoS::ExactlyOnce);
        }
        // Some are under way.
        cluster.nodes[leader].kill();
        for number in 0..20 {
            assert_eq!(sink.receive_message().payload, format!("{round} {number}"), "once and in order");
        }
        assert_eq!(cluster.wait_for_leader(), 1 - leader);
        cluster.nodes[leader].start();
        leader = cluster.wait_for_copies();
    }
}
