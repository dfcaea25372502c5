//! The members to which ordering keys are pinned, so that later messages of a key follow earlier ones.

use std::sync::Arc;

use crate::{
    dispatch::{Dispatch, KeySlot, SLOT_BITS},
    nanos::Nanos,
    standing::MemberId,
    sync::{AcqRel, Acquire, AtomicU64},
};

/// For each slot, the member that has its messages, and for how long the slot is pinned to it.
///
/// Pickers and `key_done` write it, always by compare and exchange of the whole word. A picker books its message before
/// it writes, and cancels the booking if the exchange fails (release, acquire). So a message counted here is also
/// counted as outstanding with the member, unless it is completed.
#[derive(Clone, Debug)]
pub(crate) struct KeyPins(Arc<[AtomicU64]>);

/// One slot.
///
/// ```text
///  63            32 31                14 13           0
/// +----------------+--------------------+--------------+
/// |  low half of   |  until: 2^20 ns,   |  unacknow-   |
/// |  the member id |  wraps in 275 s    |  ledged      |
/// +----------------+--------------------+--------------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pin(u64);

impl KeyPins {
    pub(crate) fn new() -> Self {
        Self((0..1 << SLOT_BITS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn load(&self, slot: KeySlot) -> Pin {
        Pin(self.0[slot.index()].load(Acquire))
    }

    /// Replaces `seen` by `next`; fails with the present value if it differs from `seen`.
    pub(crate) fn replace(&self, slot: KeySlot, seen: Pin, next: Pin) -> Result<(), Pin> {
        match self.0[slot.index()].compare_exchange(seen.0, next.0, AcqRel, Acquire) {
            Ok(_) => Ok(()),
            Err(is) => Err(Pin(is)),
        }
    }

    /// Counts an acknowledged message of the slot as completed.
    pub(crate) fn done(&self, slot: KeySlot, member: MemberId) {
        // `Err` if the slot belongs to another member by now.
        let _ =
            self.0[slot.index()].fetch_update(AcqRel, Acquire, |word| Pin(word).without_one(member).map(|pin| pin.0));
    }

    /// Returns the halves of the ids of members with unacknowledged messages, sorted. Scans the table.
    pub(crate) fn holders(&self) -> Vec<u64> {
        let pins = self.0.iter().map(|word| Pin(word.load(Acquire))).filter(|pin| pin.unacknowledged() > 0);
        let mut holders: Vec<_> = pins.map(Pin::half).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Unpins the slot from the member, if `queued` are its only messages there and no other is in flight. Returns
    /// whether the slot is then not pinned to it.
    fn free(&self, slot: KeySlot, member: MemberId, queued: u64, now: Nanos) -> bool {
        let freed = self.0[slot.index()].fetch_update(AcqRel, Acquire, |word| {
            let pin = Pin(word);
            (pin.is_of(member) && pin.is_at_most(queued, now)).then(|| pin.emptied().0)
        });
        freed.map_or_else(|word| !Pin(word).is_of(member), |_| true)
    }
}

/// Keys that [`Members::free_keys`](crate::Members::free_keys) has unpinned from a member.
#[derive(Clone, Debug)]
pub struct FreedKeys {
    /// Sorted; `None` = the group pins no keys, so all are free.
    slots: Option<Box<[KeySlot]>>,
}

impl FreedKeys {
    pub(crate) const ALL: Self = Self { slots: None };

    /// Unpins the slots of which `member` has only `queued`: the key of each message, and whether it needs an
    /// acknowledgement.
    pub(crate) fn take(
        pins: &KeyPins,
        member: MemberId,
        queued: impl Iterator<Item = (u64, bool)>,
        now: Nanos,
    ) -> Self {
        let mut queued: Vec<_> = queued.map(|(key, is_acknowledged)| (KeySlot::of(key), is_acknowledged)).collect();
        queued.sort_unstable();
        let slots = queued.chunk_by(|one, next| one.0 == next.0).filter_map(|of_slot| {
            let unacknowledged = of_slot.iter().filter(|(_, is_acknowledged)| *is_acknowledged).count();
            let slot = of_slot[0].0;
            pins.free(slot, member, unacknowledged as u64, now).then_some(slot)
        });
        Self { slots: Some(slots.collect()) }
    }

    /// Returns whether the key is among them.
    pub fn contains(&self, key: u64) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.binary_search(&KeySlot::of(key)).is_ok())
    }
}

impl Pin {
    /// Returns whether this member has the messages. Compares the low half of the ids: 4 billion sessions lie between
    /// two equal ones.
    pub(crate) fn is_of(self, member: MemberId) -> bool {
        self.half() == Self::half_of(member)
    }

    /// The part of its member's id that a pin has.
    pub(crate) fn half(self) -> u64 {
        self.0 >> MEMBER_SHIFT
    }

    /// The part of an id that a pin has.
    pub(crate) fn half_of(member: MemberId) -> u64 {
        member.0 & MEMBER_MASK
    }

    /// Number of messages not acknowledged yet; [`UNACKNOWLEDGED_MAX`] = that many or more.
    pub(crate) fn unacknowledged(self) -> u64 {
        self.0 & UNACKNOWLEDGED_MAX
    }

    /// Returns whether unacknowledged (QoS 0) messages may still be in flight at `now`.
    pub(crate) fn is_held_at(self, now: Nanos) -> bool {
        let until = self.until();
        let left = until.wrapping_sub(time_units(now.0)) & UNTIL_MASK;
        // A larger value is in the past: see the layout.
        until != 0 && (1..=HOLD_MAX).contains(&left)
    }

    /// Returns whether at most `queued` messages are in flight, all of which need an acknowledgement. A count at its
    /// maximum may stand for more.
    fn is_at_most(self, queued: u64, now: Nanos) -> bool {
        self.unacknowledged() <= queued.min(UNACKNOWLEDGED_MAX - 1) && !self.is_held_at(now)
    }

    /// Returns whether the member has other messages than the one just given to it that needs an acknowledgement.
    pub(crate) fn has_others(self, member: MemberId, now: Nanos) -> bool {
        self.is_of(member) && !self.is_at_most(1, now)
    }

    /// Adds a message for `member`, which will have finished it at `finish`.
    pub(crate) fn with_one(self, member: MemberId, dispatch: &Dispatch, finish: u64) -> Self {
        let (until, unacknowledged) = match self.is_of(member) {
            true => (self.until(), self.unacknowledged()),
            false => (0, 0),
        };
        let (until, unacknowledged) = match dispatch.is_acknowledged {
            true => (until, (unacknowledged + 1).min(UNACKNOWLEDGED_MAX)),
            // 0 means that there is none.
            false => (time_units(finish.saturating_add(GRACE_NS + UNIT_NS - 1)).max(1), unacknowledged),
        };
        Self(Self::half_of(member) << MEMBER_SHIFT | until << UNTIL_SHIFT | unacknowledged)
    }

    /// Returns the pin as if the member had no messages.
    pub(crate) fn emptied(self) -> Self {
        Self(self.0 & !(UNTIL_MASK << UNTIL_SHIFT | UNACKNOWLEDGED_MAX))
    }

    /// Subtracts a message; `None` if there is nothing to change. A count at its maximum is no longer exact and stays:
    /// the slot is pinned until the member has no outstanding message at all.
    fn without_one(self, member: MemberId) -> Option<Self> {
        let is_counted = (1..UNACKNOWLEDGED_MAX).contains(&self.unacknowledged());
        (self.is_of(member) && is_counted).then(|| Self(self.0 - 1))
    }

    fn until(self) -> u64 {
        self.0 >> UNTIL_SHIFT & UNTIL_MASK
    }
}

fn time_units(ns: u64) -> u64 {
    (ns / UNIT_NS) & UNTIL_MASK
}

const UNACKNOWLEDGED_MAX: u64 = (1 << 14) - 1;
const UNTIL_SHIFT: u32 = 14;
const UNTIL_MASK: u64 = (1 << 18) - 1;
const MEMBER_SHIFT: u32 = 32;
const MEMBER_MASK: u64 = u32::MAX as u64;
const UNIT_NS: u64 = 1 << 20;
/// How long a pin lasts beyond the predicted end.
const GRACE_NS: u64 = 5_000_000;
/// Longest pin: a second and the grace.
const HOLD_MAX: u64 = (1_000_000_000 + GRACE_NS) / UNIT_NS + 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const A: MemberId = MemberId(1);
    const B: MemberId = MemberId(0xFFFF_FFFF_0000_0002);

    fn acknowledged() -> Dispatch {
        Dispatch { is_acknowledged: true, ..Dispatch::default() }
    }

    #[test]
    fn key_slot_is_the_first_bits_of_the_hash() {
        let cases = [(0, 0), (1 << 52, 1), ((2 << 52) - 1, 1), (u64::MAX, 4095)];
        for (key, index) in cases {
            assert_eq!(KeySlot::of(key).index(), index);
        }
    }

    #[test]
    fn pin_counts_acknowledged_messages_of_its_member() {
        let (pins, slot) = (KeyPins::new(), KeySlot::of(77));
        let add = |member| {
            let seen = pins.load(slot);
            pins.replace(slot, seen, seen.with_one(member, &acknowledged(), 0)).expect("nobody else writes");
        };
        let is = || (pins.load(slot).is_of(A), pins.load(slot).is_of(B), pins.load(slot).unacknowledged());
        add(A);
        add(A);
        assert_eq!(is(), (true, false, 2));
        pins.done(slot, B);
        pins.done(KeySlot::of(u64::MAX), A);
        assert_eq!(is(), (true, false, 2));
        pins.done(slot, A);
        assert_eq!(is(), (true, false, 1));
        add(B);
        assert_eq!(is(), (false, true, 1), "what another has is not counted");
        pins.done(slot, A);
        pins.done(slot, B);
        pins.done(slot, B);
        assert_eq!(is(), (false, true, 0));
        assert!(!pins.load(slot).is_held_at(Nanos(0)));
    }

    #[test]
    fn saturated_pin_count_is_never_reduced() {
        let mut pin = Pin::default();
        (0..UNACKNOWLEDGED_MAX + 5).for_each(|_| pin = pin.with_one(A, &acknowledged(), 0));
        assert_eq!(pin.unacknowledged(), UNACKNOWLEDGED_MAX);
        assert_eq!(pin.without_one(A), None);
    }

    #[test]
    fn keys_are_freed_only_without_other_messages_in_flight() {
        let now = Nanos(MS);
        let key = |slot: u64| slot << (u64::BITS - SLOT_BITS) | 5;
        let acknowledged = (true, acknowledged());
        let unacknowledged = (false, Dispatch::default());
        // The messages given to members, the messages taken back from A, and whether the key is free then.
        let cases = [
            (vec![(A, acknowledged), (A, acknowledged)], vec![true, true], true),
            (vec![(A, acknowledged), (A, acknowledged)], vec![true], false),
            (vec![(A, acknowledged), (A, unacknowledged)], vec![true, false], false),
            (vec![(A, acknowledged), (B, acknowledged)], vec![true], true),
            (vec![(B, acknowledged), (A, acknowledged)], vec![true, true], true),
            (vec![(A, acknowledged); UNACKNOWLEDGED_MAX as usize], vec![true; UNACKNOWLEDGED_MAX as usize], false),
        ];
        let pins = KeyPins::new();
        let mut queued = Vec::new();
        for (slot, (given, taken_back, _)) in (0..).zip(&cases) {
            for (member, (_, dispatch)) in given {
                let seen = pins.load(KeySlot::of(key(slot)));
                let next = seen.with_one(*member, dispatch, now.0 + MS);
                pins.replace(KeySlot::of(key(slot)), seen, next).expect("nobody else writes");
            }
            queued.extend(taken_back.iter().map(|&is_acknowledged| (key(slot), is_acknowledged)));
        }
        queued.reverse();
        let before: Vec<_> = (0..cases.len() as u64).map(|slot| pins.load(KeySlot::of(key(slot)))).collect();
        let freed = FreedKeys::take(&pins, A, queued.into_iter(), now);
        for (slot, (_, _, is_free)) in (0..).zip(&cases) {
            assert_eq!(freed.contains(key(slot)), *is_free, "{slot}");
            let pin = pins.load(KeySlot::of(key(slot)));
            let was = before[slot as usize];
            let expected = if *is_free && was.is_of(A) { was.emptied() } else { was };
            assert_eq!(pin, expected, "{slot}");
        }
        assert!(!freed.contains(key(99)), "nothing was said of it");
        assert!(FreedKeys::ALL.contains(key(99)));
    }

    #[test]
    fn qos_0_pin_holds_5_ms_beyond_predicted_end() {
        // Also where the time counter wraps, and where it is 0.
        for start in [0, 100 * MS, UNTIL_MASK * UNIT_NS - MS, (UNTIL_MASK + 1) * UNIT_NS - 26 * MS, u64::MAX >> 2] {
            let pin = Pin::default().with_one(A, &Dispatch::default(), start + 20 * MS);
            for (after_ms, is_held) in [(0, true), (24, true), (28, false), (1_000, false), (100_000, false)] {
                assert_eq!(pin.is_held_at(Nanos(start + after_ms * MS)), is_held, "{start} {after_ms}");
            }
            let later = pin.with_one(A, &acknowledged(), 0);
            assert!(later.is_held_at(Nanos(start + 24 * MS)) && later.unacknowledged() == 1);
        }
        assert!(!Pin::default().is_held_at(Nanos(UNTIL_MASK * UNIT_NS)));
    }
}
