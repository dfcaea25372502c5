//! The Helm chart as it is rendered: its configuration, its Role and its probe, with real nodes.
//!
//! `deploy/helm/check` renders the chart, and runs this test with the directory of the files in `TENBIN_CHART`.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Cluster, Node, certify};
use crate::ledger::Ledger;
use crate::support::{KubernetesApi, Rule};

#[test]
fn rendered_chart_is_a_cluster() {
    let Some(directory) = std::env::var_os("TENBIN_CHART") else { return };
    for replicas in [1, 2, 3, 5] {
        let text = std::fs::read_to_string(Path::new(&directory).join(format!("{replicas}.yaml"))).expect("a file");
        runs(&Chart::read(&text), replicas);
    }
}

/// Objects of a rendered chart.
struct Chart(Vec<Value>);

impl Chart {
    fn read(text: &str) -> Self {
        let parts = text.split("\n---").filter(|part| part.contains("kind:"));
        Self(parts.map(|part| serde_saphyr::from_str(part.trim_start_matches("---")).expect("YAML")).collect())
    }

    fn object(&self, kind: &str) -> &Value {
        self.0.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
    }

    fn rules(&self) -> Vec<Rule> {
        let texts = |list: &Value| -> Vec<String> {
            let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
        };
        let rules = self.object("Role")["rules"].as_array().expect("rules").iter();
        let rules = rules.filter(|rule| rule["apiGroups"][0] == "" && rule["resources"][0] == "configmaps");
        rules.map(|rule| Rule { verbs: texts(&rule["verbs"]), names: texts(&rule["resourceNames"]) }).collect()
    }
}

/// Runs the pods of a chart as processes, kills the leader, and restarts all pods as Kubernetes does.
fn runs(chart: &Chart, replicas: usize) {
    let set = chart.object("StatefulSet");
    assert_eq!(set["spec"]["replicas"], replicas);
    let name = set["metadata"]["name"].as_str().expect("a name");
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let ports = container["ports"].as_array().expect("ports");
    assert!(ports.iter().any(|port| port["name"] == "cluster" && port["containerPort"] == 7883), "{ports:?}");
    assert_eq!(pod["serviceAccountName"], chart.object("ServiceAccount")["metadata"]["name"]);
    assert_eq!(chart.object("RoleBinding")["subjects"][0]["name"], pod["serviceAccountName"]);
    assert_eq!(chart.object("RoleBinding")["roleRef"]["name"], chart.object("Role")["metadata"]["name"]);
    assert_eq!(chart.object("PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
    let probe: Vec<_> = container["readinessProbe"]["exec"]["command"].as_array().expect("a command").clone();
    let probe: Vec<_> = probe.iter().map(|word| word.as_str().expect("a text").to_owned()).collect();
    assert_eq!(probe[0], "/usr/bin/tenbin");
    let is_ready = |node: &Node| {
        let data = node.data.to_str().expect("a readable name");
        let words: Vec<_> = probe[1..].iter().map(|word| word.replace("/var/lib/tenbin", data)).collect();
        crate::tenbin(&words.iter().map(|word| &word[..]).collect::<Vec<_>>()).status.success()
    };

    let api = KubernetesApi::start(None);
    api.set_rules(chart.rules());
    let config = chart.object("ConfigMap")["data"]["tenbin.toml"].as_str().expect("a configuration");
    let names: Vec<_> = (0..replicas).map(|number| format!("{name}-{number}")).collect();
    let mut cluster = Cluster::configured(&names, |directory, nodes, node| {
        if !directory.join("ca.pem").exists() {
            certify(directory, &names.join(" "));
            KubernetesApi::write_account(&directory.join("account"), "first", "");
            std::fs::write(directory.join("passwords"), "").expect("ours to write");
        }
        on_loopback(config, directory, nodes, node, &api.url())
    });
    for node in &mut cluster.nodes {
        node.start();
    }
    if replicas == 1 {
        let leader = cluster.wait_for_leader();
        assert!(is_ready(&cluster.nodes[leader]));
        return;
    }
    cluster.wait_for_copies();
    let ready = |cluster: &Cluster| {
        cluster.wait("readiness of all pods", |cluster| cluster.nodes.iter().all(&is_ready).then_some(()));
    };
    ready(&cluster);
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    cluster.nodes[leader].kill();
    assert!(!is_ready(&cluster.nodes[leader]), "a dead pod");
    assert_ne!(cluster.wait_for_leader(), leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].start();
    ready(&cluster);
    // A rolling restart: from the last pod to the first, and each waits for the readiness of the one before.
    for at in (0..replicas).rev() {
        cluster.nodes[at].terminate();
        assert!(cluster.nodes[at].wait_for_exit().success(), "{at}");
        cluster.nodes[at].start();
        cluster.wait("readiness of the pod", |cluster| is_ready(&cluster.nodes[at]).then_some(()));
        ledger.wait_for_more(10);
    }
    cluster.wait_for_copies();
    ledger.finish();
}

/// The configuration of a pod, with addresses and files of this machine.
fn on_loopback(config: &str, directory: &Path, nodes: &[Node], node: &Node, api: &str) -> String {
    let mut text = config.to_owned();
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "no {from} in {text}");
        text = text.replace(from, to);
    };
    for other in nodes {
        let entry = format!("{}={}.", other.name, other.name);
        let rest = config.split_once(&entry).and_then(|(_, rest)| rest.split_once('"')).expect("an entry of the pod").0;
        replace(&format!("{entry}{rest}"), &format!("{}={}", other.name, other.cluster));
    }
    let file = |name: &str| directory.join(name).to_str().expect("a readable name").to_owned();
    replace("\"1883\"", &format!("\"{}\"\nanonymous = true", node.address));
    replace("\"127.0.0.1:9883\"", &format!("\"{}\"", node.admin));
    replace("\"0.0.0.0:7883\"", &format!("\"{}\"\nnode = \"{}\"", node.cluster, node.name));
    replace("/var/lib/tenbin", node.data.to_str().expect("a readable name"));
    replace("/etc/tenbin-passwords/passwords", &file("passwords"));
    replace("/etc/tenbin-cluster/tls.crt", &file(&format!("{}.pem", node.name)));
    replace("/etc/tenbin-cluster/tls.key", &file(&format!("{}.key", node.name)));
    replace("/etc/tenbin-cluster/ca.crt", &file("ca.pem"));
    let account = file("account");
    let keys = format!("\nkubernetes_url = {api:?}\nkubernetes_directory = {account:?}");
    replace("agreement = \"kubernetes\"", &format!("agreement = \"kubernetes\"{keys}"));
    text
}
