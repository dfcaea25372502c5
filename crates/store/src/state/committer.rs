use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::backend::{Opener, Opening};
use super::shared::{SharedState, Taken};
use super::{BackendError, Batch, Health};
use crate::Sync;

/// The thread that writes. It keeps all changes that are not durable and applies them again after a failure.
///
/// It then closes the database and opens it anew: after one failed sync, a later one may report success for lost data.
pub(super) struct Committer {
    shared: Arc<SharedState>,
    open: Opener,
    on_health: Box<dyn Fn(&Health) + Send>,
    /// Unconfirmed changes. Empty between two steps unless a step failed or the policy is an interval.
    unconfirmed: Batch,
    synced_at: Instant,
    /// Pause after the next failure.
    pause: Duration,
    failed_since: Option<SystemTime>,
    /// How to open the database after a failure.
    opening: Opening,
}

impl Committer {
    pub(super) fn new(shared: Arc<SharedState>, open: Opener, on_health: Box<dyn Fn(&Health) + Send>) -> Self {
        Self {
            shared,
            open,
            on_health,
            unconfirmed: Batch::default(),
            synced_at: Instant::now(),
            pause: PAUSE_FIRST,
            failed_since: None,
            opening: Opening::AfterFailedWrite,
        }
    }

    /// Runs until the state is dropped.
    pub(super) fn run(mut self) {
        loop {
            let has_failed = self.failed_since.is_some();
            let Taken { batch, up_to, is_stopping } =
                self.shared.take(if has_failed { Some(Instant::now()) } else { self.sync_due() });
            let (began, written) = (Instant::now(), batch.len());
            match self.step(batch, is_stopping) {
                Ok(()) => {
                    self.shared.settle(up_to, written, began.elapsed(), self.unconfirmed.bytes());
                    if self.failed_since.take().is_some() {
                        self.pause = PAUSE_FIRST;
                        self.tell(&Health::Writing);
                    }
                }
                Err(error) => {
                    self.shared.keep(self.unconfirmed.bytes());
                    let since = *self.failed_since.get_or_insert_with(SystemTime::now);
                    self.tell(&Health::Failed { error: error.to_string(), since });
                    if !is_stopping {
                        // If closing ends the pause, the loop tries once more.
                        self.shared.pause(self.pause);
                        self.pause = (self.pause * 2).min(PAUSE_MAX);
                    }
                }
            }
            if is_stopping {
                break;
            }
        }
        *self.shared.backend.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Applies a batch, after the changes that failed before.
    fn step(&mut self, batch: Batch, is_stopping: bool) -> Result<(), BackendError> {
        let is_again = self.failed_since.is_some();
        let sync = self.shared.options.sync;
        let is_due = match sync {
            Sync::Always => true,
            // Syncs before the kept changes alone cause congestion.
            Sync::Interval(_) => {
                let kept_maximum = self.shared.options.congested_bytes / 4;
                self.unconfirmed.bytes() + batch.bytes() > kept_maximum
                    || self.sync_due().is_some_and(|due| due <= Instant::now())
            }
            Sync::Never => false,
        };
        let is_sync = is_again || is_stopping || is_due;
        let mut all = if is_again { mem::take(&mut self.unconfirmed) } else { Batch::default() };
        all.extend(batch);
        let done = self.attempt(&all, is_sync);
        if done.is_ok() && is_sync {
            self.unconfirmed = Batch::default();
            self.synced_at = Instant::now();
            self.opening = Opening::AfterFailedWrite;
        }
        let is_kept = done.is_err() || !is_sync && matches!(sync, Sync::Interval(_));
        if is_kept {
            self.unconfirmed.extend(all);
        }
        done
    }

    fn attempt(&mut self, batch: &Batch, is_sync: bool) -> Result<(), BackendError> {
        let mut backend = self.shared.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let opening = &mut self.opening;
        let work = AssertUnwindSafe(|| -> Result<(), BackendError> {
            let backend = match &mut *backend {
                Some(backend) => backend,
                closed => closed.insert((self.open)(*opening)?),
            };
            if !batch.is_empty() {
                backend.apply(batch)?;
            }
            if is_sync {
                backend.sync().inspect_err(|_| *opening = Opening::AfterFailedSync)?;
            }
            Ok(())
        });
        // A panicking database has failed; waiting callers must not hang for ever.
        let done = catch_unwind(work).unwrap_or_else(|_| Err(BackendError::new("the database panicked")));
        if done.is_err() {
            let failed = backend.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(failed)));
        }
        done
    }

    /// End of the interval; `None` if there is nothing to confirm.
    fn sync_due(&self) -> Option<Instant> {
        match self.shared.options.sync {
            Sync::Interval(interval) if !self.unconfirmed.is_empty() => Some(self.synced_at + interval),
            _ => None,
        }
    }

    fn tell(&self, health: &Health) {
        if self.shared.set_health(health) {
            (self.on_health)(health);
        }
    }
}

/// Pause after a first failure; doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);
