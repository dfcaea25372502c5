//! Counters for receivers, seconds and connections.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::latencies::{Latencies, PackedLatencies};

/// Counters of a receiver while it is recorded.
#[derive(Debug)]
pub(super) struct ReceiverTally {
    pub(super) counts: ReceiverCounts,
    pub(super) latency: Latencies,
    /// Times from due until a simulated worker took the message; `None` before the first.
    pub(super) waiting: Option<Box<Latencies>>,
}

/// Message counts of a receiver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ReceiverCounts {
    /// Arrivals, without `foreign` and `wrong`.
    pub(super) received: u64,
    pub(super) foreign: u64,
    /// Damaged payloads, or messages of a stream that is not for this receiver.
    pub(super) wrong: u64,
    /// Of `received`, those with the DUP flag.
    pub(super) marked: u64,
    /// `received` by second.
    pub(super) per_second: Vec<u32>,
    /// Messages processed in each second, and the sum of their processing times.
    pub(super) processed: Vec<(u32, Duration)>,
}

/// Serialized counters of a receiver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PackedReceiver {
    pub(super) counts: ReceiverCounts,
    pub(super) latency: PackedLatencies,
    pub(super) waiting: PackedLatencies,
}

impl ReceiverTally {
    pub(super) fn new(digits: u8) -> Self {
        Self { counts: ReceiverCounts::default(), latency: Latencies::new(digits), waiting: None }
    }

    pub(super) fn pack(self) -> PackedReceiver {
        let waiting = self.waiting.map(|waiting| waiting.pack()).unwrap_or_default();
        PackedReceiver { counts: self.counts, latency: self.latency.pack(), waiting }
    }
}

impl ReceiverCounts {
    #[inline]
    pub(super) fn receive(&mut self, second: usize, dup: bool) {
        self.received += 1;
        self.marked += u64::from(dup);
        *at_second(&mut self.per_second, second) += 1;
    }

    pub(super) fn process(&mut self, second: usize, took: Duration) {
        let (messages, time) = at_second(&mut self.processed, second);
        *messages += 1;
        *time += took;
    }
}

impl PackedReceiver {
    pub(super) fn merge(&mut self, other: Self) {
        let (mine, others) = (&mut self.counts, other.counts);
        mine.received += others.received;
        mine.foreign += others.foreign;
        mine.wrong += others.wrong;
        mine.marked += others.marked;
        merge_seconds(&mut mine.per_second, others.per_second, |mine, other| *mine += other);
        merge_seconds(&mut mine.processed, others.processed, |mine, other| {
            mine.0 += other.0;
            mine.1 += other.1;
        });
        self.latency.merge(other.latency);
        self.waiting.merge(other.waiting);
    }
}

/// Counters of one second of the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SecondTally {
    pub(super) published: u64,
    pub(super) received: u64,
    pub(super) latency: PackedLatencies,
    pub(super) uncorrected: PackedLatencies,
    /// Payload bytes of the arrivals.
    pub(super) received_bytes: u64,
    /// Times from due to acknowledged of the messages acknowledged in this second.
    pub(super) acknowledgement: PackedLatencies,
    /// Messages that the broker refused.
    pub(super) refused: u64,
    /// Connections that were refused, lost and made again.
    pub(super) connections_refused: u64,
    pub(super) connections_lost: u64,
    pub(super) reconnects: u64,
}

impl SecondTally {
    pub(super) fn merge(&mut self, other: Self) {
        self.published += other.published;
        self.received += other.received;
        self.latency.merge(other.latency);
        self.uncorrected.merge(other.uncorrected);
        self.received_bytes += other.received_bytes;
        self.acknowledgement.merge(other.acknowledgement);
        self.refused += other.refused;
        self.connections_refused += other.connections_refused;
        self.connections_lost += other.connections_lost;
        self.reconnects += other.reconnects;
    }
}

/// Counters of connections.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct ConnectionCounts {
    /// First connections of clients.
    pub(super) accepted: u64,
    pub(super) reconnected: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) cut: u64,
    pub(super) sessions_present: u64,
    pub(super) wills: u64,
    /// Times of switches to a server that DISCONNECT has named, from the end of the old connection to CONNACK with the session.
    pub(super) switches_ns: Vec<u64>,
    /// Switches back to the server with which a client began, and when the last one was, by the run's clock.
    #[serde(default)]
    pub(super) back: u64,
    #[serde(default)]
    pub(super) back_at_ns: u64,
    /// From the first CONNECT to the last CONNACK of accepted connections, by the run's clock.
    pub(super) span_ns: Option<(u64, u64)>,
}

impl ConnectionCounts {
    pub(super) fn accept(&mut self, took: Duration, now_ns: u64) {
        self.accepted += 1;
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.extend((now_ns.saturating_sub(took_ns), now_ns));
    }

    pub(super) fn switch(&mut self, took: Duration, is_home: bool, now_ns: u64) {
        self.switches_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if is_home {
            self.back += 1;
            self.back_at_ns = self.back_at_ns.max(now_ns);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.reconnected += other.reconnected;
        self.refused += other.refused;
        self.lost += other.lost;
        self.cut += other.cut;
        self.sessions_present += other.sessions_present;
        self.wills += other.wills;
        self.switches_ns.extend_from_slice(&other.switches_ns);
        self.back += other.back;
        self.back_at_ns = self.back_at_ns.max(other.back_at_ns);
        other.span_ns.into_iter().for_each(|span| self.extend(span));
    }

    fn extend(&mut self, (from, to): (u64, u64)) {
        let (first, last) = self.span_ns.unwrap_or((from, to));
        self.span_ns = Some((first.min(from), last.max(to)));
    }
}

/// The entry of a second; extends the list if needed.
#[inline]
pub(super) fn at_second<T: Clone + Default>(seconds: &mut Vec<T>, second: usize) -> &mut T {
    if second >= seconds.len() {
        seconds.resize(second + 1, T::default());
    }
    &mut seconds[second]
}

pub(super) fn merge_seconds<T: Clone + Default>(mine: &mut Vec<T>, others: Vec<T>, mut merge: impl FnMut(&mut T, T)) {
    if mine.len() < others.len() {
        mine.resize(others.len(), T::default());
    }
    mine.iter_mut().zip(others).for_each(|(mine, other)| merge(mine, other));
}
