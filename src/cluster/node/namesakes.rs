//! Other processes with the name of a node: an operator has copied a configuration file or a directory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenbin_broker::Lease;
use tenbin_cluster::{Namesake, Record, Role, Step};

use super::super::link::secure::NodeTls;
use super::super::link::{self, Hello};
use super::super::status::NodeStatus;
use super::{Event, Node, NodeDirectory, NodeNumber, mark};

/// Numbers of this process and its directory, and other processes with the name of a node.
#[derive(Debug)]
pub(super) struct Namesakes {
    /// Number of this process.
    pub(super) process: u64,
    /// Number of the data directory.
    pub(super) directory: u64,
    /// Address at which another process with this node's name answers.
    pub(super) answers_at: Option<String>,
    /// Cleared once a node answers at this node's own address: it is this process, or its answer is known.
    is_looking: Arc<AtomicBool>,
    /// When this process has asked there last.
    looked: Option<Instant>,
    /// Processes that this leader refuses, by the names of their nodes: their host, and when they came last.
    refused: BTreeMap<String, (String, Instant)>,
}

impl Namesakes {
    /// Numbers this process and its directory. `of_mark`: the directory's number as its mark tells it; 0 or `None` = not told.
    ///
    /// # Errors
    /// The directory cannot be written. The text names it.
    pub(super) fn in_directory(directory: &NodeDirectory, of_mark: Option<u64>) -> Result<Self, String> {
        let number = directory.number(of_mark.unwrap_or(0));
        let number = number.map_err(|error| format!("data directory {}: {error}", directory.path().display()))?;
        Ok(Self {
            process: mark::random(),
            directory: number,
            answers_at: None,
            is_looking: Arc::new(true.into()),
            looked: None,
            refused: BTreeMap::new(),
        })
    }

    /// Notes a refused process. True: it is to be logged.
    fn refuses(&mut self, node: &str, host: &str) -> bool {
        let before = self.refused.insert(node.to_owned(), (host.to_owned(), Instant::now()));
        before.is_none_or(|(known, at)| known != host || at.elapsed() > KNOWN_FOR)
    }

    /// Sentences about refused processes.
    pub(super) fn findings(&self) -> impl Iterator<Item = String> {
        let recent = self.refused.iter().filter(|(_, (_, at))| at.elapsed() <= KNOWN_FOR);
        recent.map(|(node, (host, _))| {
            format!("A second process with `node = {node:?}`, at {host}, is refused: change its `node`, or end it.")
        })
    }
}

impl Node {
    /// Asks at this node's own address which process is there, until a node answers. The answer of another process is
    /// [`Event::Namesake`].
    ///
    /// No start waits for it: a restarted process reaches itself. With an engine the question ends when this process has a
    /// role: the engine tells of another one from then on.
    pub(super) fn look_for_namesake(&mut self) {
        let is_looking = Arc::clone(&self.namesakes.is_looking);
        let has_role = !matches!(self.machine.status(Lease::now()).step, Step::Starting | Step::Opening);
        let is_soon = self.namesakes.looked.is_some_and(|at| at.elapsed() < ASK_EVERY);
        if !is_looking.load(Ordering::Relaxed) || self.engine.is_some() && has_role || is_soon {
            return;
        }
        self.namesakes.looked = Some(Instant::now());
        let (address, tls, events) = (self.address(self.own), self.tls.clone(), self.events.clone());
        let (cluster, node) = (self.config.cluster.name.clone(), self.names.name(self.own).to_owned());
        let process = self.namesakes.process;
        tokio::spawn(async move {
            let Some(status) = status_at(&address, tls.as_deref()).await else { return };
            is_looking.store(false, Ordering::Relaxed);
            let is_other = status.cluster == cluster && status.node == node && status.process != process;
            // One that does not act itself keeps no other process from it.
            if is_other && status.namesake.is_none() {
                events.offer(Event::Namesake(address));
            }
        });
    }

