//! Dead letters: `tenbin admin dead-letters`, and its routes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tenbin_codec::{Ack, Disconnect, Packet, Publish, QoS, ReasonCode};

use crate::admin::stage::{Stage, wait_until};
use crate::support::{ConfigFile, DataDirectory, RawClient, share};

/// Two work queues whose letters wait in one standing group.
const QUEUES: &str = "[[share]]\ngroup = \"one\"\nfilter = \"jobs/#\"\nkeep_seconds = 9000\non_reject = \"dead_letter\"\n\
     dead_letter = \"dead/%g/%t\"\n\
     [[share]]\ngroup = \"two\"\nfilter = \"jobs/#\"\non_reject = \"dead_letter\"\ndead_letter = \"dead/%g/%t\"\n\
     [[share]]\ngroup = \"dead\"\nfilter = \"dead/#\"\nkeep_seconds = 9000\n\
     [[share]]\ngroup = \"unkept\"\non_reject = \"dead_letter\"\ndead_letter = \"lost/%t\"\n";

/// A member of a work queue.
fn member(stage: &Stage, group: &str, filter: &str) -> RawClient {
    let mut member = stage.broker.v5(&format!("worker of {group}"));
    member.subscribe(&share(group, filter), QoS::ExactlyOnce);
    member
}

fn payload(publish: &Publish) -> String {
    String::from_utf8_lossy(&publish.payload).into_owned()
}

/// Rejects this number of messages.
fn reject(worker: &mut RawClient, messages: usize) {
    for _ in 0..messages {
        let publish = worker.receive_publish();
        let ack = Ack::new(publish.packet_id.expect("QoS 1 or 2"), ReasonCode::UnspecifiedError);
        worker.send(&if publish.qos == QoS::ExactlyOnce { Packet::PubRec(ack) } else { Packet::PubAck(ack) });
    }
}

fn publish(stage: &Stage, messages: std::ops::Range<usize>, qos: QoS) {
    let mut publisher = stage.broker.v5("publisher");
    for number in messages {
        publisher.publish(&format!("jobs/{}", number % 3), &number.to_string(), qos);
    }
}

