/// Exact count of lost and duplicated messages.
///
/// A message is identified by its sequence number, 0, 1, 2, … in the order of publishing. It takes four bytes.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Number of copies that arrived, by sequence number, for all published messages.
    copies: Vec<u32>,
    received: u64,
    duplicated: u64,
    unknown: u64,
}

/// Classification of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The first copy of its message.
    First,
    /// A further copy.
    Duplicate,
    /// A message that was never published.
    Unknown,
}

/// Totals of a [`Ledger`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Messages that were published.
    pub published: u64,
    /// Published messages that arrived, each counted once.
    pub received: u64,
    /// Published messages that never arrived.
    pub lost: u64,
    /// Further copies of messages that had arrived already.
    pub duplicated: u64,
    /// Arrivals of messages that were never published.
    pub unknown: u64,
}

impl Ledger {
    /// A ledger in which the sequence numbers below `published` are published.
    pub fn new(published: usize) -> Self {
        Self { copies: vec![0; published], ..Self::default() }
    }

    /// Enters one more published message; returns its sequence number.
    pub fn publish(&mut self) -> u64 {
        self.copies.push(0);
        self.copies.len() as u64 - 1
    }

    /// Enters the arrival of `sequence`.
    pub fn receive(&mut self, sequence: u64) -> Receipt {
        let entry = usize::try_from(sequence).ok().and_then(|index| self.copies.get_mut(index));
        let Some(copies) = entry else {
            self.unknown += 1;
            return Receipt::Unknown;
        };
        *copies = copies.saturating_add(1);
        if *copies == 1 {
            self.received += 1;
            Receipt::First
        } else {
            self.duplicated += 1;
            Receipt::Duplicate
        }
    }

    /// Sequence numbers of lost messages, in order.
    pub fn lost(&self) -> impl Iterator<Item = u64> {
        self.copies.iter().enumerate().filter(|&(_, &copies)| copies == 0).map(|(sequence, _)| sequence as u64)
    }

    /// The sums.
    pub fn totals(&self) -> LedgerTotals {
        let published = self.copies.len() as u64;
        LedgerTotals {
            published,
            received: self.received,
            lost: published - self.received,
            duplicated: self.duplicated,
            unknown: self.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_received_once_lost_or_duplicated() {
        let mut ledger = Ledger::new(5);
        let receipts: Vec<_> = [3, 0, 3, 1, 3, 0].map(|sequence| ledger.receive(sequence)).into();
        use Receipt::{Duplicate, First};
        assert_eq!(receipts, [First, First, Duplicate, First, Duplicate, Duplicate]);
        assert_eq!(ledger.lost().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(ledger.totals(), LedgerTotals { published: 5, received: 3, lost: 2, duplicated: 3, unknown: 0 });
    }

    #[test]
    fn unpublished_sequence_counts_as_unknown() {
        let mut ledger = Ledger::new(1);
        assert_eq!(ledger.receive(1), Receipt::Unknown);
        assert_eq!(ledger.receive(u64::MAX), Receipt::Unknown);
        assert_eq!(ledger.totals(), LedgerTotals { published: 1, received: 0, lost: 1, duplicated: 0, unknown: 2 });
    }

    #[test]
    fn publishing_numbers_the_messages() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.totals(), LedgerTotals::default());
        assert_eq!((ledger.publish(), ledger.publish()), (0, 1));
        assert_eq!(ledger.receive(1), Receipt::First);
        assert_eq!(ledger.lost().collect::<Vec<_>>(), [0]);
    }
}
