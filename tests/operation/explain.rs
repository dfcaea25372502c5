//! Share group reports of the broker, and `tenbin explain`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    BrokerProcess, ConfigFile, PATIENCE, RawClient, lasting, retained, share, subscription, text, topic,
};
use serde_json::Value;
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode, UserProperty};

/// Records every decision.
const EVERY: &str = "policy = \"round_robin\"\n[explain]\npause_ms = 0\n";

fn broker(config: &str) -> BrokerProcess {
    let file = ConfigFile::new(config);
    BrokerProcess::start(&["--config", file.path()])
}

/// Members of `$share/workers/jobs/+`.
fn workers(broker: &BrokerProcess, names: &[&str]) -> Vec<RawClient> {
    let join = |name: &&str| {
        let mut worker = broker.v5(name);
        worker.subscribe(&share("workers", "jobs/+"), QoS::AtLeastOnce);
        worker
    };
    names.iter().map(join).collect()
}

fn publish(broker: &BrokerProcess, count: usize) {
    let mut publisher = broker.v5("publisher");
    for number in 0..count {
        publisher.publish(&format!("jobs/{number}"), "x", QoS::AtLeastOnce);
    }
}

/// Returns the next report of this kind, the last level of its topic.
fn next(reader: &mut RawClient, report: &str) -> Value {
    let name = topic(&format!("$SYS/share/workers/jobs%2F%2B/{report}"));
    loop {
        let publish = reader.receive_message();
        if publish.topic == name {
            assert!(!publish.retain);
            return serde_json::from_slice(&publish.payload).expect("JSON");
        }
    }
}

/// As [`next`], until `wanted` accepts the report.
fn wait_for(reader: &mut RawClient, report: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let value = next(reader, report);
        if wanted(&value) {
            return value;
        }
        assert!(Instant::now() < until, "{value}");
    }
}

#[test]
fn members_and_decisions_are_published_to_subscribers() {
    let broker = broker(EVERY);
    let mut workers = workers(&broker, &["anna", "bert", "cleo"]);
    publish(&broker, 30);
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/+", QoS::AtMostOnce);
    let members = next(&mut reader, "members");
    assert_eq!((&members["group"], &members["filter"]), (&"workers".into(), &"jobs/+".into()));
    assert_eq!((&members["policy"], &members["messages"]), (&"round_robin".into(), &30.into()));
    let shown =
        |key: &str| members["members"].as_array().expect("a list").iter().map(|m| m[key].clone()).collect::<Vec<_>>();
    assert_eq!(shown("client"), ["anna", "bert", "cleo"]);
    assert_eq!(shown("messages"), [10, 10, 10]);
    assert_eq!(shown("in_flight"), [10, 10, 10], "nobody has acknowledged");
    assert_eq!(shown("state"), ["ready"; 3]);

    let decisions = next(&mut reader, "decisions");
    let decisions = decisions.as_array().expect("a list");
    assert_eq!(decisions.len(), 30);
    for (number, decision) in decisions.iter().enumerate() {
        assert_eq!(decision["topic"], format!("jobs/{number}"));
        assert_eq!(decision["chosen"], ["anna", "bert", "cleo"][number % 3]);
        assert_eq!((&decision["reason"], &decision["policy"]), (&"turn".into(), &"round_robin".into()));
        assert_eq!(decision["unrecorded"], 0);
        let in_flight = decision["candidates"].as_array().expect("a list").iter().map(|c| c["in_flight"].as_u64());
        let before = (0..3).map(|member| Some((number as u64 + 2 - member) / 3));
        assert!(in_flight.eq(before), "{decision}");
    }

    workers.remove(0).disconnect();
    let members = wait_for(&mut reader, "members", |members| members["members_total"] == 2);
    // Her ten messages were redelivered, and their first delivery still counts.
    assert_eq!(members["messages"], 40);
}

#[test]
fn unrecorded_decisions_are_counted() {
    let broker = broker("policy = \"round_robin\"\n[explain]\npause_ms = 300\n");
    let _workers = workers(&broker, &["anna", "bert"]);
    publish(&broker, 20);
    std::thread::sleep(Duration::from_millis(400));
    publish(&broker, 1);
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/#", QoS::AtMostOnce);
    let decisions = next(&mut reader, "decisions");
    let decisions = decisions.as_array().expect("a list");
    assert_eq!((&decisions[0]["topic"], &decisions[0]["chosen"]), (&"jobs/0".into(), &"anna".into()));
    let between: u64 = decisions.iter().filter_map(|decision| decision["unrecorded"].as_u64()).sum();
    assert!(decisions.len() < 21);
    assert_eq!(between + decisions.len() as u64, 21);
}

