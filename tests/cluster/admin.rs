//! Admin HTTP at all nodes: health, metrics, status, and the way to the leader.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::Value;
use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::harness::{Cluster, Node};
use crate::hostile::{hello, send};
use crate::support::{HttpAnswer, PATIENCE, WebAnswer, WebServer, exchange, lasting, read_answer, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn each_endpoint_answers_at_leader_follower_and_spare() {
    let Some(cluster) = Cluster::start(3) else { return };
    let leader = cluster.wait_for_copies();
    let (leads, admin) = (cluster.nodes[leader].name.clone(), format!("http://{}", cluster.nodes[leader].admin));
    let follower = cluster.follower(leader);
    let spare = 3 - leader - follower;
    for (at, role) in [(leader, "leader"), (follower, "follower"), (spare, "spare")] {
        let node = &cluster.nodes[at];
        // A node is ready once it has heard the leader.
        let ready = cluster.wait("ready node", |_| Some(get(node, "/readyz")).filter(|answer| answer.status == 200));
        let ready = json(&ready);
        assert_eq!(
            (&ready["ready"], &ready["role"], &ready["leader"]),
            (&true.into(), &role.into(), &leads[..].into())
        );
        let is_leader = json(&get(node, "/leaderz"));
        assert_eq!(get(node, "/leaderz").status, if at == leader { 200 } else { 503 }, "{is_leader}");
        assert_eq!(is_leader["ready"], at == leader);
        let alive = get(node, "/healthz?verbose");
        assert_eq!((alive.status, alive.body.contains("[+] node")), (200, true), "{}", alive.body);

        let shown = json(&get(node, "/cluster"));
        let status = node.status().expect("it answers");
        for key in ["cluster", "node", "role", "copies", "record", "version"] {
            assert_eq!(shown[key], status[key], "{key}");
        }
        let data = node.data.to_str().expect("a readable name");
        let command = crate::tenbin(&["cluster", "status", "--json", "--data", data]);
        let command: Value = serde_json::from_slice(&command.stdout).expect("JSON");
        let keys = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
        assert_eq!(keys(&shown), keys(&command));

        for (metric, value) in [
            (concat!("tenbin_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
            ("tenbin_cluster_copies", 2.0),
            ("tenbin_cluster_has_leader", 1.0),
            ("tenbin_cluster_agreement_up", 1.0),
            (&format!("tenbin_cluster_role{{role=\"{role}\"}}"), 1.0),
            ("tenbin_cluster_may_act", f64::from(u8::from(at == leader))),
        ] {
            assert_eq!(metric_of(node, metric), Some(value), "{metric} at the {role}");
        }
        let epoch = status["record"]["epoch"].as_f64();
        assert_eq!(metric_of(node, "tenbin_cluster_epoch"), epoch);
        assert!(metric_of(node, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 0.0));
        let heard = metric_of(node, "tenbin_cluster_leader_heard_seconds").expect("it was heard");
        assert!((0.0..30.0).contains(&heard), "{heard}");
        assert_eq!(metric_of(node, "tenbin_sessions").is_some(), at == leader);
        let open = ask(node, "GET", "/metrics", &[("accept", "application/openmetrics-text")], "");
        assert!(open.body.ends_with("# EOF\n"));

        assert_eq!(get(node, "/").status, 200, "a person sees a page");
        let body = "{\"topic\": \"a\", \"payload\": \"x\", \"qos\": 1}";
        let publish = |token: &str| {
            let token = format!("Bearer {token}");
            let headers = [("content-type", "application/json"), ("authorization", &token[..])];
            ask(node, "POST", "/api/v1/publish", &headers, body)
        };
        assert_eq!(publish("unknown").status, 401);
        let token = std::fs::read_to_string(node.data.join("admin.token")).expect("a token at each node");
        let answers = [get(node, "/api/v1/clients"), publish(token.trim())];
        for answer in answers {
            if at == leader {
                assert_eq!(answer.status, 200, "{}", answer.body);
                continue;
            }
            let problem = json(&answer);
            assert_eq!((answer.status, &problem["status"]), (421, &421.into()), "{problem}");
            assert_eq!((&problem["leader"], &problem["admin"]), (&leads[..].into(), &admin[..].into()), "{problem}");
        }
        assert_eq!(get(node, "/nothing").status, 404);
    }
}

#[test]
fn no_node_is_ready_while_the_leader_takes_no_clients() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let leader = cluster.wait_for_copies();
    let others: Vec<_> = (0..3).filter(|&at| at != leader).collect();
    let leads = cluster.nodes[leader].name.clone();
    let wait_for_ready = |cluster: &Cluster, at: usize| {
        cluster.wait("ready node", |cluster| {
            let is_ready = get(&cluster.nodes[at], "/readyz").status == 200;
            let is_command_ready = ready_command(&cluster.nodes[at]).0;
            (is_ready && is_command_ready).then_some(())
        });
    };
    (0..3).for_each(|at| wait_for_ready(&cluster, at));
    let drain = |method: &str| {
        let token = std::fs::read_to_string(cluster.nodes[leader].data.join("admin.token")).expect("a token");
        let token = format!("Bearer {}", token.trim());
        let headers = [("content-type", "application/json"), ("authorization", &token[..])];
        let answer = ask(&cluster.nodes[leader], method, "/api/v1/drain", &headers, "{\"seconds\": 0}");
        assert!((200..300).contains(&answer.status), "{}", answer.body);
    };
    drain("POST");
    for &at in &others {
        let problem = format!("cluster: node {leads} takes no new clients");
        wait_for_problem(&cluster, at, &problem);
        let (is_ready, said) = ready_command(&cluster.nodes[at]);
        assert!(!is_ready && said.contains("takes no new clients"), "{said}");
    }
    drain("DELETE");
    (0..3).for_each(|at| wait_for_ready(&cluster, at));

    // Without the engine the handover at the end cannot succeed: no node leads until the engine is back.
    cluster.etcd.as_mut().expect("it agrees by etcd").kill();
    cluster.nodes[leader].terminate();
    for &at in &others {
        wait_for_problem(&cluster, at, "cluster: ");
    }
    cluster.nodes[leader].wait_for_exit();
    for &at in &others {
        assert_eq!(get(&cluster.nodes[at], "/readyz").status, 503);
    }
    cluster.etcd.as_mut().expect("it agrees by etcd").start_again();
    cluster.wait_for_leader();
    others.iter().for_each(|&at| {
        cluster.wait("ready node", |cluster| (get(&cluster.nodes[at], "/readyz").status == 200).then_some(()));
    });
}

/// Waits until a node is not ready, for this reason.
fn wait_for_problem(cluster: &Cluster, at: usize, problem: &str) {
    cluster.wait(problem, |cluster| {
        let answer = get(&cluster.nodes[at], "/readyz");
        let problems = json(&answer)["problems"].as_array().cloned().unwrap_or_default();
        let is_there = problems.iter().any(|found| found.as_str().is_some_and(|found| found.starts_with(problem)));
        (answer.status == 503 && is_there).then_some(())
    });
}

/// Whether `tenbin cluster status --ready` says that a node is ready, and its output.
fn ready_command(node: &Node) -> (bool, String) {
    let data = node.data.to_str().expect("a readable name");
    let output = crate::tenbin(&["cluster", "status", "--ready", "--data", data]);
    (output.status.success(), crate::said(&output))
}

#[test]
fn open_requests_outlive_neither_leader_nor_block_the_next() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let follower = 1 - leader;
    let mut of_leader = KeptConnection::open(&cluster.nodes[leader]);
    assert_eq!(of_leader.get("/api/v1/status").expect("an answer").status, 200);
    // Streams that a person has open: they must not keep the old leader's files open.
    let mut events = stream(&cluster.nodes[leader], "/api/v1/events", "snapshot");
    let mut trace = stream(&cluster.nodes[leader], "/api/v1/trace?topic=%23", "begun");
    let mut of_follower = KeptConnection::open(&cluster.nodes[follower]);
    assert_eq!(of_follower.get("/leaderz").expect("an answer").status, 503);
    let mut snapshots = stream(&cluster.nodes[follower], "/api/v1/events", "\"state\":\"standby\"");

    cluster.nodes[leader].stop();
    cluster.wait("leader at the connection of before", |_| {
        let answer = of_follower.get("/leaderz").expect("the connection stays");
        (answer.status == 200).then_some(())
    });
    assert_eq!(of_follower.get("/api/v1/status").expect("an answer").status, 200);
    wait_for(&mut snapshots, "\"state\":\"serving\"");
    cluster.nodes[leader].go_on();
    // An old leader that cannot free its directory ends its process.
    cluster.wait_for_role(leader, "follower");
    let mut rest = String::new();
    trace.read_to_string(&mut rest).expect("the trace ends with the broker");
    wait_for(&mut events, "\"state\":\"standby\"");
    // It may have ended, since it was idle for long.
    let answer = of_leader.get("/api/v1/status").unwrap_or_else(|| get(&cluster.nodes[leader], "/api/v1/status"));
    assert_eq!(answer.status, 421);
    assert_eq!(cluster.wait_for_copies(), follower);
}

#[test]
fn refusals_at_the_cluster_port_are_counted() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    for at in 0..2 {
        let (node, other) = (&cluster.nodes[at], &cluster.nodes[1 - at].name);
        let count = |reason: &str| metric_of(node, &format!("tenbin_cluster_refused_total{{reason=\"{reason}\"}}"));
        let before = REASONS.map(count);
        hello(node.cluster, 1, "others", other, "link");
        hello(node.cluster, 99, "tests", other, "link");
        hello(node.cluster, 1, "tests", "stranger", "link");
        send(node.cluster, b"GET / HTTP/1.1\r\n\r\n");
        if at != leader {
            hello(node.cluster, 1, "tests", other, "link");
        }
        for (reason, before) in
            REASONS.into_iter().zip(before).filter(|(reason, _)| at != leader || *reason != "not_leading")
        {
            cluster.wait(reason, |_| (count(reason) > before).then_some(()));
        }
    }
}

