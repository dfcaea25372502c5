//! `/metrics`, and the Grafana board on top.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use tenbin_codec::QoS;

use crate::admin::stage::{Stage, wait_until};
use crate::support::{Certificates, ConfigFile, DataDirectory, share};

#[test]
fn metrics_count_messages_in_both_formats() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("c");
    client.subscribe("a", QoS::AtLeastOnce);
    client.publish("a", "x", QoS::AtLeastOnce);
    client.receive_message();
    let plain = stage.get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let value = |name: &str| {
        let line = plain.body.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is missing in {}", plain.body)).parse::<f64>().expect("a number")
    };
    for (name, expected) in [
        ("tenbin_messages_received_total{qos=\"0\"}", 0.0),
        ("tenbin_messages_received_total{qos=\"1\"}", 1.0),
        ("tenbin_messages_sent_total{qos=\"1\"}", 1.0),
        ("tenbin_connects_total{result=\"accepted\"}", 1.0),
        ("tenbin_clients_connected", 1.0),
        ("tenbin_subscriptions", 1.0),
        ("tenbin_sessions", 1.0),
        ("tenbin_network_connections", 1.0),
        ("tenbin_connections{listener=\"127.0.0.1:0\",transport=\"tcp\"}", 1.0),
        ("tenbin_dropped_total{reason=\"queue_full\"}", 0.0),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert!(value("process_resident_memory_bytes") > 1e6 && value("process_cpu_seconds_total") >= 0.0);
    check_exposition(&plain.body);
    let open = stage.send("GET", "/metrics", &[("accept", "application/openmetrics-text; version=1.0.0")], "");
    assert_eq!(open.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.body.ends_with("\n# EOF\n") && open.body.contains("# TYPE tenbin_messages_received counter\n"));
}

/// Checks the rules of `promtool check metrics`: each family has help and type, before its samples, and once; counters
/// end with `_total`, and nothing else does; names have base units.
fn check_exposition(text: &str) {
    let mut seen = HashSet::new();
    let (mut helped, mut typed) = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && seen.insert(name), "{line}");
            helped = name;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert_eq!(name, helped, "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!name.contains("milliseconds") && !name.contains(':') && name.to_lowercase() == name, "{line}");
            typed = name;
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(name.starts_with(typed) && value.parse::<f64>().is_ok(), "{line} after {typed}");
        }
    }
    assert!(seen.len() > 40);
}

/// Value of a sample, such as `name{label="value"}`; `None` if it is missing.
fn value_of(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    Some(line.parse().expect("a number"))
}

#[test]
fn histograms_count_deliveries_and_logins() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("c");
    client.subscribe("a", QoS::ExactlyOnce);
    let count = || value_of(&stage.get("/metrics").body, "tenbin_delivery_seconds_count").expect("it is there");
    let mut last = 0.0;
    // Each batch holds one message, because one batch of 64 is measured.
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for _ in 0..128 {
            client.publish("a", "x", qos);
            client.receive_message();
        }
        wait_until(|| count() >= last + 2.0);
        last = count();
    }
    assert!(last <= 384.0 / 64.0 + 1.0, "{last} of 384 are measured");
    let text = stage.get("/metrics").body;
    let sum = value_of(&text, "tenbin_delivery_seconds_sum").expect("it is there");
    assert!(sum > 0.0 && value_of(&text, "tenbin_delivery_seconds_bucket{le=\"+Inf\"}") == Some(last), "{text}");
    let logins = "tenbin_auth_seconds_count{source=\"anonymous\",result=\"accepted\"}";
    assert_eq!(value_of(&text, logins), Some(1.0), "{text}");
}

/// Families of metrics with their types.
fn types(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

#[test]
fn all_families_are_there_and_the_board_shows_no_others() {
    let (data, certificates) = (DataDirectory::new(), Certificates::new());
    let file = ConfigFile::new(&certificates.listener(""));
    let stage = Stage::start(&["--data", data.path_text(), "--config", file.path()]);
    let mut worker = stage.broker.v5("worker");
    worker.subscribe(&share("pool", "jobs"), QoS::AtLeastOnce);
    // A member's speed is known once it has completed a message.
    worker.publish("jobs", "x", QoS::AtLeastOnce);
    worker.receive_message();
    let group = "{group=\"pool\",filter=\"jobs\"}";
    wait_until(|| stage.get("/metrics").body.contains(&format!("tenbin_group_desired_members{group}")));
    let text = stage.get("/metrics").body;
    check_exposition(&text);
    let types = types(&text);
    for (kind, names) in [
        ("gauge", &["build_info", "connections", "sessions", "subscriptions", "queue_bytes", "slow_clients"][..]),
        ("gauge", &["tls_certificate_not_after_seconds", "store_used_bytes", "store_free_bytes"]),
        ("counter", &["connects_total", "messages_received_total", "messages_sent_total", "dropped_total"]),
        ("counter", &["bytes_received_total", "bytes_sent_total", "tls_handshakes_total", "store_commits_total"]),
        ("histogram", &["delivery_seconds", "auth_seconds"]),
        ("gauge", &["group_members", "group_waiting", "group_backlog", "group_oldest_seconds"]),
        ("gauge", &["group_predicted_wait_seconds", "group_desired_members", "group_drain_seconds"]),
        (
            "counter",
            &["group_messages_total", "group_redispatched_total", "group_rejected_total", "group_dead_lettered_total"],
        ),
    ] {
        for name in names {
            assert_eq!(types.get(&format!("tenbin_{name}")[..]), Some(&kind), "{name}");
        }
    }
    let end = value_of(&text, "tenbin_tls_certificate_not_after_seconds{listener=\"secure\",name=\"default\"}");
    assert!(end.is_some_and(|end| end > 1.7e9), "{end:?}");
    let board = include_str!("../../../deploy/grafana/tenbin.json");
    let is_of_name = |other: char| other.is_ascii_alphanumeric() || other == '_';
    let names =
        board.match_indices("tenbin_").map(|(at, _)| board[at..].split(|c| !is_of_name(c)).next().unwrap_or(""));
    // `tests/cluster/admin` looks at those of clusters.
    let names: HashSet<_> = names.filter(|name| !name.starts_with("tenbin_cluster_")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let family = name.trim_end_matches("_bucket");
        assert!(types.contains_key(family), "the board shows {name}, which is not at /metrics");
    }
    check_page(types.keys());
    check_by_promtool(&text);
}

/// Checks that the tables of `docs/admin.md` have all families; `*` in the name of a row stands for any text.
fn check_page<'a>(families: impl Iterator<Item = &'a &'a str>) {
    let page = include_str!("../../../docs/admin.md");
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let names: Vec<_> = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let is_of = |family: &str, name: &str| match name.split_once('*') {
        Some((start, end)) => family.starts_with(start) && family[start.len()..].ends_with(end),
        None => family == name,
    };
    let missing: Vec<_> = families.filter(|family| !names.iter().any(|name| is_of(family, name))).collect();
    assert!(missing.is_empty(), "docs/admin.md: the table of families lacks {missing:?}");
}

/// Has `promtool` check the metrics, if it is installed.
fn check_by_promtool(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else {
        // Past the test harness, which would capture the line.
        let _ = writeln!(std::io::stderr(), "skipped: promtool is not installed");
        return;
    };
    promtool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let done = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
}
