use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::share_rules::Ruled;
use crate::share_rules::by_name::takes_turns;
use crate::support::{PATIENCE, RawClient, lasting, number_of, share};

#[test]
fn reload_changes_existing_groups_unless_the_rules_are_invalid() {
    let turns = "policy = \"random\"\n[[share]]\ngroup = \"g*\"\npolicy = \"round_robin\"\n";
    let ruled = Ruled::start("policy = \"random\"");
    // The group begins under the first rules, and an offline member keeps it alive.
    let mut stays = ruled.broker.connect(lasting(ProtocolVersion::V5, "stays"));
    stays.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
    stays.disconnect();
    let takes_turns = || takes_turns(&ruled.broker, "group", "topic");
    assert!(!takes_turns());
    ruled.reload(turns, 1);
    assert!(takes_turns());
    std::fs::write(ruled.file.path(), "[[share]]\ngroup = \"group\"\nkey = \"colour\"\n").expect("a file of ours");
    ruled.broker.signal("HUP");
    ruled.broker.log().wait_for(&["reload failed", "line 3: key", "colour"], PATIENCE);
    assert!(takes_turns(), "nothing has changed");
    ruled.reload("policy = \"random\"", 2);
    assert!(!takes_turns());
}

/// The policy of a group changes back and forth under load: at QoS 1 no message is lost or doubled.
#[test]
fn reload_under_load_loses_and_doubles_no_message() {
    let rules = [
        "policy = \"random\"",
        "[[share]]\ngroup = \"gr*\"\nkey = \"topic\"\nshadow = \"random\"\n",
        "[[share]]\nfilter = \"#\"\npolicy = \"round_robin\"\n",
        "policy = \"adaptive\"",
        "[[share]]\nkey = \"client_id\"\n",
        "policy = \"thesis_score\"",
    ];
    let ruled = Ruled::start(rules[0]);
    let mut members = [0, 1, 2].map(|number| {
        let mut member = ruled.broker.v5(&format!("member {number}"));
        member.subscribe(&share("group", "topic/+"), QoS::AtLeastOnce);
        member
    });
    let mut publishers = [0, 1].map(|number| ruled.broker.v5(&format!("publisher {number}")));
    let topics = ["topic/0", "topic/1"];
    let (is_over, received) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (published, mut counts) = std::thread::scope(|scope| {
        let receivers = members.each_mut().map(|member| scope.spawn(|| receive(member, &is_over, &received)));
        let is_over = &is_over;
        let senders = publishers.iter_mut().zip(&topics);
        let senders = senders.map(|(publisher, topic)| scope.spawn(move || publish(publisher, topic, is_over)));
        let senders = senders.collect::<Vec<_>>();
        for reload in 1..=RELOADS {
            let before = received.load(Ordering::Relaxed);
            ruled.reload(rules[reload % rules.len()], reload);
            // Some messages by each set of rules.
            while received.load(Ordering::Relaxed) < before + 500 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let published = senders.into_iter().map(|sender| sender.join().expect("no panic")).collect::<Vec<_>>();
        (published, receivers.map(|receiver| receiver.join().expect("no panic")))
    });
    // All remaining messages are queued by now.
    for (member, counts) in members.iter_mut().zip(&mut counts) {
        member.drain().iter().for_each(|publish| count(counts, publish));
    }
    let mut seen = BTreeMap::new();
    for (message, times) in counts.into_iter().flatten() {
        *seen.entry(message).or_insert(0) += times;
    }
    for (publisher, total) in published.into_iter().enumerate() {
        let times = (0..total).map(|number| seen.get(&(publisher, number)).copied().unwrap_or(0)).collect::<Vec<_>>();
        assert_eq!(times.iter().filter(|&&times| times == 0).count(), 0, "lost, of {total}");
        assert_eq!(times.iter().filter(|&&times| times > 1).count(), 0, "doubled, of {total}");
    }
}

/// Publishes numbers until it is over. Returns their count.
fn publish(publisher: &mut RawClient, topic: &str, is_over: &AtomicBool) -> usize {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        assert_eq!(publisher.publish(topic, &count.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
        count += 1;
    }
    count
}

fn count(counts: &mut BTreeMap<Message, u32>, publish: &Publish) {
    let publisher = if publish.topic.as_bytes() == b"topic/0" { 0 } else { 1 };
    *counts.entry((publisher, number_of(publish))).or_insert(0) += 1;
}

/// Publisher of a message, and its number.
type Message = (usize, usize);

fn receive(member: &mut RawClient, is_over: &AtomicBool, received: &AtomicUsize) -> BTreeMap<Message, u32> {
    let mut counts = BTreeMap::new();
    loop {
        match member.try_receive(Duration::from_millis(50)) {
            Ok(Packet::Publish(publish)) => {
                member.acknowledge(&publish);
                count(&mut counts, &publish);
                received.fetch_add(1, Ordering::Relaxed);
            }
            Ok(other) => panic!("{other:?} instead of a message"),
            Err(_) if is_over.load(Ordering::Relaxed) => return counts,
            Err(_) => {}
        }
    }
}

const RELOADS: usize = 30;