const REASONS: [&str; 5] = ["cluster", "protocol", "node", "malformed", "not_leading"];

#[test]
fn copies_pauses_and_relayed_clients_are_counted() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut reader, _) = cluster.connect(leader, &lasting(V5, "reader"));
    reader.subscribe("jobs", QoS::AtLeastOnce);
    let follower = 1 - leader;
    let (mut publisher, _) = cluster.connect(follower, &Connect::new(V5, text("publisher")));
    for number in 0..20 {
        publisher.publish("jobs", &number.to_string(), QoS::AtLeastOnce);
    }
    let node = &cluster.nodes[leader];
    assert_eq!(metric_of(node, "tenbin_cluster_joins_total"), Some(1.0));
    assert_eq!(metric_of(node, "tenbin_cluster_takeovers_total"), Some(1.0));
    assert!(metric_of(node, "tenbin_cluster_takeover_seconds").is_some_and(|seconds| seconds > 0.0));
    for metric in
        ["operations_total{part=\"messages\"}", "bytes_total{part=\"messages\"}", "bytes_total{part=\"state\"}"]
    {
        let metric = format!("tenbin_cluster_mirror_{metric}");
        assert!(metric_of(node, &metric).is_some_and(|value| value > 0.0), "{metric}");
    }
    let waits = metric_of(node, "tenbin_cluster_mirror_wait_seconds_count{part=\"messages\"}").expect("a histogram");
    let all = metric_of(node, "tenbin_cluster_mirror_wait_seconds_bucket{part=\"messages\",le=\"+Inf\"}");
    assert!(waits >= 20.0 && all == Some(waits), "{waits}");
    let relay = &cluster.nodes[follower];
    assert_eq!(metric_of(relay, "tenbin_cluster_relay_open"), Some(1.0));
    assert!(metric_of(relay, "tenbin_cluster_relay_bytes_total").is_some_and(|bytes| bytes > 100.0));
    assert_eq!(metric_of(relay, "tenbin_cluster_mirror_behind{part=\"messages\"}"), None);

    cluster.nodes[follower].stop();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1);
    let node = &cluster.nodes[leader];
    assert_eq!(metric_of(node, "tenbin_cluster_copies"), Some(1.0));
    let lost = metric_of(node, "tenbin_cluster_copies_lost_total{reason=\"silent\"}");
    assert_eq!(lost, Some(1.0));
    // The leader has paused until the record was changed. A pause counts once it has ended.
    cluster.wait("a counted pause", |cluster| {
        metric_of(&cluster.nodes[leader], "tenbin_cluster_pauses_total").filter(|pauses| *pauses >= 1.0)
    });
    assert!(metric_of(node, "tenbin_cluster_pause_seconds_total").is_some_and(|seconds| seconds > 0.01));
    cluster.nodes[follower].go_on();
    assert_eq!(cluster.wait_for_copies(), leader);
    assert_eq!(metric_of(&cluster.nodes[leader], "tenbin_cluster_joins_total"), Some(2.0));
}

