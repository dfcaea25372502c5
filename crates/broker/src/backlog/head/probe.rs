//! Measures how long messages stay: one message of a queue at a time.

use std::time::Instant;

use super::Head;

/// A message whose stay in its queue is measured.
#[derive(Debug)]
pub(super) struct Probe {
    number: u64,
    is_acknowledged: bool,
    came_at: Instant,
}

impl Head {
    /// Measures the newest message, which came at `now`, if one of [`ONE_OF`] is due since number `before`. `phase`
    /// shifts the choice, so that queues with few messages are measured too.
    pub(crate) fn measure(&mut self, before: u64, phase: u64, now: Instant) {
        let is_chosen = (before + phase) / ONE_OF != (self.next_number + phase) / ONE_OF;
        if !is_chosen || self.probe.is_some() {
            return;
        }
        let number = self.next_number - 1;
        let is_acknowledged = self.acknowledged.back_number() == Some(number);
        self.probe = Some(Box::new(Probe { number, is_acknowledged, came_at: now }));
    }

    /// Returns when the measured message came, once its receiver has taken it.
    #[cold]
    pub(super) fn end_probe(&mut self) -> Option<Instant> {
        let Probe { number, is_acknowledged, .. } = *self.probe.as_deref()?;
        let has_left = |front: Option<u64>| front.is_none_or(|front| front > number);
        let has_left = match is_acknowledged {
            true => has_left(self.acknowledged.front_number()),
            false => has_left(self.unacknowledged.front_number()) && has_left(self.runs.front_number()),
        };
        if has_left { self.probe.take().map(|probe| probe.came_at) } else { None }
    }
}

/// Messages of which one is measured at most.
const ONE_OF: u64 = 64;
