use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenbin_store::spool;
use tenbin_store::state::Health;

use crate::broker_state::BrokerState;

/// Logs a change of the state's health.
pub(super) fn log(health: &Health) {
    match health {
        Health::Failed { error, .. } => tracing::error!(
            %error,
            "the state cannot be written: nothing is acknowledged that has to be kept, until it can"
        ),
        _ => tracing::info!("the state is written again, and so is what waited"),
    }
}

/// Health of the log of messages, in a word.
pub(super) fn word(health: &spool::Health) -> &'static str {
    match health {
        spool::Health::Writing => "writing",
        spool::Health::Failed { .. } => "failed",
        spool::Health::NoRoom { .. } => "no room",
        spool::Health::Damaged { .. } => "damaged",
        _ => "unknown",
    }
}

/// How often the log of messages learns the size of the state.
const LOOK_AT_DISK: Duration = Duration::from_secs(1);

/// Logs each change of the health of the log of messages, for as long as the broker runs.
pub(crate) async fn watch_messages(shared: Arc<BrokerState>) {
    let Some(durable) = shared.durable.clone() else { return };
    drop(shared);
    let mut seen = spool::Health::Writing;
    loop {
        durable.note_used_bytes();
        let changed = poll_fn(|context| durable.spool.poll_health(&seen, context));
        let Ok(health) = tokio::time::timeout(LOOK_AT_DISK, changed).await else { continue };
        seen = health;
        match &seen {
            spool::Health::Writing => tracing::info!("messages are written again, and so are those that waited"),
            spool::Health::Failed { error, .. } => tracing::error!(
                %error,
                "messages cannot be written: none is acknowledged that has to be kept, until they can"
            ),
            spool::Health::Damaged { error } => {
                tracing::error!(%error, "messages on disk are damaged: a restart will be refused");
            }
            spool::Health::NoRoom { error, .. } => tracing::error!(
                %error,
                "there is little room left for messages: less is taken in, as long as what is there is acknowledged"
            ),
            other => tracing::warn!(health = ?other, "messages"),
        }
    }
}
