//! Topics about share groups: `$SYS/share/<ShareName>/<filter>/members`, `…/shadow` and `…/decisions`.
//!
//! Groups without a subscriber to these topics cost nothing. The messages are not retained: the ACL checks each
//! receiver when they are sent, and retained messages of ended groups would stay for ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::Text;
use tenbin_session::Publication;

use crate::lifecycle::{BrokerState, Routing};
use crate::router::{Collector, Publisher, ShareReport, SharedGroup};

/// Publishes every second for subscriptions below `$SYS/share/`, and every `interval` also for those to all of `$SYS`.
///
/// Runs until the broker ends.
pub(crate) async fn run(shared: Arc<BrokerState>, interval: Duration) {
    let mut reporter = Reporter { publisher: Publisher::new(&shared.routing.router, 0, &Text::EMPTY), after: 0 };
    let rounds_between = interval.as_secs().max(1);
    let mut ticks = tokio::time::interval(ROUND);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 0_u64.. {
        ticks.tick().await;
        for group in reporter.next(&shared.routing, round % rounds_between == 0) {
            reporter.publish(&shared, &group, Instant::now());
            tokio::task::yield_now().await;
        }
    }
}

struct Reporter {
    publisher: Publisher,
    /// Number of the last published group.
    after: u64,
}

impl Reporter {
    /// Returns the groups of this round: those that rules name, and some of the others. Further ones follow in the next.
    fn next(&mut self, routing: &Routing, far: bool) -> Vec<Arc<SharedGroup>> {
        let groups = routing.router.watched_groups(self.after, ROUND_GROUPS, far);
        self.after = match groups.last() {
            Some(last) if groups.len() == ROUND_GROUPS => last.number().get(),
            _ => 0,
        };
        let mut all = routing.router.named_groups();
        let named: HashSet<_> = all.iter().map(|group| group.number()).collect();
        all.extend(groups.into_iter().filter(|group| !named.contains(&group.number())));
        all
    }

    fn publish(&mut self, shared: &BrokerState, group: &SharedGroup, now: Instant) {
        let mut collector = Collector::new();
        for report in ShareReport::ALL {
            let Some(topic) = group.report_topic(report) else { return };
            if self.publisher.is_wanted(&shared.routing.router, &topic)
                && let Some(payload) = group.report(report, shared.clock, now)
            {
                let publication = Publication::new(topic, Bytes::from(payload));
                self.publisher.publish(&shared.routing.router, &mut collector, &publication, shared.clock.moment(now));
            }
        }
        self.publisher.flush(&shared.routing.router, &mut collector, now);
    }
}

const ROUND: Duration = Duration::from_secs(1);
/// Groups per round that rules do not name, which bounds the cost of a subscription to all of them.
const ROUND_GROUPS: usize = 128;
