//! Expiry: sessions without a connection whose Will or end is due, and retained messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lifecycle::BrokerState;
use crate::slices::Pauses;

/// Passes sessions on when work for them is due, for as long as the broker runs.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let queue = &shared.sessions.expiry;
    loop {
        let next = queue.next_due();
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = queue.earlier() => continue,
        }
        shared.operations.leadership.held().await;
        let now = Instant::now();
        let mut pauses = Pauses::default();
        while let Some(client) = queue.pop_due(now) {
            if let Some(client) = client.upgrade() {
                shared.sessions.long_ends.look_at(client);
            }
            pauses.rest().await;
        }
    }
}

/// Frees the memory of expired retained messages, for as long as the broker runs. There is no hurry: the router does
/// not deliver them any more.
pub(crate) async fn sweep_retained(shared: Arc<BrokerState>) {
    loop {
        let is_more = shared.routing.router.sweep_retained(Instant::now());
        tokio::time::sleep(if is_more { SWEEP_PAUSE } else { SWEEP_INTERVAL }).await;
    }
}

/// Pause between two parts of a sweep. For a million topics a sweep takes minutes, and little processor time.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// Pause between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
