//! Mutual TLS between nodes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::harness::{Cluster, certify, finds, openssl};
use crate::ledger::Ledger;
use crate::support::PATIENCE;

#[test]
fn secure_pair_takes_over() {
    let Some(mut cluster) = Cluster::start_secure(2) else { return };
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
    // Another node's status, as the node that asks is known by its certificate.
    let address = cluster.nodes[leader].cluster.to_string();
    let (config, plain) = (cluster.nodes[1 - leader].config_path(), ["cluster", "status", "--address", &address[..]]);
    let said = crate::said(&crate::tenbin(&[&plain[..], &["--config", config]].concat()));
    assert!(said.contains("role       follower"), "{said}");
    assert!(!crate::tenbin(&plain).status.success(), "a stranger gets no status");
}

#[test]
fn strangers_at_a_secure_port_are_refused_with_a_line() {
    let Some(mut cluster) = Cluster::start_secure(2) else { return };
    let leader = cluster.wait_for_copies();
    let address = cluster.nodes[leader].cluster;
    for bytes in
        [&b"{\"protocol\":1,\"cluster\":\"tests\"}\n"[..], b"\r\n\r\n\0\r\nQUIT\n", b"\x16\x03\x01\x00\x05hello"]
    {
        let mut stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        stream.write_all(bytes).expect("the node listens");
        let ends = stream.read_to_end(&mut Vec::new());
        assert!(!ends.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "the node closes");
    }
    cluster.nodes[leader].log().wait_for(&["it does not speak TLS"], PATIENCE);
    cluster.nodes[leader].log().wait_for(&["closing a connection at the cluster port"], PATIENCE);

    // The follower comes back with certificates that do not fit.
    let (directory, known) = (cluster.directory().to_owned(), cluster.nodes[1 - leader].name.clone());
    let elsewhere = directory.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("ours to write");
    certify(&elsewhere, &known);
    let expire = format!(
        "openssl x509 -req -in {known}.csr -extfile {known}.ext -CA ca.pem -CAkey ca.key -days -1 -out expired.pem"
    );
    openssl(&directory, &expire);
    let own = format!("/{known}.pem");
    let key = format!("/{known}.key");
    for (changes, line) in [
        (
            vec![(own.clone(), format!("/elsewhere/{known}.pem")), (key, format!("/elsewhere/{known}.key"))],
            "invalid peer certificate: BadSignature", // of another authority with the same name
        ),
        (vec![(own, "/expired.pem".to_owned())], "xpired"),
    ] {
        let node = &mut cluster.nodes[1 - leader];
        node.kill();
        for (from, to) in &changes {
            node.change_config(from, to);
        }
        node.start();
        cluster.nodes[leader].log().wait_for(&[line], PATIENCE);
        cluster.nodes[1 - leader].log().wait_for(&["refuse this node's certificate"], PATIENCE);
        cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1);
        let file = format!("{known}.pem: other nodes refuse it: ");
        let file = if line == "xpired" { "expired.pem: other nodes refuse it: " } else { &file };
        cluster.wait_for_status(1 - leader, "finding", |status| finds(status, file));
        let config = cluster.nodes[1 - leader].config_path();
        let check = crate::tenbin(&["broker", "--check", "--config", config]);
        let said = crate::said(&check);
        let is_named = said.contains(config) && said.contains(file) && said.contains(", line ");
        assert!(!check.status.success() && is_named, "{said}");
        cluster.wait_for_status(1 - leader, "reason", |status| finds(status, "No link to the leader: "));
        let node = &mut cluster.nodes[1 - leader];
        node.kill();
        for (from, to) in &changes {
            node.change_config(to, from);
        }
    }
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
}

#[test]
fn node_cannot_act_as_another_one() {
    let Some(mut cluster) = Cluster::start_secure(3) else { return };
    let leader = cluster.wait_for_copies();
    let spare = (0..3).find(|&at| at != leader && at != cluster.follower(leader)).expect("a third node");
    let (victim, other) = (cluster.nodes[spare].name.clone(), cluster.nodes[leader].name.clone());
    // Its own check tells first.
    let node = &mut cluster.nodes[spare];
    node.kill();
    for suffix in ["pem", "key"] {
        node.change_config(&format!("/{victim}.{suffix}"), &format!("/{other}.{suffix}"));
    }
    node.start();
    assert!(!node.wait_for_exit().success());
    let said = node.log().to_end(PATIENCE).join("\n");
    assert!(said.contains(&format!("it has neither the name {victim:?}")), "{said}");
    // So it takes the host into its list, as only a program with bad intent does: the other nodes do not have it there.
    let stranger = cluster.directory().join("stranger.ext");
    std::fs::write(stranger, "subjectAltName = DNS:stranger.example\n").expect("ours to write");
    openssl(
        cluster.directory(),
        &format!(
            "openssl x509 -req -in {victim}.csr -extfile stranger.ext -CA ca.pem -CAkey ca.key -days 9 -out stranger.pem"
        ),
    );
    let own = cluster.nodes[spare].cluster;
    let stranger = format!("{victim}=stranger.example:{}", own.port());
    let node = &mut cluster.nodes[spare];
    node.change_config(&format!("/{other}.pem"), "/stranger.pem");
    node.change_config(&format!("/{other}.key"), &format!("/{victim}.key"));
    node.change_config(&format!("{victim}={own}"), &stranger);
    node.start();
    let reason = "its certificate has no name or host of a node in `nodes`";
    cluster.nodes[leader].log().wait_for(&[reason], PATIENCE);
    // Also where its operator looks.
    cluster.nodes[spare].log().wait_for(&["cannot open the link to the leader", reason], PATIENCE);
    cluster.wait_for_status(spare, "reason", |status| finds(status, reason));
    // A node of the cluster that calls itself by the name of another one.
    let follower = cluster.follower(leader);
    let victim_of = cluster.nodes[follower].name.clone();
    let node = &mut cluster.nodes[spare];
    node.kill();
    node.change_config("/stranger.pem", &format!("/{victim}.pem"));
    node.change_config(&format!("node = \"{victim}\""), &format!("node = \"{victim_of}\""));
    let follows = cluster.nodes[follower].cluster.to_string();
    let node = &mut cluster.nodes[spare];
    node.change_config(&format!("{victim_of}={follows}"), &format!("{victim_of}={victim}:{}", own.port()));
    node.change_config(&stranger, "unused=127.0.0.1:1");
    node.wipe();
    node.start();
    cluster.nodes[leader].log().wait_for(&["its certificate is not of the node", &victim_of], PATIENCE);
    assert_eq!(cluster.wait_for_copies(), leader);
}
