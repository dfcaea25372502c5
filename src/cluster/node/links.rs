//! Links between nodes: the leader's ends, and the standby's end.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenbin_cluster::{LinkEnd, Node, StoredRecord};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::super::link::lines::{LineError, LinkReader};
use super::super::link::{self, DialError, FromLeader, FromStandby, Hello, HelloAnswer, HelloKind, PROTOCOL, Welcome};
use super::{Event, Events};

/// The task that an event of a link is from. Events of a replaced link are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkId(u64);

/// The leader's ends of the links.
#[derive(Debug, Default)]
pub(super) struct LeaderLinks {
    open: HashMap<Node, LeaderEnd>,
    last: u64,
    /// Tasks that send a farewell.
    farewells: JoinSet<()>,
}

#[derive(Debug)]
struct LeaderEnd {
    id: LinkId,
    lines: mpsc::Sender<FromLeader>,
    task: AbortOnDrop,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a standby has sent, or how its link has ended.
#[derive(Debug)]
pub(super) enum FromLink {
    Message(FromStandby),
    Ended(String),
}

impl LeaderLinks {
    /// Serves the link of a node. It replaces an older link of the same node.
    pub(super) fn open(&mut self, node: Node, stream: TcpStream, welcome: Welcome, events: &Events) {
        self.last += 1;
        let id = LinkId(self.last);
        let (lines, mut queued) = mpsc::channel(LINES_MAX);
        let events = events.clone();
        let task = tokio::spawn(async move {
            let served = async {
                let mut stream = stream;
                link::lines::write(&mut stream, &HelloAnswer::Welcome(welcome)).await?;
                let (mut reader, mut writer): (LinkReader<_, FromStandby>, _) = link::open(stream);
                let write = async {
                    while let Some(line) = queued.recv().await {
                        let is_last = matches!(line, FromLeader::Farewell);
                        writer.send(&line).await?;
                        if is_last {
                            break;
                        }
                    }
                    Ok::<(), LineError>(())
                };
                let read = async {
                    loop {
                        let message = reader.next().await?;
                        events.pass(Event::FromStandby { node, id, message: FromLink::Message(message) }).await;
                    }
                };
                tokio::select! {
                    written = write => written,
                    read = read => read,
                }
            };
            let reason = served.await.err().map_or_else(|| "farewell".to_owned(), |error: LineError| error.to_string());
            events.pass(Event::FromStandby { node, id, message: FromLink::Ended(reason) }).await;
        });
        self.open.insert(node, LeaderEnd { id, lines, task: AbortOnDrop(task.abort_handle()) });
    }

    pub(super) fn is_present(&self, node: Node, id: LinkId) -> bool {
        self.open.get(&node).is_some_and(|link| link.id == id)
    }

    pub(super) fn contains(&self, node: Node) -> bool {
        self.open.contains_key(&node)
    }

    pub(super) fn close(&mut self, node: Node) {
        self.open.remove(&node);
    }

    /// Sends a line to all nodes. A node that does not read gets none: it counts as silent.
    pub(super) fn send(&self, line: &FromLeader) {
        for link in self.open.values() {
            let _ = link.lines.try_send(line.clone());
        }
    }

    /// Sends a farewell to all nodes. Their links close behind it.
    pub(super) fn say_farewell(&mut self) {
        while self.farewells.try_join_next().is_some() {}
        for (_, LeaderEnd { lines, task, .. }) in self.open.drain() {
            let _ = lines.try_send(FromLeader::Farewell);
            // Its task ends behind the line, or when the node does not read.
            self.farewells.spawn(async move {
                let _ends = task;
                let _ = timeout(FAREWELL_TIMEOUT, lines.closed()).await;
            });
        }
    }

