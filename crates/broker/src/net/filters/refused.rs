//! Causes of refused subscriptions, for operators.

use std::time::Instant;

use crate::net::core::Core;
use crate::values::Bound;

/// Why a subscription is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Limit(Bound),
    Acl,
    NotSupported,
    Hook,
    Disk,
}

/// Counts refused subscriptions by cause, and logs each cause once.
#[cold]
pub(super) fn note_refused(core: &Core, mut refused: Vec<Cause>, now: Instant) {
    let (metrics, peer, client) = (&core.open.shared.operations.metrics, core.open.peer, &core.lease.client.id);
    let told = core.connection.version().is_v5();
    if !told {
        metrics.unseen_subscribes.add(refused.len() as u64);
    }
    refused.sort_unstable();
    for alike in refused.chunk_by(|one, other| one == other) {
        let subscriptions = alike.len() as u64;
        let (counter, cause) = match alike[0] {
            Cause::Limit(bound) => {
                metrics.subscriptions_refused.add(subscriptions);
                metrics.bounds.hit(bound, subscriptions, now);
                let limit = bound.key();
                tracing::warn!(%peer, ?client, limit, subscriptions, told, "subscriptions refused: limit reached");
                continue;
            }
            Cause::Acl => {
                metrics.subscriptions_denied.add(subscriptions); // logged one by one
                continue;
            }
            Cause::NotSupported => (&metrics.subscriptions_unsupported, "[capabilities] leaves them out"),
            Cause::Hook => (&metrics.subscriptions_hooked, "a hook"),
            Cause::Disk => (&metrics.subscriptions_congested, "the disk is congested"),
        };
        counter.add(subscriptions);
        tracing::info!(%peer, ?client, cause, subscriptions, told, "subscriptions refused");
    }
}