#[test]
fn decision_without_connected_member_is_recorded() {
    let broker = broker(EVERY);
    let members = ["anna", "bert"].map(|name| {
        let mut member = broker.connect(lasting(ProtocolVersion::V5, name));
        member.subscribe(&share("workers", "jobs/+"), QoS::AtLeastOnce);
        member
    });
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/+", QoS::AtMostOnce);
    members.into_iter().for_each(RawClient::disconnect);
    let all = |value: &Value, state: &str| {
        value["members"].as_array().is_some_and(|members| members.iter().all(|member| member["state"] == state))
    };
    wait_for(&mut reader, "members", |value| all(value, "offline"));
    publish(&broker, 1);
    let value = wait_for(&mut reader, "members", |value| value["waiting"] == 1);
    assert_eq!(value["messages"], 0);
    let decisions = wait_for(&mut reader, "decisions", |value| value.as_array().is_some_and(|list| !list.is_empty()));
    assert_eq!((&decisions[0]["chosen"], &decisions[0]["reason"]), (&Value::Null, &"nobody".into()));
}

#[test]
fn redeliveries_are_counted() {
    let broker = broker(&format!("{EVERY}[sessions]\nin_flight_maximum = 1\n"));
    let mut members = ["anna", "bert"].map(|name| {
        let mut member = broker.connect(lasting(ProtocolVersion::V5, name));
        member.subscribe(&share("workers", "jobs/+"), QoS::AtLeastOnce);
        member
    });
    publish(&broker, 6);
    // Unacknowledged, so that two more messages wait for each member.
    members.iter_mut().for_each(|member| drop(member.receive_publish()));
    let [anna, _bert] = members;
    anna.cut();
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/members", QoS::AtMostOnce);
    let value = wait_for(&mut reader, "members", |value| value["members"][1]["messages"] == 6);
    let of = |member: usize, key: &str| value["members"][member][key].as_u64().expect("a number");
    assert_eq!((of(0, "redispatches"), of(1, "redispatches")), (3, 0), "{value}");
    assert_eq!((of(0, "messages"), of(1, "messages")), (3, 6), "{value}");
}

#[test]
fn shadow_policy_reports_its_agreement() {
    let rule = "[[share]]\ngroup = \"workers\"\npolicy = \"round_robin\"\nshadow = \"round_robin\"\n";
    let broker = broker(rule);
    let _workers = workers(&broker, &["anna", "bert", "cleo"]);
    publish(&broker, 50);
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/shadow", QoS::AtMostOnce);
    let shadow = next(&mut reader, "shadow");
    assert_eq!((&shadow["policy"], &shadow["shadow"]), (&"round_robin".into(), &"round_robin".into()));
    assert_eq!((&shadow["compared"], &shadow["agreed"], &shadow["agreement"]), (&50.into(), &50.into(), &1.0.into()));
    assert_eq!(shadow["wait_difference_ms_sum"], 0.0);
}

#[test]
fn sys_subscription_gets_group_reports_at_the_interval() {
    let broker = broker("[sys]\ninterval_seconds = 2\n");
    let _workers = workers(&broker, &["anna"]);
    let mut wide = broker.v5("wide");
    wide.subscribe("$SYS/#", QoS::AtMostOnce);
    next(&mut wide, "members");
    // A busy machine may delay one message, and then the next one seems early.
    let mut pauses = (0..3).map(|_| {
        let start = Instant::now();
        next(&mut wide, "members");
        start.elapsed()
    });
    assert!(pauses.any(|pause| pause > Duration::from_millis(1500)), "three messages came sooner");
}

const RULES: &str = r##"
[[listeners]]
name = "main"
address = "127.0.0.1:0"
anonymous = true
[[acl]]
client_id = "trusted"
allow = "subscribe"
topic = "$SYS/share/#"
[[acl]]
client_id = "some"
allow = "subscribe"
topic = "$SYS/share/others/#"
[[acl]]
allow = "all"
topic = "#"
"##;

