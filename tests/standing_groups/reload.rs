//! Standing groups begin and end by a reload.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, lasting, share};
use crate::{RULE, join, received};

struct Reloaded {
    broker: BrokerProcess,
    file: ConfigFile,
    reloads: usize,
}

impl Reloaded {
    fn start(directory: Option<&DataDirectory>, rules: &str) -> Self {
        let file = ConfigFile::new(rules);
        let arguments = ["--config", file.path()];
        let broker = match directory {
            Some(directory) => directory.start_with(&arguments),
            None => BrokerProcess::start(&[&arguments[..], &["--ephemeral"]].concat()),
        };
        Self { broker, file, reloads: 0 }
    }

    fn reload(&mut self, rules: &str) {
        std::fs::write(self.file.path(), rules).expect("the tests' directory is ours to write");
        self.reloads += 1;
        self.broker.signal("HUP");
        let done = self.broker.log().count(" reloaded", self.reloads, PATIENCE);
        assert_eq!(done, self.reloads, "{}", self.broker.log().all().join("\n"));
    }

    fn publish(&self, payload: &str) -> ReasonCode {
        self.broker.v5("publisher").publish("jobs/a", payload, QoS::AtLeastOnce)
    }

    /// Number of lines on ended groups.
    fn ended(&self) -> usize {
        self.broker.log().all().iter().filter(|line| line.contains("share group ended")).count()
    }
}

#[test]
fn reload_begins_and_ends_a_standing_group() {
    for directory in [None, Some(DataDirectory::new())] {
        let mut broker = Reloaded::start(directory.as_ref(), "");
        assert_eq!(broker.publish("before"), ReasonCode::NoMatchingSubscribers);
        broker.reload(RULE);
        assert_eq!(broker.publish("1"), ReasonCode::Success);
        broker.reload(&RULE.replace("604800", "4294967295"));
        assert_eq!(broker.publish("2"), ReasonCode::Success);
        assert_eq!(received(&mut join(&broker.broker, "member"), 2), ["1", "2"]);
        (0..3).for_each(|_| assert_eq!(broker.publish("lost"), ReasonCode::Success));
        broker.reload("");
        let words = ["share group ended", "share_name=\"workers\"", "filter=\"jobs/#\"", "dropped=3"];
        broker.broker.log().wait_for(&words, PATIENCE);
        assert_eq!(broker.ended(), 1);
        assert_eq!(broker.publish("after"), ReasonCode::NoMatchingSubscribers);
        broker.reload(RULE);
        join(&broker.broker, "member").expect_nothing_waiting();
    }
}

#[test]
fn group_with_members_outlives_its_rule_until_they_leave() {
    for directory in [None, Some(DataDirectory::new())] {
        let mut broker = Reloaded::start(directory.as_ref(), RULE);
        let mut member = broker.broker.connect(lasting(ProtocolVersion::V5, "member"));
        member.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
        member.disconnect();
        assert_eq!(broker.publish("1"), ReasonCode::Success);
        broker.reload("");
        assert_eq!(broker.publish("2"), ReasonCode::Success);
        assert_eq!(broker.ended(), 0);
        let mut member = broker.broker.connect(lasting(ProtocolVersion::V5, "member"));
        assert_eq!(received(&mut member, 2), ["1", "2"]);
        member.unsubscribe(&[&share("workers", "jobs/#")]);
        assert_eq!(broker.publish("3"), ReasonCode::NoMatchingSubscribers);
    }
}
