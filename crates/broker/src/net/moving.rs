//! Migration of a connection to another worker thread.

use std::pin::Pin;

use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::threads::Home;

impl<S: Stream> ConnectionTask<S> {
    /// The thread to migrate to, if any; asked between two batches, when no work is in progress.
    #[inline]
    pub(super) fn leaves(&mut self) -> Option<Home> {
        self.shared.threads.as_ref()?.leaves_to(self.home.as_mut()?, self.lease.client.number)
    }

    /// Whether [`leaves`](Self::leaves) has a new decision to look at.
    pub(super) fn has_orders(&self) -> bool {
        let (home, threads) = (self.home.as_ref(), self.shared.threads.as_ref());
        home.zip(threads).is_some_and(|(home, threads)| threads.has_orders(home))
    }

    /// Continues on the given thread in a new task.
    pub(super) fn move_to(mut self, home: Home) {
        self.shared.metrics.connections_moved.add(1);
        let Some(runtime) = self.shared.threads.as_ref().map(|threads| threads.runtime(home).clone()) else { return };
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            self.arrive(home);
            let ended = self.run().await;
            if let Some(end) = self.leave(ended) {
                end.await;
            }
        });
        runtime.spawn(task);
    }

    /// Replaces resources of the former runtime. The first poll looks at everything and registers new wakers.
    fn arrive(&mut self, home: Home) {
        self.home = Some(home);
        self.rested_at = None;
        if let Err(error) = self.transport.stream().register_again() {
            tracing::debug!(peer = %self.shared.peer, client = ?self.lease.client.id, %error, "its socket stays with the thread that it left");
        }
        self.set_timer();
        self.throttle.set_timer();
        self.work_stealing.forget_timer();
        self.forget_who_is_woken();
        self.forget_rest_from_reading();
        self.forget_arrival_timers();
    }
}
