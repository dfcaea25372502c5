//! Extending the last record instead of writing another one.

use super::{
    names::{Body, Place, QueueId, Sequence},
    record::Record,
};

/// Ascending marks of consecutive entries. With [`Body::Done`], the record stands for the entries themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkRun {
    pub(super) queue: QueueId,
    pub(super) from: Sequence,
    pub(super) to: Sequence,
    pub(super) first: u32,
    pub(super) body: Body,
}

impl MarkRun {
    pub(super) fn one(place: Place, mark: u32, body: Body) -> Self {
        Self { queue: place.queue, from: place.sequence, to: place.sequence, first: mark, body }
    }

    pub(super) fn marks(self) -> impl Iterator<Item = (Place, u32)> {
        (self.from.0..=self.to.0).map(move |sequence| {
            let place = Place { queue: self.queue, sequence: Sequence(sequence) };
            (place, self.first + (sequence - self.from.0) as u32)
        })
    }

    /// Returns the last mark; `None` if it overflows or the run is too long.
    pub(super) fn last(&self) -> Option<u32> {
        let more = self.to.0.checked_sub(self.from.0).filter(|&more| more < u64::from(MARK_RUN_MAX))?;
        self.first.checked_add(more as u32)
    }
}

/// Bounds the work of copying one such record.
const MARK_RUN_MAX: u32 = 1024;

impl Record<'static> {
    /// Returns one record equal to these two, if they are consecutive.
    pub(super) fn joined(&self, next: &Self) -> Option<Self> {
        match (*self, *next) {
            (Self::Acknowledge { queue, from, to }, Self::Acknowledge { queue: other, from: next, to: end })
                if queue == other && to.0.checked_add(1) == Some(next.0) =>
            {
                Some(Self::Acknowledge { queue, from, to: end })
            }
            (Self::Mark(run), Self::Mark(next)) if (run.queue, run.body) == (next.queue, next.body) => {
                let joined = MarkRun { to: next.to, ..run };
                let is_next = run.to.0.checked_add(1) == Some(next.from.0) && joined.last() == next.last();
                (is_next && joined.last().is_some()).then_some(Self::Mark(joined))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(queue: u64, sequence: u64) -> Place {
        Place { queue: QueueId(queue), sequence: Sequence(sequence) }
    }

    #[test]
    fn consecutive_ascending_marks_are_joined() {
        let mark = |sequence, mark, body| Record::Mark(MarkRun::one(place(1, sequence), mark, body));
        let run = mark(5, 8, Body::Kept).joined(&mark(6, 9, Body::Kept)).unwrap();
        assert_eq!(run, Record::Mark(MarkRun { to: Sequence(6), ..MarkRun::one(place(1, 5), 8, Body::Kept) }));
        for next in [
            mark(7, 9, Body::Kept),
            mark(7, 11, Body::Kept),
            mark(8, 10, Body::Kept),
            mark(7, 10, Body::Done),
            Record::Mark(MarkRun::one(place(2, 7), 10, Body::Kept)),
        ] {
            assert_eq!(run.joined(&next), None);
        }
        assert_eq!(mark(u64::MAX, 1, Body::Kept).joined(&mark(0, 2, Body::Kept)), None);
        let long = Record::Mark(MarkRun { to: Sequence(1_024), ..MarkRun::one(place(1, 1), 1, Body::Done) });
        assert_eq!(long.joined(&mark(1_025, 1_025, Body::Done)), None);
        assert_eq!(mark(1, u32::MAX, Body::Kept).joined(&mark(2, 0, Body::Kept)), None);
    }
}
