//! Rights that are taken away, by a reload or a restart, and given back: no message is lost, and none comes without them.

use std::fs;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, VERSIONS, lasting, share, text};

/// "member", whose session lasts, and "publisher" may do everything; "connected" only so.
const ALL: &str = "[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";
/// No client may receive anything below "jobs", but all may publish there.
const NO_JOBS: &str = "[[acl]]\nallow = \"publish\"\ntopic = \"#\"\n[[acl]]\ndeny = \"subscribe\"\ntopic = \"jobs/#\"\n\
                       [[acl]]\nallow = \"subscribe\"\ntopic = \"#\"\n";

/// A broker, with or without a store.
struct Stage {
    config: ConfigFile,
    directory: Option<DataDirectory>,
    broker: Option<BrokerProcess>,
    reloads: usize,
}

impl Stage {
    fn new(has_store: bool) -> Self {
        Self::with(has_store, ALL)
    }

    fn with(has_store: bool, config: &str) -> Self {
        let directory = has_store.then(DataDirectory::new);
        let mut stage = Self { config: ConfigFile::new(config), directory, broker: None, reloads: 0 };
        stage.start();
        stage
    }

    fn start(&mut self) {
        // Acknowledgements of receivers need not be durable after a kill.
        if let Some(mut broker) = self.broker.take() {
            broker.signal("TERM");
            broker.wait_for_exit(PATIENCE);
        }
        self.reloads = 0;
        let arguments = ["--config", self.config.path()];
        self.broker = Some(match &self.directory {
            Some(directory) => directory.start_with(&arguments),
            None => BrokerProcess::start(&[&arguments[..], &["--ephemeral"]].concat()),
        });
    }

    fn broker(&self) -> &BrokerProcess {
        self.broker.as_ref().expect("started")
    }

    /// Makes the rules hold, by a restart or by a reload.
    fn apply(&mut self, rules: &str, by_restart: bool) {
        fs::write(self.config.path(), rules).expect("ours to write");
        if by_restart {
            return self.start();
        }
        self.reloads += 1;
        self.broker().signal("HUP");
        assert_eq!(self.broker().log().count(" reloaded", self.reloads, PATIENCE), self.reloads);
    }

    fn publish(&self, topics: &[String], qos: QoS) -> Vec<ReasonCode> {
        let mut publisher = self.broker().v5("publisher");
        topics.iter().map(|topic| publisher.publish(topic, topic, qos)).collect()
    }

    fn member(&self, version: ProtocolVersion) -> RawClient {
        self.broker().connect(lasting(version, "member"))
    }
}

/// Topics of a batch of messages, below "jobs" and "other" in turns.
fn topics(batch: usize) -> Vec<String> {
    (0..50).map(|number| format!("{}/{batch}/{number:04}", if number % 2 == 0 { "jobs" } else { "other" })).collect()
}

fn of(name: &str, topics: &[String]) -> Vec<String> {
    topics.iter().filter(|topic| topic.starts_with(name)).cloned().collect()
}

/// Payloads of this number of messages. No more come.
fn take(client: &mut RawClient, count: usize) -> Vec<String> {
    let messages = client.receive_messages(count);
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

/// Numbers at the beginning of this number of messages. No more come.
fn numbers(client: &mut RawClient, count: usize) -> Vec<usize> {
    let number = |payload: String| payload.split(' ').next().and_then(|number| number.parse().ok());
    take(client, count).into_iter().filter_map(number).collect()
}

#[test]
fn away_session_keeps_its_messages_without_the_right() {
    for (has_store, by_restart) in [(true, false), (true, true), (false, false)] {
        for version in VERSIONS {
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let mut stage = Stage::new(has_store);
                let mut member = stage.member(version);
                member.subscribe("#", qos);
                member.disconnect();
                let waiting = topics(1);
                stage.publish(&waiting, qos);
                stage.apply(NO_JOBS, by_restart);
                stage.publish(&of("jobs", &topics(2)), qos);
                // Away all the time, or back without the right.
                let mut member = stage.member(version);
                assert_eq!(take(&mut member, 25), of("other", &waiting), "{has_store} {by_restart} {version} {qos}");
                member.disconnect();
                stage.apply(ALL, by_restart);
                let mut member = stage.member(version);
                assert_eq!(take(&mut member, 25), of("jobs", &waiting), "{has_store} {by_restart} {version} {qos}");
            }
        }
    }
}

