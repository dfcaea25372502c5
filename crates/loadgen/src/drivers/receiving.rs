//! Subscribers.

use std::rc::Rc;
use std::time::Duration;

use crate::run::{Came, Slow};
use tokio::time::Instant;

use super::host::Side;
use super::protocol::{Arrival, Inlet};

/// Receives and records messages until the run ends.
pub(super) async fn receive<I: Inlet>(side: Rc<Side>, receiver: u32, mut inlet: I) {
    tokio::select! {
        biased;
        () = side.is_over() => {}
        () = record(&side, receiver, &mut inlet) => {}
    }
    // The run does not wait for a system that is away.
    let _ = tokio::time::timeout(CLOSING, inlet.close()).await;
}

async fn record<I: Inlet>(side: &Side, receiver: u32, inlet: &mut I) {
    let member = &side.layout.receivers()[receiver as usize];
    let audience = &side.plan.audiences[member.audience];
    let slow = audience.slow.filter(|slow| member.member + slow.members >= audience.count);
    let is_shared = audience.share.is_some();
    let mut arrivals = Vec::new();
    loop {
        let most = match slow.and_then(|slow| pace(side, &slow)) {
            None => MOST_AT_ONCE,
            Some(pause) => {
                tokio::time::sleep_until(Instant::now() + pause).await;
                1
            }
        };
        inlet.receive(&mut arrivals, most).await;
        take(side, receiver, is_shared, &mut arrivals);
        inlet.acknowledge().await;
    }
}

/// Pause of a slow subscriber before its next message; `None` while it may read at full speed.
fn pace(side: &Side, slow: &Slow) -> Option<Duration> {
    let now_ns = side.clock.now_ns();
    let at_ns = |after: Duration| side.start_ns().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
    let has_begun = slow.from.is_zero() || now_ns >= at_ns(slow.from);
    let has_ended = slow.until.is_some_and(|until| now_ns >= at_ns(until));
    if !has_begun || has_ended {
        return None;
    }
    let left = slow.until.map_or(FOR_EVER, |until| Duration::from_nanos(at_ns(until).saturating_sub(now_ns)));
    Some(if slow.rate > 0.0 { Duration::from_secs_f64(1.0 / slow.rate).min(left) } else { left.min(FOR_EVER) })
}

/// Records the messages of one read, which have the same time of arrival.
fn take(side: &Side, receiver: u32, is_shared: bool, arrivals: &mut Vec<Arrival>) {
    if arrivals.is_empty() {
        return;
    }
    let now_ns = side.clock.now_ns();
    let (mut first, mut copies) = (0, 0);
    {
        let mut recorder = side.recorder();
        for Arrival { payload, is_repeated } in arrivals.drain(..) {
            match recorder.arrived(receiver, &payload, is_repeated, now_ns) {
                Came::First => first += 1,
                Came::Again => copies += 1,
                Came::NotOurs => {}
            }
        }
    }
    let counters = side.counters();
    counters.received.add(first);
    counters.copies.add(copies);
    if is_shared {
        counters.doubtful.add(copies);
    }
    if let Some(window) = side.window() {
        window.receive(first);
    }
}

/// Most messages of one read, so that their common time of arrival is exact.
const MOST_AT_ONCE: usize = 256;

/// Longest pause of a subscriber that reads nothing.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Longest time for leaving a system.
pub(super) const CLOSING: Duration = Duration::from_secs(2);
