use std::time::SystemTime;

use tenbin_store::mirror::ENDED;
use tenbin_store::spool;
use tenbin_store::state::Health;

use super::Durable;

/// Logs a change of the state's health.
pub(super) fn log(health: &Health) {
    match health {
        Health::Failed { error, .. } if error.contains(ENDED) => tracing::info!("the state is closed: {ENDED}"),
        Health::Failed { error, .. } => tracing::error!(
            %error,
            "the state cannot be written: requests that must be stored are not acknowledged until it can"
        ),
        _ => tracing::info!("the state can be written again; waiting changes are stored"),
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

impl Durable {
    /// Since when the log or the state cannot be written.
    pub(crate) fn failing_since(&self) -> Option<SystemTime> {
        let of_log = match self.spool.health() {
            spool::Health::Failed { since, .. } => Some(since),
            _ => None,
        };
        let of_state = match self.state.health() {
            Health::Failed { since, .. } => Some(since),
            _ => None,
        };
        of_log.into_iter().chain(of_state).min()
    }

    /// Waits until the health of the log of messages is not `seen`, and returns it.
    pub(crate) async fn health_after(&self, seen: &spool::Health) -> spool::Health {
        std::future::poll_fn(|context| self.spool.poll_health(seen, context)).await
    }
}
