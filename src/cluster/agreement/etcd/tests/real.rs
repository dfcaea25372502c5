//! Against real servers.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tokio::time::sleep;

use crate::cluster::etcd_server::{EtcdServer, find_program};

use super::*;

/// Servers of one cluster; killed when dropped.
struct Servers {
    settings: Vec<EtcdServer>,
    running: Vec<Option<Child>>,
    _directory: TempDir,
}

impl Servers {
    /// Starts servers. `None` = etcd is not installed, which is an error where `CI` is set.
    async fn start(count: usize) -> Option<Self> {
        if let Err(error) = find_program() {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let server = |number| {
            let name = format!("etcd-{number}");
            EtcdServer::on_free_ports(&name, &directory.path().join(&name)).expect("free ports")
        };
        let settings: Vec<_> = (0..count).map(server).collect();
        let mut servers = Self { running: settings.iter().map(|_| None).collect(), settings, _directory: directory };
        for index in 0..count {
            servers.run(index);
        }
        servers.wait().await;
        Some(servers)
    }

    fn run(&mut self, index: usize) {
        let mut command = Command::new(find_program().expect("etcd"));
        command.args(self.settings[index].arguments(&self.settings)).stdout(Stdio::null()).stderr(Stdio::null());
        self.running[index] = Some(command.spawn().expect("etcd starts"));
    }

    fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.running[index].take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// A client that waits for slow answers.
    fn client(&self) -> Etcd {
        self.client_within(PATIENCE)
    }

    fn client_within(&self, deadline: Duration) -> Etcd {
        let endpoints: Vec<_> = self.settings.iter().map(EtcdServer::endpoint).collect();
        Etcd::new(&endpoints, None, "test", deadline).expect("valid endpoints")
    }

    /// Waits until a read succeeds, and returns it.
    async fn wait(&self) -> Read {
        let (etcd, begin) = (self.client_within(DEADLINE), Instant::now());
        loop {
            match etcd.read().await {
                Read::Unreachable(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
                read => return read,
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|index| self.kill(index));
    }
}

#[tokio::test]
async fn swaps_happen_from_the_expected_epoch_alone() {
    let Some(servers) = Servers::start(1).await else { return };
    let (etcd, other) = (servers.client(), servers.client());
    assert_eq!(etcd.read().await, Read::Absent);
    assert_eq!(etcd.swap(4, &record(5, "a")).await, Swapped::Refused);
    assert_eq!(etcd.swap(0, &record(1, "a")).await, Swapped::Done);
    assert_eq!(other.swap(0, &record(1, "b")).await, Swapped::Refused);
    assert_eq!(other.read().await, Read::Record(record(1, "a")));
    // The other client has read the record, and this client has not.
    assert_eq!(other.swap(1, &record(2, "b")).await, Swapped::Done);
    assert_eq!(etcd.swap(1, &record(2, "a")).await, Swapped::Refused);
    assert_eq!(etcd.swap(10, &record(11, "a")).await, Swapped::Refused);
    let largest =
        StoredRecord { nonce: u64::MAX, follower: None, joiner: Some("c \"ü\"".to_owned()), ..record(u64::MAX, "a") };
    assert_eq!(etcd.swap(2, &largest).await, Swapped::Done);
    assert_eq!(other.read().await, Read::Record(largest));
    let elsewhere = Etcd::new(&[servers.settings[0].endpoint()], None, "test2", PATIENCE).expect("a valid endpoint");
    assert_eq!(elsewhere.read().await, Read::Absent);
}

#[tokio::test]
async fn concurrent_swaps_have_one_winner_an_epoch() {
    let Some(servers) = Servers::start(1).await else { return };
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let etcd = servers.client();
        tasks.spawn(async move {
            let mut won = Vec::new();
            for epoch in 0..EPOCHS {
                let new = record(epoch + 1, &format!("node-{task}"));
                match etcd.swap(epoch, &new).await {
                    Swapped::Done => won.push(epoch + 1),
                    Swapped::Refused => {}
                    Swapped::Unknown(error) => panic!("{error}"),
                }
                // Losers go on when the epoch is there, so that all of them try the next one.
                while !matches!(etcd.read().await, Read::Record(record) if record.epoch > epoch) {}
            }
            won
        });
    }
    let mut won: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    won.sort_unstable();
    assert_eq!(won, (1..=EPOCHS).collect::<Vec<_>>());
}

#[tokio::test]
async fn killed_server_answers_no_swap_wrongly() {
    let Some(mut servers) = Servers::start(1).await else { return };
    let mut epoch = 0;
    for round in 0..3 {
        let etcd = servers.client();
        let swaps = tokio::spawn(async move {
            loop {
                match etcd.swap(epoch, &record(epoch + 1, "a")).await {
                    Swapped::Done => epoch += 1,
                    other => return (epoch, other),
                }
            }
        });
        sleep(Duration::from_millis(150 + 37 * round)).await;
        servers.kill(0);
        let (done, last) = swaps.await.expect("no panic");
        assert!(matches!(last, Swapped::Unknown(_)), "{last:?}");
        assert!(matches!(servers.client().read().await, Read::Unreachable(_)));
        servers.run(0);
        let Read::Record(found) = servers.wait().await else { panic!("the record is lost") };
        // The unanswered swap may have happened.
        assert!(found.epoch == done || found.epoch == done + 1, "{done} {found:?}");
        assert!(round > 0 || done > 0, "swaps were under way");
        epoch = found.epoch;
    }
}

#[tokio::test]
async fn majority_goes_on_and_minority_answers_nothing() {
    let Some(mut servers) = Servers::start(3).await else { return };
    assert_eq!(servers.client().swap(0, &record(1, "a")).await, Swapped::Done);
    let etcd = servers.client_within(DEADLINE);
    servers.kill(0);
    assert_eq!(servers.wait().await, Read::Record(record(1, "a")));
    let mut epoch = 1;
    while epoch < 4 {
        // One that is unknown is decided by a read, as nodes do it.
        match etcd.swap(epoch, &record(epoch + 1, "b")).await {
            Swapped::Done => epoch += 1,
            Swapped::Refused => panic!("refused at {epoch}"),
            Swapped::Unknown(_) => {
                let Read::Record(found) = servers.wait().await else { panic!("the record is lost") };
                epoch = found.epoch;
            }
        }
    }
    servers.kill(1);
    // The server that is left knows the record, and must not tell it.
    for _ in 0..3 {
        let begin = Instant::now();
        assert!(matches!(etcd.read().await, Read::Unreachable(_)));
        assert!(begin.elapsed() < 5 * DEADLINE, "the deadline holds");
    }
    assert!(matches!(etcd.swap(epoch, &record(epoch + 1, "c")).await, Swapped::Unknown(_)));
    servers.run(0);
    let Read::Record(found) = servers.wait().await else { panic!("the record is lost") };
    // The swap may have waited at the server.
    assert!([epoch, epoch + 1].contains(&found.epoch), "{found:?}");
}

const EPOCHS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(30);
