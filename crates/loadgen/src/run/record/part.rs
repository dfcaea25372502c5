use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lane::{Lane, SentStream};
use super::latencies::PackedLatencies;
use super::records;
use super::tally::{ConnectionCounts, PackedReceiver, SecondTally, merge_seconds};
use crate::run::{MessageRecord, PublishRecord};

/// What one recorder has seen, or several together: what an agent sends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// When second 0 began; `None` where nothing was started.
    pub(super) start_ns: Option<u64>,
    /// When the last message was published or came, or a client connected; 0 for none.
    pub(super) last_ns: u64,
    pub(super) seconds: Vec<SecondTally>,
    /// By stream.
    pub(super) streams: Vec<(u32, SentStream)>,
    /// By receiver.
    pub(super) receivers: Vec<(u32, PackedReceiver)>,
    /// By receiver and stream.
    pub(super) lanes: Vec<((u32, u32), Lane)>,
    pub(super) connections: ConnectionCounts,
    pub(super) connects: PackedLatencies,
    pub(super) not_taken: u64,
    pub(super) unsent: u64,
    /// How long those had waited when the time was over.
    pub(super) unsent_waited: PackedLatencies,
    pub(super) latest_send_us: u32,
    #[serde(with = "records")]
    pub(super) arrivals: Vec<MessageRecord>,
    #[serde(with = "records")]
    pub(super) departures: Vec<PublishRecord>,
}

impl Part {
    /// Adds what another recorder has seen. In whatever order parts are put together, the same comes of it.
    ///
    /// All of a receiver must be in one of them, or it is unknown what was out of order.
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
    }

    /// Takes the arrivals that were kept because [`Plan::records`](crate::run::Plan::records) asked for it, in the
    /// order in which they came.
    pub fn take_records(&mut self) -> Vec<MessageRecord> {
        let mut taken = std::mem::take(&mut self.arrivals);
        taken.sort_unstable_by_key(|record| (record.received_ns, record.receiver, record.stream, record.sequence));
        taken
    }

    /// Takes the published messages that were kept for the same reason, in the order in which they were published.
    pub fn take_publish_records(&mut self) -> Vec<PublishRecord> {
        let mut taken = std::mem::take(&mut self.departures);
        taken.sort_unstable_by_key(|record| (record.published_ns, record.stream, record.sequence));
        taken
    }
}

fn merge_numbered<K: Ord, V>(mine: &mut Vec<(K, V)>, others: Vec<(K, V)>, mut merge: impl FnMut(&mut V, V)) {
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
