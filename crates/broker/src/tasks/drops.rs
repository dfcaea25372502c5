//! Logs dropped messages that no other line tells of.

use std::sync::Arc;
use std::time::Duration;

use crate::lifecycle::BrokerState;

/// Logs the number of newly dropped messages, a line for each reason every 10 seconds; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let metrics = &shared.operations.metrics;
    let mut told = [0; 2];
    loop {
        tokio::time::sleep(LOOK).await;
        let now = [&metrics.dropped_expired, &metrics.dropped_too_large].map(|count| count.get());
        if now == told {
            continue;
        }
        let [expired, too_large] = [0, 1].map(|reason| now[reason] - told[reason]);
        if expired > 0 {
            tracing::info!(messages = expired, "messages dropped: they have expired");
        }
        if too_large > 0 {
            tracing::info!(
                messages = too_large,
                "messages dropped: they exceed the Maximum Packet Size of their receivers"
            );
        }
        told = now;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Time without further lines.
const PAUSE: Duration = Duration::from_secs(9);
