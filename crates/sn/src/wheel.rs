use std::time::{Duration, Instant};

/// Timer wheel: wakes keys at their times, in slots of 100 ms.
///
/// Arming a later time changes nothing: the key is woken early, its owner looks at its deadline and arms the key again.
/// So a message that moves a deadline costs a comparison, and an idle key nothing. A key has one entry at most: arming
/// an earlier time moves it, and [`Wheel::cancel`] removes it, so that owners that come and go leave nothing.
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
    /// First entry of each slot.
    slots: Box<[u32]>,
    /// Entries, each in the list of its slot or in that of free ones.
    entries: Vec<Timer<K>>,
    first_free: u32,
    armed: usize,
}

#[derive(Debug)]
struct Timer<K> {
    key: K,
    /// Its slot, or [`NONE`] for a free one.
    slot: u32,
    previous: u32,
    next: u32,
}

/// Stands for no entry and no slot.
const NONE: u32 = u32::MAX;

/// The entry of one key in a [`Wheel`], which its owner keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alarm(Option<Armed>);

#[derive(Debug, Clone, Copy)]
struct Armed {
    at: Instant,
    entry: u32,
}

impl Alarm {
    /// Forgets the entry, which the wheel has woken. False if it is armed for a time after `now`.
    pub fn rang(&mut self, now: Instant) -> bool {
        if self.0.is_some_and(|armed| armed.at > now) {
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

impl<K: Copy + Eq> Wheel<K> {
    /// An empty wheel.
    pub fn new(now: Instant) -> Self {
        let slots = (0..SLOTS).map(|_| NONE).collect();
        Self { start: now, passed: 0, slots, entries: Vec::new(), first_free: NONE, armed: 0 }
    }

    /// Wakes `key` at `deadline` or up to 100 ms later; earlier if `alarm` is armed for an earlier time, or if the
    /// deadline is far away.
    pub fn arm(&mut self, alarm: &mut Alarm, key: K, deadline: Instant) {
        if alarm.0.is_some_and(|armed| armed.at <= deadline) {
            return;
        }
        self.cancel(alarm, key);
        let slot = self.slot_of(deadline).clamp(self.passed + 1, self.passed + SLOTS - 1);
        let entry = self.insert(key, (slot % SLOTS) as u32);
        alarm.0 = Some(Armed { at: self.end_of(slot), entry });
    }

    /// Removes the entry of a key.
    pub fn cancel(&mut self, alarm: &mut Alarm, key: K) {
        if let Some(Armed { entry, .. }) = alarm.0.take()
            // Else it was woken, and the entry is another key's.
            && self.entries.get(entry as usize).is_some_and(|entry| entry.key == key && entry.slot != NONE)
        {
            self.remove(entry);
        }
    }

    /// Keys that are armed.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// When [`Wheel::advance`] has keys to wake; `None` while there are none.
    pub fn next(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        let upcoming = self.passed + 1..self.passed + SLOTS;
        upcoming.into_iter().find(|slot| self.slots[(slot % SLOTS) as usize] != NONE).map(|slot| self.end_of(slot))
    }

    /// Moves all keys that are due to `due`.
    pub fn advance(&mut self, now: Instant, due: &mut Vec<K>) {
        let past = (now.saturating_duration_since(self.start).as_nanos() / SLOT.as_nanos()) as u64;
        // After a long pause each slot is visited once.
        let first = (self.passed + 1).max(past.saturating_sub(SLOTS - 1));
        for slot in first..=past {
            if self.armed == 0 {
                break;
            }
            while self.slots[(slot % SLOTS) as usize] != NONE {
                let entry = self.slots[(slot % SLOTS) as usize];
                due.push(self.entries[entry as usize].key);
                self.remove(entry);
            }
        }
        self.passed = self.passed.max(past);
    }

    fn insert(&mut self, key: K, slot: u32) -> u32 {
        let next = std::mem::replace(&mut self.slots[slot as usize], NONE);
        let new = Timer { key, slot, previous: NONE, next };
        let index = if self.first_free == NONE {
            self.entries.push(new);
            self.entries.len() as u32 - 1
        } else {
            let index = self.first_free;
            self.first_free = std::mem::replace(&mut self.entries[index as usize], new).next;
            index
        };
        if next != NONE {
            self.entries[next as usize].previous = index;
        }
        self.slots[slot as usize] = index;
        self.armed += 1;
        index
    }

    /// Takes an entry out of the list of its slot.
    fn remove(&mut self, index: u32) {
        let Timer { slot, previous, next, .. } = self.entries[index as usize];
        match previous {
            NONE => self.slots[slot as usize] = next,
            previous => self.entries[previous as usize].next = next,
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        let entry = &mut self.entries[index as usize];
        (entry.slot, entry.next) = (NONE, self.first_free);
        self.first_free = index;
        self.armed -= 1;
    }

    /// The first slot that ends at or after `deadline`.
    fn slot_of(&self, deadline: Instant) -> u64 {
        deadline.saturating_duration_since(self.start).as_nanos().div_ceil(SLOT.as_nanos()) as u64
    }

    fn end_of(&self, slot: u64) -> Instant {
        self.start + Duration::from_millis(slot.saturating_mul(SLOT.as_millis() as u64))
    }
}
