//! Whether the broker may act: its lease, and whether it was deposed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

use tenbin_codec::Text;

use super::BrokerState;
use super::state::Operations;
use crate::durable::RestoredWill;
use crate::lease::Lease;

/// Lease of the broker, and how it was deposed.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    lease: Lease,
    /// Set once, with the servers that clients are referred to.
    deposed: OnceLock<Servers>,
    /// The same while the broker is fenced.
    fenced: Mutex<Option<Arc<Servers>>>,
    /// Wills of the last run that are due, if the lease had not begun at the start. They are published before any client
    /// connects, as at any start.
    due_wills: Mutex<VecDeque<RestoredWill>>,
    /// There are some. Relaxed: the lock orders the rest.
    has_due_wills: AtomicBool,
}

/// Servers that clients are referred to, by the names of the listeners that they have used.
#[derive(Debug, Default)]
pub(crate) struct Servers(BTreeMap<String, Text>);

impl Servers {
    /// Leaves out servers that are no text of MQTT.
    pub(crate) fn new(servers: BTreeMap<String, String>) -> Self {
        let servers = servers.into_iter();
        Self(servers.filter_map(|(listener, server)| Some((listener, Text::try_from(server).ok()?))).collect())
    }

    /// The server for clients of this listener.
    pub(crate) fn of(&self, listener: &str) -> Option<Text> {
        self.0.get(listener).cloned()
    }
}

impl Leadership {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, ..Self::default() }
    }

    /// Whether the broker may act now.
    #[inline(always)] // in each lap of a connection
    pub(crate) fn holds(&self) -> bool {
        self.lease.holds()
    }

    /// Waits until the broker may act.
    pub(crate) async fn held(&self) {
        self.lease.held().await;
    }

    /// As [`Leadership::held`], for the connection of client `number`.
    pub(crate) fn poll_held(&self, number: u64, context: &Context<'_>) -> bool {
        self.lease.poll_held(number, context)
    }

    /// Whether the broker could not act at some time within the last `time`.
    pub(crate) fn has_paused_within(&self, time: Duration) -> bool {
        self.lease.has_resumed_within(time)
    }

    /// Keeps a Will of the last run until the lease begins.
    pub(super) fn add_due_will(&self, will: RestoredWill) {
        self.due_wills.lock().unwrap_or_else(PoisonError::into_inner).push_back(will);
        self.has_due_wills.store(true, Ordering::Relaxed);
    }

    /// The servers that clients are referred to, if the broker is fenced and may not act.
    pub(crate) fn fenced(&self) -> Option<Arc<Servers>> {
        let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.clone().filter(|_| !self.holds())
    }

    /// Ends the connections of a broker that may not act, and those that come, until it may act again.
    pub(crate) fn fence(&self, servers: Servers) {
        *self.fenced.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(servers));
        self.lease.wake_all();
    }

    pub(crate) fn unfence(&self) {
        *self.fenced.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The servers that clients are referred to, if the broker was deposed.
    pub(crate) fn deposed(&self) -> Option<&Servers> {
        self.deposed.get()
    }
}

impl Operations {
    /// Ends the lease for good. Connections end from here on, and nothing more is stored for them.
    pub(crate) fn depose(&self, servers: Servers) {
        let _ = self.leadership.deposed.set(servers); // it is called once
        self.stopping.send_replace(true);
        self.leadership.lease.close();
    }
}

impl BrokerState {
    /// Waits until the broker is deposed.
    pub(crate) async fn when_deposed(self: Arc<Self>) {
        self.operations.stopped().await;
        if self.operations.leadership.deposed().is_none() {
            std::future::pending().await // it shuts down in order
        }
    }

    /// Waits until the broker may act. Returns `false` if it stops instead.
    pub(crate) async fn may_act(&self) -> bool {
        while !self.operations.leadership.holds() {
            tokio::select! {
                () = self.operations.leadership.held() => {}
                () = self.operations.stopped() => return false,
            }
        }
        self.publish_due_wills();
        true
    }

    /// Publishes the Wills of the last run that were due before the lease began.
    pub(crate) fn publish_due_wills(&self) {
        if !self.operations.leadership.has_due_wills.load(Ordering::Relaxed) {
            return;
        }
        // Others wait for the lock, so that no client connects in between.
        let mut wills = self.operations.leadership.due_wills.lock().unwrap_or_else(PoisonError::into_inner);
        while self.operations.leadership.holds()
            && let Some(will) = wills.pop_front()
        {
            super::restore::publish(self, will, Instant::now());
        }
        self.operations.leadership.has_due_wills.store(!wills.is_empty(), Ordering::Relaxed);
    }
}
