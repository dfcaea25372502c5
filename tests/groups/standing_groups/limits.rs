//! Limits of a standing group's backlog, and the ages at which its messages go.

use std::time::Duration;

use tenbin_codec::{QoS, ReasonCode};

use crate::standing_groups::{RULE, join, received, with_and_without_store};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, at_qos, with_expiry};

#[test]
fn messages_beyond_the_queue_of_a_standing_group_are_refused() {
    let limits = "[queue]\nmessages_maximum = 20\n[store]\nqueue_bytes_maximum = 200000\n";
    with_and_without_store(&format!("{limits}{RULE}"), |broker| {
        let mut publisher = broker.v5("publisher");
        let mut publish = |number: usize| {
            let payload = format!("{number} {}", "x".repeat(5000));
            publisher.publish("jobs/a", &payload, QoS::AtLeastOnce)
        };
        let taken = (0..1000).take_while(|&number| publish(number) == ReasonCode::Success).count();
        assert!((10..200).contains(&taken), "{taken}");
        assert_eq!(publish(taken), ReasonCode::QuotaExceeded);
        let mut member = join(broker, "member");
        let numbers = received(&mut member, taken);
        let numbers = numbers.iter().map(|payload| payload.split(' ').next().unwrap_or_default().to_owned());
        assert!(numbers.eq((0..taken).map(|number| number.to_string())), "the oldest stay");
        member.disconnect();
        assert_eq!(publish(taken), ReasonCode::Success, "there is room again");
    });
}

/// One publisher fills the backlog, in messages or bytes. The others find room, also for messages with ordering keys.
#[test]
fn full_backlog_has_room_for_publishers_with_little_in_it() {
    let limits = "[queue]\nmessages_maximum = 200\nbytes_maximum = 1000000\n[store]\nqueue_bytes_maximum = 200000\n";
    for (rule, bytes) in [(RULE.to_owned(), 500), (format!("{RULE}key = \"topic\"\n"), 500), (RULE.to_owned(), 10_000)]
    {
        with_and_without_store(&format!("{limits}{rule}"), |broker| {
            let payload = "x".repeat(bytes);
            let mut loud = broker.v5("loud");
            let mut shout = || loud.publish("jobs/loud", &payload, QoS::AtLeastOnce);
            let filled = (0..1000).take_while(|_| shout() == ReasonCode::Success).count();
            assert!((10..500).contains(&filled), "{filled}");
            let count = if bytes < 1000 { 20 } else { 2 };
            let mut quiet = broker.v5("quiet");
            for number in 0..count {
                let reason = quiet.publish("jobs/quiet", &payload, QoS::AtLeastOnce);
                assert_eq!(reason, ReasonCode::Success, "{rule} {bytes} bytes: message {number}");
                assert_eq!(shout(), ReasonCode::QuotaExceeded, "{rule} {bytes} bytes");
            }
            // Further publishers too, and all of them together have a bound.
            assert_eq!(broker.v311("another").publish("jobs/another", "", QoS::ExactlyOnce), ReasonCode::Success);
            let mut others = (0..20).map(|number| {
                let mut other = broker.v5(&format!("other {number}"));
                (0..1000)
                    .take_while(|_| other.publish("jobs/a", &payload, QoS::AtLeastOnce) == ReasonCode::Success)
                    .count()
            });
            let others: usize = others.by_ref().sum();
            assert!(others <= filled / 4, "{others} beyond {filled}");
            let mut member = join(broker, "member");
            assert_eq!(received(&mut member, filled + count + 1 + others).len(), filled + count + 1 + others);
            assert_eq!(shout(), ReasonCode::Success);
        });
    }
}

#[test]
fn mqtt_3_3_2_5_messages_expire_while_they_wait_with_a_group() {
    with_and_without_store(RULE, |broker| {
        let mut publisher = broker.v5("publisher");
        for (payload, seconds) in [("over", 1), ("not yet", 600)] {
            let publish = with_expiry(at_qos("jobs/a", payload, QoS::AtLeastOnce), seconds);
            assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
        }
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(received(&mut join(broker, "member"), 1), ["not yet"]);
    });
}

#[test]
fn messages_that_wait_too_long_are_dropped_and_logged() {
    with_and_without_store(&RULE.replace("604800", "1"), |broker| {
        let mut publisher = broker.v5("publisher");
        let payload = "x".repeat(10_000); // more than a group keeps in memory
        (0..20).for_each(|_| assert_eq!(publisher.publish("jobs/a", &payload, QoS::AtLeastOnce), ReasonCode::Success));
        let words = ["waited too long", "share_name=\"workers\"", "filter=\"jobs/#\""];
        broker.log().wait_for(&words, PATIENCE);
        dropped(broker, 20);
        join(broker, "member").expect_nothing_waiting();
    });
}

#[test]
fn ages_of_waiting_messages_count_across_restarts() {
    let file = ConfigFile::new(RULE);
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", file.path()]);
    broker.v5("publisher").publish("jobs/a", "x", QoS::AtLeastOnce);
    // The mark comes with the next second, and is stored at once.
    std::thread::sleep(Duration::from_millis(2500));
    drop(broker);
    let file = ConfigFile::new(&RULE.replace("604800", "2"));
    let broker = directory.start_with(&["--config", file.path()]);
    dropped(&broker, 1);
    join(&broker, "member").expect_nothing_waiting();
}

/// Waits until the log reports this number of messages that waited too long.
fn dropped(broker: &BrokerProcess, messages: usize) {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let lines = broker.log().all();
        let reports = lines.iter().filter(|line| line.contains("waited too long"));
        let number = |line: &String| line.split("dropped=").nth(1)?.split(' ').next()?.parse::<usize>().ok();
        let sum: usize = reports.filter_map(number).sum();
        if sum == messages {
            return;
        }
        assert!(sum < messages && std::time::Instant::now() < until, "{}", lines.join("\n"));
        std::thread::sleep(Duration::from_millis(10));
    }
}
