//! Configurations of nodes: wrong ones at the start, and files that change while a node follows.

use tenbin_codec::{Connect, ProtocolVersion};

use crate::admin;
use crate::harness::{Cluster, attempt, finds, free_address, leads};
use crate::support::{PATIENCE, text};

const V5: ProtocolVersion = ProtocolVersion::V5;
/// A table whose value no broker takes, and its key.
const BROKEN: (&str, &str) = ("[queue]\nmessages_maximum = \"many\"\n", "messages_maximum");

#[test]
fn start_and_check_refuse_a_node_that_cannot_work() {
    let mut cluster = Cluster::plan_manual(1);
    let node = &mut cluster.nodes[0];
    let (own, admin, clients) = (node.cluster.to_string(), node.admin.to_string(), node.address.to_string());
    let at_all = |address: &str| format!("0.0.0.0:{}", address.rsplit_once(':').expect("a port").1);
    for (from, to, reason) in [
        (
            format!("listen = [\"{clients}\"]"),
            format!("listen = [\"{own}\"]"),
            format!("{own} overlaps {own} (listen)"),
        ),
        (
            format!("listen = [\"{clients}\"]"),
            format!("listen = [\"{}\"]", at_all(&own)),
            format!("{own} overlaps {} (listen)", at_all(&own)),
        ),
        (
            format!("address = \"{admin}\""),
            format!("address = \"{own}\""),
            format!("{own} overlaps {own} (admin.address)"),
        ),
        ("name = \"tests\"".to_owned(), "name = \"a/b\"".to_owned(), "\"a/b\" is no name of a cluster".to_owned()),
    ] {
        node.change_config(&from, &to);
        refused(node, &reason);
        node.change_config(&to, &from);
    }
    cluster.start_all();
    cluster.wait_for_copies();
    for node in &mut cluster.nodes {
        node.kill();
    }
    let node = &mut cluster.nodes[1];
    node.change_config("name = \"tests\"", "name = \"others\"");
    refused(node, "belongs to cluster \"tests\"");
}

#[test]
fn node_behind_a_mapping_of_ports_starts_with_a_warning() {
    let mut cluster = Cluster::plan_manual(1);
    let node = &mut cluster.nodes[0];
    let (own, other) = (node.cluster.to_string(), free_address().to_string());
    node.change_config(&format!("listen = \"{own}\""), &format!("listen = \"{other}\""));
    let place = format!("configuration {}, line ", node.config_path());
    let words = [&place[..], "cluster: listen: ", &other, "has another port than this node in nodes"];
    let check = crate::tenbin(&["broker", "--check", "--config", node.config_path()]);
    let said = crate::said(&check);
    assert!(check.status.success(), "{said}");
    let is_warning = |line: &str| line.starts_with("warning: ") && words.iter().all(|words| line.contains(words));
    assert!(said.lines().any(is_warning), "{said}");
    node.start();
    node.log().wait_for(&[&words[..], &["WARN"]].concat(), PATIENCE);
    cluster.wait_for_status(0, "leader", leads);
}

/// Asserts that a check and a start refuse the configuration of a node, with its file and line.
fn refused(node: &mut crate::harness::Node, reason: &str) {
    let file = format!("configuration {}, line ", node.config_path());
    let check = crate::tenbin(&["broker", "--check", "--config", node.config_path()]);
    let said = crate::said(&check);
    assert!(!check.status.success() && said.contains(&file) && said.contains(reason), "{reason}: {said}");
    node.start();
    assert!(!node.wait_for_exit().success(), "{reason}");
    let said = node.log().to_end(PATIENCE).join("\n");
    assert!(said.contains(&file) && said.contains(reason), "{reason}: {said}");
}

#[test]
fn follower_with_a_broken_file_leads_and_says_so() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let follower = 1 - leader;
    cluster.nodes[follower].change_config("[log]", &format!("{}[log]", BROKEN.0));
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), follower);
    let node = &cluster.nodes[follower];
    node.log().wait_for(&["beginning with the last configuration", node.config_path(), ", line ", BROKEN.1], PATIENCE);
    let status = node.status().expect("it leads");
    for part in ["The configuration file cannot be used", node.config_path(), ", line ", BROKEN.1] {
        assert!(finds(&status, part), "{part}: {status}");
    }
    cluster.connect(follower, &Connect::new(V5, text("client")));
    // A reload by the mended file ends the finding.
    cluster.nodes[follower].change_config(BROKEN.0, "");
    cluster.nodes[follower].hang_up();
    cluster.wait_for_status(follower, "end of the finding", |status| !finds(status, "The configuration file"));
}

