//! Looks after receivers that do not keep up: one task for all, each 100 ms.
//!
//! A connection's task announces itself when it cannot send more, or leaves much in its queue; whoever does neither is not
//! looked at and costs nothing. A queue that is nearly full has its receiver looked at at once.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::outbox::{Concerns, Health, NotRetained, Pace, Transition};
use crate::registry::Client;
use crate::shared::Shared;

/// Who is to be looked at.
#[derive(Debug, Default)]
pub(crate) struct SlowReceivers {
    newcomers: Mutex<Vec<Arc<Client>>>,
    /// Nobody is looked at: the next one has to give an alarm. Written and read under the lock of `newcomers`; relaxed.
    is_resting: AtomicBool,
    pub(crate) concerns: Arc<Concerns>,
    /// Another number of receivers is slow.
    changed: Notify,
}

impl SlowReceivers {
    /// Waits until another number of receivers is slow.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// This client is looked at from now on, until it keeps up.
    pub(crate) fn watch(&self, client: &Arc<Client>) {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.push(Arc::clone(client));
        if self.is_resting.swap(false, Ordering::Relaxed) {
            self.concerns.alarm();
        }
    }

    /// Nobody is looked at: whether that is so still, and who comes next gives an alarm.
    fn may_rest(&self) -> bool {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let may_rest = newcomers.is_empty() && !self.concerns.has_refused();
        self.is_resting.store(may_rest, Ordering::Relaxed);
        may_rest
    }

    fn take_newcomers(&self) -> Vec<Arc<Client>> {
        mem::take(&mut self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Looks, for ever.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut looks = Looks::default();
    loop {
        let concerns = &shared.slow_receivers.concerns;
        match looks.watched.is_empty() && shared.slow_receivers.may_rest() {
            true => concerns.wait().await,
            // Not more often than that, whatever happens.
            false => {
                tokio::time::sleep(AT_ONCE).await;
                let _ = tokio::time::timeout(LOOK - AT_ONCE, concerns.wait()).await;
            }
        }
        looks.look(&shared, Instant::now());
    }
}

/// What the task knows.
#[derive(Debug, Default)]
struct Looks {
    watched: Vec<Watched>,
    lines: Lines,
    /// When refusals were told of last.
    refusals_told: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    client: Arc<Client>,
    /// Which of its connections.
    connection: u32,
    health: Health,
}

impl Looks {
    fn look(&mut self, shared: &Shared, now: Instant) {
        let newcomers = shared.slow_receivers.take_newcomers();
        let watched = |client| Watched { client, connection: 0, health: Health::default() };
        self.watched.extend(newcomers.into_iter().map(watched));
        let lines = &mut self.lines;
        self.watched.retain_mut(|watched| watched.look(shared, lines, now));
        if self.watched.capacity() > KEPT_PLACES && self.watched.is_empty() {
            self.watched = Vec::new();
        }
        self.tell_refusals(shared, now);
    }

    /// Whose messages are refused, which 3.1.1 has no word for, and what is not retained.
    fn tell_refusals(&mut self, shared: &Shared, now: Instant) {
        let is_early = self.refusals_told.is_some_and(|told| now.saturating_duration_since(told) < REFUSALS_TOLD_EACH);
        if is_early || !shared.slow_receivers.concerns.has_refused() {
            return;
        }
        self.refusals_told = Some(now);
        if let Some(NotRetained { messages, topic }) = shared.slow_receivers.concerns.take_not_retained() {
            tracing::warn!(messages, %topic, "messages are not retained: the limits of [retained] leave no room for them");
        }
        let refused = shared.slow_receivers.concerns.take_refused();
        let mut told = 0;
        shared.registry.for_each(|client| {
            if told < REFUSALS_TOLD
                && let Some(messages) = refused.get(&client.number)
            {
                told += 1;
                tracing::warn!(client = ?client.id, messages, "messages for the client are refused: no more may wait for it");
            }
        });
        if refused.len() > told {
            tracing::warn!(clients = refused.len() - told, "messages for further clients are refused");
        }
    }
}

impl Watched {
    /// Whether to look again.
    fn look(&mut self, shared: &Shared, lines: &mut Lines, now: Instant) -> bool {
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
                    count(shared, transition);
                    self.tell(transition, &sample, lines, now);
                } else {
                    self.health.stay(transition.from);
                }
            }
        }
        !(self.health.pace() == Pace::Normal && outbox.end_watch())
    }

    /// Its connection has ended, and with it what was known.
    fn ends(&mut self, shared: &Shared) {
        let from = mem::take(&mut self.health).pace();
        if from != Pace::Normal {
            count(shared, Transition { from, to: Pace::Normal });
            tracing::info!(client = ?self.client.id, from = from.name(), "the receiver has disconnected");
        }
    }

    fn tell(
        &self,
        Transition { from, to }: Transition,
        sample: &crate::outbox::Sample,
        lines: &mut Lines,
        now: Instant,
    ) {
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

fn count(shared: &Shared, Transition { from, to }: Transition) {
    let metrics = &shared.metrics;
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
    shared.slow_receivers.changed.notify_one();
}

/// How many lines are logged.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    told: u32,
    left_out: u32,
}

impl Lines {
    /// Whether there may be one more in this second; says how many there were not in the last.
    fn may_tell(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1)) {
            if self.left_out > 0 {
                tracing::info!(changes = self.left_out, "further receivers have become slower or faster");
            }
            *self = Self { since: Some(now), ..Self::default() };
        }
        let may_tell = self.told < LINES_A_SECOND;
        self.told += u32::from(may_tell);
        self.left_out += u32::from(!may_tell);
        may_tell
    }
}

/// From one look to the next.
const LOOK: Duration = Duration::from_millis(100);
/// To one that cannot wait for it.
const AT_ONCE: Duration = Duration::from_millis(5);
const LINES_A_SECOND: u32 = 50;
/// How often it is told whose messages are refused, and of how many clients.
const REFUSALS_TOLD_EACH: Duration = Duration::from_secs(10);
const REFUSALS_TOLD: usize = 10;
/// Places that are kept while nobody is slow.
const KEPT_PLACES: usize = 1024;