#[test]
fn board_and_page_have_the_metrics_of_clusters() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.wait_for_copies();
    let metrics: String = cluster.nodes.iter().map(|node| get(node, "/metrics").body).collect();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut families: HashSet<_> = types.filter(|name| name.starts_with(PREFIX)).collect();
    assert!(families.len() > 20, "{families:?}");
    // There is no join.
    families.extend(["tenbin_cluster_join_bytes", "tenbin_cluster_join_log_bytes"]);
    let (board, page) = (include_str!("../../deploy/grafana/tenbin.json"), include_str!("../../docs/cluster.md"));
    for text in [board, page] {
        for name in names_in(text).filter(|name| !name.ends_with('_')) {
            assert!(families.contains(name.trim_end_matches("_bucket")), "no node has {name}");
        }
    }
    let named: HashSet<_> = names_in(page).collect();
    let short =
        |family: &str, group: &str| family.strip_prefix(group).is_some_and(|rest| page.contains(&format!("`{rest}`")));
    for family in families {
        let is_named = named.contains(family)
            || ["tenbin_cluster_mirror_", "tenbin_cluster_relay_"].iter().any(|group| short(family, group));
        assert!(is_named, "docs/cluster.md lacks {family}");
    }
}

fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |other: char| other.is_ascii_alphanumeric() || other == '_';
    text.match_indices(PREFIX).map(move |(at, _)| text[at..].split(|c| !is_of_name(c)).next().unwrap_or(""))
}

