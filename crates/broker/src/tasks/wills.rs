//! Forgets published Wills, each once its message is durable.

use std::sync::Arc;

use crate::lifecycle::BrokerState;

/// Forgets published Wills, for as long as the broker runs.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let Some(durable) = &shared.storage.durable else { return };
    loop {
        durable.forget_next_wills().await;
    }
}
