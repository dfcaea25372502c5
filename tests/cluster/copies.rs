//! The follower's copy: its comparison with the leader's data, and its backup.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;

use tenbin_codec::{Connect, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::harness::{Cluster, finds};
use crate::support::{at_qos, lasting, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn damage_of_the_copy_is_found_and_repaired() {
    let Some(cluster) = Cluster::start_with(2, "check_interval_seconds = 1\n") else { return };
    let leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("bulk", QoS::AtLeastOnce);
    sleeper.disconnect();
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    let spool = |at: usize| cluster.nodes[at].data.join("spool");
    let payload = "x".repeat(200_000);
    // The second segment may be made ahead, so the first one is sealed once the third is there.
    for number in 0.. {
        assert!(number < 1_000, "no third segment");
        let publish = Publish { payload: payload.clone().into(), ..at_qos("bulk", "", QoS::AtLeastOnce) };
        assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
        if spool(leader).join("0000000003.log").exists() {
            break;
        }
    }
    cluster.wait_for_status(1 - leader, "follower", |status| status["role"] == "follower");
    let segment = spool(1 - leader).join("0000000001.log");
    let at = fs::metadata(&segment).expect("a segment").len() / 2;
    let file = fs::OpenOptions::new().read(true).write(true).open(&segment).expect("a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is ours");
    file.write_all_at(&[byte[0] ^ 1], at).expect("it is ours");
    cluster.wait_for_status(1 - leader, "finding", |status| {
        finds(status, "was damaged") && finds(status, "0000000001.log: differs from the leader's from offset ")
    });
    let lines = || cluster.nodes[1 - leader].log().all();
    let damaged = |line: &String| line.contains("the copy is damaged, and is compared and copied again");
    cluster.wait("line in the log", |_| lines().iter().any(damaged).then_some(()));
    cluster.wait("repaired file", |_| {
        let repaired = fs::read(&segment).ok()?;
        (repaired == fs::read(spool(leader).join("0000000001.log")).ok()?).then_some(())
    });
    cluster.wait_for_status(leader, "two copies", |status| status["copies"] == 2);
    // The next comparison finds nothing.
    let equal = |line: &String| line.contains("the copy equals the leader's data");
    let begun = lines().len();
    cluster.wait("comparison", |_| lines()[begun..].iter().any(equal).then_some(()));
    assert!(!finds(&cluster.nodes[leader].status().expect("a status"), "The data of this node is damaged"));
}

#[test]
fn follower_makes_backups_and_a_spare_names_nodes_with_data() {
    let Some(cluster) = Cluster::start(3) else { return };
    let leader = cluster.wait_for_copies();
    let follower = cluster.follower(leader);
    let spare = 3 - leader - follower;
    let backup = |at: usize, file: &str| {
        let data = cluster.nodes[at].data.to_str().expect("a readable name");
        let file = cluster.directory().join(file);
        let output = crate::tenbin(&["cluster", "backup", file.to_str().expect("a readable name"), "--data", data]);
        (output.status.success(), crate::said(&output))
    };
    let (done, said) = backup(spare, "none");
    let names = [leader, follower].map(|at| cluster.nodes[at].name.clone());
    assert!(!done && said.contains(&format!("run the command at {} or {}", names[0], names[1])), "{said}");
    // A reader that takes nothing holds no other command up. Its socket has no room for that much.
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("bulk", QoS::AtLeastOnce);
    sleeper.disconnect();
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    for _ in 0..20 {
        let publish = Publish { payload: "x".repeat(200_000).into(), ..at_qos("bulk", "", QoS::AtLeastOnce) };
        assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
    }
    let data = &cluster.nodes[follower].data;
    let mut stuck = UnixStream::connect(data.join("cluster.sock")).expect("the node is there");
    stuck.write_all(b"{\"command\":\"backup\"}\n").expect("it reads");
    let mut begun = [0; b"{\"type\":\"stream\"}\n".len()];
    stuck.read_exact(&mut begun).expect("an answer");
    assert_eq!(&begun[..], b"{\"type\":\"stream\"}\n");
    let (done, said) = backup(follower, "none");
    let by = format!("another backup is under way: process {} of user ", std::process::id());
    assert!(!done && said.contains(&by) && said.contains(" s ago"), "{said}");
    drop(stuck);
    cluster.wait("end of the stuck backup", |_| {
        let (done, said) = backup(follower, "unstuck");
        assert!(done || said.contains(&by), "{said}");
        done.then_some(())
    });
    // One after the other, also without a change in between.
    for file in ["first", "second"] {
        let (done, said) = backup(follower, file);
        assert!(done && said.contains("cluster tests"), "{said}");
    }
    assert_eq!(cluster.wait_for_copies(), leader);
    assert_eq!(cluster.follower(leader), follower);
    let counts = |line: &String| line.contains("a backup is refused: another one is under way");
    assert!(cluster.nodes[follower].log().all().iter().any(counts));
}

#[test]
fn backup_of_a_damaged_copy_names_segment_and_offset() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("t", QoS::AtLeastOnce);
    sleeper.disconnect();
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    for payload in ["first", "in the middle", "last"] {
        assert_eq!(publisher.publish("t", payload, QoS::AtLeastOnce), ReasonCode::Success);
    }
    let follower = 1 - leader;
    cluster.wait_for_role(follower, "follower");
    let data = &cluster.nodes[follower].data;
    let (segment, at) = cluster.wait("message in the copy", |_| {
        fs::read_dir(data.join("spool")).expect("a directory").flatten().find_map(|entry| {
            let bytes = fs::read(entry.path()).ok()?;
            let at = bytes.windows(13).position(|window| window == b"in the middle")?;
            entry.path().extension().is_some_and(|end| end == "log").then(|| (entry.path(), at as u64))
        })
    });
    let file = fs::OpenOptions::new().write(true).open(&segment).expect("a segment");
    file.write_all_at(b"o", at).expect("it is ours");
    let (data, file) = (data.to_str().expect("a readable name"), cluster.directory().join("backup"));
    let path = file.to_str().expect("a readable name");
    let refused = crate::tenbin(&["cluster", "backup", path, "--data", data]);
    let said = crate::said(&refused);
    let name = segment.file_name().expect("a name").to_string_lossy();
    assert!(!refused.status.success() && said.contains(&format!("damaged: spool/{name}: offset ")), "{said}");
    assert!(!file.exists());
    let done = crate::tenbin(&["cluster", "backup", path, "--data", data, "--accept-damage"]);
    assert!(done.status.success() && crate::said(&done).contains("; problem: spool/"), "{}", crate::said(&done));
    let done =
        crate::tenbin(&["cluster", "backup", path, "--data", cluster.nodes[leader].data.to_str().expect("a name")]);
    assert!(done.status.success(), "the leader's data is intact: {}", crate::said(&done));
}