const PREFIX: &str = "tenbin_cluster_";

#[test]
fn webhook_tells_of_leader_and_copies() {
    let server = WebServer::start(|_| WebAnswer::new(204, ""));
    let events = "events = ['leader_changed', 'copies_changed']";
    let table = format!("[[webhook]]\nurl = 'http://{}/'\n{events}\n", server.address());
    let Some(mut cluster) = Cluster::start_with(2, &table) else { return };
    let leader = cluster.wait_for_copies();
    let (old, new) = (cluster.nodes[leader].name.clone(), cluster.nodes[1 - leader].name.clone());
    let wait = |cluster: &Cluster, what: &str, holds: &dyn Fn(&Value) -> bool| {
        cluster.wait(what, |_| {
            let requests = server.requests();
            let events = requests
                .iter()
                .flat_map(|request| serde_json::from_str::<Vec<Value>>(&request.body).expect("an array of events"));
            events.into_iter().find(|event| holds(event))
        })
    };
    wait(&cluster, "event of a second copy", &|event| {
        event["event"] == "copies_changed" && event["copies"] == 2 && event["node"] == new
    });
    cluster.nodes[leader].kill();
    let change =
        wait(&cluster, "event of a new leader", &|event| event["event"] == "leader_changed" && event["leader"] == new);
    assert_eq!(change["previous"], old);
    assert!(change["epoch"].as_u64().is_some_and(|epoch| epoch > 2), "{change}");
    assert!(change["duration_ms"].as_u64().is_some_and(|time| (1..60_000).contains(&time)), "{change}");
    cluster.nodes[leader].start();
    cluster.wait_for_copies();
    wait(&cluster, "event of the old leader's copy", &|event| {
        event["event"] == "copies_changed" && event["copies"] == 2 && event["node"] == old
    });
    cluster.nodes[leader].kill();
    wait(&cluster, "event of a lost copy", &|event| event["event"] == "copies_changed" && event["copies"] == 1);
}

/// A connection for several requests.
struct KeptConnection(BufReader<TcpStream>);

impl KeptConnection {
    fn open(node: &Node) -> Self {
        let stream = TcpStream::connect(node.admin).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
        Self(BufReader::new(stream))
    }

    fn get(&mut self, path: &str) -> Option<HttpAnswer> {
        self.0.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).ok()?;
        read_answer(&mut self.0)
    }
}

/// Opens a stream of events, and waits for a text in it.
fn stream(node: &Node, path: &str, first: &str) -> BufReader<TcpStream> {
    let token = std::fs::read_to_string(node.data.join("admin.token")).expect("a token at each node");
    let mut stream = TcpStream::connect(node.admin).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
    let token = format!("authorization: Bearer {}", token.trim());
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut stream = BufReader::new(stream);
    wait_for(&mut stream, first);
    stream
}

/// Reads up to a line with this text.
fn wait_for(stream: &mut BufReader<TcpStream>, text: &str) {
    let until = Instant::now() + PATIENCE;
    let mut line = String::new();
    while !line.contains(text) {
        assert!(Instant::now() < until, "no {text}");
        line.clear();
        assert!(stream.read_line(&mut line).expect("an open stream") > 0, "the stream ends before {text}");
    }
}

fn get(node: &Node, path: &str) -> HttpAnswer {
    ask(node, "GET", path, &[], "")
}

fn ask(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
    let length = body.len();
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n");
    headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    exchange(node.admin, format!("{request}\r\n{body}").as_bytes()).expect("an answer")
}

/// Lets the broker of a node reload its configuration, by the node's token.
pub(crate) fn reload(node: &Node) -> HttpAnswer {
    let token = std::fs::read_to_string(node.data.join("admin.token")).expect("a token at each node");
    let token = format!("Bearer {}", token.trim());
    ask(node, "POST", "/api/v1/config/reload", &[("authorization", &token)], "")
}

fn json(answer: &HttpAnswer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error} in {:?}", answer.body))
}

/// Value of a series; `None` = the node does not have it.
fn metric_of(node: &Node, series: &str) -> Option<f64> {
    let metrics = get(node, "/metrics");
    assert_eq!(metrics.status, 200);
    let line = metrics.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}
