//! The fate of each message, for any period of a run.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::due_index::DueIndex;
use super::lane::{Lane, SentStream};
use super::layout::{Layout, Unit};
use super::part::Part;
use super::sequence_set::SequenceSet;
use crate::run::{Plan, Stamp};

/// Fate of each message of a run, for any window of due times.
///
/// A message belongs to the window in which it was due, whenever it arrived. So a loss is dated to its cause. In an
/// open loop due times are exact. In a closed loop, and at full speed, messages that were sent within 10 ms of each
/// other share the due time of the first. Each message is in exactly one of several adjacent windows.
///
/// It keeps a few bits for a message, as the recorders do.
#[derive(Debug)]
pub struct Ledger {
    layout: Arc<Layout>,
    start_ns: u64,
    due: DueIndex,
    streams: FxHashMap<u32, SentStream>,
    /// In ascending order of receiver and stream.
    lanes: Vec<((u32, u32), Lane)>,
}

/// Counts of a window.
///
/// The first four are messages. The others are deliveries: a message for three subscribers counts three times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCounts {
    /// Messages that were handed to a socket.
    pub published: u64,
    /// Of `published`, those that the system acknowledged; at QoS 0 those that were written.
    pub acknowledged: u64,
    /// Of `published`, those that the system refused.
    pub refused: u64,
    /// Of `published`, those that were neither acknowledged nor refused.
    pub unconfirmed: u64,
    /// Deliveries that acknowledged messages call for.
    pub expected: u64,
    /// Of `expected`, those that came; each counts once.
    pub received: u64,
    /// Of `expected`, those that never came.
    pub lost: u64,
    /// Further copies to the same receiver, or to another member of the share group.
    pub duplicated: u64,
    /// Arrivals behind a later message of the same stream; copies and messages with the DUP flag do not count.
    pub out_of_order: u64,
    /// Deliveries of unconfirmed messages that came.
    pub unconfirmed_arrived: u64,
    /// Deliveries of unconfirmed messages that never came. They are no losses.
    pub unconfirmed_missing: u64,
    /// Deliveries of refused messages. There should be none.
    pub refused_arrived: u64,
}

sums!(LedgerCounts: published, acknowledged, refused, unconfirmed, expected, received, lost, duplicated, out_of_order,
      unconfirmed_arrived, unconfirmed_missing, refused_arrived);

/// One stream in a window.
struct StreamWindow<'a> {
    sequences: Range<u32>,
    sent: Option<&'a SentStream>,
}

impl Ledger {
    /// The ledger of `part`; `None` if payloads are below [`Stamp::LEN`], or if the run has no publishers.
    pub fn of(plan: &Plan, layout: Arc<Layout>, part: Part) -> Option<Self> {
        if (plan.publishers.payload as usize) < Stamp::LEN || plan.publishers.count == 0 {
            return None;
        }
        let start_ns = part.start_ns.unwrap_or(0);
        Some(Self {
            start_ns,
            due: DueIndex::new(plan, start_ns),
            streams: part.streams.into_iter().collect(),
            lanes: part.lanes,
            layout,
        })
    }

    /// Start of the run's second 0, in nanoseconds since 1970-01-01 UTC.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Counts of the whole run.
    pub fn whole(&self) -> LedgerCounts {
        self.counts(|sent| 0..sent.map_or(0, SentStream::attempted_upto), 0..self.layout.streams())
    }

    /// Counts of the messages that were due in `window`, in nanoseconds since 1970-01-01 UTC.
    pub fn window(&self, window: Range<u64>) -> LedgerCounts {
        let mut counts = LedgerCounts::default();
        for stream in 0..self.layout.streams() {
            let sent = self.streams.get(&stream);
            let below = |ns: u64| sent.map_or(0, |sent| self.due.below(&self.layout, stream, sent, ns));
            let sequences = below(window.start)..below(window.end.max(window.start));
            counts += self.counts(|_| sequences.clone(), stream..stream + 1);
        }
        counts
    }

    /// When message `sequence` of `stream` was due, in nanoseconds since 1970-01-01 UTC; `None` if it was never sent.
    pub fn due_ns(&self, stream: u32, sequence: u32) -> Option<u64> {
        let sent = self.streams.get(&stream).filter(|sent| sequence < sent.attempted_upto())?;
        self.due.due_ns(&self.layout, stream, sent, sequence)
    }

    /// Lost messages of `stream` at `receiver`, in order: acknowledged, and never came to it or to its share group.
    ///
    /// It is empty if the stream is not for this receiver.
    pub fn lost(&self, stream: u32, receiver: u32) -> impl Iterator<Item = u32> {
        let lost = self.layout.unit_of(receiver).filter(|_| self.layout.is_for(stream, receiver)).and_then(|unit| {
            let unit = &self.layout.units()[unit];
            let members = if unit.is_shared { unit.receivers.as_slice() } else { &[receiver] };
            let mut came = SequenceSet::default();
            members.iter().filter_map(|member| self.lane(*member, stream)).for_each(|lane| came.unite(&lane.came));
            Some(self.streams.get(&stream)?.acknowledged().without(&came))
        });
        lost.unwrap_or_default().into_numbers()
    }

