//! Passes the TCP streams of clients, and the datagrams of MQTT-SN, on to the leader's cluster port, behind a PROXY header.

mod copy;
mod gateways;
mod references;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tenbin_broker::config::Listener;
use tenbin_broker::write_relay_header;
use tenbin_store::mirror::CopyReader;
use tokio::io::{AsyncWriteExt as _, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::link::secure::NodeTls;
use super::link::stream::NodeStream;
use copy::Way;
use references::{ReferenceCounters, ReferenceError};

/// The listeners of a node that does not lead, and the streams of their clients.
#[derive(Debug)]
pub(crate) struct Relay {
    shared: Arc<SharedRelay>,
    /// Follows the leader's address.
    follows: JoinHandle<()>,
    accepts: Vec<JoinHandle<Option<TcpListener>>>,
    names: Vec<Arc<str>>,
}

#[derive(Debug)]
struct SharedRelay {
    target: watch::Sender<Target>,
    /// This node's copy, while it is complete.
    copy: watch::Receiver<Option<Arc<CopyReader>>>,
    /// No message is taken by reference before, since the copy did not have one.
    references_from: Mutex<Option<Instant>>,
    counters: Counters,
    tls: Option<Arc<NodeTls>>,
    /// Connections to the leader that may be under way.
    connects: Semaphore,
}

/// Where streams go.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// There is no leader, or its address is unknown.
    Unknown,
    /// HOST:PORT of the leader's cluster port.
    Leader(Arc<str>),
    /// The relay has stopped.
    Stopped,
}

impl Target {
    /// Whether streams to `leader` end.
    fn is_instead_of(&self, leader: &str) -> bool {
        match self {
            Self::Unknown => false,
            Self::Leader(now) => **now != *leader,
            Self::Stopped => true,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    total: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    references: ReferenceCounters,
}

/// Figures of a relay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayFigures {
    /// Clients that are connected.
    pub(crate) open: u64,
    /// Clients that have connected since the start.
    pub(crate) total: u64,
    /// Clients that were closed since no leader was reachable in time.
    pub(crate) refused: u64,
    /// Bytes that were passed on, both ways.
    pub(crate) bytes: u64,
    /// Messages whose payloads came from this node's copy.
    #[serde(default)]
    pub(crate) references: u64,
    /// Messages that this node's copy did not have. Each has ended a connection.
    #[serde(default)]
    pub(crate) references_failed: u64,
}

impl Relay {
    /// Wait for a leader before a client is closed.
    pub(crate) const LEADER_WITHIN: Duration = Duration::from_secs(5);

    /// Serves the named listeners, and those of gateways, with tasks of `runtime`. `leader`: HOST:PORT of the leader's cluster port, looked up for
    /// each client.
    ///
    /// When the address changes to another one, streams to the old leader end. They stay while the leader is unknown.
    ///
    /// `copy`: this node's copy while it is complete. The leader may then send messages by reference. Streams that have had
    /// references end when the copy changes. The others go on: a later reference finds its message, or ends the stream.
    pub(crate) fn start(
        listeners: Vec<(Arc<str>, TcpListener)>,
        of_gateways: Vec<(Arc<str>, Listener)>,
        leader: watch::Receiver<Option<String>>,
        copy: watch::Receiver<Option<Arc<CopyReader>>>,
        tls: Option<Arc<NodeTls>>,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(SharedRelay {
            target: watch::Sender::new(Target::Unknown),
            copy,
            references_from: Mutex::default(),
            counters: Counters::default(),
            tls,
            connects: Semaphore::new(CONNECTS_MAX),
        });
        let follows = runtime.spawn(Arc::clone(&shared).follow(leader));
        let (mut names, mut accepts) = (Vec::new(), Vec::new());
        for (name, listener) in listeners {
            let accept = Arc::clone(&shared).accept(Arc::clone(&name), listener);
            accepts.push(runtime.spawn(async { Some(accept.await) }));
            names.push(name);
        }
        for (name, listener) in of_gateways {
            let serve = Arc::clone(&shared).serve_gateway(Arc::clone(&name), listener);
            accepts.push(runtime.spawn(async {
                serve.await;
                None
            }));
            names.push(name);
        }
        Self { shared, follows, accepts, names }
    }

