use super::support::PATIENCE;

/// One message that came to one member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receipt {
    pub(crate) number: usize,
    /// Rises with time, whichever member.
    pub(crate) stamp: u64,
    pub(crate) fate: Fate,
}

/// What the broker can know of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It read the acknowledgement: it answered something that was sent later.
    Settled,
    /// The member left, by its own word, and had not acknowledged.
    LeftBefore,
    /// The member's socket was dropped, whether an acknowledgement had been written or not.
    Killed,
}

/// All receipts of a run.
pub(crate) struct Ledger {
    receipts: Vec<Vec<Receipt>>,
}

/// Messages that came again, by what had become of the receipt before.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    pub(crate) killed: usize,
    pub(crate) left_before: usize,
    /// The broker knew that the message was done.
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

    /// Each receipt but a message's last has to have a reason for the next one.
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
