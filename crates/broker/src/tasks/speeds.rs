//! Stores remembered speeds at intervals: losing one costs little.

use std::sync::Arc;
use std::time::Duration;

use crate::lifecycle::BrokerState;

/// Stores changed speeds each minute, for as long as the broker runs.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        store_now(&shared);
    }
}

/// Stores changed speeds now; also called at the end.
pub(crate) fn store_now(shared: &BrokerState) {
    if let Some(durable) = &shared.storage.durable {
        durable.store_speeds(shared.routing.speeds.take_changes());
    }
}

const PAUSE: Duration = Duration::from_secs(60);
