//! Liveness of the threads, and readiness for clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenbin_admin::Check;
use tokio::runtime::Handle;

use super::Control;
use crate::lifecycle::Operations;

/// Tasks on all worker threads that show whether these run their tasks. They exist only while the health is asked for.
pub(super) struct Heartbeats {
    threads: Vec<Heartbeat>,
    begun: Instant,
}

struct Heartbeat {
    runtime: Handle,
    /// Milliseconds since `begun` at which the task that is still to run was spawned; 0 = none.
    asked_at: Arc<AtomicU64>,
}

impl Heartbeats {
    /// Heartbeats of the broker's threads, or of the calling runtime if the broker has none.
    pub(super) fn new(operations: &Operations) -> Self {
        let runtimes = match &operations.threads {
            Some(threads) => threads.runtimes().cloned().collect(),
            None => vec![Handle::current()],
        };
        let beat = |runtime| Heartbeat { runtime, asked_at: Arc::default() };
        Self { threads: runtimes.into_iter().map(beat).collect(), begun: Instant::now() }
    }

    /// Checks that no thread has kept a task waiting for [`STALLED`], and gives a task to each that has none.
    pub(super) fn check(&self, now: Instant) -> Vec<Check> {
        let now_ms = now.saturating_duration_since(self.begun).as_millis() as u64 + 1;
        let mut slowest_ms = 0;
        for Heartbeat { runtime, asked_at } in &self.threads {
            match asked_at.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let asked_at = Arc::clone(asked_at);
                    runtime.spawn(async move { asked_at.store(0, Ordering::Relaxed) });
                }
                Err(since) => slowest_ms = slowest_ms.max(now_ms.saturating_sub(since)),
            }
        }
        let stalled = Duration::from_millis(slowest_ms) >= STALLED;
        vec![Check::new("threads", stalled.then(|| format!("a thread has run no task for {slowest_ms} ms")))]
    }
}

impl Control {
    pub(super) fn ready_checks(&self) -> Vec<Check> {
        let problem = |is_wrong: bool, text: &str| is_wrong.then(|| text.to_owned());
        let is_serving = self.is_serving.load(Ordering::Relaxed);
        let sockets = self.reach.listening().len();
        let mut checks = vec![
            Check::new("state", problem(!is_serving, "the state of the last run is not restored yet")),
            Check::new("listeners", problem(sockets == 0, "none is open")),
            Check::new("drain", problem(self.reach.is_drained(), "an operator sends clients away")),
            Check::new("shutdown", problem(self.shared.operations.is_stopping(), "the broker is stopping")),
        ];
        if let Some(durable) = &self.shared.storage.durable {
            let (_, messages) = durable.message_stats();
            let failure = match (durable.is_failing(), messages) {
                (true, _) => Some("the state cannot be written".to_owned()),
                (false, "writing") => None,
                (false, health) => Some(format!("the log of messages: {health}")),
            };
            checks.push(Check::new("store", failure));
        }
        // Anybody may ask: the log has the reason, which names files.
        let warning =
            |(listener, text): (Arc<str>, String)| Check::warning("tls", format!("listener {listener}: {text}"));
        checks.extend(self.reach.tls_warnings().into_iter().map(warning));
        let (groups, messages) = self.shared.routing.router.dormant();
        if groups > 0 {
            let problem = format!(
                "{messages} messages wait with {groups} groups without a rule: see the log, or `tenbin store prune`"
            );
            checks.push(Check::warning("share_groups", problem));
        }
        if let Some((count, since)) = self.shared.operations.denials.recent(Instant::now()) {
            let minutes = since.as_secs().div_ceil(60).max(1);
            let problem =
                format!("{count} actions of clients were denied in the last {minutes} min; the log names them");
            checks.push(Check::warning("denied", problem));
        }
        for (bound, count, since) in self.shared.operations.metrics.bounds.recent(Instant::now()) {
            let (key, minutes) = (bound.key(), since.as_secs().div_ceil(60).max(1));
            let problem = format!("{key} was hit {count} times in the last {minutes} min; see the log");
            checks.push(Check::warning("bounds", problem));
        }
        checks.extend(self.watch.checks());
        if self.reach.has_reload_failed() {
            checks.push(Check::warning(
                "reload",
                "the last one failed, and the old configuration stays; see the log".into(),
            ));
        }
        let (groups, messages) = self.shared.routing.router.suspended();
        let withheld = self.shared.operations.metrics.messages_withheld.get();
        if groups > 0 || withheld > 0 {
            let problem = format!(
                "{messages} messages wait with {groups} share groups whose members lack the right to receive them, and \
                 {withheld} for connected clients"
            );
            checks.push(Check::warning("rights", problem));
        }
        checks
    }
}

/// Time after which a thread that runs no task counts as stalled.
const STALLED: Duration = Duration::from_secs(10);
