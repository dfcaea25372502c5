//! Migration of a connection to another worker thread.

use std::pin::Pin;

use super::ConnectionTask;
use crate::net::stream::Stream;
use crate::threads::Home;

impl<S: Stream> ConnectionTask<S> {
    /// The thread to migrate to, if any; asked between two batches, when no work is in progress.
    #[inline]
    pub(super) fn leaves(&mut self) -> Option<Home> {
        self.core.open.shared.operations.threads.as_ref()?.leaves_to(self.home.as_mut()?, self.core.lease.client.number)
    }

    /// Whether [`leaves`](Self::leaves) has a new decision to look at.
    pub(super) fn has_orders(&self) -> bool {
        let (home, threads) = (self.home.as_ref(), self.core.open.shared.operations.threads.as_ref());
        home.zip(threads).is_some_and(|(home, threads)| threads.has_orders(home))
    }

    /// Continues on the given thread in a new task.
    pub(super) fn move_to(mut self, home: Home) {
        let operations = &self.core.open.shared.operations;
        operations.metrics.connections_moved.add(1);
        let Some(runtime) = operations.threads.as_ref().map(|threads| threads.runtime(home).clone()) else { return };
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            self.arrive(home);
            let ended = self.run().await;
            if let Some(end) = self.leave(ended) {
                end.await;
            }
        });
        runtime.spawn(task);
    }

    /// Replaces resources of the former runtime: timers, the socket's registration, and wakers of the old task.
    fn arrive(&mut self, home: Home) {
        self.home = Some(home);
        if let Err(error) = self.socket.stream().register_again() {
            tracing::debug!(peer = %self.core.open.peer, client = ?self.core.lease.client.id, %error, "its socket stays with the thread that it left");
        }
        self.set_timer();
        if self.leaving.take().is_some() {
            self.begin_leaving();
        }
        self.inbound.migrated(&self.core);
        self.gate.migrated();
        self.outbound.migrated();
        self.probes.migrated();
    }
}
