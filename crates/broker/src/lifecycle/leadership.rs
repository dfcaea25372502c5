//! Whether the broker may act: its lease, and whether it was deposed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

use tenbin_codec::Text;

use super::BrokerState;
use crate::durable::RestoredWill;
use crate::lease::Lease;

/// Lease of the broker, and how it was deposed.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    lease: Lease,
    /// Set once, with the server that clients are referred to.
    deposed: OnceLock<Option<Text>>,
    /// The same while the broker is fenced.
    fenced: Mutex<Option<Option<Text>>>,
    /// Wills of the last run that are due, if the lease had not begun at the start. They are published before any client
    /// connects, as at any start.
    due_wills: Mutex<VecDeque<RestoredWill>>,
    /// There are some. Relaxed: the lock orders the rest.
    has_due_wills: AtomicBool,
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

    /// The server that clients are referred to, if the broker is fenced and may not act.
    pub(crate) fn fenced(&self) -> Option<Option<Text>> {
        let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.clone().filter(|_| !self.holds())
    }

    /// Ends the connections of a broker that may not act, and those that come, until it may act again.
    pub(crate) fn fence(&self, server_reference: Option<Text>) {
        *self.fenced.lock().unwrap_or_else(PoisonError::into_inner) = Some(server_reference);
        self.lease.wake_all();
    }

    pub(crate) fn unfence(&self) {
        *self.fenced.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The server that clients are referred to, if the broker was deposed.
    pub(crate) fn deposed(&self) -> Option<&Option<Text>> {
        self.deposed.get()
    }
}

impl BrokerState {
    /// Ends the lease for good. Connections end from here on, and nothing more is stored for them.
    pub(crate) fn depose(&self, server_reference: Option<Text>) {
        let _ = self.leadership.deposed.set(server_reference); // it is called once
        self.stopping.send_replace(true);
        self.leadership.lease.close();
    }

    /// Waits until the broker is deposed.
    pub(crate) async fn when_deposed(self: Arc<Self>) {
        self.stopped().await;
        if self.leadership.deposed().is_none() {
            std::future::pending().await // it shuts down in order
        }
    }

    /// Waits until the broker may act. Returns `false` if it stops instead.
    pub(crate) async fn may_act(&self) -> bool {
        while !self.leadership.holds() {
            tokio::select! {
                () = self.leadership.held() => {}
                () = self.stopped() => return false,
            }
        }
        self.publish_due_wills();
        true
    }

    /// Publishes the Wills of the last run that were due before the lease began.
    pub(crate) fn publish_due_wills(&self) {
        if !self.leadership.has_due_wills.load(Ordering::Relaxed) {
            return;
        }
        // Others wait for the lock, so that no client connects in between.
        let mut wills = self.leadership.due_wills.lock().unwrap_or_else(PoisonError::into_inner);
        while self.leadership.holds()
            && let Some(will) = wills.pop_front()
        {
            super::restore::publish(self, will, Instant::now());
        }
        self.leadership.has_due_wills.store(!wills.is_empty(), Ordering::Relaxed);
    }
}
