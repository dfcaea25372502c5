//! The last decisions of a share group: the member chosen for a message, and why.
//!
//! ```text
//!   a pick ── due? one load ──no──► no record
//!                 │yes: at most once per pause
//!                 └─► candidates, choice, reason ── try_lock ──► the last N, oldest out
//! ```

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tenbin_balancer::{Candidate, Nanos, Policy};
use tenbin_codec::Text;

use crate::values::DecisionLimits;

/// Room for recorded decisions, per group and in total.
#[derive(Debug)]
pub(crate) struct DecisionBudget {
    limits: DecisionLimits,
    /// Bytes of all groups' decisions. Relaxed: it guards nothing, and a race only admits a few too many.
    used: AtomicUsize,
}

/// The recorded decisions of one group.
#[derive(Debug)]
pub(super) struct Decisions {
    /// Balancer time from which the next decision is recorded. Every pick loads it, and the one that records writes it.
    /// Relaxed: no other memory depends on it.
    due_at: AtomicU64,
    kept: Mutex<Kept>,
    budget: Arc<DecisionBudget>,
}

#[derive(Debug, Default)]
struct Kept {
    ring: VecDeque<Decision>,
    bytes: usize,
    /// Messages given to members up to and including the last recorded decision.
    counted: u64,
    /// Number of the last recorded decision.
    number: u64,
}

/// One decision: the member chosen for a message.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    /// Counted from 1; assigned when the decision is recorded.
    pub(super) number: u64,
    pub(super) at: Nanos,
    /// Cut if it is long.
    pub(super) topic: Box<str>,
    /// Approximate size of the packet.
    pub(super) bytes: u32,
    pub(super) policy: Policy,
    /// `None`: no member takes new messages, and the message waits.
    pub(super) chosen: Option<Text>,
    pub(super) reason: &'static str,
    /// Number of members in the group.
    pub(super) members: usize,
    /// The members considered, or some of them, by Client Identifier.
    pub(super) candidates: Box<[(Text, Candidate)]>,
    /// Messages given to members since the previous recorded decision, without a record.
    pub(super) unrecorded: u64,
}

impl DecisionBudget {
    pub(crate) fn new(limits: DecisionLimits) -> Self {
        Self { limits, used: AtomicUsize::new(0) }
    }
}

impl Decisions {
    pub(super) fn new(budget: Arc<DecisionBudget>) -> Self {
        let due_at = AtomicU64::new(if budget.limits.maximum == 0 { u64::MAX } else { 0 });
        Self { due_at, kept: Mutex::default(), budget }
    }

    /// Returns whether the decision at `now` is to be recorded. Most picks pay only this load.
    #[inline]
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.due_at.load(Ordering::Relaxed) <= now.0
    }

    /// Returns `true` for one of the pickers that found a decision due. `members`: size of the group.
    pub(super) fn claim(&self, now: Nanos, members: usize) -> bool {
        let due_at = self.due_at.load(Ordering::Relaxed);
        let pause_ns = self.budget.limits.pause.as_nanos() as u64
            + if self.budget.limits.pause.is_zero() { 0 } else { members as u64 * 1_000 };
        let next = now.0.saturating_add(pause_ns).min(u64::MAX - 1);
        due_at <= now.0 && self.due_at.compare_exchange(due_at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Records a decision, unless another thread holds the lock. `counted`: messages given to members before it.
    pub(super) fn keep(&self, mut decision: Decision, counted: u64) {
        let mut kept = match self.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        kept.number += 1;
        decision.number = kept.number;
        decision.unrecorded = counted.saturating_sub(kept.counted);
        kept.counted = counted + u64::from(decision.chosen.is_some());
        let bytes = decision.kept_bytes();
        while kept.ring.len() >= self.budget.limits.maximum || (!kept.ring.is_empty() && !self.has_room(bytes)) {
            let Some(oldest) = kept.ring.pop_front() else { break };
            kept.bytes -= oldest.kept_bytes();
            self.budget.used.fetch_sub(oldest.kept_bytes(), Ordering::Relaxed);
        }
        if self.has_room(bytes) {
            self.budget.used.fetch_add(bytes, Ordering::Relaxed);
            kept.bytes += bytes;
            // Many groups have few: no room ahead of need.
            if kept.ring.len() < FEW {
                kept.ring.reserve_exact(1);
            }
            kept.ring.push_back(decision);
        }
    }

    /// Returns the recorded decisions, oldest first. Publishers do not wait for the copy: they skip recording
    /// in that time.
    pub(super) fn copy(&self) -> Vec<Decision> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.ring.iter().cloned().collect()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.budget.used.load(Ordering::Relaxed) + bytes <= ALL_BYTES_MAX
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.budget.used.fetch_sub(kept.bytes, Ordering::Relaxed);
    }
}

