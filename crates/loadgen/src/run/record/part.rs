use serde::{Deserialize, Serialize};

use crate::run::MessageRecord;

/// What one recorder has seen, or several together: what an agent sends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Part {
    records: Vec<MessageRecord>,
}

impl Part {
    /// Adds what another recorder has seen. In whatever order parts are put together, the same comes of it.
    pub fn merge(&mut self, mut other: Self) {
        self.records.append(&mut other.records);
    }

    /// Takes the arrivals that were kept because [`Plan::records`](crate::run::Plan::records) asked for it, in the
    /// order in which they came.
    pub fn take_records(&mut self) -> Vec<MessageRecord> {
        let mut records = std::mem::take(&mut self.records);
        records.sort_by_key(|record| (record.received_ns, record.receiver, record.stream, record.sequence));
        records
    }
}
