//! Copies: connections of the mirror at the leader, and the copy at a joiner.

use std::net::TcpStream as BlockingStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_cluster::Node;
use tenbin_store::mirror::{Copy, CopyEvent, JoinId, Mirror};
use tokio::net::TcpStream;

use super::super::link::{self, Hello, HelloAnswer, HelloKind, Welcome};
use super::{Event, Events};

/// The leader's side: connections that wait for their copy, and the copy.
#[derive(Debug, Default)]
pub(super) struct LeaderCopies {
    /// Connections whose hello is not answered yet: a joiner may be earlier than the leader's own news.
    waiting: Vec<Waiting>,
    /// The joiner that is accepted, and its session.
    accepted: Option<(Node, u64)>,
}

#[derive(Debug)]
struct Waiting {
    node: Node,
    session: u64,
    is_log: bool,
    stream: TcpStream,
    since: Instant,
}

impl LeaderCopies {
    /// Accepts the connections of this node's copy, once.
    pub(super) fn accept(&mut self, node: Node, session: u64) {
        self.accepted = Some((node, session));
    }

    /// Refuses everything: the node does not lead any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Accepts the session's connections no more.
    pub(super) fn release(&mut self, session: u64) {
        self.accepted.take_if(|(_, accepted)| *accepted == session);
    }

    /// Adds a connection of the mirror.
    pub(super) fn add(&mut self, node: Node, hello: &Hello, stream: TcpStream) {
        let is_log = hello.kind == HelloKind::Log;
        let now = Instant::now();
        self.waiting.retain(|waiting| {
            let is_replaced = waiting.node == node && waiting.is_log == is_log;
            !is_replaced && now.duration_since(waiting.since) < WAIT_MAX
        });
        self.waiting.push(Waiting { node, session: hello.epoch, is_log, stream, since: now });
    }

    /// Takes both connections of the accepted copy, if they have come.
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
    log: TcpStream,
    state: TcpStream,
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
        mirror.join(JoinId(session), Box::new(log), Box::new(state), rate).map_err(|error| error.to_string())
    }
}

/// Opens both connections of a copy, and begins it.
pub(super) async fn begin(
    address: String,
    hello: impl Fn(HelloKind) -> Hello,
    directory: PathBuf,
    sync: tenbin_store::Sync,
    session: u64,
    events: Events,
) -> Result<Copy, String> {
    let dial = async |kind: HelloKind| {
        let (stream, _) =
            link::dial(&address, &hello(kind), ACCEPT_TIMEOUT).await.map_err(|error| error.to_string())?;
        Ok::<TcpStream, String>(stream)
    };
    // The leader answers both once both have come.
    let (log, state) = tokio::try_join!(dial(HelloKind::Log), dial(HelloKind::State))?;
    let (log, state) = (blocking(log)?, blocking(state)?);
    let begun = tokio::task::spawn_blocking(move || {
        let on_event = move |event: CopyEvent| events.send(Event::CopyEnded { session, event });
        Copy::begin(&directory, sync, Box::new(log), Box::new(state), on_event).map_err(|error| error.to_string())
    });
    begun.await.map_err(|error| error.to_string())?
}

/// A stream for a thread that blocks.
fn blocking(stream: TcpStream) -> Result<BlockingStream, String> {
    let blocking = stream.into_std().and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
    blocking.map_err(|error| error.to_string())
}

/// How long a connection waits for the leader to accept its copy.
const WAIT_MAX: Duration = Duration::from_secs(5);
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(6);