    /// Waits until all farewells are sent.
    pub(super) async fn farewells_said(&mut self) {
        while self.farewells.join_next().await.is_some() {}
    }
}

/// The standby's end of its link to the leader. Dropping it ends the link.
#[derive(Debug)]
pub(super) struct StandbyLinkTask {
    pub(super) id: LinkId,
    answers: mpsc::Sender<FromStandby>,
    _task: AbortOnDrop,
}

/// What the leader has sent, or what has happened to the link.
#[derive(Debug)]
pub(super) enum FromLeaderLink {
    Up,
    Message(FromLeader),
    Down(LinkEnd, String),
    /// The node does not lead. It knows this record.
    Refused(Option<StoredRecord>),
}

/// What a node says of itself, at each attempt to open a link.
pub(super) type MakeHello = Arc<dyn Fn() -> Hello + Send + Sync>;

impl StandbyLinkTask {
    /// Keeps a link to `leader` at `address`: opens it, and again when it ends.
    pub(super) fn start(number: u64, leader: Node, address: String, hello: MakeHello, events: &Events) -> Self {
        let id = LinkId(number);
        let (answers, mut queued) = mpsc::channel::<FromStandby>(LINES_MAX);
        let events = events.clone();
        let task = tokio::spawn(async move {
            let told = Told { leader, id, events };
            loop {
                match link::dial(&address, &hello(), DIAL_TIMEOUT).await {
                    Ok((stream, _)) => {
                        while queued.try_recv().is_ok() {} // of the last link
                        told.tell(FromLeaderLink::Up).await;
                        let (end, reason) = follow(stream, &mut queued, &told).await;
                        told.tell(FromLeaderLink::Down(end, reason)).await;
                    }
                    Err(DialError::Refused { record, reason, .. }) => {
                        told.tell(FromLeaderLink::Refused(record.map(|record| *record))).await;
                        told.tell(FromLeaderLink::Down(LinkEnd::Broken, reason)).await;
                    }
                    Err(error) => told.tell(FromLeaderLink::Down(end_of(&error), error.to_string())).await,
                }
                sleep(DIAL_AGAIN_AFTER).await;
            }
        });
        Self { id, answers, _task: AbortOnDrop(task.abort_handle()) }
    }

    /// Sends an answer. It is lost if the link is full or has ended.
    pub(super) fn answer(&self, answer: FromStandby) {
        let _ = self.answers.try_send(answer);
    }
}

/// Tells the node what happens to its link.
struct Told {
    leader: Node,
    id: LinkId,
    events: Events,
}

impl Told {
    async fn tell(&self, message: FromLeaderLink) {
        self.events.pass(Event::FromLeader { leader: self.leader, id: self.id, message }).await;
    }
}

async fn follow(stream: TcpStream, answers: &mut mpsc::Receiver<FromStandby>, told: &Told) -> (LinkEnd, String) {
    let (mut reader, mut writer): (LinkReader<_, FromLeader>, _) = link::open(stream);
    loop {
        let error: LineError = tokio::select! {
            message = reader.next() => match message {
                Ok(FromLeader::Farewell) => return (LinkEnd::Farewell, "farewell".to_owned()),
                Ok(message) => {
                    told.tell(FromLeaderLink::Message(message)).await;
                    continue;
                }
                Err(error) => error,
            },
            Some(answer) = answers.recv() => match writer.send(&answer).await {
                Ok(()) => continue,
                Err(error) => error.into(),
            },
        };
        return (LinkEnd::Broken, error.to_string());
    }
}

/// How a failed attempt counts.
fn end_of(error: &DialError) -> LinkEnd {
    match error {
        DialError::Connect(_, error) if error.kind() == io::ErrorKind::ConnectionRefused => LinkEnd::Refused,
        _ => LinkEnd::Broken,
    }
}

/// Tries once to connect to a node's cluster port, and tells how that ends. `None` = the port accepts.
pub(super) async fn probe(address: &str) -> Option<LinkEnd> {
    match timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Some(LinkEnd::Refused),
        _ => Some(LinkEnd::Broken),
    }
}

/// First line of a connection to another node.
pub(super) fn hello(cluster: &str, node: &str, kind: HelloKind, epoch: u64, may_take_over: bool) -> Hello {
    Hello {
        protocol: PROTOCOL,
        cluster: cluster.to_owned(),
        node: node.to_owned(),
        kind,
        epoch,
        may_take_over,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

const LINES_MAX: usize = 64;
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
const DIAL_AGAIN_AFTER: Duration = Duration::from_millis(20);
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);
