//! Slow-consumer monitor: one task that samples slow receivers every 100 ms.
//!
//! A connection's task registers itself when it cannot send more, or leaves much in its queue. Other receivers cost
//! nothing. A nearly full queue has its receiver sampled at once.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::slow_moves::Moves;
use crate::hooks::Events;
use crate::lifecycle::BrokerState;
use crate::outbox::{Health, Pace, Refusals, Sample, Transition};
use crate::registry::Client;

/// Runs the monitor until the broker ends.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let mut looks = Looks::default();
    loop {
        let concerns = &shared.routing.slow_receivers.concerns;
        match looks.watched.is_empty() && looks.moves.is_empty() && shared.routing.slow_receivers.may_rest() {
            true => concerns.wait().await,
            // At least `AT_ONCE` between two rounds, even under constant alarms.
            false => {
                tokio::time::sleep(AT_ONCE).await;
                let _ = tokio::time::timeout(LOOK - AT_ONCE, concerns.wait()).await;
            }
        }
        looks.look(&shared, Instant::now());
    }
}

/// State of the monitor.
#[derive(Debug, Default)]
struct Looks {
    watched: Vec<Watched>,
    moves: Moves,
    lines: Lines,
    /// Time of the last log lines about refusals.
    refusals_told: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    client: Arc<Client>,
    /// Number of the connection that `health` is about.
    connection: u32,
    health: Health,
}

impl Looks {
    fn look(&mut self, shared: &BrokerState, now: Instant) {
        let newcomers = shared.routing.slow_receivers.take_newcomers();
        let watched = |client| Watched { client, connection: 0, health: Health::default() };
        self.watched.extend(newcomers.into_iter().map(watched));
        let (lines, moves) = (&mut self.lines, &mut self.moves);
        self.watched.retain_mut(|watched| watched.look(shared, lines, moves, now));
        if !self.moves.is_empty() {
            self.moves.look(&shared.routing.slow_receivers, now);
        }
        shared.routing.slow_receivers.list(
            self.watched.iter().filter(|watched| watched.health.pace() != Pace::Normal).map(|watched| &watched.client),
        );
        if self.watched.capacity() > KEPT_PLACES && self.watched.is_empty() {
            self.watched = Vec::new();
        }
        self.tell_refusals(shared, now);
    }

    /// Logs refused messages by receiver, and messages that were not retained. MQTT 3.1.1 cannot report either.
    fn tell_refusals(&mut self, shared: &BrokerState, now: Instant) {
        let is_early = self.refusals_told.is_some_and(|told| now.saturating_duration_since(told) < REFUSALS_TOLD_EACH);
        let concerns = &shared.routing.slow_receivers.concerns;
        if is_early || !concerns.has_refused() {
            return;
        }
        self.refusals_told = Some(now);
        if let Some((messages, bound)) = concerns.take_dropped() {
            let limit = bound.key();
            tracing::warn!(messages, limit, "messages are dropped: the queues of slow receivers are full");
        }
        if let Some(Refusals { messages, name: topic, bound }) = concerns.take_not_retained() {
            let limit = bound.key();
            tracing::warn!(messages, %topic, limit, "messages are not retained: the limits of [retained] leave no room for them");
        }
        if let Some(Refusals { messages, name: group, bound }) = concerns.take_by_groups() {
            let limit = bound.key();
            tracing::warn!(messages, %group, limit, "messages for share groups are refused: the backlog is full");
        }
        let refused = concerns.take_refused();
        let mut told = 0;
        shared.sessions.registry.for_each(|client| {
            if told < REFUSALS_TOLD
                && let Some((messages, bound)) = refused.get(&client.number)
            {
                told += 1;
                let limit = bound.key();
                tracing::warn!(client = ?client.id, messages, limit, "messages for the client are refused: its queue is full");
            }
        });
        if refused.len() > told {
            tracing::warn!(clients = refused.len() - told, "messages for further clients are refused");
        }
    }
}

