//! Retained status messages below `$SYS/broker/`, with Mosquitto's topic names.
//!
//! No topic or payload contains text that a client chose. This task reads the counters once per interval; they are
//! written once per batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Text, TopicName};
use tenbin_session::Publication;

use crate::durable::Durable;
use crate::hooks::Events;
use crate::lifecycle::{BrokerState, Routing, Storage};
use crate::metrics::MetricsSnapshot;
use crate::router::{Collector, Publisher, Router};
use crate::values::Moment;

/// Publishes changed values at once and then every `interval`, until the broker ends.
pub(crate) async fn run(shared: Arc<BrokerState>, interval: Duration) {
    let mut topics = SysTopics::new(&shared.routing.router, Instant::now());
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => topics.publish(&shared, Instant::now()),
            () = shared.routing.slow_receivers.changed() => topics.publish_slow(&shared, Instant::now()),
        }
    }
}

#[derive(Debug)]
struct SysTopics {
    publisher: Publisher,
    started: Instant,
    /// Last published value of each topic.
    published: HashMap<String, String>,
    loads: Vec<Load>,
    averaged: Instant,
}

/// Increase of a counter per minute, as moving averages.
#[derive(Debug)]
struct Load {
    name: &'static str,
    counter: Counter,
    last: u64,
    averages: [f64; AVERAGES.len()],
}

impl SysTopics {
    fn new(router: &Router, now: Instant) -> Self {
        let load = |&(name, counter)| Load { name, counter, last: 0, averages: [0.0; AVERAGES.len()] };
        Self {
            publisher: Publisher::new(router, 0, &Text::EMPTY),
            started: now,
            published: HashMap::new(),
            loads: LOADS.iter().map(load).collect(),
            averaged: now,
        }
    }

    fn publish(&mut self, shared: &BrokerState, now: Instant) {
        let metrics = shared.operations.metrics.snapshot();
        if shared.operations.hooks.has(Events::SYS_TICK) {
            shared.operations.hooks.tell(Events::SYS_TICK, |hooks| hooks.sys_tick(&metrics));
        }
        let elapsed = now.saturating_duration_since(self.averaged);
        self.averaged = now;
        let mut values = figures(shared, &metrics, now.saturating_duration_since(self.started));
        for load in &mut self.loads {
            load.update(&metrics, elapsed);
            let averages = AVERAGES.iter().zip(load.averages);
            values.extend(averages.map(|((span, _), value)| (format!("{}/{span}", load.name), format!("{value:.2}"))));
        }
        self.publish_changed(shared, values, now);
    }

    /// Publishes the number of slow receivers at once, because operators may wait for it.
    fn publish_slow(&mut self, shared: &BrokerState, now: Instant) {
        let metrics = &shared.operations.metrics;
        let clients = [("clients/watch", &metrics.clients_watch), ("clients/spooling", &metrics.clients_spooling)];
        let values = clients.map(|(name, clients)| (name.to_owned(), clients.get().to_string()));
        self.publish_changed(shared, values.to_vec(), now);
    }

    fn publish_changed(&mut self, shared: &BrokerState, values: Vec<(String, String)>, now: Instant) {
        let mut collector = Collector::new();
        for (name, value) in values {
            if self.published.get(&name) != Some(&value) {
                self.publish_one(&shared.routing, &mut collector, &name, &value, shared.clock.moment(now));
                self.published.insert(name, value);
            }
        }
        self.publisher.flush(&shared.routing.router, &mut collector, now);
    }

    fn publish_one(&mut self, routing: &Routing, collector: &mut Collector, name: &str, value: &str, now: Moment) {
        let Ok(topic) = TopicName::try_from(&format!("$SYS/broker/{name}")[..]) else { return };
        let payload = Bytes::copy_from_slice(value.as_bytes());
        let publication = Publication { retain: true, ..Publication::new(topic, payload) };
        self.publisher.publish(&routing.router, collector, &publication, now);
    }
}

