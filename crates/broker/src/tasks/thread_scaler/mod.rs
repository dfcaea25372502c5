//! The thread scaler: spreads connections over as many worker threads as the load needs.

mod idle;
mod spread;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lifecycle::BrokerState;
use crate::threads::Move;
use idle::IdleTime;
use spread::Spread;

/// Balances the connections over the threads until the broker ends.
///
/// `is_restless` moves half of each thread's connections to the next thread every time, for tests.
pub(crate) async fn run(shared: Arc<BrokerState>, is_restless: bool) {
    let Some(threads) = &shared.operations.threads else { return };
    let count = threads.len();
    let mut spread = Spread::new(count);
    let mut before: Vec<Duration> = threads.busy().collect();
    let mut idle = IdleTime::default();
    let (mut looked_at, mut packets_before) = (Instant::now(), shared.operations.metrics.packets());
    if is_restless {
        threads.activate(count);
    }
    loop {
        tokio::time::sleep(if is_restless { RESTLESS_PAUSE } else { PAUSE }).await;
        if is_restless {
            (0..count).for_each(|from| threads.give(Move { from, to: (from + 1) % count, share: 0.5 }));
            continue;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(looked_at).as_secs_f64();
        let busy: Vec<Duration> = threads.busy().collect();
        let parts: Vec<f64> =
            busy.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before).as_secs_f64() / passed).collect();
        let packets = shared.operations.metrics.packets();
        let rate = (packets - packets_before) as f64 / passed;
        // Reading the machine's idle time is useless while no thread has much to do.
        let may_need_more = parts.len() > 1 && parts.iter().any(|&busy| busy > spread::ROOM);
        let left = if may_need_more { idle.processors(passed) } else { 0.0 };
        if !may_need_more {
            idle.forget();
        }
        let next = spread.next(parts.iter().copied(), rate, left);
        threads.activate(spread.active());
        if let Some(next) = next {
            tracing::debug!(?next, active = spread.active(), busy = ?parts, "connections move to another thread");
            threads.give(next);
        }
        (before, looked_at, packets_before) = (busy, now, packets);
    }
}

/// Interval between two samples.
const PAUSE: Duration = Duration::from_millis(100);
const RESTLESS_PAUSE: Duration = Duration::from_millis(3);
