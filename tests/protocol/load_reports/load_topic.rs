//! The topic `$load`, whose only receiver is the broker.

use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode, TopicName, Will};

use crate::load_reports::group::{BUSY, Carrier, Group, IDLE};
use crate::support::{
    BrokerProcess, ConfigFile, QOS_ALL, RawClient, VERSIONS, at_qos, message, retained, share, text, topic,
};

#[test]
fn load_topic_messages_are_acknowledged_and_not_delivered() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    let filters = ["$load", "$load/#", "#", "+", &share("group", "$load")];
    filters.iter().for_each(|filter| subscriber.subscribe(filter, QoS::ExactlyOnce));
    for version in VERSIONS {
        let mut worker = broker.client(version, "worker");
        for qos in QOS_ALL {
            for payload in ["", "no report", "{\"msgsInQueue\":0,\"processingTimePerMsg\":1}"] {
                let reason = worker.publish_with(Publish { retain: true, ..at_qos("$load", payload, qos) });
                assert_eq!(reason, ReasonCode::Success);
            }
        }
        worker.settle();
    }
    subscriber.expect_nothing_waiting();
    // Nothing is retained either.
    let mut late = broker.v5("late");
    ["$load", "#"].iter().for_each(|filter| late.subscribe(filter, QoS::AtMostOnce));
    late.expect_nothing_waiting();
}

#[test]
fn load_topic_may_be_aliased() {
    let mut group = Group::new();
    let mut report = Publish { payload: BUSY.into(), ..message("$load", "") };
    report.topic_alias = std::num::NonZeroU16::new(1);
    group.members[0].send(&Packet::Publish(report.clone()));
    group.members[0].settle();
    group.report(1, Carrier::Publish(QoS::AtMostOnce), IDLE);
    group.assert_all_go_to(1, "the first one is busy");
    (0..5).for_each(|_| {
        let again = Publish { topic: TopicName::ALIASED, payload: IDLE.into(), ..report.clone() };
        group.members[0].send(&Packet::Publish(again));
    });
    group.members[0].settle();
    (0..5).for_each(|_| group.report(1, Carrier::Publish(QoS::AtMostOnce), BUSY));
    group.assert_all_go_to(0, "the alias says $load");
}

#[test]
fn load_topic_refuses_sublevels_and_wills() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    for name in ["$load/", "$load/x"] {
        assert_eq!(client.publish(name, "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized, "{name}");
    }
    assert_eq!(client.publish("$loads", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.publish("load", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    for name in ["$load", "$load/x"] {
        let will = Some(will(name));
        let connect = Connect { will, ..Connect::new(ProtocolVersion::V5, text("will")) };
        let (_, connack) = RawClient::try_connect(broker.address(), connect);
        assert_eq!(connack.reason, ReasonCode::TopicNameInvalid, "{name}");
    }
}

fn will(name: &str) -> Will {
    let (topic, payload) = (topic(name), IDLE.into());
    Will { topic, payload, qos: QoS::AtMostOnce, retain: false, delay_interval: None, properties: None }
}

#[test]
fn acl_decides_who_may_publish_load_reports() {
    let config = ConfigFile::new(
        "[[acl]]\nclient_id = \"worker 0\"\ndeny = \"publish\"\ntopic = \"$load\"\n\
         [[acl]]\nallow = \"all\"\ntopic = \"#\"\n[[acl]]\nallow = \"all\"\ntopic = \"$load\"\n",
    );
    let broker = BrokerProcess::start(&["--log", "debug", "--policy", "thesis_score", "--config", config.path()]);
    let mut members = [0, 1].map(|number| {
        let mut member = broker.v5(&format!("worker {number}"));
        member.subscribe(&share("workers", "work"), QoS::AtLeastOnce);
        member
    });
    let report = |json: &'static [u8]| Publish { payload: json.into(), ..at_qos("$load", "", QoS::AtLeastOnce) };
    assert_eq!(members[0].publish_with(report(BUSY)), ReasonCode::NotAuthorized);
    assert_eq!(members[0].publish_with(report(b"no report")), ReasonCode::NotAuthorized, "not even looked at");
    assert_eq!(members[1].publish_with(report(BUSY)), ReasonCode::Success);
    let mut publisher = broker.v5("publisher");
    (0..8).for_each(|_| assert_eq!(publisher.publish("work", "x", QoS::AtLeastOnce), ReasonCode::Success));
    // A report of the first member would have kept the group at round robin.
    assert_eq!((members[0].drain().len(), members[1].drain().len()), (8, 0));
    assert!(broker.log().all().iter().all(|line| !line.contains("load report rejected")));
}

#[test]
fn acl_default_applies_to_the_load_topic() {
    for (rules, reason) in [
        ("", ReasonCode::Success),
        ("acl_default = \"deny\"", ReasonCode::NotAuthorized),
        // As everywhere, # matches no topic that starts with $.
        ("[[acl]]\nallow = \"all\"\ntopic = \"#\"", ReasonCode::NotAuthorized),
        ("[[acl]]\nallow = \"publish\"\ntopic = \"$load\"", ReasonCode::Success),
    ] {
        let config = ConfigFile::new(rules);
        let broker = BrokerProcess::start(&["--config", config.path()]);
        let mut worker = broker.v5("worker");
        assert_eq!(worker.publish("$load", "{}", QoS::AtLeastOnce), reason, "{rules}");
        assert_eq!(worker.publish_with(retained("$load", "{}")), reason, "{rules}");
    }
}
