use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tenbin_codec::{Secret, Text, TopicFilter};

use crate::auth::{Identity, Principal};
use crate::values::{KnownSpeed, SpeedChanges, SpeedKey, SpeedLimits};

/// The last speeds of clients in their share groups: estimates until there is new evidence.
///
/// Bounded in time and number; the oldest go first. Outlives sessions and groups, and with a store the process too.
/// An entry has a fixed size. Its name is a keyed hash of user, Client Identifier and filter. If two names had the same
/// hash, a client would begin with another's speed.
#[derive(Debug)]
pub(crate) struct RememberedSpeeds {
    limits: SpeedLimits,
    key: Secret<SpeedKey>,
    /// No other lock is taken under it.
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_name: HashMap<u64, RememberedSpeed>,
    /// Names by number, the oldest first.
    by_age: BTreeMap<u64, u64>,
    next_number: u64,
    /// Speeds from this number on have not been taken as changes.
    told_up_to: u64,
    /// Forgotten names that had been taken as changes.
    gone: Vec<u64>,
}

#[derive(Debug)]
struct RememberedSpeed {
    number: u64,
    processing_time: Duration,
    kept_at: Instant,
}

impl RememberedSpeeds {
    pub(crate) fn new(limits: SpeedLimits, key: SpeedKey) -> Self {
        Self { limits, key: Secret::new(key), entries: Mutex::default() }
    }

    /// Remembers the processing time of a client that leaves the group of `filter`.
    pub(crate) fn keep(&self, client: &Principal, filter: &TopicFilter, processing_time: Duration, now: Instant) {
        let name = self.name(client, filter);
        self.insert(KnownSpeed { name, processing_time, kept_at: now }, now);
    }

    /// Restores the speeds of the last run, the oldest first.
    pub(crate) fn restore(&self, speeds: impl IntoIterator<Item = KnownSpeed>, now: Instant) {
        speeds.into_iter().for_each(|speed| self.insert(speed, now));
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.told_up_to = entries.next_number;
    }

    /// Takes the changes since the last call, to be stored. If many speeds were forgotten, some of their names may be
    /// missing.
    pub(crate) fn take_changes(&self) -> SpeedChanges {
        let mut guard = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *guard;
        let names = entries.by_age.range(entries.told_up_to..).map(|(_, name)| *name);
        let known = names.filter_map(|name| {
            let RememberedSpeed { processing_time, kept_at, .. } = *entries.by_name.get(&name)?;
            Some(KnownSpeed { name, processing_time, kept_at })
        });
        let kept = known.collect();
        entries.told_up_to = entries.next_number;
        let mut gone = std::mem::take(&mut entries.gone);
        gone.retain(|name| !entries.by_name.contains_key(name));
        SpeedChanges { kept, gone }
    }

    fn insert(&self, KnownSpeed { name, processing_time, kept_at }: KnownSpeed, now: Instant) {
        let SpeedLimits { time, maximum } = self.limits;
        if maximum == 0 || time.is_zero() {
            return;
        }
        let mut guard = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *guard;
        let number = entries.next_number;
        entries.next_number += 1;
        if let Some(before) = entries.by_name.insert(name, RememberedSpeed { number, processing_time, kept_at }) {
            entries.by_age.remove(&before.number);
        }
        entries.by_age.insert(number, name);
        while let Some(oldest) = entries.by_age.first_entry() {
            let is_over = entries
                .by_name
                .get(oldest.get())
                .is_none_or(|entry| now.saturating_duration_since(entry.kept_at) > time);
            if !is_over && entries.by_name.len() <= maximum {
                break;
            }
            let is_told = *oldest.key() < entries.told_up_to;
            let name = oldest.remove();
            entries.by_name.remove(&name);
            if is_told && entries.gone.len() < GONE_MAX {
                entries.gone.push(name);
            }
        }
    }

    /// The remembered processing time of a client that joins the group of `filter`.
    pub(crate) fn recall(&self, client: &Principal, filter: &TopicFilter, now: Instant) -> Option<Duration> {
        if self.limits.maximum == 0 {
            return None;
        }
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.by_name.get(&self.name(client, filter))?;
        (now.saturating_duration_since(entry.kept_at) <= self.limits.time).then_some(entry.processing_time)
    }

    fn name(&self, Principal { client_id, identity, .. }: &Principal, filter: &TopicFilter) -> u64 {
        let Identity { user, realm, .. } = identity;
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.expose()).expect("any key will do");
        let is_user = u8::from(user.is_some());
        let user = user.as_ref().map_or(&b""[..], Text::as_bytes);
        for part in [user, realm.as_bytes(), client_id.as_bytes(), filter.as_bytes()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.update(&[is_user]);
        let hash = mac.finalize().into_bytes();
        u64::from_le_bytes(*hash.first_chunk().expect("32 bytes"))
    }
}

