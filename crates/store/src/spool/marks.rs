//! Marks of a queue's entries.

use std::collections::BTreeMap;

/// Marks as runs of consecutive sequences.
///
/// Consecutive entries get ascending marks and end in order, so even many entries have few runs.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Keyed by first sequence. Runs do not overlap.
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of consecutive sequences; at least one.
    count: u32,
    /// Mark of the first; each further one is greater by one. None is 0.
    mark: u32,
}

impl Run {
    fn last(self, first: u64) -> u64 {
        first + u64::from(self.count - 1)
    }
}

impl Marks {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the mark of a sequence; 0 if it has none.
    pub(super) fn get(&self, sequence: u64) -> u32 {
        let run = self.runs.range(..=sequence).next_back().filter(|(first, run)| run.last(**first) >= sequence);
        run.map_or(0, |(first, run)| run.mark + (sequence - first) as u32)
    }

    /// Returns all marks, in sequence order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.runs
            .iter()
            .flat_map(|(&first, run)| (0..run.count).map(move |nth| (first + u64::from(nth), run.mark + nth)))
    }

    pub(super) fn set(&mut self, sequence: u64, mark: u32) {
        self.remove(sequence, sequence);
        if mark == 0 {
            return;
        }
        if let Some((&first, run)) = self.runs.range_mut(..sequence).next_back()
            && run.last(first).checked_add(1) == Some(sequence)
            && run.mark.checked_add(run.count) == Some(mark)
        {
            run.count += 1;
        } else {
            self.runs.insert(sequence, Run { count: 1, mark });
        }
    }

    /// Removes the marks of an inclusive range.
    pub(super) fn remove(&mut self, from: u64, to: u64) {
        while let Some((&first, &run)) = self.runs.range(..=to).next_back() {
            let last = run.last(first);
            if last < from {
                break;
            }
            self.runs.remove(&first);
            if first < from {
                self.runs.insert(first, Run { count: (from - first) as u32, ..run });
            }
            if last > to {
                let mark = run.mark + (to + 1 - first) as u32;
                self.runs.insert(to + 1, Run { count: (last - to) as u32, mark });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum MarkStep {
        Set(u64, u32),
        /// Sets ascending marks on consecutive sequences.
        Run(u64, u64, u32),
        Remove(u64, u64),
    }

    fn step() -> impl Strategy<Value = MarkStep> {
        let mark = || prop_oneof![0..4_u32, u32::MAX - 3..=u32::MAX];
        let sequence = || prop_oneof![0..30_u64, u64::MAX - 5..=u64::MAX];
        prop_oneof![
            (sequence(), mark()).prop_map(|(sequence, mark)| MarkStep::Set(sequence, mark)),
            (0..30_u64, 1..10_u64, 0..4_u32).prop_map(|(from, count, mark)| MarkStep::Run(from, count, mark)),
            (sequence(), 0..8_u64).prop_map(|(from, count)| MarkStep::Remove(from, from.saturating_add(count))),
        ]
    }

    proptest! {
        #[test]
        fn marks_match_a_map_from_sequences(steps in prop::collection::vec(step(), 0..60)) {
            let (mut marks, mut model) = (Marks::default(), BTreeMap::new());
            let set = |marks: &mut Marks, model: &mut BTreeMap<u64, u32>, sequence, mark| {
                marks.set(sequence, mark);
                model.insert(sequence, mark);
                model.retain(|_, mark| *mark != 0);
            };
            for step in steps {
                match step {
                    MarkStep::Set(sequence, mark) => set(&mut marks, &mut model, sequence, mark),
                    MarkStep::Run(from, count, mark) => {
                        (0..count).for_each(|nth| set(&mut marks, &mut model, from + nth, mark + nth as u32));
                    }
                    MarkStep::Remove(from, to) => {
                        marks.remove(from, to);
                        model.retain(|sequence, _| !(from..=to).contains(sequence));
                    }
                }
                prop_assert!(marks.iter().eq(model.iter().map(|(&sequence, &mark)| (sequence, mark))));
                for sequence in (0..35).chain(u64::MAX - 5..=u64::MAX) {
                    prop_assert_eq!(marks.get(sequence), model.get(&sequence).copied().unwrap_or(0));
                }
            }
        }
    }

    #[test]
    fn window_of_sent_and_received_messages_is_two_runs() {
        let mut marks = Marks::default();
        let sent = 1 << 16;
        (0..60_000).for_each(|sequence| marks.set(sequence, sent + 1 + sequence as u32));
        assert_eq!(marks.runs.len(), 1);
        (0..1_000).for_each(|sequence| marks.set(sequence, 3 * sent + 1 + sequence as u32));
        assert_eq!(marks.runs.len(), 2);
        (0..500).for_each(|sequence| marks.remove(sequence, sequence));
        assert_eq!((marks.runs.len(), marks.iter().count()), (2, 59_500));
        marks.remove(0, u64::MAX);
        assert!(marks.is_empty());
    }
}
