//! The end of a broker: in order, or at once when it may not act any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Broker, BrokerBuilder};
use crate::hooks::Events;
use crate::lease::Lease;
use crate::lifecycle::Servers;
use crate::outbox::Control;
use crate::tasks;

impl BrokerBuilder {
    /// Until when the broker may act; without it, for ever. A broker whose lease has not begun starts and lets clients
    /// wait.
    #[must_use]
    pub fn lease(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }
}

impl Broker {
    /// Runs until `stop` ends, then shuts down. Returns the output of `stop`.
    pub async fn run_until<T>(self, stop: impl Future<Output = T>) -> T {
        let stopped = stop.await;
        self.shutdown().await;
        stopped
    }

    /// Stops the broker: accepts no more connections, sends DISCONNECT 0x8B (v5) to every client and closes it.
    ///
    /// Returns when all connections are closed, or after five seconds.
    ///
    /// A broker whose lease does not hold is deposed instead: see [`Broker::depose`].
    pub async fn shutdown(mut self) {
        if !self.parts.shared.operations.leadership.holds() {
            self.depose(BTreeMap::new()).await;
            return;
        }
        let shared = Arc::clone(&self.parts.shared);
        shared.operations.stopping.send_replace(true);
        let closing = self.parts.listeners().close();
        closing.await;
        self.jobs.shutdown().await;
        let patience = Instant::now() + SHUTDOWN;
        while self.connections() > 0 && Instant::now() < patience {
            // Repeated, because a connection between its CONNECT and its first wait may miss the message.
            self.parts.shared.sessions.registry.for_each(|client| client.outbox.control(Control::ShuttingDown));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.parts.shared.operations.log_limiter.log_rest();
        tasks::speeds::store_now(&self.parts.shared);
        if let Some(durable) = self.parts.shared.storage.durable.clone() {
            let _ = tokio::time::timeout(SHUTDOWN, durable.reader.end()).await;
            let written = tokio::task::spawn_blocking(move || durable.flush(SHUTDOWN)).await;
            if !written.unwrap_or(false) {
                tracing::error!("the last changes of the state could not be written");
            }
        }
        self.operators.store_past().await;
        self.webhooks.end().await;
        shared.operations.hooks.tell(Events::STOPPED, |hooks| hooks.stopped());
    }

    /// Ends the connections of a broker whose lease does not hold, and those that come, until [`Broker::unfence`]: clients
    /// of MQTT 5.0 get DISCONNECT 0x9C, with the Server Reference for their listener if there is one, and others are closed.
    /// Their sessions stay, and end their connections once the lease holds. Without an effect while the lease holds.
    ///
    /// `servers`: addresses of another node for clients, by the names of listeners.
    pub fn fence(&self, servers: BTreeMap<String, String>) {
        self.parts.shared.operations.leadership.fence(Servers::new(servers));
        // Idle connections do not wait for the lease.
        self.parts.shared.sessions.registry.for_each(|client| client.outbox.wake_receiver());
    }

    /// How long the store could not be written; `None` = it can be.
    pub fn store_has_failed_for(&self) -> Option<Duration> {
        let since = self.parts.shared.storage.durable.as_ref()?.failing_since()?;
        Some(since.elapsed().unwrap_or_default())
    }

    /// Takes back [`Broker::fence`].
    pub fn unfence(&self) {
        self.parts.shared.operations.leadership.unfence();
    }

    /// Ends a broker that is no leader any more. Ends its lease for good, closes the listeners, and ends all connections:
    /// clients of MQTT 5.0 get DISCONNECT 0x9C, with the Server Reference for their listener if there is one, and others are
    /// closed. `servers`: addresses of another node for clients, by the names of listeners.
    ///
    /// Stores nothing about the end of the connections and publishes no Will. Changes that the store had accepted before
    /// may still be written, unless the store refuses them.
    ///
    /// Returns within two seconds, even if the disk does not answer. Returns whether the data directory is free: then
    /// no thread of the broker writes there any more, and its lock is released.
    pub async fn depose(mut self, servers: BTreeMap<String, String>) -> bool {
        let end = Instant::now() + PATIENCE;
        let shared = Arc::clone(&self.parts.shared);
        let released = shared.storage.durable.as_ref().map(|durable| durable.released());
        shared.operations.depose(Servers::new(servers));
        let closing = self.parts.listeners().close();
        let _ = timeout_at(end, closing).await;
        let _ = timeout_at(end, self.jobs.shutdown()).await;
        let _ = timeout_at(end, self.long_ends.shutdown()).await;
        while self.connections() > 0 && Instant::now() + RELEASE < end {
            // Wakes connections that wait for something else than the lease.
            shared.sessions.registry.for_each(|client| client.outbox.control(Control::ShuttingDown));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shared.operations.log_limiter.log_rest();
        shared.operations.hooks.tell(Events::STOPPED, |hooks| hooks.stopped());
        drop(shared);
        // The last owner of the store waits for the disk.
        let dropped = tokio::task::spawn_blocking(move || drop(self));
        let Some(mut released) = released else { return timeout_at(end, dropped).await.is_ok() };
        let is_free = timeout_at(end, released.changed()).await.is_ok();
        if !is_free {
            tracing::error!("the data directory is still in use: a disk or a task of the broker does not end");
        }
        is_free
    }
}

const SHUTDOWN: Duration = Duration::from_secs(5);
/// How long a deposed broker takes at most, and how much of that is for its store.
const PATIENCE: Duration = Duration::from_secs(2);
const RELEASE: Duration = Duration::from_millis(700);
