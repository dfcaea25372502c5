//! Does the due work of sessions without a connection: publishes their Wills, and ends them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::lifecycle::{self, BrokerState, Due, Lane, LongEnds, Operations};
use crate::slices::Pauses;

/// Does due work, for as long as the broker runs.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let _open = shared.sessions.long_ends.open();
    tokio::join!(publish_wills(&shared), end_sessions(&shared));
}

async fn publish_wills(shared: &BrokerState) {
    let LongEnds { wills, ends } = &shared.sessions.long_ends;
    shared.may_act().await; // publishes the Wills of the last run
    loop {
        let mut pauses = Pauses::default();
        while let Some(due) = next(&shared.operations, wills).await {
            // The holder of a lease checks for due work when it gives the lease back.
            if let Some(lease) = due.client.try_lease() {
                let mut is_over = false;
                unless_it_panics(async { is_over = lifecycle::look_at(shared, lease, Instant::now()) }).await;
                if is_over {
                    ends.push(due);
                }
            }
            pauses.rest().await;
        }
        wills.added().await;
    }
}

async fn end_sessions(shared: &BrokerState) {
    let ends = &shared.sessions.long_ends.ends;
    loop {
        let mut pauses = Pauses::default();
        while let Some(Due { client, done }) = next(&shared.operations, ends).await {
            if let Some(lease) = client.try_lease() {
                unless_it_panics(lifecycle::expire(shared, lease, Instant::now(), &mut pauses)).await;
            }
            drop(done);
            pauses.rest().await;
        }
        ends.added().await;
    }
}

/// The next session of a lane, once the broker may act.
async fn next(operations: &Operations, lane: &Lane) -> Option<Due> {
    operations.leadership.held().await;
    lane.take()
}

/// Runs `work`. A panic ends only this work, and is logged by the panic hook.
async fn unless_it_panics(work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| if cfg!(test) { resume_unwind(panic) } else { Poll::Ready(()) })
    })
    .await;
}
