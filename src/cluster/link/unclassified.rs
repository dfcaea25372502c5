//! Connections at the cluster port whose kind is not known yet, of strangers too.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;
use tokio::task::JoinSet;

/// Connections of unknown kind, each with its task, the oldest first. The tasks end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Unclassified {
    connections: Vec<(Network, AbortHandle)>,
    tasks: JoinSet<()>,
    /// Connections that have made room since the last line about them.
    evicted: u64,
    told_at: Option<Instant>,
}

/// Peers that count as one: an address of IPv4, or a network of IPv6, in which a peer has all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(u128);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_bits().into()),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

impl Unclassified {
    /// Ends a connection if there are [`UNCLASSIFIED_MAX`]: the oldest one of the peer that has most of them. True: it did.
    ///
    /// Nodes and relays send their first line at once. So a stranger keeps others out only from as many addresses.
    pub(super) fn make_room(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        if self.connections.len() < UNCLASSIFIED_MAX {
            return false;
        }
        self.connections.retain(|(_, task)| !task.is_finished());
        if self.connections.len() < UNCLASSIFIED_MAX {
            return false;
        }
        let mut counts = HashMap::<Network, usize>::new();
        for (network, _) in &self.connections {
            *counts.entry(*network).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let Some(at) = self.connections.iter().position(|(network, _)| counts[network] == most) else { return false };
        self.connections.remove(at).1.abort();
        self.evicted += 1;
        if self.told_at.is_none_or(|at| at.elapsed() > TELL_EVERY) {
            let connections = std::mem::take(&mut self.evicted);
            tracing::warn!(connections, "closing silent connections at the cluster port: too many of them");
            self.told_at = Some(Instant::now());
        }
        true
    }

    /// Classifies a connection of a peer by a task.
    pub(super) fn add(&mut self, peer: IpAddr, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        self.connections.push((peer.into(), self.tasks.spawn_on(work, runtime)));
    }
}

/// Thread for handshakes of TLS: neither beacons nor clients wait for them.
#[derive(Debug)]
pub(super) struct Handshakes(Option<Runtime>);

impl Handshakes {
    /// Starts the thread, if there are handshakes.
    pub(super) fn start(has_tls: bool) -> Self {
        let start =
            || Builder::new_multi_thread().worker_threads(1).thread_name("tenbin-node-tls").enable_time().build();
        let started = has_tls.then(start).transpose();
        Self(started.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot start the thread for handshakes: the node's thread performs them");
            None
        }))
    }

    /// The runtime for handshakes, or the present one.
    pub(super) fn runtime(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Two relays open 64 connections each at a time, when they have waited for a leader.
pub(super) const UNCLASSIFIED_MAX: usize = 256;
const TELL_EVERY: Duration = Duration::from_secs(1);