#[test]
fn acl_decides_who_reads_share_group_reports() {
    let file = ConfigFile::new(RULES);
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let _workers = workers(&broker, &["anna"]);
    let mut trusted = broker.v5("trusted");
    trusted.subscribe("$SYS/share/workers/+/+", QoS::AtMostOnce);
    let subscribe =
        |client: &mut RawClient, filter: &str| client.subscribe_to(None, vec![subscription(filter, QoS::AtMostOnce)]);
    let mut denied = broker.v5("denied");
    for filter in ["$SYS/share/workers/+/+", "$SYS/share/#", "$SYS/share/workers/jobs%2F%2B/decisions"] {
        assert_eq!(subscribe(&mut denied, filter), [ReasonCode::NotAuthorized], "{filter}");
    }
    let mut some = broker.v5("some");
    assert_eq!(subscribe(&mut some, "$SYS/share/#"), [ReasonCode::Success], "for a part of it");
    next(&mut trusted, "decisions");
    next(&mut trusted, "decisions");
    some.expect_nothing_waiting();
    denied.expect_nothing_waiting();

    let output = explain(&broker, &["--group", "workers"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("not authorised") && said.lines().count() == 1, "{said}");
}

fn explain(broker: &BrokerProcess, arguments: &[&str]) -> Output {
    let address = broker.address().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(["explain", "--broker", &address]).args(arguments);
    command.output().expect("the built command can be started")
}

#[test]
fn explain_shows_a_group() {
    let broker = broker(EVERY);
    let _workers = workers(&broker, &["anna", "bert"]);
    let mut other = broker.v5("other");
    other.subscribe(&share("workers", "more/#"), QoS::AtMostOnce);
    publish(&broker, 4);
    let output = explain(&broker, &["--group", "workers", "--filter", "jobs/+"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.starts_with("workers, filter jobs/+: round_robin; 2 members, 4 messages\n"), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains(" turn ")).count(), 4, "{said}");
    assert!(!said.contains("more/#"), "{said}");

    let output = explain(&broker, &["--group", "workers", "--format", "json"]);
    let documents = String::from_utf8_lossy(&output.stdout);
    let documents: Vec<Value> = documents.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let filters = documents.iter().map(|document| document["members"]["filter"].clone());
    assert_eq!(filters.collect::<Vec<_>>(), ["jobs/+", "more/#"]);
    assert_eq!(documents[0]["decisions"].as_array().map(Vec::len), Some(4));
    assert_eq!(documents[0]["shadow"], Value::Null);
}

#[test]
fn explain_shows_limits_and_messages_that_waited() {
    let broker = broker("[explain]\npause_ms = 0\n");
    let mut connect = Connect::new(ProtocolVersion::V5, text("anna"));
    connect.properties.user_properties = vec![UserProperty::new(text("concurrency"), text("1"))];
    let mut anna = broker.connect(connect);
    anna.subscribe(&share("workers", "jobs/+"), QoS::AtLeastOnce);
    publish(&broker, 2);
    let begun = anna.receive_publish();
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/+", QoS::AtMostOnce);
    let members = wait_for(&mut reader, "members", |members| members["waiting"] == 1);
    let member = &members["members"][0];
    let shown = ["concurrency", "in_flight", "in_flight_maximum"].map(|key| member[key].as_u64());
    assert_eq!(shown, [Some(1); 3], "{member}");
    anna.acknowledge(&begun);
    anna.receive_publish();
    let decisions = wait_for(&mut reader, "decisions", |decisions| decisions[1].is_object());
    assert_eq!([0, 1].map(|number| decisions[number]["reason"].clone()), ["only_candidate", "waited"]);
}

#[test]
fn explain_follows_until_the_broker_stops() {
    let broker = broker(EVERY);
    let _workers = workers(&broker, &["anna"]);
    publish(&broker, 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(["explain", "--group", "workers", "--follow", "--broker", &broker.address().to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("jobs/0")));
    publish(&broker, 3);
    let news: Vec<_> = lines.by_ref().take(3).collect();
    for (number, line) in news.iter().enumerate() {
        assert!(line.contains(&format!("jobs/{number} ")) && line.contains("anna"), "{news:?}");
    }
    drop(broker);
    let output = child.wait_with_output().expect("our own child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the connection ended") && said.lines().count() == 1, "{said}");
    assert_eq!(lines.next(), None);
}

#[test]
fn explain_reports_errors_in_one_line() {
    let tenbin = broker("");
    let silent = broker("[sys]\ninterval_seconds = 0\n");
    let _workers = workers(&silent, &["anna"]);
    for (broker, arguments, words) in [
        (
            &tenbin,
            &["--group", "nobody", "--wait", "2"][..],
            "no such share group: the broker does not know $share/nobody/…",
        ),
        (&tenbin, &["--group", "a/b"], "no share name"),
        (&tenbin, &["--group", "g", "--user", "u", "--password-file", "/nowhere/p"], "/nowhere/p"),
        (&silent, &["--group", "workers", "--wait", "1"], "interval_seconds = 0"),
    ] {
        let output = explain(broker, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
    let unused = "127.0.0.1:1";
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    let output = command.args(["explain", "--group", "g", "--broker", unused]).output().expect("built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(unused) && said.lines().count() == 1, "{said}");
}

#[test]
fn long_names_are_cut_and_clients_cannot_publish_reports() {
    let broker = broker(&format!("{EVERY}[sessions]\nclient_id_bytes_maximum = 5000\n"));
    let mut worker = broker.connect(Connect::new(ProtocolVersion::V5, text(&"n".repeat(5000))));
    worker.subscribe(&share("workers", "jobs/+"), QoS::AtMostOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish(&format!("jobs/{}", "é".repeat(3000)), "x", QoS::AtLeastOnce);
    let forged = retained("$SYS/share/workers/jobs%2F%2B/members", "forged");
    assert_eq!(
        publisher.publish_with(tenbin_codec::Publish {
            qos: QoS::AtLeastOnce,
            packet_id: tenbin_codec::PacketId::new(7),
            ..forged
        }),
        ReasonCode::NotAuthorized
    );
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/workers/+/+", QoS::AtMostOnce);
    let members = next(&mut reader, "members");
    assert_eq!(members["members"][0]["client"].as_str().map(str::len), Some(256));
    let decisions = next(&mut reader, "decisions");
    assert_eq!(decisions[0]["topic"].as_str().map(str::len), Some(255), "not within a character");
}
