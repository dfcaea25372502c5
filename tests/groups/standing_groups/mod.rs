//! Standing groups: share groups that a rule keeps without members (`keep_seconds` of `[[share]]`).

mod limits;
mod reload;
mod scaled_to_zero;
mod without_rule;

use std::num::NonZeroU16;
use std::process::Command;

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, share, subscription, text};
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

/// The rule of a standing group `$share/workers/jobs/#`.
const RULE: &str = "[[share]]\ngroup = \"workers\"\nfilter = \"jobs/#\"\nkeep_seconds = 604800\n";

/// Calls `check` with a broker that has no store, and with one that has one.
fn with_and_without_store(config: &str, check: impl Fn(&BrokerProcess)) {
    let file = ConfigFile::new(config);
    check(&BrokerProcess::start(&["--ephemeral", "--config", file.path()]));
    check(&DataDirectory::new().start_with(&["--config", file.path()]));
}

fn join(broker: &BrokerProcess, client_id: &str) -> RawClient {
    let mut member = broker.v5(client_id);
    member.subscribe(&share("workers", "jobs/#"), QoS::ExactlyOnce);
    member
}

/// Returns the payloads of `count` messages, and asserts that no more wait.
fn received(member: &mut RawClient, count: usize) -> Vec<String> {
    let messages = member.receive_messages(count);
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

#[test]
fn messages_wait_before_any_member_joins() {
    with_and_without_store(RULE, |broker| {
        let mut publisher = broker.v5("publisher");
        let missed = publisher.publish("other", "", QoS::AtLeastOnce);
        assert_eq!(missed, ReasonCode::NoMatchingSubscribers);
        publisher.publish("jobs/a", "QoS 0 does not wait", QoS::AtMostOnce);
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for number in 0..3 {
                assert_eq!(publisher.publish("jobs/a", &number.to_string(), qos), ReasonCode::Success);
            }
            let mut member = join(broker, "member");
            assert_eq!(received(&mut member, 3), ["0", "1", "2"], "{qos}");
            member.disconnect();
        }
        publisher.publish("jobs/a", "after the last member", QoS::AtLeastOnce);
        assert_eq!(received(&mut join(broker, "another"), 1), ["after the last member"]);
    });
}

/// The session of a member without acknowledgements ends, and its messages wait for the next member.
#[test]
fn messages_of_the_last_member_go_back_to_the_group() {
    with_and_without_store(RULE, |broker| {
        let mut member = join(broker, "member");
        let mut publisher = broker.v5("publisher");
        (0..5).for_each(|number| _ = publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce));
        let first = member.receive_publish();
        member.acknowledge(&first);
        member.settle();
        member.cut();
        assert_eq!(received(&mut join(broker, "another"), 4), ["1", "2", "3", "4"]);
    });
}

#[test]
fn unsubscribing_member_gives_its_queued_messages_back() {
    let file = ConfigFile::new(RULE);
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut connect = Connect::new(ProtocolVersion::V5, text("member"));
    connect.properties.receive_maximum = NonZeroU16::new(1);
    let mut member = broker.connect(connect);
    member.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    (0..3).for_each(|number| _ = publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce));
    assert_eq!(member.receive_publish().payload, "0");
    member.unsubscribe(&[&share("workers", "jobs/#")]);
    assert_eq!(received(&mut join(&broker, "another"), 2), ["1", "2"]);
}

#[test]
fn waiting_messages_survive_restarts_without_any_member() {
    let file = ConfigFile::new(RULE);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let directory = DataDirectory::new();
        let start = || directory.start_with(&["--config", file.path()]);
        let mut expected = Vec::new();
        for run in 0..3 {
            let broker = start();
            let mut publisher = broker.v5("publisher");
            for number in 0..10 {
                // More than a group keeps in memory.
                let payload = format!("{run} {number} {}", "x".repeat(10_000));
                assert_eq!(publisher.publish("jobs/a", &payload, qos), ReasonCode::Success);
                expected.push(payload);
            }
            drop(broker); // as by `kill -9`
        }
        let broker = start();
        let mut member = join(&broker, "member");
        assert!(received(&mut member, expected.len()) == expected, "{qos}");
        member.disconnect();
        // This message is acknowledged after the member's acknowledgements are stored.
        assert_eq!(broker.v5("publisher").publish("jobs/a", "last", qos), ReasonCode::Success);
        drop(broker);
        assert_eq!(received(&mut join(&start(), "member"), 1), ["last"], "{qos}");
    }
}

#[test]
fn messages_survive_starts_without_the_rule() {
    let file = ConfigFile::new(RULE);
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", file.path()]);
    let mut publisher = broker.v5("publisher");
    // More than a group keeps in memory.
    let payload = |number: usize| format!("{number} {}", "x".repeat(10_000));
    (0..20).for_each(|number| _ = publisher.publish("jobs/a", &payload(number), QoS::AtLeastOnce));
    drop((publisher, broker));
    let renamed = ConfigFile::new(&RULE.replace("workers", "Workers"));
    for arguments in [&[][..], &["--config", renamed.path()], &[]] {
        let broker = directory.start_with(arguments);
        broker.log().wait_for(&["without a rule", "share_name=\"workers\"", "messages=20"], PATIENCE);
        if arguments.is_empty() {
            let reason = broker.v5("publisher").publish("jobs/a", "missed", QoS::AtLeastOnce);
            assert_eq!(reason, ReasonCode::NoMatchingSubscribers);
        }
    }
    let broker = directory.start_with(&["--config", file.path()]);
    assert!(received(&mut join(&broker, "member"), 20).into_iter().eq((0..20).map(payload)));
}

#[test]
fn explain_shows_a_standing_group_without_members() {
    let file = ConfigFile::new(RULE);
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut publisher = broker.v5("publisher");
    (0..3).for_each(|_| _ = publisher.publish("jobs/a", "x", QoS::AtLeastOnce));
    let explain = |format| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.args(["explain", "--group", "workers", "--format", format, "--broker", &broker.address().to_string()]);
        let output = command.output().expect("the built command can be started");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = explain("table");
    let head = "workers, filter jobs/#: adaptive; 0 members, 0 messages, 3 wait with the group\n";
    assert!(said.starts_with(head), "{said}");
    let said = explain("json");
    assert!(said.contains("\"waiting\":3") && said.contains("\"keep_seconds\":604800"), "{said}");
}

#[test]
fn waiting_messages_go_only_to_members_with_the_right() {
    let rules = "acl_default = \"deny\"\n[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\n[[acl]]\n\
                 allow = \"publish\"\ntopic = \"#\"\n[[acl]]\nclient_id = \"permitted\"\nallow = \"subscribe\"\n\
                 topic = \"jobs/#\"\n[[acl]]\nclient_id = \"partly\"\nallow = \"subscribe\"\ntopic = \"jobs/a\"\n";
    let file = ConfigFile::new(&format!("{rules}{RULE}"));
    let broker = BrokerProcess::start_exactly(&["--ephemeral", "--config", file.path()]);
    assert_eq!(broker.v5("publisher").publish("jobs/a", "x", QoS::AtLeastOnce), ReasonCode::Success);
    for client_id in ["partly", "other"] {
        let mut refused = broker.v5(client_id);
        let reasons = refused.subscribe_to(None, vec![subscription(&share("workers", "jobs/#"), QoS::AtLeastOnce)]);
        assert_eq!(reasons, [ReasonCode::NotAuthorized], "{client_id}");
        refused.expect_nothing_waiting();
    }
    assert_eq!(received(&mut join(&broker, "permitted"), 1), ["x"]);
}