/// Runs `tenbin admin dead-letters`, and returns what it prints.
fn letters(stage: &Stage, arguments: &[&str]) -> Result<Value, String> {
    let done =
        stage.command(&[&["admin", "--format", "json", "dead-letters"], arguments].concat()).output().expect("it runs");
    match done.status.success() {
        true => Ok(serde_json::from_slice(&done.stdout).expect("JSON")),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

fn listed(stage: &Stage, group: &str) -> usize {
    letters(stage, &[group, "list"]).expect("a list").as_array().expect("a list").len()
}

fn wait_for_letters(stage: &Stage, group: &str, count: usize) {
    wait_until(|| listed(stage, group) == count);
}

#[test]
fn replayed_letters_are_their_originals_in_order() {
    for (has_store, qos) in [(false, QoS::AtLeastOnce), (true, QoS::AtLeastOnce), (true, QoS::ExactlyOnce)] {
        let (file, data) = (ConfigFile::new(QUEUES), DataDirectory::new());
        let store = if has_store { vec!["--data", data.path_text()] } else { vec!["--ephemeral"] };
        let start = || Stage::start(&[&store[..], &["--config", file.path()]].concat());
        let mut stage = start();
        let mut worker = member(&stage, "one", "jobs/#");
        publish(&stage, 0..200, qos);
        reject(&mut worker, 200);
        wait_for_letters(&stage, "one", 200);
        if has_store {
            // The message behind the ends of the originals is durable, so they are.
            wait_until(|| stage.get("/metrics").body.contains("\ntenbin_dead_letters_total 200\n"));
            stage.broker.v5("publisher").publish("dead/x", "no letter", QoS::AtLeastOnce);
            stage.broker.signal("KILL");
            drop((worker, stage));
            stage = start();
            worker = member(&stage, "one", "jobs/#");
        }
        let list = letters(&stage, &["one", "list", "--limit", "2"]).expect("a list");
        assert_eq!(list.as_array().map(Vec::len), Some(2));
        for (key, value) in [
            ("topic", Value::from("jobs/0")),
            ("reason", "rejected".into()),
            ("deliveries", 1.into()),
            ("client", "worker of one".into()),
            ("bytes", 1.into()),
            ("waits_in", "$share/dead/dead/#".into()),
        ] {
            assert_eq!(list[0][key], value, "{key}");
        }
        assert_eq!(letters(&stage, &["one", "replay", "--limit", "150"]).expect("figures")["replayed"], 150);
        let mut came = Vec::new();
        for _ in 0..150 {
            let again = worker.receive_message();
            assert_eq!((again.qos, again.topic.as_bytes().starts_with(b"jobs/")), (qos, true));
            assert!(again.properties.as_ref().is_none_or(|properties| properties.user_properties.is_empty()));
            came.push(payload(&again).parse::<usize>().expect("a number"));
        }
        assert_eq!(came, (0..150).collect::<Vec<_>>(), "store {has_store}");
        assert_eq!(listed(&stage, "one"), 50);
        let figures = letters(&stage, &["one", "replay"]).expect("figures");
        assert_eq!(figures, serde_json::json!({ "replayed": 50, "refused": 0, "skipped": 0 }));
        (0..50).for_each(|_| drop(worker.receive_message()));
        assert_eq!(listed(&stage, "one"), 0);
        if has_store {
            stage.broker.signal("KILL");
            drop((worker, stage));
            stage = start();
            assert_eq!(listed(&stage, "one"), 0, "the letters have ended");
            let metrics = stage.get("/metrics").body;
            assert!(metrics.contains("tenbin_group_backlog"), "{metrics}");
            member(&stage, "one", "jobs/#").expect_nothing_for(Duration::from_millis(200));
        }
    }
}

#[test]
fn letters_of_another_queue_stay() {
    for has_store in [false, true] {
        let (file, data) = (ConfigFile::new(QUEUES), DataDirectory::new());
        let store = if has_store { vec!["--data", data.path_text()] } else { vec!["--ephemeral"] };
        let stage = Stage::start(&[&store[..], &["--config", file.path()]].concat());
        let mut workers = ["one", "two"].map(|group| member(&stage, group, "jobs/#"));
        publish(&stage, 0..100, QoS::AtLeastOnce);
        workers.iter_mut().for_each(|worker| reject(worker, 100));
        wait_for_letters(&stage, "one", 100);
        wait_for_letters(&stage, "two", 100);
        assert_eq!(letters(&stage, &["two", "purge", "--limit", "30"]).expect("figures")["removed"], 30);
        assert_eq!((listed(&stage, "one"), listed(&stage, "two")), (100, 70));
        assert_eq!(letters(&stage, &["two", "purge"]).expect("figures")["removed"], 70);
        assert_eq!((listed(&stage, "one"), listed(&stage, "two")), (100, 0));
        // A member of the standing group gets the others once, and nothing that was removed.
        let mut undertaker = member(&stage, "dead", "dead/#");
        let groups: BTreeSet<_> =
            (0..100).map(|_| undertaker.receive_message().topic.as_bytes()[..9].to_vec()).collect();
        assert_eq!(groups, BTreeSet::from([b"dead/one/".to_vec()]));
        undertaker.expect_nothing_for(Duration::from_millis(200));
        assert_eq!(listed(&stage, "one"), 0);
    }
}

#[test]
fn letter_without_a_receiver_of_its_original_stays() {
    let queue = "[[share]]\ngroup = \"gone\"\non_reject = \"dead_letter\"\ndead_letter = \"dead/%g/%t\"\n";
    let file = ConfigFile::new(&format!("{QUEUES}{queue}"));
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    let mut worker = member(&stage, "gone", "other/#");
    stage.broker.v5("publisher").publish("other/1", "x", QoS::AtLeastOnce);
    reject(&mut worker, 1);
    wait_for_letters(&stage, "gone", 1);
    worker.send(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
    drop(worker);
    let mut bystander = stage.broker.v5("bystander");
    bystander.subscribe("#", QoS::AtMostOnce);
    let figures = || letters(&stage, &["gone", "replay"]).expect("figures");
    wait_until(|| figures() == serde_json::json!({ "replayed": 0, "refused": 0, "skipped": 1 }));
    assert_eq!(listed(&stage, "gone"), 1);
    let mut worker = member(&stage, "gone", "other/#");
    assert_eq!(figures()["replayed"], 1);
    assert_eq!(payload(&worker.receive_message()), "x");
    assert_eq!(payload(&bystander.receive_message()), "x");
}

/// A replay ends although each original is rejected again.
#[test]
fn replay_of_messages_that_fail_again_ends() {
    let file = ConfigFile::new(QUEUES);
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    let mut worker = member(&stage, "two", "jobs/#");
    publish(&stage, 0..5, QoS::AtLeastOnce);
    reject(&mut worker, 5);
    wait_for_letters(&stage, "two", 5);
    let rejecting = std::thread::spawn(move || reject(&mut worker, 5));
    assert_eq!(letters(&stage, &["two", "replay"]).expect("figures")["replayed"], 5);
    rejecting.join().expect("five messages come again");
    wait_for_letters(&stage, "two", 5);
}

#[test]
fn refused_letters_are_figures_and_a_finding() {
    let file = ConfigFile::new(&format!("{QUEUES}[queue]\nmessages_maximum = 20\n"));
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    let mut worker = member(&stage, "one", "jobs/#");
    // Each publisher with little of the backlog has some room more.
    let fill = |number: usize| {
        let mut publisher = stage.broker.v5(&format!("publisher-{number}"));
        let is_taken = |_: &usize| publisher.publish("dead/x", "fills", QoS::AtLeastOnce) == ReasonCode::Success;
        (0..100).take_while(is_taken).count()
    };
    let fills: usize = (0..).map(fill).take_while(|fills| *fills > 0).sum();
    publish(&stage, 0..3, QoS::AtLeastOnce);
    reject(&mut worker, 3);
    let letters_refused = || stage.get_json("/api/v1/groups/one/jobs%2F%23")["failures"]["letters_refused"].clone();
    let are = |count: usize| {
        let metrics = stage.get("/metrics").body;
        [
            format!("\ntenbin_letters_refused {count}\n"),
            format!("\ntenbin_group_letters_refused{{group=\"one\",filter=\"jobs/#\"}} {count}\n"),
        ]
        .iter()
        .all(|line| metrics.contains(line))
            && letters_refused() == count
    };
    let findings = || {
        let page = stage.get_json("/api/v1/findings");
        let is_refused = |finding: &&Value| finding["kind"] == "letters_refused";
        page["items"].as_array().expect("a list").iter().filter(is_refused).cloned().collect::<Vec<_>>()
    };
    wait_until(|| are(3) && findings().len() == 1);
    let finding = findings().remove(0);
    assert_eq!((&finding["group"], &finding["filter"]), (&"one".into(), &"jobs/#".into()));
    assert_eq!(finding["text"], "group one: a receiver has no room for the dead letters of 3 messages");
    assert!(finding["advice"].as_str().is_some_and(|advice| advice.contains("tenbin admin dead-letters one list")));
    assert!(stage.get("/readyz?verbose").body.contains("[!] dead_letters: dead letters of 1 share groups are refused"));
    let mut undertaker = member(&stage, "dead", "dead/#");
    (0..fills + 3).for_each(|_| drop(undertaker.receive_message()));
    wait_until(|| are(0) && findings().is_empty());
}

#[test]
fn message_in_its_pause_is_a_retry_after_a_restart() {
    let file = ConfigFile::new(
        "[[share]]\ngroup = \"one\"\nfilter = \"jobs/#\"\nkeep_seconds = 9000\non_reject = \"retry\"\n\
         retry_delay_ms = 60000\n",
    );
    let data = DataDirectory::new();
    let start = || Stage::start(&["--data", data.path_text(), "--config", file.path()]);
    let stage = start();
    let mut worker = member(&stage, "one", "jobs/#");
    publish(&stage, 0..8, QoS::AtLeastOnce);
    reject(&mut worker, 8);
    worker.settle();
    // Its page is read first, and no member takes its messages.
    drop(worker);
    publish(&stage, 8..60, QoS::AtLeastOnce);
    drop(stage); // as by `kill -9`

    let stage = start();
    let failures = || stage.get_json("/api/v1/groups/one/jobs%2F%23")["failures"].clone();
    wait_until(|| failures()["retries"] == 8 && failures()["oldest_retry_ms"].as_f64() > Some(0.0));
    assert_eq!(stage.get_json("/api/v1/groups/one/jobs%2F%23")["waiting"], 60);
    let mut worker = member(&stage, "one", "jobs/#");
    (8..60).for_each(|number| assert_eq!(payload(&worker.receive_message()), number.to_string()));
    worker.expect_nothing_for(Duration::from_millis(200));
}

#[test]
fn letters_in_a_standing_group_are_a_finding_of_their_own() {
    let file = ConfigFile::new(QUEUES);
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    let mut worker = member(&stage, "two", "jobs/#");
    publish(&stage, 0..3, QoS::AtLeastOnce);
    reject(&mut worker, 3);
    let findings = |kind: &str, group: &str| {
        let page = stage.get_json("/api/v1/findings");
        let is_wanted = |finding: &&Value| finding["kind"] == kind && finding["group"] == group;
        page["items"].as_array().expect("a list").iter().filter(is_wanted).cloned().collect::<Vec<_>>()
    };
    // Group `one` has no member, and wants one.
    wait_until(|| findings("dead_letters", "dead").len() == 1 && findings("fewer_than_wanted", "one").len() == 1);
    let finding = findings("dead_letters", "dead").remove(0);
    assert_eq!(finding["text"], "group dead: 3 messages wait: dead letters of one, two");
    assert!(finding["advice"].as_str().is_some_and(|advice| advice.contains("tenbin admin dead-letters GROUP list")));
    assert_eq!(findings("fewer_than_wanted", "dead"), [] as [Value; 0]);
    assert!(stage.get("/readyz?verbose").body.contains("[!] wanted: 1 share groups"));
    let mut undertaker = member(&stage, "dead", "dead/#");
    (0..3).for_each(|_| drop(undertaker.receive_message()));
    wait_until(|| findings("dead_letters", "dead").is_empty());
}

#[test]
fn wrong_names_and_limits_are_refused_by_name() {
    let file = ConfigFile::new(QUEUES);
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    for (arguments, words) in [
        (&["nobody", "list"][..], "no [[share]] rule with dead_letter is about groups named \"nobody\""),
        (&["dead", "replay"], "no [[share]] rule with dead_letter"),
        (&["unkept", "purge"], "no standing group gets the dead letters of \"unkept\""),
        (&["one", "list", "--limit", "0"], "0 is not in 1.."),
    ] {
        let error = letters(&stage, arguments).expect_err("an error");
        assert!(error.contains(words), "{error}");
    }
    let answer = stage.ask("DELETE", "/api/v1/dead-letters/one?cursor=1.m1");
    assert!(answer.status == 400 && answer.body.contains("cursor: only for the list"), "{}", answer.body);
    for (query, words) in [("?limit=0", "limit: needs to be"), ("?cursor=1.x1", "1.x1")] {
        let answer = stage.get(&format!("/api/v1/dead-letters/one{query}"));
        assert!(answer.status == 400 && answer.body.contains(words), "{}", answer.body);
    }
}
