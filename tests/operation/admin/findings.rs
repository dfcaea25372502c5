//! Findings: what looks wrong, in words.

use std::time::{Duration, Instant};

use serde_json::Value;
use tenbin_codec::{ProtocolVersion, QoS};

use crate::admin::stage::{Stage, wait_until};
use crate::support::{ConfigFile, PATIENCE, RawClient, share};

/// The findings of a kind.
fn of_kind(stage: &Stage, kind: &str) -> Vec<Value> {
    let page = stage.get_json("/api/v1/findings");
    let all = page["items"].as_array().expect("a list");
    all.iter().filter(|finding| finding["kind"] == kind).cloned().collect()
}

/// Waits for a finding of a kind; returns it and the time that it took.
#[track_caller]
fn wait_for(stage: &Stage, kind: &str) -> (Value, Duration) {
    let begin = Instant::now();
    wait_until(|| !of_kind(stage, kind).is_empty());
    (of_kind(stage, kind).remove(0), begin.elapsed())
}

/// Members of the group `pool` that have shown a speed, with acknowledgements.
fn members<const N: usize>(stage: &Stage, names: [&str; N], publisher: &mut RawClient) -> [RawClient; N] {
    let mut members = names.map(|name| stage.broker.v5(name));
    for member in &mut members {
        member.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    }
    for _ in 0..20 * N {
        publisher.publish("jobs", "x", QoS::AtLeastOnce);
        members.iter_mut().for_each(|member| drop(member.drain()));
    }
    members
}

#[test]
fn silent_member_is_stalled_and_a_lost_one_has_gone() {
    let stage = Stage::start_in(&[("TENBIN_POLICY", "round_robin".into())], &[]);
    let mut publisher = stage.broker.v5("publisher");
    let [mut anna, bert] = members(&stage, ["worker-anna", "worker-bert"], &mut publisher);
    // Bert's process stands still with messages.
    for _ in 0..4 {
        publisher.publish("jobs", "x", QoS::AtLeastOnce);
        anna.drain();
    }
    let (stalled, _) = wait_for(&stage, "stalled");
    assert_eq!(
        (&stalled["client"], &stalled["group"], &stalled["filter"]),
        (&"worker-bert".into(), &"pool".into(), &"jobs".into())
    );
    assert_eq!(stalled["link"], "#group/pool/jobs");
    let text = stalled["text"].as_str().expect("a text");
    assert!(text.contains("has made no progress for") && text.contains("messages"), "{text}");
    let scale = stage.get_json("/api/v1/groups/pool/jobs/scale");
    assert_eq!((&scale["members"], &scale["stalled"]), (&2.into(), &1.into()), "{scale}");
    let verbose = stage.get("/readyz?verbose").body;
    assert!(verbose.contains("[!] members: of share groups, 1 are stalled") && !verbose.contains("bert"), "{verbose}");

    bert.cut();
    let (gone, took) = wait_for(&stage, "gone");
    assert!(took < PATIENCE && gone["client"] == "worker-bert" && gone["link"] == "#events", "{gone}");
    assert!(gone["text"].as_str().is_some_and(|text| text.contains("connection lost")), "{gone}");
    assert!(gone["since_ms"].as_u64().is_some_and(|since| since > 0), "{gone}");
    wait_until(|| of_kind(&stage, "stalled").is_empty());
    let past = stage.get_json("/api/v1/past");
    let kinds: Vec<_> = past["events"].as_array().expect("a list").iter().map(|event| event["kind"].clone()).collect();
    for kind in ["started", "stalled", "gone", "over"] {
        assert!(kinds.contains(&kind.into()), "{kind} in {past}");
    }
    // It comes back.
    let mut bert = stage.broker.v5("worker-bert");
    bert.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    wait_until(|| of_kind(&stage, "gone").is_empty());
}

#[test]
fn member_that_disconnects_has_left() {
    let stage = Stage::start(&[]);
    let mut publisher = stage.broker.v5("publisher");
    // Bert is the first, so that the first look at the group finds it.
    let [bert, _anna] = members(&stage, ["bert", "anna"], &mut publisher);
    wait_until(|| stage.get_json("/api/v1/groups/pool/jobs")["summary"].is_object());
    bert.disconnect();
    let (left, _) = wait_for(&stage, "left");
    assert!(
        left["client"] == "bert" && left["text"].as_str().is_some_and(|text| text.contains("disconnected")),
        "{left}"
    );
    assert_eq!(of_kind(&stage, "gone"), [] as [Value; 0]);
    assert!(!stage.get("/readyz?verbose").body.contains("[!] members"));
}

#[test]
fn standing_group_with_messages_wants_members() {
    let file = ConfigFile::new("[[share]]\ngroup = \"pool\"\nfilter = \"jobs\"\nkeep_seconds = 600\n");
    let stage = Stage::start(&["--config", file.path()]);
    let mut publisher = stage.broker.v5("publisher");
    publisher.publish("jobs", "x", QoS::AtLeastOnce);
    let (fewer, _) = wait_for(&stage, "fewer_than_wanted");
    assert!(fewer["advice"].as_str().is_some_and(|advice| advice.starts_with("Start 1 more")), "{fewer}");
    assert!(stage.get("/readyz?verbose").body.contains("[!] wanted: 1 share groups"));
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    let message = worker.receive_publish();
    worker.acknowledge(&message);
    wait_until(|| of_kind(&stage, "fewer_than_wanted").is_empty());
}

#[test]
fn denied_and_refused_actions_are_findings() {
    let file = ConfigFile::new(
        "[sessions]\nsubscriptions_maximum = 1\n[[acl]]\ndeny = \"publish\"\ntopic = \"secret/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n",
    );
    let stage = Stage::start(&["--config", file.path()]);
    let mut client = stage.broker.client(ProtocolVersion::V311, "sensor");
    client.publish("secret/1", "x", QoS::AtLeastOnce);
    client.settle();
    let (denied, _) = wait_for(&stage, "denied");
    assert_eq!(denied["link"], "#events");
    let events = stage.get_json("/api/v1/past")["events"].clone();
    let told = events.as_array().into_iter().flatten().find(|event| event["kind"] == "denied").expect("an event");
    let text = told["text"].as_str().expect("a text");
    assert!(text.starts_with("publish: sensor, user anonymous") && text.ends_with("secret/1"), "{text}");

    let mut greedy = stage.broker.v5("greedy");
    greedy.subscribe("a", QoS::AtMostOnce);
    greedy.subscribe_to(None, vec![crate::support::subscription("b", QoS::AtMostOnce)]);
    let (refused, _) = wait_for(&stage, "refused");
    assert_eq!(refused["key"], "sessions.subscriptions_maximum");
    assert!(refused["text"].as_str().is_some_and(|text| text.starts_with("refused by sessions.subscriptions_maximum")));
}
