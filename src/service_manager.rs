//! Messages to systemd, if it started the program: `$NOTIFY_SOCKET` of sd_notify(3). Elsewhere they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The broker serves clients, or has finished a reload.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins. [`ready`] ends it.
pub(crate) fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells systemd that the broker runs. Without a message in `WatchdogSec`, systemd starts it again.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Interval of [`alive`]: half of `WatchdogSec`. `None` without a watchdog.
pub(crate) fn watchdog() -> Option<Interval> {
    let period = sd_notify::watchdog_enabled()? / 2;
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(ticks)
}

/// Waits for the next tick; for ever without an interval.
pub(crate) async fn next(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell systemd the state of the broker");
    }
}
