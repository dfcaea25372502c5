//! The engine that keeps the cluster's record: a linearizable read, and compare-and-swap on the epoch.

pub(crate) mod etcd;
#[cfg(test)]
pub(crate) mod memory;

pub(crate) use etcd::Etcd;
pub(crate) use tenbin_cluster::StoredRecord;

/// Result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    Record(StoredRecord),
    /// The engine has answered, and has no record.
    Absent,
    /// The engine has not answered in time, or with an error. The text has one line.
    Unreachable(String),
}

/// Result of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Swapped {
    Done,
    /// The record has another epoch, and this swap will never happen.
    Refused,
    /// The swap has happened, will happen, or will never happen. The text has one line.
    ///
    /// A read right afterwards may precede the swap. Only a record with another epoch, or the outcome of a further swap
    /// from the same epoch, tells that this swap can no longer happen.
    Unknown(String),
}

/// An engine.
#[derive(Debug, Clone)]
pub(crate) enum Agreement {
    Etcd(Etcd),
    #[cfg(test)]
    Memory(memory::Memory),
}

impl Agreement {
    /// Reads the record: at least as new as every swap that was done before the call.
    pub(crate) async fn read(&self) -> Read {
        match self {
            Self::Etcd(etcd) => etcd.read().await,
            #[cfg(test)]
            Self::Memory(memory) => memory.read(),
        }
    }

    /// Replaces the record if its epoch is `expected_epoch`; 0 = creates the record if there is none.
    pub(crate) async fn swap(&self, expected_epoch: u64, new: &StoredRecord) -> Swapped {
        match self {
            Self::Etcd(etcd) => etcd.swap(expected_epoch, new).await,
            #[cfg(test)]
            Self::Memory(memory) => memory.swap(expected_epoch, new),
        }
    }
}
