//! Looks at share groups when they are due: see [`crate::router::DueGroups`].

use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use crate::lifecycle::BrokerState;
use crate::slices::Pauses;

/// Looks at the groups that are due; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let due = shared.routing.router.due_groups();
    loop {
        let next = due.next();
        let is_time = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = is_time => {
                shared.operations.leadership.held().await;
                let (now, mut pauses) = (Instant::now(), Pauses::default());
                while due.look(now) {
                    pauses.rest().await;
                }
            }
            () = due.added() => {}
        }
    }
}

/// Puts the messages aside that the last run left in their pause.
pub(crate) async fn find_paused(shared: Arc<BrokerState>) {
    shared.routing.router.find_paused().await;
}
