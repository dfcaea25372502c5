//! Passes the TCP streams of clients on to the leader's cluster port, behind a PROXY header.

mod copy;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tenbin_broker::write_relay_header;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The listeners of a node that does not lead, and the streams of their clients.
#[derive(Debug)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
    /// Follows the leader's address.
    follows: JoinHandle<()>,
    accepts: Vec<JoinHandle<TcpListener>>,
    names: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    target: watch::Sender<Target>,
    counters: Counters,
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

#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    total: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
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
}

impl Relay {
    /// Serves the named listeners with tasks of `runtime`. `leader`: HOST:PORT of the leader's cluster port, looked up for
    /// each client.
    ///
    /// When the address changes to another one, streams to the old leader end. They stay while the leader is unknown.
    pub(crate) fn start(
        listeners: Vec<(Arc<str>, TcpListener)>,
        leader: watch::Receiver<Option<String>>,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(Shared {
            target: watch::Sender::new(Target::Unknown),
            counters: Counters::default(),
            connects: Semaphore::new(CONNECTS_MAX),
        });
        let follows = runtime.spawn(Arc::clone(&shared).follow(leader));
        let (mut names, mut accepts) = (Vec::new(), Vec::new());
        for (name, listener) in listeners {
            accepts.push(runtime.spawn(Arc::clone(&shared).accept(Arc::clone(&name), listener)));
            names.push(name);
        }
        Self { shared, follows, accepts, names }
    }

    /// Figures since the start.
    pub(crate) fn figures(&self) -> RelayFigures {
        let Counters { open, total, refused, bytes } = &self.shared.counters;
        let [open, total, refused, bytes] = [open, total, refused, bytes].map(|figure| figure.load(Ordering::Relaxed));
        RelayFigures { open, total, refused, bytes }
    }

    /// Ends all streams, and returns the open listeners. Clients that connect afterwards wait in the listeners' queues.
    pub(crate) async fn stop(mut self) -> Vec<(Arc<str>, TcpListener)> {
        self.end();
        let (names, accepts) = (std::mem::take(&mut self.names), std::mem::take(&mut self.accepts));
        let mut listeners = Vec::new();
        for (name, accept) in names.into_iter().zip(accepts) {
            match accept.await {
                Ok(listener) => listeners.push((name, listener)),
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

impl Shared {
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
        let Some((mut leader, address)) = Box::pin(self.connect(&name, &client)).await else { return };
        drop(name);
        let mut target = self.target.subscribe();
        let is_other = |target: &Target| match target {
            Target::Unknown => false,
            Target::Leader(now) => *now != address,
            Target::Stopped => true,
        };
        tokio::select! {
            biased;
            // An error of a socket is the end of a client, as it happens every day.
            _ = copy::both_ways(&mut client, &mut leader, &self.counters.bytes) => {}
            _ = target.wait_for(is_other) => {}
        }
    }

    /// Connects to the leader, and sends the header. `None` = there is no leader within [`LEADER_WITHIN`].
    async fn connect(&self, name: &str, client: &TcpStream) -> Option<(TcpStream, Arc<str>)> {
        let (Ok(()), Ok(peer), Ok(local)) = (client.set_nodelay(true), client.peer_addr(), client.local_addr()) else {
            return None; // the client has gone
        };
        if has_left(client) {
            return None;
        }
        let until = Instant::now() + LEADER_WITHIN;
        let header = write_relay_header(peer, local, name);
        let connected = timeout_at(until, async {
            loop {
                let address = self.leader().await?;
                // A place is held for a moment after a failure: so few clients try a leader that is down.
                let _place = self.connects.acquire().await.ok()?;
                match timeout(CONNECT_TIMEOUT, open(&address, &header)).await.map_err(io::Error::from).flatten() {
                    Ok(leader) => return Some((leader, address)),
                    Err(error) => {
                        tracing::debug!(%error, %peer, leader = %address, "cannot relay a client");
                        sleep(CONNECT_AGAIN_AFTER).await;
                    }
                }
            }
        });
        connected.await.unwrap_or_else(|_| {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, listener = name, "closing a client: no leader is reachable");
            None
        })
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

async fn open(address: &str, header: &[u8]) -> io::Result<TcpStream> {
    let mut leader = TcpStream::connect(address).await?;
    leader.set_nodelay(true)?;
    leader.write_all(header).await?;
    Ok(leader)
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

/// Wait for a leader before a client is closed.
const LEADER_WITHIN: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Connections to the leader that are opened at the same time.
const CONNECTS_MAX: usize = 64;
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
