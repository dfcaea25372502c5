//! What the broker tells of share groups: `$SYS/share/<ShareName>/<filter>/members`, `…/shadow` and `…/decisions`.
//!
//! Nothing is read or written for those of which nobody wants to hear, and nothing is retained: who reads it was let in
//! by the ACL at that moment, and figures of a group that has ended would never go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::Text;
use tenbin_session::Publication;

use crate::router::{Publisher, ShareReport, SharedGroup};
use crate::shared::Shared;

/// Publishes each second for those who subscribe below `$SYS/share/`, and once in `interval` also for those who
/// subscribe to all of `$SYS`; for ever.
pub(crate) async fn run(shared: Arc<Shared>, interval: Duration) {
    let mut reporter = Reporter { publisher: Publisher::new(&shared.router, 0, &Text::EMPTY), after: 0 };
    let rounds_between = interval.as_secs().max(1);
    let mut ticks = tokio::time::interval(ROUND);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 0_u64.. {
        ticks.tick().await;
        for group in reporter.next(&shared, round % rounds_between == 0) {
            reporter.publish(&shared, &group, Instant::now());
            tokio::task::yield_now().await;
        }
    }
}

struct Reporter {
    publisher: Publisher,
    /// Number of the last group that was told of.
    after: u64,
}

impl Reporter {
    /// The groups of this round. Where more are watched, the others follow in the next.
    fn next(&mut self, shared: &Shared, far: bool) -> Vec<Arc<SharedGroup>> {
        let groups = shared.router.watched_groups(self.after, ROUND_GROUPS, far);
        self.after = match groups.last() {
            Some(last) if groups.len() == ROUND_GROUPS => last.number().get(),
            _ => 0,
        };
        groups
    }

    fn publish(&mut self, shared: &Shared, group: &SharedGroup, now: Instant) {
        for report in ShareReport::ALL {
            let Some(topic) = group.report_topic(report) else { return };
            if self.publisher.is_wanted(&shared.router, &topic)
                && let Some(payload) = group.report(report, shared.clock, now)
            {
                let publication = Publication::new(topic, Bytes::from(payload));
                self.publisher.publish(&shared.router, &publication, shared.clock.moment(now));
            }
        }
        self.publisher.flush(&shared.router, now);
    }
}

const ROUND: Duration = Duration::from_secs(1);
/// Groups that are told of in one round: a bound on what a subscription to all of them costs.
const ROUND_GROUPS: usize = 128;
