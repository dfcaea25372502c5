//! Standing groups begin by a reload, and lose their rule by one.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::standing_groups::{RULE, join, received};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, lasting, share};

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
        let text = if rules.is_empty() { ConfigFile::DEFAULTS } else { rules };
        std::fs::write(self.file.path(), text).expect("the tests' directory is ours to write");
        self.reloads += 1;
        self.broker.signal("HUP");
        let done = self.broker.log().count(" reloaded", self.reloads, PATIENCE);
        assert_eq!(done, self.reloads, "{}", self.broker.log().all().join("\n"));
    }

    fn publish(&self, payload: &str) -> ReasonCode {
        self.broker.v5("publisher").publish("jobs/a", payload, QoS::AtLeastOnce)
    }
}

#[test]
fn reload_begins_a_standing_group_with_lasting_messages() {
    for directory in [None, Some(DataDirectory::new())] {
        let mut broker = Reloaded::start(directory.as_ref(), "");
        assert_eq!(broker.publish("before"), ReasonCode::NoMatchingSubscribers);
        broker.reload(RULE);
        assert_eq!(broker.publish("1"), ReasonCode::Success);
        broker.reload(&RULE.replace("604800", "4294967295"));
        assert_eq!(broker.publish("2"), ReasonCode::Success);
        assert_eq!(received(&mut join(&broker.broker, "member"), 2), ["1", "2"]);
        (0..3).for_each(|number| assert_eq!(broker.publish(&number.to_string()), ReasonCode::Success));
        let renamed = RULE.replace("workers", "Workers");
        for rules in ["", &renamed[..]] {
            broker.reload(rules);
            let words = ["without a rule", "share_name=\"workers\"", "filter=\"jobs/#\"", "messages=3"];
            broker.broker.log().wait_for(&words, PATIENCE);
        }
        broker.reload("");
        assert_eq!(broker.publish("missed"), ReasonCode::NoMatchingSubscribers);
        broker.reload(RULE);
        assert_eq!(broker.publish("3"), ReasonCode::Success);
        assert_eq!(received(&mut join(&broker.broker, "member"), 4), ["0", "1", "2", "3"]);
    }
}

#[test]
fn member_that_joins_a_group_without_a_rule_gets_its_messages() {
    for directory in [None, Some(DataDirectory::new())] {
        let mut broker = Reloaded::start(directory.as_ref(), RULE);
        assert_eq!(broker.publish("1"), ReasonCode::Success);
        broker.reload("");
        let mut member = join(&broker.broker, "member");
        assert_eq!(received(&mut member, 1), ["1"]);
        assert_eq!(broker.publish("2"), ReasonCode::Success, "an ordinary group");
        member.cut();
        assert_eq!(received(&mut join(&broker.broker, "another"), 1), ["2"]);
    }
}

#[test]
fn messages_without_a_rule_wait_no_longer_than_by_the_last_one() {
    for directory in [None, Some(DataDirectory::new())] {
        let mut broker = Reloaded::start(directory.as_ref(), &RULE.replace("604800", "2"));
        assert_eq!(broker.publish("1"), ReasonCode::Success);
        broker.reload("");
        broker.broker.log().wait_for(&["waited too long", "dropped=1"], PATIENCE);
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
        let mut member = broker.broker.connect(lasting(ProtocolVersion::V5, "member"));
        assert_eq!(received(&mut member, 2), ["1", "2"]);
        member.unsubscribe(&[&share("workers", "jobs/#")]);
        assert_eq!(broker.publish("3"), ReasonCode::NoMatchingSubscribers);
    }
}

/// A worker that drains sends UNSUBSCRIBE and goes on with its messages, before or after the rule is lost.
#[test]
fn messages_in_flight_to_a_former_member_outlive_the_rule() {
    for (has_store, leaves_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let directory = has_store.then(DataDirectory::new);
        let mut broker = Reloaded::start(directory.as_ref(), RULE);
        let mut member = join(&broker.broker, "member");
        (0..10).for_each(|number| assert_eq!(broker.publish(&number.to_string()), ReasonCode::Success));
        (0..10).for_each(|number| assert_eq!(member.receive_publish().payload, number.to_string()));
        if leaves_first {
            member.unsubscribe(&[&share("workers", "jobs/#")]);
        }
        broker.reload("");
        if !leaves_first {
            member.unsubscribe(&[&share("workers", "jobs/#")]);
            broker.reload(""); // looks at the groups without a rule, as is done each second
        }
        assert_eq!(broker.publish("missed"), ReasonCode::NoMatchingSubscribers);
        member.cut();
        broker.reload(RULE);
        let left = received(&mut join(&broker.broker, "another"), 10);
        assert!(left.into_iter().eq((0..10).map(|number| number.to_string())), "store {has_store}, {leaves_first}");
    }
}