#[test]
fn connected_session_keeps_its_messages_without_the_right() {
    // A session that lasts has messages in flight, in memory and on disk; one that does not in memory.
    for (has_store, is_lasting) in [(true, true), (true, false), (false, true), (false, false)] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut stage = Stage::new(has_store);
            let mut connect = match is_lasting {
                true => lasting(ProtocolVersion::V5, "member"),
                false => Connect::new(ProtocolVersion::V5, text("member")),
            };
            connect.properties.receive_maximum = NonZeroU16::new(5);
            let mut member = stage.broker().connect(connect);
            member.subscribe("#", qos);
            let waiting = topics(1);
            stage.publish(&waiting, qos);
            let in_flight: Vec<_> = (0..5).map(|_| member.receive_publish()).collect();
            stage.apply(NO_JOBS, false);
            stage.publish(&of("jobs", &topics(2)), qos);
            in_flight.iter().for_each(|message| member.acknowledge(message)); // they count
            let others = of("other", &waiting);
            assert_eq!(take(&mut member, 23), others[2..], "store {has_store}, lasting {is_lasting}, {qos}");
            stage.apply(ALL, false);
            stage.publish(&["jobs/last".to_owned()], qos);
            let mut jobs = of("jobs", &waiting);
            jobs.push("jobs/last".to_owned());
            assert_eq!(take(&mut member, 23), jobs[3..], "store {has_store}, lasting {is_lasting}, {qos}");
        }
    }
}

#[test]
fn long_backlog_waits_for_the_right_without_holding_up_others() {
    let mut stage = Stage::new(true);
    let mut member = stage.member(ProtocolVersion::V5);
    member.subscribe("#", QoS::AtLeastOnce);
    member.disconnect();
    let mut publisher = stage.broker().v5("publisher");
    let payload = |number: usize| format!("{number} {}", "x".repeat(1000));
    for number in 0..600 {
        let topic = if number % 3 == 0 { "other/x" } else { "jobs/x" };
        publisher.publish(topic, &payload(number), QoS::AtLeastOnce);
    }
    stage.apply(NO_JOBS, false);
    let mut member = stage.member(ProtocolVersion::V5);
    let is_other = |number: &usize| number.is_multiple_of(3);
    assert_eq!(numbers(&mut member, 200), (0..600).filter(is_other).collect::<Vec<_>>());
    stage.apply(NO_JOBS, false);
    member.expect_nothing_waiting();
    stage.apply(ALL, false);
    stage.broker().v5("publisher").publish("jobs/x", &payload(601), QoS::AtLeastOnce);
    assert_eq!(numbers(&mut member, 401), (0..600).filter(|number| !is_other(number)).chain([601]).collect::<Vec<_>>());
}

#[test]
fn share_groups_keep_messages_while_members_lack_the_right() {
    for (has_store, by_restart) in [(true, false), (true, true), (false, false)] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut stage = Stage::new(has_store);
            let mut member = stage.member(ProtocolVersion::V5);
            member.subscribe(&share("workers", "jobs/#"), qos);
            member.disconnect();
            let waiting = of("jobs", &topics(1));
            stage.publish(&waiting, qos);
            stage.apply(NO_JOBS, by_restart);
            let missed = stage.publish(&of("jobs", &topics(2)), qos);
            assert!(missed.iter().all(|reason| *reason == ReasonCode::NoMatchingSubscribers), "{missed:?}");
            let mut member = stage.member(ProtocolVersion::V5);
            member.expect_nothing_waiting();
            member.disconnect();
            stage.apply(NO_JOBS, by_restart);
            stage.apply(ALL, by_restart);
            let mut member = stage.member(ProtocolVersion::V5);
            assert_eq!(take(&mut member, 25), waiting, "store {has_store}, restart {by_restart}, {qos}");
            stage.publish(&["jobs/last".to_owned()], qos);
            assert_eq!(take(&mut member, 1), ["jobs/last"]);
        }
    }
}

