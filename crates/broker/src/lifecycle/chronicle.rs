//! The last events for operators, and the last connections that members of share groups have lost. Both are bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};
use tenbin_codec::Text;

/// Events that an operator asks about first: findings, denials, changes by operators, the start.
#[derive(Debug, Default)]
pub(crate) struct Chronicle {
    entries: Mutex<VecDeque<Entry>>,
    departures: Mutex<VecDeque<Departure>>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Milliseconds since 1970; of events alike, of the last one.
    pub(crate) time_ms: u64,
    pub(crate) kind: String,
    pub(crate) text: String,
    /// Number of events alike.
    pub(crate) times: u64,
}

/// The end of a member's connection.
#[derive(Debug, Clone)]
pub(crate) struct Departure {
    client_id: Text,
    pub(crate) at: Instant,
    pub(crate) why: String,
    /// Whether the client has sent DISCONNECT 0x00.
    pub(crate) is_normal: bool,
}

impl Chronicle {
    /// Notes an event. One with the kind and the text of a known event replaces it, and is counted.
    pub(crate) fn note(&self, kind: &str, text: &str) {
        let mut entries = self.entries();
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let known = entries.iter().position(|entry| entry.kind == kind && entry.text == text);
        let times = known.and_then(|at| entries.remove(at)).map_or(0, |entry| entry.times);
        // One kind does not displace all others.
        if entries.iter().filter(|entry| entry.kind == kind).count() >= OF_KIND_MAX
            && let Some(oldest) = entries.iter().position(|entry| entry.kind == kind)
        {
            entries.remove(oldest);
        }
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        let (kind, text) = (kind.to_owned(), text.to_owned());
        entries.push_back(Entry { time_ms: now_ms(), kind, text, times: times + 1 });
    }

    /// The events, the oldest first.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries().iter().cloned().collect()
    }

    /// Takes the events of the last run.
    pub(crate) fn restore(&self, mut before: Vec<Entry>) {
        let mut entries = self.entries();
        before.retain(|entry| entry.text.len() <= TEXT_BYTES_MAX && entry.kind.len() <= KIND_BYTES_MAX);
        let room = ENTRIES_MAX.saturating_sub(entries.len());
        before.drain(..before.len().saturating_sub(room));
        before.into_iter().rev().for_each(|entry| entries.push_front(entry));
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes why a member's connection has ended.
    pub(crate) fn departed(&self, client_id: &Text, why: String, is_normal: bool) {
        let mut departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        if departures.len() >= DEPARTURES_MAX {
            departures.pop_front();
        }
        departures.push_back(Departure { client_id: client_id.clone(), at: Instant::now(), why, is_normal });
    }

    /// The last departure of a client, not before `since`.
    pub(crate) fn departure(&self, client_id: &str, since: Instant) -> Option<Departure> {
        let departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = departures.iter().rev();
        last.find(|departure| departure.client_id.as_str() == client_id && departure.at >= since).cloned()
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

const ENTRIES_MAX: usize = 200;
/// Events of one kind.
const OF_KIND_MAX: usize = 50;
const TEXT_BYTES_MAX: usize = 1024;
const KIND_BYTES_MAX: usize = 64;
/// Ends of connections between two looks at the share groups.
const DEPARTURES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_bounded_by_kind_and_alike_ones_counted() {
        let chronicle = Chronicle::default();
        chronicle.note("started", "the broker serves clients");
        for number in 0..300 {
            chronicle.note("denied", &format!("number {number}"));
        }
        chronicle.note("denied", "number 299");
        let all = chronicle.all();
        assert_eq!((all.len(), &all[0].kind[..], all[50].times), (1 + OF_KIND_MAX, "started", 2));
        chronicle.note("long", &"ä".repeat(TEXT_BYTES_MAX));
        assert_eq!(chronicle.all()[51].text.len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn restored_events_come_first_and_have_no_more_room() {
        let (before, after) = (Chronicle::default(), Chronicle::default());
        for number in 0..ENTRIES_MAX {
            before.note(&format!("kind {}", number % 10), &format!("number {number}"));
        }
        after.note("started", "again");
        after.restore(before.all());
        let all = after.all();
        assert_eq!((all.len(), &all[0].text[..], &all[199].text[..]), (ENTRIES_MAX, "number 1", "again"));
    }

    #[test]
    fn departure_is_the_last_one_since_a_time() {
        let (chronicle, begin) = (Chronicle::default(), Instant::now());
        let client = Text::try_from("worker").expect("a text");
        chronicle.departed(&client, "connection lost".to_owned(), false);
        let found = chronicle.departure("worker", begin).expect("a departure");
        assert_eq!((&found.why[..], found.is_normal), ("connection lost", false));
        assert!(chronicle.departure("worker", Instant::now() + std::time::Duration::from_secs(1)).is_none());
        assert!(chronicle.departure("other", begin).is_none());
    }
}
