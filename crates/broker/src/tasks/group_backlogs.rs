//! Offers the backlogs of share groups to members that may wait for more messages before they acknowledge, and tells hooks
//! of groups whose backlog is too long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hooks::Events;
use crate::lifecycle::BrokerState;
use crate::router::SharedGroup;

/// Looks every second; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut long = BTreeMap::new();
    loop {
        ticks.tick().await;
        for () in shared.routing.router.offer_backlogs(Instant::now()) {
            tokio::task::yield_now().await;
        }
        if shared.operations.hooks.has(Events::GROUP_BACKLOG) {
            long = look(&shared, long);
        }
    }
}

/// Tells of groups that were not among `before`, or were and no longer are. Returns the present ones, by number.
fn look(shared: &BrokerState, mut before: BTreeMap<u64, Arc<SharedGroup>>) -> BTreeMap<u64, Arc<SharedGroup>> {
    let tell = |group: &SharedGroup, is_over: bool| {
        let (name, messages) = (group.full_name(), group.waiting());
        shared.operations.hooks.tell(Events::GROUP_BACKLOG, |hooks| hooks.group_backlog(&name, messages, is_over));
    };
    let mut now = BTreeMap::new();
    for group in shared.routing.router.congested_groups() {
        let number = group.number().get();
        if before.remove(&number).is_none() {
            tell(&group, false);
        }
        now.insert(number, group);
    }
    before.values().for_each(|group| tell(group, true));
    now
}
