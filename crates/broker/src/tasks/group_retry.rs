//! Repeats failed reads of the backlogs of share groups.

use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use crate::lifecycle::BrokerState;

/// Repeats failed reads when they are due; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let unread = shared.routing.router.unread_groups();
    loop {
        let next = unread.next();
        let is_time = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = is_time => unread.look(Instant::now()),
            () = unread.added() => {}
        }
    }
}
