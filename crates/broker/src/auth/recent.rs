use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys that were added recently: each stays for one to two periods, unless too many others are added.
#[derive(Debug)]
pub(super) struct RecentSet<K> {
    period: Duration,
    /// Maximum number of keys of one generation; there are two generations.
    maximum: usize,
    generations: Mutex<Generations<K>>,
}

#[derive(Debug)]
struct Generations<K> {
    began: Instant,
    new: HashSet<K>,
    old: HashSet<K>,
}

impl<K: Eq + Hash> RecentSet<K> {
    pub(super) fn new(maximum: usize, period: Duration) -> Self {
        let generations = Generations { began: Instant::now(), new: HashSet::new(), old: HashSet::new() };
        Self { period, maximum, generations: Mutex::new(generations) }
    }

    pub(super) fn insert(&self, key: K, now: Instant) {
        self.with(now, |generations| generations.new.insert(key));
    }

    pub(super) fn contains(&self, key: &K, now: Instant) -> bool {
        self.with(now, |generations| generations.new.contains(key) || generations.old.contains(key))
    }

    fn with<T>(&self, now: Instant, act: impl FnOnce(&mut Generations<K>) -> T) -> T {
        // A panic under this lock loses one key at worst.
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.saturating_duration_since(generations.began);
        if age >= self.period || generations.new.len() >= self.maximum {
            generations.old = std::mem::take(&mut generations.new);
            generations.began = now;
            if age >= 2 * self.period {
                generations.old = HashSet::new();
            }
        }
        act(&mut generations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_expire_and_their_number_is_bounded() {
        let period = Duration::from_secs(60);
        let set = RecentSet::new(100, period);
        let now = Instant::now();
        set.insert(1, now);
        assert!(set.contains(&1, now) && !set.contains(&2, now));
        assert!(set.contains(&1, now + period));
        assert!(!set.contains(&1, now + 3 * period));
        for key in 0..10_000 {
            set.insert(key, now);
        }
        let generations = set.generations.lock().unwrap();
        assert!(generations.new.len() + generations.old.len() <= 200);
        assert!(generations.new.contains(&9_999));
    }
}
