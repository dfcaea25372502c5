//! Directories of standalone brokers and of copies.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::commands::Commands;
use crate::harness::{Cluster, finds, misses_leader};
use crate::ledger::Ledger;
use crate::support::{BrokerProcess, PATIENCE, lasting, retained, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn standalone_directory_becomes_a_cluster() {
    let Some(mut cluster) = Cluster::plan(2, "") else { return };
    run_alone(&cluster, 0);
    cluster.nodes[0].start();
    assert_eq!(cluster.wait_for_leader(), 0);
    cluster.nodes[1].start();
    assert_eq!(cluster.wait_for_copies(), 0);
    cluster.nodes[0].kill();
    assert_has_everything(&cluster, 1);
}

#[test]
fn store_set_aside_by_a_wrong_order_leads_by_force() {
    let Some(mut cluster) = Cluster::plan(2, "") else { return };
    let mut commands = Commands::of(&["From a standalone broker"]);
    run_alone(&cluster, 0);
    commands.run(&cluster, 1, "tenbin broker --check --config /etc/tenbin/tenbin.toml");
    cluster.nodes[1].start();
    assert_eq!(cluster.wait_for_leader(), 1);
    let said = commands.run(&cluster, 1, "tenbin cluster status --data /var/lib/tenbin");
    assert!(said.contains("role       leader"), "{said}");
    cluster.nodes[0].start();
    assert_eq!(cluster.wait_for_copies(), 1);
    cluster.wait_for_status(0, "old store", |status| finds(status, "An old store was set aside"));
    let (_, connack) = cluster.connect(1, &lasting(V5, "reader"));
    assert!(!connack.session_present, "the node that was first has no data");

    for node in &mut cluster.nodes {
        node.terminate();
        assert!(node.wait_for_exit().success(), "{}", node.name);
    }
    commands.replace("aside-3-0", cluster.nodes[0].aside());
    commands.run(&cluster, 0, "mv /var/lib/tenbin /var/lib/tenbin.empty");
    commands.run(&cluster, 0, "mv /var/lib/tenbin.empty/aside-3-0 /var/lib/tenbin");
    cluster.nodes[0].start();
    let status = cluster.wait_for_status(0, "silence of the leader", misses_leader);
    assert!(finds(&status, "No leader was heard since the start, "), "{status}");
    commands.run(&cluster, 0, "tenbin cluster force --data /var/lib/tenbin --accept-loss");
    cluster.nodes[1].start();
    assert_eq!(cluster.wait_for_copies(), 0);
    cluster.nodes[0].kill();
    assert_has_everything(&cluster, 1);
    // The messages that it had accepted.
    cluster.nodes[1].aside();
}

/// Runs a broker without a cluster in the directory of a node, for a session with 100 messages and a retained message.
fn run_alone(cluster: &Cluster, at: usize) {
    let mut broker = BrokerProcess::start(&["--data", cluster.nodes[at].data.to_str().expect("a readable name")]);
    let mut reader = broker.connect(lasting(V5, "reader"));
    reader.subscribe("t", QoS::ExactlyOnce);
    reader.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..100 {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        assert_eq!(publisher.publish("t", &format!("{number}"), qos), ReasonCode::Success);
    }
    publisher.publish_with(retained("kept", "yes"));
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
}

/// Asserts that a node serves the content of [`run_alone`].
fn assert_has_everything(cluster: &Cluster, at: usize) {
    let (mut reader, connack) = cluster.connect(at, &lasting(V5, "reader"));
    assert!(connack.session_present);
    let messages = reader.receive_messages(100);
    // MQTT orders the messages of one topic and QoS. [MQTT-4.6.0-6]
    for (rest, qos) in [QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().enumerate() {
        let of_qos = messages.iter().filter(|message| message.qos == qos);
        let numbers: Vec<_> = of_qos.map(|message| String::from_utf8_lossy(&message.payload)).collect();
        assert_eq!(numbers, (rest..100).step_by(2).map(|number| format!("{number}")).collect::<Vec<_>>());
    }
    let (mut other, _) = cluster.connect(at, &Connect::new(V5, text("other")));
    other.subscribe("kept", QoS::AtLeastOnce);
    assert_eq!(other.receive_message().payload, "yes");
}

#[test]
fn store_that_was_written_without_the_cluster_is_set_aside() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let follower = 1 - leader;
    let data = cluster.nodes[follower].data.to_str().expect("a readable name").to_owned();
    let in_use = crate::tenbin(&["broker", "--listen", "127.0.0.1:0", "--data", &data]);
    assert!(!in_use.status.success() && crate::said(&in_use).contains("another node"), "{}", crate::said(&in_use));
    cluster.nodes[follower].terminate();
    assert!(cluster.nodes[follower].wait_for_exit().success());
    run_alone(&cluster, follower);
    cluster.nodes[follower].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    // Nothing that was acknowledged is gone.
    let aside = cluster.nodes[follower].data.join(cluster.nodes[follower].aside());
    let dump = crate::tenbin(&["store", "dump", "--messages", aside.to_str().expect("a readable name")]);
    assert_eq!(crate::said(&dump).matches("\"record\":\"waiting\"").count(), 100);
}

#[test]
fn store_check_accepts_the_copy() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("ledger/#", QoS::ExactlyOnce);
    sleeper.disconnect();
    let mut ledger = Ledger::start(&cluster);
    ledger.wait_for_more(200);
    // One copy ends in order while messages flow, the other one by a kill.
    let follower = &mut cluster.nodes[1 - leader];
    follower.terminate();
    assert!(follower.wait_for_exit().success());
    check(&cluster, 1 - leader);
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(100);
    cluster.nodes[1 - leader].kill();
    check(&cluster, 1 - leader);
    ledger.stop_publishing();
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.finish();
    // Nothing changes any more: both have the same messages.
    cluster.nodes[leader].kill();
    cluster.nodes[1 - leader].kill();
    let dumps = [0, 1].map(|at| {
        check(&cluster, at);
        store(&cluster, at, "dump")
    });
    assert!(dumps[0].contains("sleeper"), "{}", dumps[0]);
}

/// Checks the store of a node that does not run.
fn check(cluster: &Cluster, at: usize) {
    let said = store(cluster, at, "check");
    assert!(said.contains("fine: "), "{said}");
}

fn store(cluster: &Cluster, at: usize, command: &str) -> String {
    let output = crate::tenbin(&["store", command, cluster.nodes[at].data.to_str().expect("a readable name")]);
    let said = crate::said(&output);
    assert!(output.status.success(), "store {command}: {said}");
    said
}