    /// Number of messages that were due in `window` and handed to a socket: [`LedgerCounts::published`] alone, for
    /// callers with many windows.
    pub fn published(&self, window: Range<u64>) -> u64 {
        let of = |stream| {
            let Some(sent) = self.streams.get(&stream) else { return 0 };
            let below = |ns: u64| self.due.below(&self.layout, stream, sent, ns).min(sent.attempted_upto());
            u64::from(below(window.end).saturating_sub(below(window.start)))
        };
        (0..self.layout.streams()).map(of).sum()
    }

    /// Counts of the `sequences` of each of these streams.
    fn counts(&self, sequences: impl Fn(Option<&SentStream>) -> Range<u32>, streams: Range<u32>) -> LedgerCounts {
        let mut counts = LedgerCounts::default();
        for stream in streams {
            let sent = self.streams.get(&stream);
            let window = StreamWindow { sequences: sequences(sent), sent };
            if window.sequences.is_empty() {
                continue;
            }
            let (published, acknowledged, refused) = window.messages();
            let unconfirmed = published.saturating_sub(acknowledged + refused);
            counts += LedgerCounts { published, acknowledged, refused, unconfirmed, ..LedgerCounts::default() };
            for unit in self.layout.units() {
                self.add_unit(&mut counts, unit, stream, &window);
            }
        }
        counts
    }

    fn add_unit(&self, counts: &mut LedgerCounts, unit: &Unit, stream: u32, window: &StreamWindow<'_>) {
        if unit.is_shared {
            if unit.streams_for(0).binary_search(&stream).is_ok() {
                let lanes = unit.receivers.iter().filter_map(|receiver| self.lane(*receiver, stream));
                window.judge(counts, &lanes.collect::<Vec<_>>());
            }
            return;
        }
        for (place, receiver) in unit.receivers.iter().enumerate() {
            if unit.streams_for(place).binary_search(&stream).is_ok() {
                window.judge(counts, self.lane(*receiver, stream).as_slice());
            }
        }
    }

    fn lane(&self, receiver: u32, stream: u32) -> Option<&Lane> {
        let place = self.lanes.binary_search_by_key(&(receiver, stream), |(number, _)| *number).ok()?;
        Some(&self.lanes[place].1)
    }
}

impl StreamWindow<'_> {
    /// Messages that were published, acknowledged and refused.
    fn messages(&self) -> (u64, u64, u64) {
        let Some(sent) = self.sent else { return (0, 0, 0) };
        let published = sent.attempted_upto().min(self.sequences.end).saturating_sub(self.sequences.start);
        let of = |set: &SequenceSet| set.len_within(self.sequences.clone());
        (u64::from(published), of(sent.acknowledged()), of(sent.refused()))
    }

    /// Adds the deliveries to the receiver, or to the share group, that has these `lanes`.
    fn judge(&self, counts: &mut LedgerCounts, lanes: &[&Lane]) {
        let (published, acknowledged, refused) = self.messages();
        let unconfirmed = published.saturating_sub(acknowledged + refused);
        let sequences = || self.sequences.clone();
        let united;
        let (came, to_another_member) = match lanes {
            [] => (&SequenceSet::default(), 0),
            [lane] => (&lane.came, 0),
            lanes => {
                let mut all = SequenceSet::default();
                lanes.iter().for_each(|lane| all.unite(&lane.came));
                united = all;
                let first_copies: u64 = lanes.iter().map(|lane| lane.came.len_within(sequences())).sum();
                (&united, first_copies - united.len_within(sequences()))
            }
        };
        let (received, refused_arrived) = self.sent.map_or((0, 0), |sent| {
            let of = |set: &SequenceSet| set.common_len_within(came, sequences());
            (of(sent.acknowledged()), of(sent.refused()))
        });
        let attempted = self.sequences.start..self.sequences.start + published as u32;
        let arrived = came.len_within(attempted);
        let unconfirmed_arrived = arrived.saturating_sub(received + refused_arrived);
        counts.expected += acknowledged;
        counts.received += received;
        counts.lost += acknowledged.saturating_sub(received);
        counts.refused_arrived += refused_arrived;
        counts.unconfirmed_arrived += unconfirmed_arrived;
        counts.unconfirmed_missing += unconfirmed.saturating_sub(unconfirmed_arrived);
        counts.duplicated += to_another_member;
        for lane in lanes {
            counts.duplicated += lane.copies_within(sequences());
            counts.out_of_order += lane.late_within(sequences());
        }
    }
}