impl Decision {
    /// Memory of the decision and of its allocations. Names are shared with the members, but may outlive them.
    fn kept_bytes(&self) -> usize {
        let candidates = self.candidates.iter().map(|(name, _)| size_of::<(Text, Candidate)>() + name.len());
        size_of::<Self>() + self.topic.len() + candidates.sum::<usize>() + ALLOCATIONS_BYTES
    }
}

/// Bytes that the allocator adds for topic and candidates.
const ALLOCATIONS_BYTES: usize = 48;
/// Decisions of a group that its ring does not grow ahead of.
const FEW: usize = 8;
/// Limit in bytes for the decisions of all groups. A group that reaches it drops its own oldest.
const ALL_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn decisions(maximum: usize, pause: Duration) -> Decisions {
        Decisions::new(Arc::new(DecisionBudget::new(DecisionLimits { maximum, pause })))
    }

    fn decision(at: u64, topic: &str) -> Decision {
        Decision {
            number: 0,
            at: Nanos(at),
            topic: topic.into(),
            bytes: 100,
            policy: Policy::RoundRobin,
            chosen: Some(Text::from_static("worker")),
            reason: "turn",
            members: 3,
            candidates: Box::default(),
            unrecorded: 0,
        }
    }

    #[test]
    fn one_decision_is_due_per_pause_and_claimed_once() {
        let decisions = decisions(8, Duration::from_millis(1));
        assert!(decisions.is_due(Nanos(5)));
        assert!(decisions.claim(Nanos(5), 3));
        for early in [5, MS, MS + 3_004] {
            assert!(!decisions.is_due(Nanos(early)) && !decisions.claim(Nanos(early), 3), "{early}");
        }
        assert!(decisions.is_due(Nanos(MS + 3_005)) && decisions.claim(Nanos(MS + 3_005), 3));
    }

    #[test]
    fn no_decision_is_due_at_limit_zero_and_all_without_pause() {
        let none = decisions(0, Duration::ZERO);
        assert!(!none.is_due(Nanos(u64::MAX - 1)));
        let all = decisions(4, Duration::ZERO);
        assert!((0..3).all(|_| all.is_due(Nanos(7)) && all.claim(Nanos(7), 3)));
    }

    #[test]
    fn last_decisions_are_kept_with_unrecorded_counts() {
        let decisions = decisions(2, Duration::ZERO);
        for (at, counted) in [(1, 0), (2, 1), (3, 10), (4, 11)] {
            decisions.keep(decision(at, "t"), counted);
        }
        let kept: Vec<_> = decisions.copy().iter().map(|decision| (decision.at.0, decision.unrecorded)).collect();
        assert_eq!(kept, [(3, 8), (4, 0)]);
    }

    #[test]
    fn publisher_does_not_wait_for_reader_of_decisions() {
        let decisions = decisions(4, Duration::ZERO);
        let reader = decisions.kept.lock().unwrap();
        decisions.keep(decision(1, "lost"), 0);
        drop(reader);
        decisions.keep(decision(2, "kept"), 1);
        let kept = decisions.copy();
        assert_eq!((kept.len(), &*kept[0].topic, kept[0].unrecorded), (1, "kept", 1));
    }

    #[test]
    fn decisions_of_all_groups_are_bounded_and_released() {
        let limits = Arc::new(DecisionBudget::new(DecisionLimits { maximum: 1_000_000, pause: Duration::ZERO }));
        let (one, other) = (Decisions::new(Arc::clone(&limits)), Decisions::new(Arc::clone(&limits)));
        let topic = "x".repeat(1 << 20);
        other.keep(decision(0, "small"), 0);
        (0..100).for_each(|at| one.keep(decision(at, &topic), at));
        assert!(limits.used.load(Ordering::Relaxed) <= ALL_BYTES_MAX);
        let kept = one.copy();
        assert_eq!((kept.len(), kept.last().map(|decision| decision.at.0)), (63, Some(99)), "its own oldest went");
        assert_eq!(other.copy().len(), 1);
        drop((one, other));
        assert_eq!(limits.used.load(Ordering::Relaxed), 0);
    }
}