    /// Figures since the start.
    pub(crate) fn figures(&self) -> RelayFigures {
        let Counters { open, total, refused, bytes, references: ReferenceCounters { found, failed } } =
            &self.shared.counters;
        let [open, total, refused, bytes, references, references_failed] =
            [open, total, refused, bytes, found, failed].map(|figure| figure.load(Ordering::Relaxed));
        RelayFigures { open, total, refused, bytes, references, references_failed }
    }

    /// Ends all streams, and returns the open listeners. Clients that connect afterwards wait in the listeners' queues. The
    /// sockets of gateways' listeners are closed.
    pub(crate) async fn stop(mut self) -> Vec<(Arc<str>, TcpListener)> {
        self.end();
        let (names, accepts) = (std::mem::take(&mut self.names), std::mem::take(&mut self.accepts));
        let mut listeners = Vec::new();
        for (name, accept) in names.into_iter().zip(accepts) {
            match accept.await {
                Ok(listener) => listeners.extend(listener.map(|listener| (name, listener))),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        listeners
    }

    fn end(&self) {
        self.follows.abort();
        self.shared.target.send_replace(Target::Stopped);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

impl SharedRelay {
    async fn follow(self: Arc<Self>, mut leader: watch::Receiver<Option<String>>) {
        loop {
            let target =
                leader.borrow_and_update().as_deref().map_or(Target::Unknown, |address| Target::Leader(address.into()));
            let is_other = |old: &mut Target| {
                let is_other = *old != target && *old != Target::Stopped;
                if is_other {
                    old.clone_from(&target);
                }
                is_other
            };
            self.target.send_if_modified(is_other);
            if leader.changed().await.is_err() {
                return;
            }
        }
    }

    async fn accept(self: Arc<Self>, name: Arc<str>, listener: TcpListener) -> TcpListener {
        let mut target = self.target.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = target.wait_for(|target| *target == Target::Stopped) => return listener,
            };
            match accepted {
                Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&self).serve(Arc::clone(&name), stream))),
                Err(error) => {
                    tracing::warn!(%error, listener = %name, "cannot accept a client");
                    // Descriptors may be short: other connections have to end first.
                    sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Serves one client.
    async fn serve(self: Arc<Self>, name: Arc<str>, mut client: TcpStream) {
        let _open = Open::new(&self.counters);
        // In a box: an idle client needs no room for the future of its connect.
        let copy = self.copy_to_read();
        let connected = Box::pin(self.connect(&name, &client, copy.is_some())).await;
        let Some((mut leader, address)) = connected else { return };
        drop(name);
        let mut target = self.target.subscribe();
        // An error of a socket is the end of a client, as it happens every day.
        let copied = async {
            match copy {
                None => _ = copy::both_ways(&mut client, &mut leader, &self.counters.bytes).await,
                // In a box: only a follower has it.
                Some(copy) => Box::pin(self.put_payloads_in(&mut client, &mut leader, &copy)).await,
            }
        };
        tokio::select! {
            biased;
            () = copied => {}
            _ = target.wait_for(|target| target.is_instead_of(&address)) => {}
        }
    }

    /// The copy from which payloads may be put into packets.
    fn copy_to_read(&self) -> Option<Arc<CopyReader>> {
        let copy = self.copy.borrow().clone()?;
        let from = *self.references_from.lock().unwrap_or_else(PoisonError::into_inner);
        from.is_none_or(|from| from <= Instant::now()).then_some(copy)
    }

    /// Serves a client whose leader may send messages by reference.
    async fn put_payloads_in(&self, client: &mut TcpStream, leader: &mut NodeStream, copy: &Arc<CopyReader>) {
        let peer = client.peer_addr().ok();
        let ((mut from_client, mut to_client), (mut from_leader, mut to_leader)) = (client.split(), split(leader));
        let Counters { bytes, references, .. } = &self.counters;
        let mut up = Way::default();
        let up = poll_fn(|cx| up.poll(cx, &mut from_client, &mut to_leader, bytes));
        let has_references = AtomicBool::new(false);
        let payloads = copy.stream();
        let down = references::down(&mut from_leader, &mut to_client, &payloads, &has_references, bytes, references);
        let both = async { tokio::try_join!(async { up.await.map_err(ReferenceError::from) }, down) };
        let mut present = self.copy.clone();
        let is_other = |now: &Option<Arc<CopyReader>>| {
            has_references.load(Ordering::Relaxed) && now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, copy))
        };
        let done = tokio::select! {
            biased;
            done = both => done,
            _ = present.wait_for(is_other) => return,
        };
        if let Err(error @ (ReferenceError::NotFound(_) | ReferenceError::BadStream)) = done {
            references.failed.fetch_add(1, Ordering::Relaxed);
            let again = Instant::now() + REFERENCES_AGAIN_AFTER;
            *self.references_from.lock().unwrap_or_else(PoisonError::into_inner) = Some(again);
            tracing::warn!(
                peer = peer.map(tracing::field::display), %error, pause = ?REFERENCES_AGAIN_AFTER,
                "closing a client: its message is not in this node's copy; the leader sends messages whole for a while"
            );
        }
    }

    /// Connects to the leader, and sends the header. `None` = there is no leader within [`Relay::LEADER_WITHIN`].
    async fn connect(&self, name: &str, client: &TcpStream, takes_references: bool) -> Option<(NodeStream, Arc<str>)> {
        let (Ok(()), Ok(peer), Ok(local)) = (client.set_nodelay(true), client.peer_addr(), client.local_addr()) else {
            return None; // the client has gone
        };
        if has_left(client) {
            return None;
        }
        let header = write_relay_header(peer, local, name, takes_references);
        self.reach(peer, &header).await.unwrap_or_else(|last_error| {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            let error = last_error.map(tracing::field::display);
            tracing::warn!(%peer, listener = name, error, "closing a client: no leader is reachable");
            None
        })
    }

    /// Connects to the leader for `peer`, as soon as there is one, and sends the header. `None` = the relay has stopped.
    ///
    /// # Errors
    /// There is no leader within [`Relay::LEADER_WITHIN`]. The error of the last attempt, if there was an attempt.
    async fn reach(
        &self,
        peer: SocketAddr,
        header: &[u8],
    ) -> Result<Option<(NodeStream, Arc<str>)>, Option<io::Error>> {
        let mut last_error = None;
        let reached = timeout_at(Instant::now() + Relay::LEADER_WITHIN, async {
            loop {
                let address = self.leader().await?;
                // A place is held for a moment after a failure: so few clients try a leader that is down.
                let _place = self.connects.acquire().await.ok()?;
                match timeout(CONNECT_TIMEOUT, self.open(&address, header)).await.map_err(io::Error::from).flatten() {
                    Ok(leader) => return Some((leader, address)),
                    Err(error) => {
                        tracing::debug!(%error, %peer, leader = %address, "cannot relay a client");
                        last_error = Some(error);
                        sleep(CONNECT_AGAIN_AFTER).await;
                    }
                }
            }
        });
        reached.await.map_err(|_| last_error)
    }

    async fn open(&self, address: &str, header: &[u8]) -> io::Result<NodeStream> {
        let mut leader = NodeStream::connect(address, self.tls.as_deref()).await?;
        leader.write_all(header).await?;
        leader.flush().await?;
        Ok(leader)
    }

    /// Address of the leader, once there is one. `None` = the relay has stopped.
    async fn leader(&self) -> Option<Arc<str>> {
        let mut target = self.target.subscribe();
        match &*target.wait_for(|target| *target != Target::Unknown).await.ok()? {
            Target::Leader(address) => Some(Arc::clone(address)),
            Target::Unknown | Target::Stopped => None,
        }
    }
}

/// Whether the client has closed its end already. A process that was stopped accepts such clients when it goes on. Their
/// CONNECT must not end newer connections of the same clients.
fn has_left(client: &TcpStream) -> bool {
    let mut polled = [PollFd::new(client, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && !polled[0].revents().is_empty()
}

/// Counts a client while it is connected.
struct Open<'c>(&'c Counters);

impl<'c> Open<'c> {
    fn new(counters: &'c Counters) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        counters.total.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Connections to the leader that are opened at the same time.
const CONNECTS_MAX: usize = 64;
/// Pause of references after the copy did not have a message.
const REFERENCES_AGAIN_AFTER: Duration = Duration::from_secs(60);
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
