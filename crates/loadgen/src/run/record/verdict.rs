//! Compares expected with received messages.

use rustc_hash::FxHashMap;

use super::lane::{Lane, SentStream, SharedLane};
use super::layout::{Layout, Unit};
use super::part::Part;
use super::sequence_set::SequenceSet;
use super::tally::PackedReceiver;
use crate::run::Verdict;

/// The verdict on each unit; exact if payloads have a stamp.
pub(super) fn verdicts(layout: &Layout, part: &Part, exact: bool) -> Vec<Verdict> {
    let sent = Sent(part.streams.iter().map(|(stream, sent)| (*stream, sent)).collect());
    let mut verdicts = if exact { by_message(layout, part, &sent) } else { by_number(layout, part, &sent) };
    for (receiver, tally) in &part.receivers {
        let Some(verdict) = layout.unit_of(*receiver).map(|unit| &mut verdicts[unit]) else { continue };
        verdict.foreign += tally.counts.foreign;
        verdict.wrong += tally.counts.wrong;
    }
    verdicts
}

/// Sent streams, by number.
struct Sent<'a>(FxHashMap<u32, &'a SentStream>);

impl Sent<'_> {
    fn published(&self, stream: u32) -> u64 {
        self.0.get(&stream).map_or(0, |sent| sent.published())
    }

    fn attempted(&self, stream: u32) -> u64 {
        self.0.get(&stream).map_or(0, |sent| sent.attempted())
    }
}

fn by_message(layout: &Layout, part: &Part, sent: &Sent) -> Vec<Verdict> {
    let expected = |unit: &Unit| unit.sums(|stream| sent.published(stream)).iter().sum();
    let verdict = |unit| Verdict { expected: expected(unit), exact: true, ..Verdict::default() };
    let mut verdicts: Vec<_> = layout.units().iter().map(verdict).collect();
    let mut shared: FxHashMap<(usize, u32), Vec<&Lane>> = FxHashMap::default();
    for ((receiver, stream), lane) in &part.lanes {
        // A receiver outside the plan can only come from an agent with another plan.
        let Some(unit) = layout.unit_of(*receiver) else { continue };
        let verdict = &mut verdicts[unit];
        verdict.duplicated += lane.counts.copies;
        verdict.duplicated_unmarked += lane.counts.copies_unmarked;
        verdict.out_of_order += lane.counts.out_of_order;
        if layout.units()[unit].is_shared {
            shared.entry((unit, *stream)).or_default().push(lane);
        } else {
            judge(verdict, &lane.came, sent.0.get(stream).copied());
        }
    }
    for ((unit, stream), lanes) in &shared {
        let verdict = &mut verdicts[*unit];
        let lane = SharedLane::of(lanes);
        verdict.duplicated += lane.to_another_member;
        verdict.to_another_member += lane.to_another_member;
        verdict.duplicated_unmarked += lane.to_another_unmarked;
        judge(verdict, &lane.came, sent.0.get(stream).copied());
    }
    for verdict in &mut verdicts {
        verdict.lost = verdict.expected.saturating_sub(verdict.received);
    }
    verdicts
}

/// Classifies each number that arrived: published, only attempted, or never sent.
fn judge(verdict: &mut Verdict, came: &SequenceSet, sent: Option<&SentStream>) {
    let (published, attempted) = sent.map_or((0, 0), |sent| (sent.published_of(came), sent.attempted_of(came)));
    verdict.received += published;
    verdict.unconfirmed += attempted.saturating_sub(published);
    verdict.wrong += came.len() - attempted;
}

/// Verdicts from counts alone: messages cannot be told apart, so that a copy hides a loss.
fn by_number(layout: &Layout, part: &Part, sent: &Sent) -> Vec<Verdict> {
    let receivers: FxHashMap<u32, &PackedReceiver> =
        part.receivers.iter().map(|(number, tally)| (*number, tally)).collect();
    let of_unit = |unit: &Unit| {
        let published = unit.sums(|stream| sent.published(stream));
        let attempted = unit.sums(|stream| sent.attempted(stream));
        let mut came: Vec<_> =
            unit.receivers.iter().map(|receiver| Came::at(receivers.get(receiver).copied())).collect();
        if unit.is_shared {
            came = vec![came.into_iter().fold(Came::default(), Came::and)];
        }
        let mut verdict = Verdict::default();
        for ((published, attempted), came) in published.into_iter().zip(attempted).zip(came) {
            verdict += came.verdict(published, attempted);
        }
        verdict
    };
    layout.units().iter().map(of_unit).collect()
}

/// Arrivals, and how many of them have the DUP flag.
#[derive(Clone, Copy, Default)]
struct Came {
    all: u64,
    marked: u64,
}

impl Came {
    fn at(receiver: Option<&PackedReceiver>) -> Self {
        receiver.map_or(Self::default(), |tally| Self { all: tally.counts.received, marked: tally.counts.marked })
    }

    fn and(self, other: Self) -> Self {
        Self { all: self.all + other.all, marked: self.marked + other.marked }
    }

    fn verdict(self, published: u64, attempted: u64) -> Verdict {
        let received = self.all.min(published);
        let unconfirmed = (self.all - received).min(attempted.saturating_sub(published));
        let duplicated = self.all - received - unconfirmed;
        Verdict {
            expected: published,
            received,
            lost: published - received,
            duplicated,
            duplicated_unmarked: duplicated.saturating_sub(self.marked),
            unconfirmed,
            ..Verdict::default()
        }
    }
}

// A sum is exact if both verdicts are.
sums!(Verdict: expected, received, lost, duplicated, duplicated_unmarked, to_another_member, out_of_order, unconfirmed,
      foreign, wrong; exact);
