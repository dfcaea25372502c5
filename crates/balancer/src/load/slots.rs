/// Overdue messages of a client, and how many messages it is known to hold at a time.
#[derive(Debug, Default)]
pub(super) struct Slots {
    overdue: u32,
    /// Slots that the client has at least: it acknowledged a message in spite of overdue ones.
    proven: u32,
}

impl Slots {
    pub(super) fn set_overdue(&mut self, messages: u32) {
        self.overdue = messages;
    }

    pub(super) fn overdue(&self) -> u32 {
        self.overdue
    }

    /// Takes note of an acknowledged message that is not overdue.
    pub(super) fn acknowledged(&mut self) {
        self.proven = self.proven.max(self.overdue.saturating_add(1));
    }

    /// Returns whether every slot is overdue. `limit`: messages that the client may have outstanding; `None` = any number.
    pub(super) fn are_overdue(&self, limit: Option<u64>) -> bool {
        let slots = limit.unwrap_or(UNLIMITED).max(self.proven.into()).max(1);
        u64::from(self.overdue) >= slots
    }
}

/// Slots of a client that may have any number of messages: as many as one that has not acknowledged any.
const UNLIMITED: u64 = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_slots_are_overdue_from_the_limit_on() {
        let mut slots = Slots::default();
        assert!(!slots.are_overdue(Some(0)), "nothing is overdue");
        for (limit, least) in [(Some(1), 1), (Some(3), 3), (None, 8), (Some(0), 1)] {
            slots.set_overdue(least - 1);
            assert!(!slots.are_overdue(limit), "{limit:?}");
            slots.set_overdue(least);
            assert!(slots.are_overdue(limit), "{limit:?}");
        }
    }

    #[test]
    fn acknowledgement_beside_overdue_messages_proves_a_slot() {
        let mut slots = Slots::default();
        slots.set_overdue(2);
        assert!(slots.are_overdue(Some(1)));
        slots.acknowledged();
        assert!(!slots.are_overdue(Some(1)));
        slots.set_overdue(3);
        assert!(slots.are_overdue(Some(1)), "now the third one is overdue, too");
    }
}