impl Watched {
    /// Samples the receiver and updates its consumer state; returns whether to keep monitoring it.
    fn look(&mut self, shared: &BrokerState, lines: &mut Lines, moves: &mut Moves, now: Instant) -> bool {
        let outbox = Arc::clone(&self.client.outbox);
        let sample = outbox.sample();
        let Some((connection, sample)) = sample else {
            self.ends(shared);
            return !outbox.end_watch();
        };
        if connection != self.connection {
            self.ends(shared);
            self.connection = connection;
        }
        let bounds = outbox.bounds();
        let changed = self.health.look(sample, &bounds, now);
        let pace = self.health.pace();
        if changed.is_some() || pace != Pace::Normal {
            let is_done = outbox.set_pace(connection, pace, self.health.soft(&bounds));
            if let Some(transition) = changed {
                if is_done {
                    count(shared, &self.client, transition);
                    self.tell(transition, &sample, lines, now);
                } else {
                    self.health.stay(transition.from);
                }
            }
        }
        moves.offer(&shared.routing.slow_receivers, &self.client, self.health.pace(), &sample, now);
        !(self.health.pace() == Pace::Normal && outbox.end_watch())
    }

    /// Resets the state, because its connection has ended.
    fn ends(&mut self, shared: &BrokerState) {
        let from = mem::take(&mut self.health).pace();
        if from != Pace::Normal {
            count(shared, &self.client, Transition { from, to: Pace::Normal });
            tracing::info!(client = ?self.client.id, from = from.name(), "the receiver has disconnected");
        }
    }

    fn tell(&self, Transition { from, to }: Transition, sample: &Sample, lines: &mut Lines, now: Instant) {
        if !lines.may_tell(now) {
            return;
        }
        tracing::info!(
            client = ?self.client.id,
            from = from.name(),
            to = to.name(),
            queued_bytes = sample.bytes,
            queued_messages = sample.messages,
            disk_bytes = sample.tail_bytes,
            disk_messages = sample.tail_messages,
            unsent_bytes = sample.unsent_bytes,
            head_age_ms = self.health.head_age(now).as_millis(),
            drain_rate = self.health.drain_rate() as u64,
            arrival_rate = self.health.arrival_rate() as u64,
            "a receiver changes its pace"
        );
    }
}

fn count(shared: &BrokerState, client: &Client, Transition { from, to }: Transition) {
    let metrics = &shared.operations.metrics;
    match from {
        Pace::Normal => {}
        Pace::Watch => metrics.clients_watch.subtract(1),
        Pace::Spooling => {
            metrics.clients_spooling.subtract(1);
            metrics.spooling_ended.add(1);
        }
    }
    match to {
        Pace::Normal => {}
        Pace::Watch => {
            metrics.clients_watch.add(1);
            metrics.watch_begun.add(1);
        }
        Pace::Spooling => {
            metrics.clients_spooling.add(1);
            metrics.spooling_begun.add(1);
        }
    }
    shared.routing.slow_receivers.tell_changed();
    match (from, to) {
        (Pace::Normal, Pace::Watch | Pace::Spooling) => {
            shared.operations.hooks.tell(Events::SLOW_BEGUN, |hooks| hooks.slow_begun(&client.id));
        }
        (Pace::Watch | Pace::Spooling, Pace::Normal) => {
            shared.operations.hooks.tell(Events::SLOW_ENDED, |hooks| hooks.slow_ended(&client.id));
        }
        _ => {}
    }
}

/// Rate limit of the log lines.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    told: u32,
    left_out: u32,
}

impl Lines {
    /// Whether one more line is allowed in this second. Logs how many were suppressed in the last one.
    fn may_tell(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1)) {
            if self.left_out > 0 {
                tracing::info!(changes = self.left_out, "consumer states of further receivers change");
            }
            *self = Self { since: Some(now), ..Self::default() };
        }
        let may_tell = self.told < LINES_A_SECOND;
        self.told += u32::from(may_tell);
        self.left_out += u32::from(!may_tell);
        may_tell
    }
}

/// Interval of the rounds.
const LOOK: Duration = Duration::from_millis(100);
/// Delay of a round that an alarm requests.
const AT_ONCE: Duration = Duration::from_millis(5);
const LINES_A_SECOND: u32 = 50;
/// Interval of the log lines on refusals, and how many clients they name.
const REFUSALS_TOLD_EACH: Duration = Duration::from_secs(10);
const REFUSALS_TOLD: usize = 10;
/// Capacity that the list keeps while no receiver is slow.
const KEPT_PLACES: usize = 1024;
