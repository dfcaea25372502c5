//! A snapshot of the broker each second. Without watchers it costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::control::ControlPlane;
use crate::problem::Problem;
use crate::site::Site;
use crate::stream::stream;
use crate::views::Sample;

/// Snapshots, made only while there are watchers.
#[derive(Debug)]
pub(crate) struct Events {
    /// The last snapshot as an event, which all watchers share.
    latest: watch::Sender<Bytes>,
    watched: Notify,
}

/// Selects the share group whose decisions come too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    group: Option<String>,
    filter: Option<String>,
}

impl Default for Events {
    fn default() -> Self {
        Self { latest: watch::Sender::new(Bytes::new()), watched: Notify::new() }
    }
}

impl Events {
    /// Makes snapshots while there are watchers.
    pub(crate) async fn run(&self, site: &Site) {
        let mut ticks = tokio::time::interval(EACH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<(Instant, Sample)> = None;
        loop {
            if self.latest.receiver_count() == 0 {
                before = None;
                self.watched.notified().await;
                ticks.reset_immediately();
            }
            ticks.tick().await;
            let cluster = site.view().await.map(|view| view.status);
            let Some(sample) = site.broker().map(|(plane, _)| plane.sample()) else {
                before = None;
                self.send(&json!({ "time_ms": time_ms(), "state": "standby", "cluster": cluster }));
                continue;
            };
            let now = Instant::now();
            // Rates need two samples.
            let rates = before.as_ref().map(|(at, before)| rates(before, &sample, now.saturating_duration_since(*at)));
            let mut snapshot = sample.figures.clone();
            snapshot["rates"] = rates.unwrap_or(Value::Null);
            snapshot["delivery"] = before.as_ref().map_or(Value::Null, |(_, before)| delivery(before, &sample));
            snapshot["cluster"] = cluster.unwrap_or(Value::Null);
            self.send(&snapshot);
            before = Some((now, sample));
        }
    }

    fn send(&self, snapshot: &Value) {
        self.latest.send_replace(Bytes::from(format!("{HEAD}{snapshot}{END}")));
    }

    /// Answers a watcher, until it leaves.
    pub(crate) fn watch(self: &Arc<Self>, site: Site, query: EventsQuery) -> Result<Response, Problem> {
        let group = match (query.group, query.filter) {
            (Some(group), Some(filter)) => Some((group, filter)),
            (None, None) => None,
            _ => return Err(Problem::new(StatusCode::BAD_REQUEST, "group and filter: need to come together")),
        };
        if self.latest.receiver_count() >= WATCHERS_MAX {
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{WATCHERS_MAX} others watch already")));
        }
        let mut snapshots = self.latest.subscribe();
        snapshots.mark_unchanged();
        self.watched.notify_one();
        let (sender, events) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut last = 0;
            while snapshots.changed().await.is_ok() {
                let mut event = snapshots.borrow_and_update().clone();
                if let (Some((name, filter)), Some((plane, _))) = (&group, site.broker()) {
                    event = with_decisions(&event, &decisions(&*plane, name, filter, &mut last));
                }
                // A watcher that does not read holds nothing but its own place.
                if sender.send_timeout(event, PATIENCE).await.is_err() {
                    return;
                }
            }
        });
        Ok(stream(events))
    }
}

fn time_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Adds decisions to the event of a snapshot.
fn with_decisions(event: &Bytes, decisions: &Value) -> Bytes {
    let open = event.strip_suffix(format!("}}{END}").as_bytes()).unwrap_or(event);
    [open, format!(",\"decisions\":{decisions}}}{END}").as_bytes()].concat().into()
}

/// Decisions of a group that are newer than number `last`.
fn decisions(plane: &dyn ControlPlane, name: &str, filter: &str, last: &mut u64) -> Value {
    let Ok(mut all) = plane.group_decisions(name, filter) else { return Value::Null };
    let Some(list) = all["decisions"].as_array_mut() else { return Value::Null };
    let number = |decision: &Value| decision["number"].as_u64().unwrap_or_default();
    list.retain(|decision| number(decision) > *last);
    *last = list.last().map_or(*last, number);
    Value::Array(std::mem::take(list))
}

/// Increase of each counter per second.
fn rates(before: &Sample, now: &Sample, elapsed: Duration) -> Value {
    let old: BTreeMap<_, _> = before.counters.iter().copied().collect();
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let rate = |&(name, value): &(&str, u64)| {
        let increase = value.saturating_sub(old.get(name).copied().unwrap_or(value));
        (name.to_owned(), json!((increase as f64 / seconds * 10.0).round() / 10.0))
    };
    now.counters.iter().map(rate).collect()
}

/// Quantiles of the deliveries measured between two samples; null without any.
fn delivery(before: &Sample, now: &Sample) -> Value {
    let old = before.delivery_times.iter().map(|(_, count)| *count).chain(std::iter::repeat(0));
    let counts = now.delivery_times.iter().zip(old).map(|(&(bound, count), old)| (bound, count.saturating_sub(old)));
    let counts: Vec<_> = counts.collect();
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return Value::Null;
    }
    json!({ "measured": total, "p50_ms": quantile(&counts, 0.5) * 1e3, "p99_ms": quantile(&counts, 0.99) * 1e3 })
}

/// The value below which a part of all values lie, between the bounds of its count in proportion.
pub fn quantile(counts: &[(f64, u64)], part: f64) -> f64 {
    let rank = part * counts.iter().map(|(_, count)| *count as f64).sum::<f64>();
    let (mut below, mut lower) = (0.0, 0.0);
    for &(bound, count) in counts {
        let count = count as f64;
        if count > 0.0 && below + count >= rank {
            let upper = if bound.is_finite() { bound } else { lower };
            return lower + (upper - lower) * ((rank - below) / count).clamp(0.0, 1.0);
        }
        (below, lower) = (below + count, if bound.is_finite() { bound } else { lower });
    }
    lower
}

const HEAD: &str = "event: snapshot\ndata: ";
const END: &str = "\n\n";
/// Interval of snapshots.
const EACH: Duration = Duration::from_secs(1);
/// Watchers at a time.
const WATCHERS_MAX: usize = 12;
/// Time for a watcher to read an event.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_bounds_of_their_count() {
        let counts = [(1.0, 0), (2.0, 50), (4.0, 49), (8.0, 0), (f64::INFINITY, 1)];
        assert_eq!((quantile(&counts, 0.5), quantile(&counts, 0.25), quantile(&counts, 0.99)), (2.0, 1.5, 4.0));
        assert_eq!(quantile(&counts, 1.0), 8.0, "without a bound the last one counts");
        let sample = |counts: &[(f64, u64)]| Sample { delivery_times: counts.to_vec(), ..Sample::default() };
        let both = [sample(&counts), sample(&[(1.0, 0), (2.0, 52), (4.0, 49), (8.0, 0), (f64::INFINITY, 1)])];
        assert_eq!(delivery(&both[0], &both[1]), json!({ "measured": 2, "p50_ms": 1500.0, "p99_ms": 1990.0 }));
        assert_eq!(delivery(&both[1], &both[1]), Value::Null);
    }
}
