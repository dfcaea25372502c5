//! Copies: connections of the mirror at the leader, and the copy at a joiner.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_cluster::Node;
use tenbin_store::mirror::{self, Copy, CopyEvent, JoinId, Mirror};

use super::super::link::secure::NodeTls;
use super::super::link::stream::NodeStream;
use super::super::link::{self, Hello, HelloAnswer, HelloKind, Readable, Welcome};
use super::{Event, Events};

/// The leader's side: connections that wait for their copy, and the copy.
#[derive(Debug, Default)]
pub(super) struct LeaderCopies {
    /// Connections whose hello is not answered yet: a joiner may be earlier than the leader's own news.
    waiting: Vec<Waiting>,
    /// The joiner that is accepted, and its session.
    accepted: Option<(Node, u64)>,
    accepted_at: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    node: Node,
    session: u64,
    is_log: bool,
    stream: NodeStream,
    since: Instant,
}

impl LeaderCopies {
    /// Accepts the connections of this node's copy, once.
    pub(super) fn accept(&mut self, node: Node, session: u64) {
        self.accepted = Some((node, session));
        self.accepted_at = Some(Instant::now());
    }

    /// Refuses everything: the node does not lead any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Accepts the session's connections no more.
    pub(super) fn release(&mut self, session: u64) {
        self.accepted.take_if(|(_, accepted)| *accepted == session);
    }

    /// The session whose joiner has not come in time, once.
    pub(super) fn late(&mut self) -> Option<u64> {
        let is_late = self.accepted_at.is_some_and(|at| at.elapsed() > COMES_WITHIN);
        self.accepted.take_if(|_| is_late).map(|(_, session)| session)
    }

    /// Adds a connection of the mirror.
    pub(super) fn add(&mut self, node: Node, hello: &Hello, stream: NodeStream) {
        let is_log = hello.kind == HelloKind::Log;
        let now = Instant::now();
        self.waiting.retain(|waiting| {
            let is_replaced = waiting.node == node && waiting.is_log == is_log;
            !is_replaced && now.duration_since(waiting.since) < WAIT_MAX
        });
        self.waiting.push(Waiting { node, session: hello.epoch, is_log, stream, since: now });
    }

    /// Takes both connections of the accepted copy, if both are there.
    pub(super) fn take(&mut self) -> Option<Pair> {
        let (node, session) = self.accepted?;
        let is_of = |waiting: &Waiting| (waiting.node, waiting.session) == (node, session);
        if self.waiting.iter().filter(|waiting| is_of(waiting)).count() < 2 {
            return None;
        }
        // One of each: a second one of a kind has replaced the first.
        let mut take = |is_log: bool| {
            let at = self.waiting.iter().position(|waiting| is_of(waiting) && waiting.is_log == is_log)?;
            Some(self.waiting.swap_remove(at).stream)
        };
        let (log, state) = (take(true)?, take(false)?);
        self.accepted = None;
        Some(Pair { session, log, state })
    }
}

/// Both connections of a copy.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) session: u64,
    log: NodeStream,
    state: NodeStream,
}

impl Pair {
    /// Answers both hellos, and lets the copy join.
    pub(super) async fn join(self, mirror: Arc<Mirror>, welcome: Welcome, rate: u64) -> Result<(), String> {
        let Self { session, mut log, mut state } = self;
        for stream in [&mut log, &mut state] {
            let answer = HelloAnswer::Welcome(welcome.clone());
            link::lines::write(stream, &answer).await.map_err(|error| error.to_string())?;
        }
        let (log, state) = (blocking(log)?, blocking(state)?);
        mirror.join(JoinId(session), log, state, rate).map_err(|error| error.to_string())
    }
}

/// Opens both connections of a copy, and begins it.
pub(super) async fn begin(
    (address, tls): (String, Option<Arc<NodeTls>>),
    hello: impl Fn(HelloKind) -> Hello,
    directory: PathBuf,
    sync: tenbin_store::Sync,
    session: u64,
    events: Events,
) -> Result<Copy, String> {
    let dial = async |kind: HelloKind| {
        let dialled = link::dial(&address, tls.as_deref(), &hello(kind), ACCEPT_TIMEOUT).await;
        let (stream, welcome) = dialled.map_err(|error| error.to_string())?;
        // Nothing has changed in the directory.
        Readable::OWN.unreadable(&welcome.formats).map_or(Ok(stream), Err)
    };
    // The leader answers once it has both connections.
    let (log, state) = tokio::try_join!(dial(HelloKind::Log), dial(HelloKind::State))?;
    let (log, state) = (blocking(log)?, blocking(state)?);
    let begun = tokio::task::spawn_blocking(move || {
        let on_event = move |event: CopyEvent| events.send(Event::CopySaid { session, event });
        Copy::begin(&directory, sync, log, state, on_event).map_err(|error| error.to_string())
    });
    begun.await.map_err(|error| error.to_string())?
}

/// A stream for a thread that blocks.
fn blocking(stream: NodeStream) -> Result<Box<dyn mirror::Stream>, String> {
    stream.into_blocking().map_err(|error| error.to_string())
}

/// How long a joiner takes to begin its copy. A node whose disk fails never does.
const COMES_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection waits for the leader to accept its copy.
const WAIT_MAX: Duration = Duration::from_secs(5);
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(6);