#[test]
fn follower_takes_its_file_at_sighup() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let follower = 1 - leader;
    let node = &cluster.nodes[follower];
    node.change_config("[log]", &format!("{}[log]", BROKEN.0));
    node.hang_up();
    node.log().wait_for(&["reload failed: keeping the old configuration", ", line ", BROKEN.1], PATIENCE);
    cluster.wait_for_status(follower, "finding", |status| finds(status, "The configuration file cannot be used"));

    // Keys of the cluster need a restart. The ban is in effect once the node leads, also if the file is broken then.
    node.change_config(BROKEN.0, "[[ban]]\nclient_id = \"banned\"\n");
    node.change_config("node = ", "replace_after_ms = 9000\nnode = ");
    node.hang_up();
    node.log().wait_for(&["reloaded", node.config_path()], PATIENCE);
    node.log().wait_for(&["reload does not change this key", "cluster.replace_after_ms"], PATIENCE);
    cluster.wait_for_status(follower, "end of the finding", |status| !finds(status, "The configuration file"));
    node.change_config("[log]", &format!("{}[log]", BROKEN.0));
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), follower);
    cluster.connect(follower, &Connect::new(V5, text("client")));
    assert!(attempt(cluster.nodes[follower].address, &Connect::new(V5, text("banned"))).is_none());
}

#[test]
fn leader_that_has_reloaded_leads_again_with_that_file() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let node = &cluster.nodes[leader];
    let ban = |client: &str| format!("[[ban]]\nclient_id = \"{client}\"\n");
    node.change_config("[log]", &format!("{}[log]", ban("by-signal")));
    node.hang_up();
    node.log().wait_for(&["reloaded", node.config_path()], PATIENCE);
    node.change_config("[log]", &format!("{}[[acl]]\nallow = \"all\"\ntopic = \"#\"\n[log]", ban("by-command")));
    let answer = admin::reload(node);
    assert_eq!(answer.status, 200, "{}", answer.body);
    hand_over(&cluster, leader);

    // The next file lacks all that. It is compared with the one that the last broker took.
    let node = &cluster.nodes[leader];
    let rules = format!("{}{}[[acl]]\nallow = \"all\"\ntopic = \"#\"\n", ban("by-signal"), ban("by-command"));
    node.change_config(&rules, "");
    hand_over(&cluster, 1 - leader);
    node.log().wait_for(&["beginning with the last configuration", "acl: no rule is left"], PATIENCE);
    assert_bans(&cluster, leader, ["by-signal", "by-command"]);
    hand_over(&cluster, leader);
    node.change_config("[log]", &format!("{}[log]", BROKEN.0));
    hand_over(&cluster, 1 - leader);
    node.log().wait_for(&["beginning with the last configuration", ", line ", BROKEN.1], PATIENCE);
    assert_bans(&cluster, leader, ["by-signal", "by-command"]);
}

/// Lets the node that leads hand over to the other one, and waits for the second copy.
fn hand_over(cluster: &Cluster, from: usize) {
    let (done, said) = cluster.nodes[from].switch(&[]);
    assert!(done, "{said}");
    assert_eq!(cluster.wait_for_copies(), 1 - from);
}

/// Asserts that the node that leads accepts other clients alone.
fn assert_bans<const N: usize>(cluster: &Cluster, at: usize, banned: [&str; N]) {
    cluster.connect(at, &Connect::new(V5, text("client")));
    for client in banned {
        assert!(attempt(cluster.nodes[at].address, &Connect::new(V5, text(client))).is_none(), "{client}");
    }
}

#[test]
fn failed_reload_by_a_command_keeps_the_finding() {
    let cluster = Cluster::start_manual(1);
    let leader = cluster.wait_for_copies();
    let node = &cluster.nodes[leader];
    let listener = "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\npassword_file = \"/missing/passwords\"\n";
    node.change_config("[log]", &format!("{listener}[log]"));
    node.hang_up();
    let is_found = |status: &serde_json::Value| finds(status, "The configuration file cannot be used");
    cluster.wait_for_status(leader, "finding", is_found);
    let answer = admin::reload(node);
    assert!(answer.status >= 400 && answer.body.contains("/missing/passwords"), "{}", answer.body);
    let status = node.status().expect("it answers");
    assert!(is_found(&status) && finds(&status, "/missing/passwords"), "{status}");
    node.change_config(listener, "");
    let answer = admin::reload(node);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let status = node.status().expect("it answers");
    assert!(!is_found(&status), "{status}");
}