    /// Why a process is refused: another one with the name of its node has the link to this leader.
    pub(super) fn refuses_namesake(&mut self, node: NodeNumber, hello: &Hello, peer: &str) -> Option<String> {
        let record = self.machine.record();
        let has_role = |record: Record| {
            let is_copied = matches!(record.role_in(node, hello.directory), Role::Follower | Role::Joiner);
            is_copied && record.copy_directory == hello.directory
        };
        let holder = self.links.namesake_of(node, hello, record.is_some_and(has_role), Instant::now())?;
        if self.namesakes.refuses(&hello.node, peer) {
            tracing::warn!(
                node = hello.node,
                peer,
                holder,
                "refusing a second process of a node: change its `node`, or end it"
            );
        }
        Some(format!(
            "another process with `node = {:?}` is linked, from {holder}: change the `node` of one of both, or end it",
            hello.node
        ))
    }

    /// Another process with this node's name, as a sentence with what to do.
    pub(super) fn namesake_words(&self, namesake: Namesake) -> String {
        let node = self.names.name(self.own);
        let (which, to_do) = match namesake {
            Namesake::Named => (
                format!("The record names node {node:?} with another data directory"),
                "If another process has this `node`, change the `node` of one of both. If the other directory is lost, let \
                 the follower lead, or restore a backup into this directory, then force this node",
            ),
            Namesake::Answers => {
                let at = self.namesakes.answers_at.as_deref().unwrap_or("its address");
                let which = format!("Another process with `node = {node:?}` answers at {at}");
                (which, "Change the `node` of one of both, or end the other one. Then restart this one")
            }
            Namesake::HasCopy => (
                format!("Another process with `node = {node:?}` leads with a copy of this data directory"),
                "End one of both. Then restart the other one",
            ),
        };
        format!("{which}: this process neither leads nor follows. {to_do}.")
    }
}

/// The status of the node at an address; `None` = no node has told one: its answer may come later.
async fn status_at(address: &str, tls: Option<&NodeTls>) -> Option<NodeStatus> {
    serde_json::from_value(link::ask_status(address, tls, ASK_TIMEOUT).await.ok()?).ok()
}