impl Load {
    fn update(&mut self, metrics: &MetricsSnapshot, elapsed: Duration) {
        let value = (self.counter)(metrics);
        let added = value.saturating_sub(self.last);
        self.last = value;
        let minutes = elapsed.as_secs_f64() / 60.0;
        if minutes <= 0.0 {
            return;
        }
        let a_minute = added as f64 / minutes;
        for ((_, span), average) in AVERAGES.iter().zip(&mut self.averages) {
            let kept = (-minutes / span).exp();
            *average = a_minute + kept * (*average - a_minute);
        }
    }
}

/// Returns names below `$SYS/broker/` with their values.
fn figures(shared: &BrokerState, metrics: &MetricsSnapshot, uptime: Duration) -> Vec<(String, String)> {
    let BrokerState { admission, storage, routing, sessions, operations, .. } = shared;
    let (retained, retained_bytes) = routing.router.retained_totals();
    let (queued, queued_bytes) = (storage.budget.messages(), storage.budget.used());
    let sessions = sessions.registry.len() as u64;
    let count = |count: usize| count as u64;
    let numbers = [
        ("clients/total", sessions),
        ("clients/active", metrics.clients_connected),
        ("clients/disconnected", sessions.saturating_sub(metrics.clients_connected)),
        ("clients/inactive", sessions.saturating_sub(metrics.clients_connected)),
        ("messages/stored", count(retained + queued)),
        ("publish/messages/dropped", metrics.dropped()),
        ("retained messages/count", count(retained)),
        ("retained messages/bytes", count(retained_bytes)),
        ("queued messages/count", count(queued)),
        ("queued messages/bytes", count(queued_bytes)),
        ("store/messages/count", count(retained + queued)),
        ("store/messages/bytes", count(retained_bytes + queued_bytes)),
        ("log/suppressed", operations.log_limiter.suppressed()),
    ];
    let numbers = metrics.topics().chain(numbers);
    let mut figures: Vec<_> = numbers.map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    figures.extend(memory_figures(storage));
    figures.extend(storage.durable.iter().flat_map(|durable| state_figures(durable)));
    figures.extend(storage.durable.iter().flat_map(|durable| spool_figures(durable)));
    let gateways = admission.gateways.iter().flat_map(|gateways| gateways.values());
    figures.extend(gateways.map(|counted| (counted.topic, counted.value.to_string())));
    figures.push(("version".to_owned(), format!("tenbin version {}", env!("CARGO_PKG_VERSION"))));
    figures.push(("uptime".to_owned(), format!("{} seconds", uptime.as_secs())));
    figures
}

/// Returns the memory that clients occupy, by kind.
fn memory_figures(storage: &Storage) -> Vec<(String, String)> {
    let (mut figures, mut all_refused) = (Vec::new(), 0);
    for (kind, bytes, refused) in storage.memory.by_kind() {
        all_refused += refused;
        figures.push((format!("memory/{}/bytes", kind.name()), bytes.to_string()));
        figures.push((format!("memory/{}/refused", kind.name()), refused.to_string()));
    }
    figures.push(("memory/bytes".to_owned(), storage.memory.used().to_string()));
    figures.push(("memory/refused".to_owned(), all_refused.to_string()));
    figures
}

/// Returns the figures of the state on disk.
fn state_figures(durable: &Durable) -> Vec<(String, String)> {
    let stats = durable.stats();
    let health = if durable.is_failing() { "failed" } else { "writing" };
    let numbers = [
        ("changes", stats.changes),
        ("written", stats.written),
        ("commits", stats.commits),
        ("commits/microseconds", microseconds(stats.commit_time)),
        ("failures", stats.failures),
        ("pending/bytes", stats.pending_bytes as u64),
    ];
    let mut figures = numbers.map(|(name, value)| (format!("store/state/{name}"), value.to_string())).to_vec();
    let spool = durable.spool_stats();
    let waiting = [("messages", spool.waiting), ("bytes", spool.live_bytes)];
    figures.extend(waiting.map(|(name, value)| (format!("spooling/{name}"), value.to_string())));
    figures.push(("store/state/health".to_owned(), health.to_owned()));
    figures
}

