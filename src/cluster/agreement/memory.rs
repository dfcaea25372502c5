//! An engine in memory, for tests of its users. Clones share the record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Read, StoredRecord, Swapped};

/// The engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    record: Option<StoredRecord>,
    is_unreachable: bool,
    loses_answers: bool,
}

impl Memory {
    /// Whether reads and swaps fail from now on.
    pub(crate) fn set_unreachable(&self, is_unreachable: bool) {
        self.lock().is_unreachable = is_unreachable;
    }

    /// Whether swaps happen without an answer from now on.
    pub(crate) fn set_loses_answers(&self, loses_answers: bool) {
        self.lock().loses_answers = loses_answers;
    }

    pub(super) fn read(&self) -> Read {
        match &*self.lock() {
            State { is_unreachable: true, .. } => Read::Unreachable("unreachable".to_owned()),
            State { record: Some(record), .. } => Read::Record(record.clone()),
            State { record: None, .. } => Read::Absent,
        }
    }

    pub(super) fn swap(&self, expected_epoch: u64, new: &StoredRecord) -> Swapped {
        let mut state = self.lock();
        if state.is_unreachable {
            return Swapped::Unknown("unreachable".to_owned());
        }
        let is_expected = state.record.as_ref().map_or(0, |record| record.epoch) == expected_epoch;
        if is_expected {
            state.record = Some(new.clone());
        }
        match (state.loses_answers, is_expected) {
            (true, _) => Swapped::Unknown("the answer is lost".to_owned()),
            (false, true) => Swapped::Done,
            (false, false) => Swapped::Refused,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::agreement::Agreement;

    use super::*;

    #[tokio::test]
    async fn lost_answer_hides_a_swap_that_happened() {
        let memory = Memory::default();
        let engine = Agreement::Memory(memory.clone());
        let record = |epoch| StoredRecord { epoch, leader: "a".to_owned(), nonce: epoch, ..StoredRecord::default() };
        assert_eq!(engine.read().await, Read::Absent);
        assert_eq!(engine.swap(0, &record(1)).await, Swapped::Done);
        assert_eq!(engine.swap(0, &record(1)).await, Swapped::Refused);
        memory.set_loses_answers(true);
        assert!(matches!(engine.swap(1, &record(2)).await, Swapped::Unknown(_)));
        assert_eq!(engine.read().await, Read::Record(record(2)));
        memory.set_unreachable(true);
        assert!(matches!(engine.read().await, Read::Unreachable(_)));
        assert!(matches!(engine.swap(2, &record(3)).await, Swapped::Unknown(_)));
    }
}