/// Time from the last attempt of a refused process in which operators should know it.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Wait for the process at this node's own address.
const ASK_TIMEOUT: Duration = Duration::from_millis(800);
/// Time between two questions there.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tenbin_cluster::LinkEnd;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::super::super::link::stream::NodeStream;
    use super::super::super::link::{Formats, HelloAnswer, HelloKind, Welcome, lines};
    use super::super::Events;
    use super::super::links::{FromLeaderLink, LeaderLinks, StandbyLinkTask};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const NODE: NodeNumber = tenbin_cluster::Node(1);

    fn hello(kind: HelloKind, directory: u64, process: u64, is_first: bool) -> Hello {
        Hello { directory, process, is_first, ..link::question(kind, "c", "b", None) }
    }

    fn welcome() -> Welcome {
        Welcome { node: "a".into(), version: "0".into(), record: None, formats: Formats::OWN, admin: None }
    }

    #[tokio::test]
    async fn link_of_a_process_is_replaced_by_its_restart_alone() {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _standby = TcpStream::connect(port.local_addr().expect("an address")).await.expect("the port is open");
        let stream = NodeStream::Plain(port.accept().await.expect("a connection").0);
        let (events, _received) = Events::channel();
        let mut links = LeaderLinks::default();
        links.open(NODE, &hello(HelloKind::Link, 1, 1, true), stream, welcome(), &events);
        for (kind, directory, process, is_first, has_role, is_refused) in [
            (HelloKind::Link, 1, 1, false, false, false), // it connects again
            (HelloKind::Link, 1, 2, true, false, false),  // it was restarted
            (HelloKind::Link, 1, 2, false, false, true),  // it has a copy of the directory, and was replaced
            (HelloKind::Link, 2, 2, true, false, true),
            (HelloKind::Link, 2, 2, false, false, true),
            (HelloKind::Link, 2, 2, false, true, false), // the record names it
            (HelloKind::Link, 0, 0, true, false, false), // of an earlier version
            (HelloKind::Log, 1, 2, false, false, false),
            (HelloKind::Log, 2, 2, false, false, true),
        ] {
            let hello = hello(kind, directory, process, is_first);
            let holder = links.namesake_of(NODE, &hello, has_role, Instant::now());
            let expected = is_refused.then_some("127.0.0.1");
            assert_eq!(holder, expected, "{kind:?} {directory} {process} {is_first} {has_role}");
        }
        let other = hello(HelloKind::Link, 2, 2, true);
        assert_eq!(links.namesake_of(tenbin_cluster::Node(2), &other, false, Instant::now()), None);

        // Another process takes the place of a silent one. A leader that stood still does not know who is silent.
        let mut now = Instant::now();
        links.turns(now);
        now += Duration::from_secs(10);
        assert_eq!(links.namesake_of(NODE, &other, false, now), None);
        links.turns(now);
        assert_eq!(links.namesake_of(NODE, &other, false, now), Some("127.0.0.1"));
        for _ in 0..10 {
            now += Duration::from_millis(500);
            links.turns(now);
        }
        assert_eq!(links.namesake_of(NODE, &other, false, now), None);
    }

    #[tokio::test]
    async fn question_for_a_namesake_ends_with_the_status_of_a_node() {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = port.local_addr().expect("an address").to_string();
        let served = tokio::spawn(async move {
            let status = serde_json::to_value(NodeStatus { node: "b".into(), ..NodeStatus::default() }).expect("JSON");
            for answer in [
                HelloAnswer::refused("not yet".to_owned()),
                HelloAnswer::Welcome(welcome()),
                HelloAnswer::Status { status: "no status".into() },
                HelloAnswer::Status { status },
            ] {
                let mut stream = port.accept().await.expect("a connection").0;
                let _: Hello = lines::read_exact_line(&mut stream, 4096).await.expect("a hello");
                lines::write(&mut stream, &answer).await.expect("it reads");
            }
            // It has closed the port.
        });
        for _ in 0..3 {
            assert!(status_at(&address, None).await.is_none(), "the question goes on");
        }
        assert_eq!(status_at(&address, None).await.map(|status| status.node).as_deref(), Some("b"));
        served.await.expect("it has answered all");
        assert!(status_at(&address, None).await.is_none());
    }

    #[tokio::test]
    async fn refused_process_waits_and_linked_process_tells_of_itself() {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = port.local_addr().expect("an address").to_string();
        let (events, mut received) = Events::channel();
        let make = Arc::new(|| hello(HelloKind::Link, 2, 2, true));
        let _task = StandbyLinkTask::start(1, NODE, (address, None), make, &events);
        let refused =
            HelloAnswer::Refused { reason: "another process".into(), not_leading: false, namesake: true, record: None };
        let mut came = Vec::new();
        for answer in [refused, HelloAnswer::Welcome(welcome())] {
            let accepted = timeout(PATIENCE, port.accept()).await.expect("in time");
            let mut stream = accepted.expect("a connection").0;
            came.push(Instant::now());
            let _: Hello = lines::read_exact_line(&mut stream, 4096).await.expect("a hello");
            lines::write(&mut stream, &answer).await.expect("it reads");
            if matches!(answer, HelloAnswer::Welcome(_)) {
                let mut line = [0; 15];
                timeout(PATIENCE, stream.read_exact(&mut line)).await.expect("in time").expect("a line");
                assert_eq!(&line, b"{\"type\":\"here\"}");
            }
        }
        assert!(came[1] - came[0] >= Duration::from_secs(1), "{:?}", came[1] - came[0]);
        let mut told = Vec::new();
        while told.len() < 3 {
            let Some(Event::FromLeader { message, .. }) = received.recv().await else { panic!("no event of a link") };
            told.push(message);
        }
        assert!(
            matches!(
                &told[..],
                [
                    FromLeaderLink::Refused(None),
                    FromLeaderLink::Failed { end: LinkEnd::Broken, is_lasting: true, is_namesake: true, .. },
                    FromLeaderLink::Up(..)
                ]
            ),
            "{told:?}"
        );
    }
}
