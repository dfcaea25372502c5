//! Links between nodes: the leader's ends, and the standby's end.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_cluster::{LinkEnd, Node, StoredRecord};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, sleep, timeout};

use super::super::link::lines::{LineError, LinkReader};
use super::super::link::secure::NodeTls;
use super::super::link::stream::NodeStream;
use super::super::link::{self, DialError, Formats, FromLeader, FromStandby, Hello, HelloAnswer, HelloKind, Welcome};
use super::{Event, Events};

/// The task that an event of a link is from. Events of a replaced link are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkId(u64);

/// The leader's ends of the links.
#[derive(Debug, Default)]
pub(super) struct LeaderLinks {
    open: HashMap<Node, LeaderEnd>,
    last: u64,
    /// The last turn of the node's loop.
    turned: Option<Instant>,
    /// Tasks that send a farewell.
    farewells: JoinSet<()>,
}

#[derive(Debug)]
struct LeaderEnd {
    id: LinkId,
    lines: mpsc::Sender<FromLeader>,
    task: AbortOnDrop,
    /// Its process and its directory, as its hello tells.
    process: u64,
    directory: u64,
    host: String,
    /// When it has sent something last.
    heard: Instant,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A message of a standby, or the end of its link.
#[derive(Debug)]
pub(super) enum FromLink {
    Message(FromStandby),
    Ended(String),
}

impl LeaderLinks {
    /// Serves the link of a node. It replaces an older link of the same node.
    pub(super) fn open(&mut self, node: Node, hello: &Hello, stream: NodeStream, welcome: Welcome, events: &Events) {
        let host = stream.host();
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
        let (task, heard) = (AbortOnDrop(task.abort_handle()), Instant::now());
        let Hello { process, directory, .. } = *hello;
        self.open.insert(node, LeaderEnd { id, lines, task, process, directory, host, heard });
    }

    /// Notes that a link's node has sent something. False: the link was replaced.
    pub(super) fn hears(&mut self, node: Node, id: LinkId) -> bool {
        let link = self.open.get_mut(&node).filter(|link| link.id == id);
        link.map(|link| link.heard = Instant::now()).is_some()
    }

    /// Notes a turn of the node's loop. After a pause of the loop no link counts as silent: what its node has sent waits.
    pub(super) fn turns(&mut self, now: Instant) {
        let before = self.turned.replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) > PAUSE_MAX) {
            self.open.values_mut().for_each(|link| link.heard = now);
        }
    }

    /// Host of another process with the name of this hello's node, which has the link and keeps it. `has_role`: the record
    /// names the hello's directory.
    pub(super) fn namesake_of(&self, node: Node, hello: &Hello, has_role: bool, now: Instant) -> Option<&str> {
        let holder = self.open.get(&node)?;
        let are_told = hello.process != 0 && holder.process != 0;
        let replaces = if hello.directory == holder.directory {
            // A restarted process: the one before has ended. It may come before the end of the old link.
            hello.is_first || hello.kind != HelloKind::Link
        } else {
            has_role
        };
        let is_kept = !replaces && now.saturating_duration_since(holder.heard) < SILENT_AFTER;
        (are_told && hello.process != holder.process && is_kept).then_some(&holder.host[..])
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

/// A message of the leader, or a change of the link.
#[derive(Debug)]
pub(super) enum FromLeaderLink {
    /// The link is open. The leader writes these formats, and has told the URL of its admin HTTP.
    Up(Formats, Option<String>),
    Message(FromLeader),
    /// The open link has ended.
    Down(LinkEnd, String),
    /// The link could not be opened.
    Failed {
        end: LinkEnd,
        reason: String,
        /// See [`DialError::is_lasting`].
        is_lasting: bool,
        /// Another process with this node's name has the link.
        is_namesake: bool,
    },
    /// The node does not lead. It knows this record.
    Refused(Option<StoredRecord>),
}

/// The hello of a node, at each attempt to open a link.
pub(super) type MakeHello = Arc<dyn Fn() -> Hello + Send + Sync>;

impl StandbyLinkTask {
    /// Keeps a link to `leader` at `address`: opens it, and again when it ends.
    pub(super) fn start(
        number: u64,
        leader: Node,
        (address, tls): (String, Option<Arc<NodeTls>>),
        hello: MakeHello,
        events: &Events,
    ) -> Self {
        let id = LinkId(number);
        let (answers, mut queued) = mpsc::channel::<FromStandby>(LINES_MAX);
        let events = events.clone();
        let task = tokio::spawn(async move {
            let told = Told { leader, id, events };
            let mut pause = DIAL_AGAIN_AFTER;
            loop {
                match link::dial(&address, tls.as_deref(), &hello(), DIAL_TIMEOUT).await {
                    Ok((stream, welcome)) => {
                        while queued.try_recv().is_ok() {} // of the last link
                        pause = DIAL_AGAIN_AFTER;
                        told.tell(FromLeaderLink::Up(welcome.formats, welcome.admin)).await;
                        let (end, reason) = follow(stream, &mut queued, &told).await;
                        told.tell(FromLeaderLink::Down(end, reason)).await;
                    }
                    Err(error) => {
                        let (end, is_lasting) = (end_of(&error), error.is_lasting());
                        let reason = error.to_string();
                        let mut is_namesake = false;
                        if let DialError::Refused { record, namesake, .. } = error {
                            is_namesake = namesake;
                            told.tell(FromLeaderLink::Refused(record.map(|record| *record))).await;
                        }
                        told.tell(FromLeaderLink::Failed { end, reason, is_lasting, is_namesake }).await;
                        pause = if is_namesake {
                            DIAL_PAUSE_MAX
                        } else if is_lasting {
                            (pause * 2).min(DIAL_PAUSE_MAX)
                        } else {
                            DIAL_AGAIN_AFTER
                        };
                    }
                }
                sleep(pause).await;
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

async fn follow(stream: NodeStream, answers: &mut mpsc::Receiver<FromStandby>, told: &Told) -> (LinkEnd, String) {
    let (mut reader, mut writer): (LinkReader<_, FromLeader>, _) = link::open(stream);
    let mut next_here = interval(HERE_EVERY);
    loop {
        let error: LineError = tokio::select! {
            _ = next_here.tick() => match writer.send(&FromStandby::Here).await {
                Ok(()) => continue,
                Err(error) => error.into(),
            },
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

const LINES_MAX: usize = 64;
/// Time between two lines that tell the leader of this process. A spare answers no beacon.
const HERE_EVERY: Duration = Duration::from_secs(1);
/// Silence of a linked process after which another one of its name takes its place.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// Longest time between two turns of a node's loop that goes on.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
const DIAL_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Longest pause, after refusals that are likely to last: each attempt takes processor time at both nodes.
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(1);
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);
