//! Agreement by a ConfigMap, at a stand-in for the API of Kubernetes.

use std::time::Duration;

use crate::harness::{Cluster, finds};
use crate::ledger::Ledger;
use crate::support::{Fault, KubernetesApi};

#[test]
fn pair_takes_over_by_a_config_map() {
    let api = KubernetesApi::start(None);
    let mut cluster = Cluster::start_kubernetes(2, &api);
    let ledger = Ledger::start(&cluster);
    let mut leader = cluster.wait_for_copies();
    // Each takeover meets another fault: outcomes that nodes do not know.
    for fault in [Fault::AnswerLost, Fault::Status(500), Fault::Repeated, Fault::Labelled, Fault::DoneBut(504)] {
        api.fault("PUT", fault);
        cluster.nodes[leader].kill();
        assert_eq!(cluster.wait_for_leader(), 1 - leader, "{fault:?}");
        ledger.wait_for_more(20);
        cluster.nodes[leader].start();
        leader = cluster.wait_for_copies();
        ledger.wait_for_more(20);
    }
    ledger.finish();
    let record = api.map("tests-record").expect("a ConfigMap")["data"]["record"].clone();
    let record: serde_json::Value = serde_json::from_str(record.as_str().expect("a text")).expect("JSON");
    assert_eq!(record["leader"], cluster.nodes[leader].name, "{record}");
    assert_eq!(cluster.nodes[leader].status().expect("it answers")["engine"]["kind"], "kubernetes");
}

#[test]
fn pair_goes_on_while_the_api_is_away() {
    let api = KubernetesApi::start(None);
    let mut cluster = Cluster::start_kubernetes(2, &api);
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    api.set_down(true);
    for at in 0..2 {
        let away = |status: &serde_json::Value| finds(status, "The engine does not answer");
        let status = cluster.wait_for_status(at, "finding", away);
        let error = status["engine"]["error"].as_str().expect("an error").to_owned();
        assert!(error.contains("status 503"), "{error}");
    }
    ledger.wait_for_more(50);
    api.set_down(false);
    cluster.wait_for_status(1 - leader, "engine", |status| status["engine"]["error"].is_null());
    // The token of the account is replaced each hour.
    api.set_token("second");
    cluster.wait_for_status(1 - leader, "refused token", |status| {
        status["engine"]["error"].as_str().is_some_and(|error| error.contains("status 401"))
    });
    KubernetesApi::write_account(&cluster.account(), "second", "");
    cluster.wait_for_status(1 - leader, "engine", |status| status["engine"]["error"].is_null());
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.finish();
}

#[test]
fn late_changes_of_the_record_make_no_second_leader() {
    let api = KubernetesApi::start(None);
    let mut cluster = Cluster::start_kubernetes(3, &api);
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    // The first swap of the takeover is carried out after its node has given it up.
    api.fault("PUT", Fault::Late(Duration::from_millis(1500)));
    cluster.nodes[leader].kill();
    let next = cluster.wait_for_leader();
    assert_ne!(next, leader);
    cluster.nodes[leader].start();
    cluster.wait_for_copies();
    ledger.wait_for_more(50);
    let leaders = cluster.nodes.iter().filter(|node| node.status().is_some_and(|status| status["serving"] == true));
    assert_eq!(leaders.count(), 1);
    ledger.finish();
}
