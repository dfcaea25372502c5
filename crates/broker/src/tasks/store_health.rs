//! Logs the health of the log of messages.

use std::sync::Arc;
use std::time::Duration;

use tenbin_store::spool;

use crate::lifecycle::BrokerState;

/// Logs each change of the health of the log of messages, for as long as the broker runs.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let Some(durable) = shared.storage.durable.clone() else { return };
    drop(shared);
    let mut seen = spool::Health::Writing;
    loop {
        durable.note_used_bytes();
        let Ok(health) = tokio::time::timeout(LOOK_AT_DISK, durable.health_after(&seen)).await else { continue };
        seen = health;
        match &seen {
            spool::Health::Writing => tracing::info!("messages can be written again; waiting ones are stored"),
            spool::Health::Failed { error, .. } => tracing::error!(
                %error,
                "messages cannot be written: those that must be stored are not acknowledged until they can"
            ),
            spool::Health::Damaged { error } => {
                tracing::error!(%error, "messages on disk are damaged: a restart will be refused");
            }
            spool::Health::NoRoom { error, .. } => tracing::error!(
                %error,
                "little room is left for messages: new ones are held back while stored ones are acknowledged"
            ),
            other => tracing::warn!(health = ?other, "messages"),
        }
    }
}

/// How often the log of messages learns the size of the state.
const LOOK_AT_DISK: Duration = Duration::from_secs(1);
