use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lane::{Lane, SentStream};
use super::latencies::PackedLatencies;
use super::tally::{ConnectionCounts, PackedReceiver, SecondTally, merge_seconds};
use super::ticks::Ticks;
use super::trace::Trace;
use crate::run::{MessageRecord, PublishRecord};

/// Results of one or several recorders, in the form in which an agent sends them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Start of second 0; `None` if no recorder was started.
    pub(super) start_ns: Option<u64>,
    /// Time of the last publish, arrival or first connect; 0 for none.
    pub(super) last_ns: u64,
    pub(super) seconds: Vec<SecondTally>,
    /// By stream number.
    pub(super) streams: Vec<(u32, SentStream)>,
    /// By receiver number.
    pub(super) receivers: Vec<(u32, PackedReceiver)>,
    /// By receiver and stream number.
    pub(super) lanes: Vec<((u32, u32), Lane)>,
    pub(super) connections: ConnectionCounts,
    pub(super) connects: PackedLatencies,
    pub(super) not_taken: u64,
    pub(super) unsent: u64,
    /// Waiting times of the unsent messages when the time was over.
    pub(super) unsent_waited: PackedLatencies,
    pub(super) latest_send_us: u32,
    pub(super) arrivals: Vec<MessageRecord>,
    pub(super) departures: Vec<PublishRecord>,
    pub(super) ticks: Ticks,
    /// Agents run no scenarios.
    #[serde(skip)]
    pub(super) trace: Trace,
}

impl Part {
    /// Serializes the part for sending.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("all of its lengths are known")
    }

    /// Parses the bytes of [`Part::to_bytes`].
    ///
    /// # Errors
    /// The bytes are not a part.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("{} bytes are no part: {error}", bytes.len()))
    }

    /// Adds the results of another recorder. The order of merging does not matter.
    ///
    /// All events of a receiver must be in one part, or messages out of order are not found.
    pub fn merge(&mut self, other: Self) {
        self.start_ns = self.start_ns.into_iter().chain(other.start_ns).min();
        self.last_ns = self.last_ns.max(other.last_ns);
        merge_seconds(&mut self.seconds, other.seconds, SecondTally::merge);
        merge_numbered(&mut self.streams, other.streams, |mine, other| mine.merge(&other));
        merge_numbered(&mut self.receivers, other.receivers, PackedReceiver::merge);
        merge_numbered(&mut self.lanes, other.lanes, |mine, other| mine.merge(&other));
        self.connections.merge(&other.connections);
        self.connects.merge(other.connects);
        self.not_taken += other.not_taken;
        self.unsent += other.unsent;
        self.unsent_waited.merge(other.unsent_waited);
        self.latest_send_us = self.latest_send_us.max(other.latest_send_us);
        self.arrivals.extend(other.arrivals);
        self.departures.extend(other.departures);
        self.ticks.merge(other.ticks);
        self.trace.merge(other.trace);
    }

    /// Takes the arrivals that [`Plan::records`](crate::run::Plan::records) asked to keep, ordered by time of arrival.
    pub fn take_records(&mut self) -> Vec<MessageRecord> {
        let mut taken = std::mem::take(&mut self.arrivals);
        taken.sort_unstable_by_key(|record| (record.received_ns, record.receiver, record.stream, record.sequence));
        taken
    }

    /// Takes the records of a scenario.
    pub(crate) fn take_trace(&mut self) -> Trace {
        Trace { start_ns: self.start_ns.unwrap_or(0), ..std::mem::take(&mut self.trace) }
    }

    /// Takes the ticks that [`Plan::ticks`](crate::run::Plan::ticks) asked to keep.
    pub fn take_ticks(&mut self) -> Ticks {
        std::mem::take(&mut self.ticks).starting_at(self.start_ns.unwrap_or(0))
    }

    /// Takes the published messages that [`Plan::records`](crate::run::Plan::records) asked to keep, ordered by time.
    pub fn take_publish_records(&mut self) -> Vec<PublishRecord> {
        let mut taken = std::mem::take(&mut self.departures);
        taken.sort_unstable_by_key(|record| (record.published_ns, record.stream, record.sequence));
        taken
    }
}

/// Adds `others` to a list in ascending order of numbers.
pub(super) fn merge_numbered<K: Ord, V>(mine: &mut Vec<(K, V)>, others: Vec<(K, V)>, mut merge: impl FnMut(&mut V, V)) {
    let mut all: BTreeMap<K, V> = std::mem::take(mine).into_iter().collect();
    for (number, value) in others {
        match all.get_mut(&number) {
            Some(mine) => merge(mine, value),
            None => {
                all.insert(number, value);
            }
        }
    }
    mine.extend(all);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        let arrival =
            MessageRecord { stream: 1, sequence: 2, receiver: 3, due_ns: u64::MAX, late_us: 5, received_ns: 6 };
        let departure = PublishRecord { stream: 1, sequence: u32::MAX, published_ns: 7 };
        Part { last_ns: 8, not_taken: 9, arrivals: vec![arrival; 3], departures: vec![departure; 2], ..Part::default() }
    }

    #[test]
    fn part_and_records_survive_serialization() {
        let (sent, bytes) = (part(), part().to_bytes());
        let mut came = Part::from_bytes(&bytes).unwrap();
        assert_eq!((came.last_ns, came.not_taken), (sent.last_ns, sent.not_taken));
        assert_eq!((&came.arrivals, &came.departures), (&sent.arrivals, &sent.departures));
        came = Part::from_bytes(&Part::default().to_bytes()).unwrap();
        assert!(came.arrivals.is_empty() && came.departures.is_empty());
    }

    #[test]
    fn bytes_that_are_no_part_are_an_error() {
        let bytes = part().to_bytes();
        for end in 0..bytes.len() {
            assert!(Part::from_bytes(&bytes[..end]).is_err(), "{end} bytes of {}", bytes.len());
        }
        assert!(Part::from_bytes(&[0xFF; 64]).is_err());
    }
}