#[test]
fn connected_member_without_the_right_gives_its_messages_back() {
    for has_store in [true, false] {
        let mut stage = Stage::new(has_store);
        let mut connect = lasting(ProtocolVersion::V5, "member");
        connect.properties.receive_maximum = NonZeroU16::new(5);
        let mut member = stage.broker().connect(connect);
        member.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
        let waiting = of("jobs", &topics(1));
        stage.publish(&waiting, QoS::AtLeastOnce);
        let in_flight: Vec<_> = (0..5).map(|_| member.receive_publish()).collect();
        stage.apply(NO_JOBS, false);
        in_flight[..2].iter().for_each(|message| member.acknowledge(message));
        member.expect_nothing_waiting();
        member.cut();
        stage.apply(ALL, false);
        let mut member = stage.member(ProtocolVersion::V5);
        let mut again = take(&mut member, 23);
        again.sort();
        assert_eq!(again, waiting[2..], "store {has_store}");
    }
}

/// Messages in flight fill a bound of bytes. Those that wait for the right do not count.
#[test]
fn messages_held_in_flight_do_not_stop_others() {
    let queue = "[queue]\nbytes_maximum = 100000\n";
    for has_store in [true, false] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut stage = Stage::with(has_store, &format!("{queue}{ALL}"));
            let mut member = stage.member(ProtocolVersion::V5);
            member.subscribe("#", qos);
            let large = "x".repeat(60_000);
            let mut publisher = stage.broker().v5("publisher");
            (0..2).for_each(|_| _ = publisher.publish("jobs/large", &large, qos));
            (0..2).for_each(|_| assert_eq!(member.receive_publish().payload.len(), large.len()));
            member.cut();
            stage.apply(&format!("{queue}{NO_JOBS}"), false);
            let mut member = stage.member(ProtocolVersion::V5);
            stage.publish(&["other/1".to_owned()], qos);
            assert_eq!(take(&mut member, 1), ["other/1"], "store {has_store}, {qos}");
            stage.apply(&format!("{queue}{ALL}"), false);
            assert_eq!(take(&mut member, 2), [&large[..]; 2], "store {has_store}, {qos}");
        }
    }
}

/// Publishers follow new rules at once, while the broker still goes from session to session.
#[test]
fn messages_withheld_precede_new_ones_when_the_right_is_back() {
    for has_store in [true, false] {
        let mut stage = Stage::new(has_store);
        for number in 0..200 {
            let mut away = stage.broker().connect(lasting(ProtocolVersion::V5, &format!("away{number}")));
            (0..5).for_each(|name| away.subscribe(&share(&format!("name{name}"), "jobs/#"), QoS::AtMostOnce));
            away.disconnect();
        }
        let mut connect = lasting(ProtocolVersion::V5, "member");
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let mut member = stage.broker().connect(connect);
        member.subscribe("jobs/x", QoS::AtLeastOnce);
        let mut publisher = stage.broker().v5("publisher");
        (0..5).for_each(|number| _ = publisher.publish("jobs/x", &number.to_string(), QoS::AtLeastOnce));
        let first = member.receive_publish();
        stage.apply(NO_JOBS, false);
        member.acknowledge(&first);
        member.expect_nothing_waiting();
        let stop = AtomicBool::new(false);
        let published = std::thread::scope(|scope| {
            let publishing = scope.spawn(|| {
                let mut publish = |number: usize| publisher.publish("jobs/x", &number.to_string(), QoS::AtLeastOnce);
                let numbers = (5..).take_while(|_| !stop.load(Ordering::Relaxed));
                numbers.filter(|&number| publish(number) == ReasonCode::Success).collect::<Vec<_>>()
            });
            stage.apply(ALL, false);
            stop.store(true, Ordering::Relaxed);
            publishing.join().expect("the broker answers")
        });
        let taken = numbers(&mut member, 4 + published.len());
        assert_eq!(taken, (1..5).chain(published).collect::<Vec<_>>(), "store {has_store}");
    }
}
