use std::time::{Duration, Instant};

/// Timer wheel: wakes keys at their times, in slots of 100 ms.
///
/// Arming a later time changes nothing: the key is woken early, its owner looks at its deadline and arms the key again.
/// So a message that moves a deadline costs a comparison, and an idle key nothing. Arming an earlier time adds an entry,
/// and the key's alarm forgets the later one: its ring is stale.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tenbin_sn::{Alarm, Wheel};
///
/// # #[allow(clippy::disallowed_methods)]
/// let start = Instant::now();
/// let (mut wheel, mut alarm, mut due) = (Wheel::new(start), Alarm::default(), Vec::new());
/// wheel.arm(&mut alarm, 7, start + Duration::from_millis(250));
/// assert_eq!(wheel.next(), Some(start + Duration::from_millis(300)));
///
/// wheel.advance(start + Duration::from_millis(300), &mut due);
/// assert_eq!(due, [7]);
/// let now = start + Duration::from_millis(300);
/// assert!(alarm.rang(now)); // the owner of key 7, before it arms the key again
/// ```
#[derive(Debug)]
pub struct Wheel<K> {
    start: Instant,
    /// Slots since `start` whose keys were woken.
    passed: u64,
    slots: Box<[Vec<K>]>,
    entries: usize,
}

/// The entry of one key in a [`Wheel`], which its owner keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alarm(Option<Instant>);

impl Alarm {
    /// Forgets the entry, which the wheel has woken. False for a stale ring: another entry is armed for a time after
    /// `now`, and a further one would never end.
    pub fn rang(&mut self, now: Instant) -> bool {
        if self.0.is_some_and(|armed| armed > now) {
            return false;
        }
        self.0 = None;
        true
    }
}

/// Width of a slot.
const SLOT: Duration = Duration::from_millis(100);
/// Slots of the wheel: 102 s. A key with a later time is woken after that long, to be armed again.
const SLOTS: u64 = 1024;

impl<K> Wheel<K> {
    /// An empty wheel.
    pub fn new(now: Instant) -> Self {
        Self { start: now, passed: 0, slots: (0..SLOTS).map(|_| Vec::new()).collect(), entries: 0 }
    }

    /// Wakes `key` at `deadline` or up to 100 ms later; earlier if `alarm` is armed for an earlier time, or if the
    /// deadline is far away.
    ///
    /// An entry for a later time stays in its slot, and wakes its key a second time ([`Alarm::rang`]).
    pub fn arm(&mut self, alarm: &mut Alarm, key: K, deadline: Instant) {
        if alarm.0.is_some_and(|armed| armed <= deadline) {
            return;
        }
        let slot = self.slot_of(deadline).clamp(self.passed + 1, self.passed + SLOTS - 1);
        self.slots[(slot % SLOTS) as usize].push(key);
        self.entries += 1;
        alarm.0 = Some(self.end_of(slot));
    }

    /// When [`Wheel::advance`] has keys to wake; `None` while there are none.
    pub fn next(&self) -> Option<Instant> {
        if self.entries == 0 {
            return None;
        }
        let upcoming = self.passed + 1..self.passed + SLOTS;
        upcoming.into_iter().find(|slot| !self.slots[(slot % SLOTS) as usize].is_empty()).map(|slot| self.end_of(slot))
    }

    /// Moves all keys whose time has come to `due`.
    pub fn advance(&mut self, now: Instant, due: &mut Vec<K>) {
        let past = (now.saturating_duration_since(self.start).as_nanos() / SLOT.as_nanos()) as u64;
        // After a long pause each slot is visited once.
        let first = (self.passed + 1).max(past.saturating_sub(SLOTS - 1));
        for slot in first..=past {
            if self.entries == 0 {
                break;
            }
            let keys = &mut self.slots[(slot % SLOTS) as usize];
            self.entries -= keys.len();
            due.append(keys);
        }
        self.passed = self.passed.max(past);
    }

    /// The first slot that ends at or after `deadline`.
    fn slot_of(&self, deadline: Instant) -> u64 {
        deadline.saturating_duration_since(self.start).as_nanos().div_ceil(SLOT.as_nanos()) as u64
    }

    fn end_of(&self, slot: u64) -> Instant {
        self.start + Duration::from_millis(slot.saturating_mul(SLOT.as_millis() as u64))
    }
}
