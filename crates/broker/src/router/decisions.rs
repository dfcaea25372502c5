//! The last decisions of a share group: whom a message went to, and why.
//!
//! ```text
//!   a pick ── due? one load ──no──► as ever
//!                 │yes: at most one in a pause
//!                 └─► candidates, choice, reason ── try_lock ──► the last N, oldest out
//! ```

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use tenbin_balancer::{Candidate, Nanos, Policy};
use tenbin_codec::Text;

/// How many decisions are kept, of each group and of all.
#[derive(Debug)]
pub(crate) struct DecisionLimits {
    /// Of each group; 0 = none.
    maximum: usize,
    /// From one that is kept to the next of the same group, at least; a microsecond more for each member.
    pause: Duration,
    /// Bytes of those of all groups. Relaxed: it guards nothing, and a race lets a few too many in.
    used: AtomicUsize,
}

/// Those of one group.
#[derive(Debug)]
pub(super) struct Decisions {
    /// From when on the next decision is kept, as the balancer counts time. Loaded by every pick, written by the one
    /// that keeps its decision; relaxed, since it stands for itself.
    due_at: AtomicU64,
    kept: Mutex<Kept>,
    limits: Arc<DecisionLimits>,
}

#[derive(Debug, Default)]
struct Kept {
    ring: VecDeque<Decision>,
    bytes: usize,
    /// Messages that the members had got when the last one came in, itself included.
    counted: u64,
    /// The last that was given.
    number: u64,
}

/// Whom one message went to.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    /// From 1 on; given when it is kept.
    pub(super) number: u64,
    pub(super) at: Nanos,
    /// The beginning, if it is long.
    pub(super) topic: Box<str>,
    /// Of the packet, about.
    pub(super) bytes: u32,
    pub(super) policy: Policy,
    /// `None`: nobody takes anything new, and it waits.
    pub(super) chosen: Option<Text>,
    pub(super) reason: &'static str,
    /// Members of the group.
    pub(super) members: usize,
    /// They, or some, by their Client Identifiers.
    pub(super) candidates: Vec<(Text, Candidate)>,
    /// Messages that members have got since the decision before, without being kept here.
    pub(super) unrecorded: u64,
}

impl DecisionLimits {
    pub(crate) fn new(maximum: usize, pause: Duration) -> Self {
        Self { maximum, pause, used: AtomicUsize::new(0) }
    }
}

impl Decisions {
    pub(super) fn new(limits: Arc<DecisionLimits>) -> Self {
        let due_at = AtomicU64::new(if limits.maximum == 0 { u64::MAX } else { 0 });
        Self { due_at, kept: Mutex::default(), limits }
    }

    /// Whether the decision at `now` is to be kept. All that most picks pay.
    #[inline]
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.due_at.load(Ordering::Relaxed) <= now.0
    }

    /// Of those who found that one is due, `true` for the one whose is. `members` are the group's.
    pub(super) fn claim(&self, now: Nanos, members: usize) -> bool {
        let due_at = self.due_at.load(Ordering::Relaxed);
        let pause_ns =
            self.limits.pause.as_nanos() as u64 + if self.limits.pause.is_zero() { 0 } else { members as u64 * 1_000 };
        let next = now.0.saturating_add(pause_ns).min(u64::MAX - 1);
        due_at <= now.0 && self.due_at.compare_exchange(due_at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Keeps a decision, unless somebody reads or writes these at the moment. `counted`: messages that the members had
    /// got before it.
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
        while kept.ring.len() >= self.limits.maximum || (!kept.ring.is_empty() && !self.has_room(bytes)) {
            let Some(oldest) = kept.ring.pop_front() else { break };
            kept.bytes -= oldest.kept_bytes();
            self.limits.used.fetch_sub(oldest.kept_bytes(), Ordering::Relaxed);
        }
        if self.has_room(bytes) {
            self.limits.used.fetch_add(bytes, Ordering::Relaxed);
            kept.bytes += bytes;
            kept.ring.push_back(decision);
        }
    }

    /// Those that are kept, oldest first. Publishers do not wait for the copy: they keep theirs to themselves meanwhile.
    pub(super) fn copy(&self) -> Vec<Decision> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.ring.iter().cloned().collect()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.limits.used.load(Ordering::Relaxed) + bytes <= ALL_BYTES_MAX
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.limits.used.fetch_sub(kept.bytes, Ordering::Relaxed);
    }
}

impl Decision {
    /// What it weighs: the names are shared with the members while these are there, but may outlive them.
    fn kept_bytes(&self) -> usize {
        let candidates = self.candidates.iter().map(|(name, _)| size_of::<(Text, Candidate)>() + name.len());
        size_of::<Self>() + self.topic.len() + candidates.sum::<usize>()
    }
}

/// Bytes of the decisions of all groups: a group that finds them used up lets go of its own oldest.
const ALL_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn decisions(maximum: usize, pause: Duration) -> Decisions {
        Decisions::new(Arc::new(DecisionLimits::new(maximum, pause)))
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
            candidates: Vec::new(),
            unrecorded: 0,
        }
    }

    #[test]
    fn one_is_due_in_a_pause_and_one_publisher_claims_it() {
        let decisions = decisions(8, Duration::from_millis(1));
        assert!(decisions.is_due(Nanos(5)));
        assert!(decisions.claim(Nanos(5), 3));
        for early in [5, MS, MS + 3_004] {
            assert!(!decisions.is_due(Nanos(early)) && !decisions.claim(Nanos(early), 3), "{early}");
        }
        assert!(decisions.is_due(Nanos(MS + 3_005)) && decisions.claim(Nanos(MS + 3_005), 3));
    }

    #[test]
    fn none_is_ever_due_where_none_is_kept_and_each_without_a_pause() {
        let none = decisions(0, Duration::ZERO);
        assert!(!none.is_due(Nanos(u64::MAX - 1)));
        let all = decisions(4, Duration::ZERO);
        assert!((0..3).all(|_| all.is_due(Nanos(7)) && all.claim(Nanos(7), 3)));
    }

    #[test]
    fn the_last_are_kept_and_say_how_many_went_by() {
        let decisions = decisions(2, Duration::ZERO);
        for (at, counted) in [(1, 0), (2, 1), (3, 10), (4, 11)] {
            decisions.keep(decision(at, "t"), counted);
        }
        let kept: Vec<_> = decisions.copy().iter().map(|decision| (decision.at.0, decision.unrecorded)).collect();
        assert_eq!(kept, [(3, 8), (4, 0)]);
    }

    #[test]
    fn a_publisher_does_not_wait_for_a_reader() {
        let decisions = decisions(4, Duration::ZERO);
        let reader = decisions.kept.lock().unwrap();
        decisions.keep(decision(1, "lost"), 0);
        drop(reader);
        decisions.keep(decision(2, "kept"), 1);
        let kept = decisions.copy();
        assert_eq!((kept.len(), &*kept[0].topic, kept[0].unrecorded), (1, "kept", 1));
    }

    #[test]
    fn all_groups_together_have_a_bound_and_give_their_part_back() {
        let limits = Arc::new(DecisionLimits::new(1_000_000, Duration::ZERO));
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
