use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;
use crate::cluster::agreement::StoredRecord;

const PATIENCE: Duration = Duration::from_secs(60);

/// A program in place of `tenbin`: writes its process id beside its configuration file, and waits for SIGTERM.
const NODE: &str = "#!/bin/sh\ntrap 'exit 0' TERM\necho $$ >> \"$3.pids\"\nwhile :; do sleep 0.05; done\n";

fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("script");
    let mut file = fs::File::create(&path).expect("a file");
    file.write_all(text.as_bytes()).expect("its text");
    file.set_permissions(fs::Permissions::from_mode(0o755)).expect("its rights");
    path
}

fn program(path: &Path) -> Program {
    Program { name: "test".to_owned(), path: path.to_owned(), arguments: Vec::new(), again_after: None }
}

/// Waits until a node has started `times` times, and returns its last process id.
async fn started(config: &Path, times: usize) -> Pid {
    let file = format!("{}.pids", config.display());
    let wait = async {
        loop {
            let pids = fs::read_to_string(&file).unwrap_or_default();
            if let Some(pid) = pids.lines().nth(times - 1).filter(|_| pids.ends_with('\n')) {
                return Pid::from_raw(pid.parse().expect("a number")).expect("a process");
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("in time")
}

#[tokio::test]
async fn cluster_starts_killed_nodes_and_ends_all() {
    let etcd = match etcd_server::find_program() {
        Ok(etcd) => etcd,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            return;
        }
    };
    let directory = tempfile::tempdir().expect("a directory");
    let node = script(directory.path(), NODE);
    let data = directory.path().join("data");
    let arguments = |port| DevArgs { nodes: 2, directory: data.clone(), port, seconds: None, no_restart: false };
    // The second run goes on with the data of etcd, at other ports.
    for run in 0..2 {
        let cluster = plan::somewhere(|port| Cluster::plan(&arguments(port), &etcd, &node));
        let configs: Vec<_> = cluster.nodes.iter().map(|(plan, _)| plan.config.clone()).collect();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(cluster.run(async { drop(stopped.await) }));
        let first = started(&configs[0], 2 * run + 1).await;
        kill_process(first, Signal::KILL).expect("it runs");
        let pids = [started(&configs[0], 2 * run + 2).await, started(&configs[1], run + 1).await];
        for pid in pids {
            test_kill_process(pid).expect("it runs");
        }
        stop.send(()).expect("the cluster runs");
        timeout(PATIENCE, running).await.expect("in time").expect("no panic").expect("no error");
        for pid in pids {
            test_kill_process(pid).expect_err("it has ended");
        }
    }
}

#[tokio::test]
async fn program_that_fails_at_once_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let failing = program(&script(directory.path(), "#!/bin/sh\necho wrong key >&2\nexit 2\n"));
    let (stop, pid) = (watch::Sender::new(false), watch::Sender::new(None));
    let again = Program { again_after: Some(Duration::from_millis(10)), ..failing };
    let error =
        timeout(PATIENCE, again.supervise(stop.subscribe(), pid)).await.expect("in time").expect_err("it fails");
    assert_eq!(error, "test has failed: exit code 2; its log tells why");
    let missing = program(&directory.path().join("missing"));
    let result = timeout(PATIENCE, missing.supervise(stop.subscribe(), watch::Sender::new(None))).await;
    result.expect("in time").expect_err("there is no such program");
}

#[test]
fn leader_is_shown_with_the_command_that_kills_it() {
    let record = StoredRecord {
        epoch: 3,
        leader: "a".to_owned(),
        follower: Some("b".to_owned()),
        nonce: 1,
        ..StoredRecord::default()
    };
    let status = NodeStatus { node: "a".to_owned(), role: Role::Leader, record: Some(record), ..NodeStatus::default() };
    assert_eq!(leader(&status, 7).as_deref(), Some("a leads in epoch 3; b follows, and takes over after: kill -9 7"));
    assert_eq!(leader(&NodeStatus { role: Role::Follower, ..status }, 7), None);
}
