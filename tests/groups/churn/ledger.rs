use crate::support::PATIENCE;

/// A message received by a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receipt {
    pub(crate) number: usize,
    /// Rises with time, across all members.
    pub(crate) stamp: u64,
    pub(crate) fate: Fate,
}

/// State of a receipt, as far as the broker can know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The broker read the acknowledgement: it answered a later packet.
    Settled,
    /// The member left in order, without acknowledging.
    LeftBefore,
    /// The member dropped its socket, with or without writing an acknowledgement.
    Killed,
}

/// All receipts of a run.
pub(crate) struct Ledger {
    receipts: Vec<Vec<Receipt>>,
}

/// Repeated messages, by the state of the receipt before.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    pub(crate) killed: usize,
    pub(crate) left_before: usize,
    /// The broker had read the acknowledgement.
    pub(crate) unexplained: usize,
}

impl Ledger {
    pub(crate) fn new(messages: usize) -> Self {
        Self { receipts: vec![Vec::new(); messages] }
    }

    pub(crate) fn add(&mut self, receipts: Vec<Receipt>) {
        for receipt in receipts {
            self.receipts[receipt.number].push(receipt);
        }
    }

    pub(crate) fn assert_nothing_lost(&self) {
        let lost: Vec<_> = (0..self.receipts.len()).filter(|&number| self.receipts[number].is_empty()).collect();
        let first = &lost[..lost.len().min(20)];
        assert!(lost.is_empty(), "{} messages did not come, and none came for {PATIENCE:?}: {first:?}…", lost.len());
    }

    /// Classifies every receipt but a message's last: its state explains why the message came again.
    pub(crate) fn duplicates(&self) -> Duplicates {
        let mut duplicates = Duplicates::default();
        for receipts in &self.receipts {
            let mut receipts = receipts.clone();
            receipts.sort_by_key(|receipt| receipt.stamp);
            receipts.pop();
            for receipt in receipts {
                match receipt.fate {
                    Fate::Killed => duplicates.killed += 1,
                    Fate::LeftBefore => duplicates.left_before += 1,
                    Fate::Settled => duplicates.unexplained += 1,
                }
            }
        }
        duplicates
    }
}

impl Duplicates {
    pub(crate) fn all(&self) -> usize {
        self.killed + self.left_before + self.unexplained
    }
}