/// Forgotten names that are reported at most. The records of others are too old when they are read again.
const GONE_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Of `client`, or of `client@user`.
    fn principal(name: &str) -> Principal {
        let (client_id, user) = name.split_once('@').unwrap_or((name, ""));
        let text = |text| Text::try_from(text).unwrap();
        let identity = if user.is_empty() { Identity::anonymous() } else { Identity::user(text(user)) };
        Principal { client_id: text(client_id), identity, listener: "l".into() }
    }

    struct Stage {
        speeds: RememberedSpeeds,
        start: Instant,
    }

    impl Stage {
        fn new(time: Duration, maximum: usize) -> Self {
            Self { speeds: RememberedSpeeds::new(SpeedLimits { time, maximum }, [7; 32]), start: Instant::now() }
        }

        fn keep(&self, client: &str, group: &str, millis: u64, after: Duration) {
            let (client, filter) = (principal(client), TopicFilter::try_from(group).unwrap());
            self.speeds.keep(&client, &filter, Duration::from_millis(millis), self.start + after);
        }

        fn recall(&self, client: &str, group: &str, after: Duration) -> Option<u64> {
            let (client, filter) = (principal(client), TopicFilter::try_from(group).unwrap());
            let recalled = self.speeds.recall(&client, &filter, self.start + after);
            recalled.map(|time| time.as_millis() as u64)
        }

        fn len(&self) -> usize {
            let entries = self.speeds.entries.lock().unwrap();
            assert_eq!(entries.by_name.len(), entries.by_age.len());
            entries.by_name.len()
        }
    }

    #[test]
    fn speed_is_recalled_by_client_and_group_until_it_expires() {
        let stage = Stage::new(HOUR, 10);
        stage.keep("a", "$share/g/t", 25, Duration::ZERO);
        stage.keep("b", "$share/g/t", 50, Duration::ZERO);
        stage.keep("a", "$share/h/t", 75, HOUR / 2);
        assert_eq!(stage.recall("a", "$share/g/t", HOUR), Some(25));
        assert_eq!(stage.recall("b", "$share/g/t", HOUR), Some(50));
        assert_eq!(stage.recall("b", "$share/h/t", HOUR), None);
        let later = HOUR + Duration::from_millis(1);
        assert_eq!(stage.recall("a", "$share/g/t", later), None);
        assert_eq!(stage.recall("a", "$share/h/t", later), Some(75));
        stage.keep("a", "$share/h/t", 80, later);
        assert_eq!((stage.recall("a", "$share/h/t", later), stage.len()), (Some(80), 1), "the others are over");
    }

    #[test]
    fn each_user_of_a_client_identifier_has_its_own_speed() {
        let stage = Stage::new(HOUR, 10);
        stage.keep("a@one", "$share/g/t", 25, Duration::ZERO);
        stage.keep("a@two", "$share/g/t", 5000, Duration::ZERO);
        let recalled = ["a@one", "a@two", "a"].map(|client| stage.recall(client, "$share/g/t", HOUR));
        assert_eq!(recalled, [Some(25), Some(5000), None]);
    }

    #[test]
    fn oldest_speeds_are_forgotten_above_the_maximum() {
        let stage = Stage::new(HOUR, 3);
        for (client, millis) in [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("d", 5)] {
            stage.keep(client, "$share/g/t", millis, Duration::ZERO);
        }
        let recalled = ["a", "b", "c", "d"].map(|client| stage.recall(client, "$share/g/t", Duration::ZERO));
        assert_eq!(recalled, [Some(4), None, Some(3), Some(5)]);
        (0..1000).for_each(|millis| stage.keep("a", "$share/g/t", millis, Duration::ZERO));
        assert_eq!(stage.len(), 3);
    }

    #[test]
    fn stored_speeds_are_restored_in_the_next_run() {
        let stage = Stage::new(HOUR, 2);
        stage.keep("a", "$share/g/t", 25, Duration::ZERO);
        stage.keep("b", "$share/g/t", 50, HOUR / 2);
        let first = stage.speeds.take_changes();
        assert_eq!((first.kept.len(), first.gone.len()), (2, 0));
        let next = Stage::new(HOUR, 2);
        next.speeds.restore(first.kept.iter().copied(), stage.start + HOUR);
        let recalled = |client: &str| {
            let filter = TopicFilter::try_from("$share/g/t").unwrap();
            next.speeds.recall(&principal(client), &filter, stage.start + HOUR)
        };
        assert_eq!([recalled("a"), recalled("b")].map(|time| time.map(|time| time.as_millis())), [Some(25), Some(50)]);
        assert_eq!(next.speeds.take_changes().kept, []);
        // One more, which replaces the oldest.
        stage.keep("c", "$share/g/t", 75, HOUR / 2);
        let then = stage.speeds.take_changes();
        assert_eq!((then.kept.len(), &then.gone[..]), (1, &[first.kept[0].name][..]));
        stage.keep("b", "$share/g/t", 60, HOUR / 2);
        assert_eq!(stage.speeds.take_changes().kept[0].processing_time, Duration::from_millis(60));
    }

    #[test]
    fn no_speed_is_remembered_with_time_or_maximum_zero() {
        for stage in [Stage::new(Duration::ZERO, 3), Stage::new(HOUR, 0)] {
            stage.keep("a", "$share/g/t", 1, Duration::ZERO);
            assert_eq!((stage.recall("a", "$share/g/t", Duration::ZERO), stage.len()), (None, 0));
        }
    }
}