/// Returns the figures of the log of messages on disk.
fn spool_figures(durable: &Durable) -> Vec<(String, String)> {
    let (stats, health) = durable.message_stats();
    let mean_sync_time = stats.sync_time.as_micros().checked_div(stats.commits.into()).unwrap_or(0);
    let numbers = [
        ("waiting/count", stats.waiting),
        ("waiting/bytes", stats.live_bytes),
        ("segments", stats.segments as u64),
        ("bytes", stats.log_bytes),
        ("pending/bytes", stats.pending_bytes as u64),
        ("commits", stats.commits),
        ("commits/microseconds", microseconds(stats.sync_time)),
        ("commits/mean/microseconds", u64::try_from(mean_sync_time).unwrap_or(u64::MAX)),
        ("failures", stats.failures),
    ];
    let mut figures = numbers.map(|(name, value)| (format!("store/spool/{name}"), value.to_string())).to_vec();
    figures.push(("store/spool/health".to_owned(), health.to_owned()));
    let (state, messages) = durable.used_bytes();
    let free = durable.free_bytes().map(|free| ("free", free));
    let bytes = [("used", state + messages), ("maximum", durable.bytes_maximum())].into_iter().chain(free);
    figures.extend(bytes.map(|(name, value)| (format!("store/bytes/{name}"), value.to_string())));
    figures
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Periods of the averages: name and minutes.
const AVERAGES: [(&str, f64); 3] = [("1min", 1.0), ("5min", 5.0), ("15min", 15.0)];

/// Selects a counter.
type Counter = fn(&MetricsSnapshot) -> u64;

/// Averaged counters.
const LOADS: [(&str, Counter); 9] = [
    ("load/connections", |metrics| metrics.connects_accepted),
    ("load/sockets", |metrics| metrics.connections_opened),
    ("load/messages/received", |metrics| metrics.packets_received),
    ("load/messages/sent", |metrics| metrics.packets_sent),
    ("load/publish/received", |metrics| metrics.messages_received),
    ("load/publish/sent", |metrics| metrics.messages_sent),
    ("load/publish/dropped", MetricsSnapshot::dropped),
    ("load/bytes/received", |metrics| metrics.bytes_received),
    ("load/bytes/sent", |metrics| metrics.bytes_sent),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Access, Settings};

    fn shared() -> BrokerState {
        let config = crate::Config::default();
        let settings = Settings::load(&config, true).expect("the default has no files");
        BrokerState::new(config, Access::new(settings, [0; 32], None, None), true, None, None, Arc::default())
    }

    #[test]
    fn steady_load_equals_its_average() {
        let shared = shared();
        let counter = |metrics: &MetricsSnapshot| metrics.messages_received;
        let mut load = Load { name: "x", counter, last: 0, averages: [0.0; 3] };
        for _ in 0..2000 {
            shared.operations.metrics.messages_received.add([100, 0, 0]);
            load.update(&shared.operations.metrics.snapshot(), Duration::from_secs(10));
        }
        assert!(load.averages.iter().all(|average| (average - 600.0).abs() < 0.01), "{load:?}");
        load.update(&shared.operations.metrics.snapshot(), Duration::from_secs(60));
        assert!((load.averages[0] - 600.0 / std::f64::consts::E).abs() < 0.01, "{load:?}");
    }

    #[test]
    fn only_changed_values_are_published() {
        let shared = shared();
        let now = Instant::now();
        let mut topics = SysTopics::new(&shared.routing.router, now);
        topics.publish(&shared, now);
        let first = topics.published.clone();
        topics.publish(&shared, now + Duration::from_secs(10));
        let changed = topics.published.iter().filter(|(name, value)| first.get(*name) != Some(value));
        assert_eq!(changed.map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["uptime"]);
    }
}
