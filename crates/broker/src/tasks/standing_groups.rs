//! Drops messages that have waited too long with standing share groups.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lifecycle::BrokerState;

/// Looks every second; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for () in shared.routing.router.drop_overdue(Instant::now()) {
            tokio::task::yield_now().await;
        }
    }
}
