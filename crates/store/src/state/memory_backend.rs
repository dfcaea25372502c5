//! In-memory database with faults on demand, for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::backend::{Opener, Opening};
use super::{Backend, BackendError, Batch, Snapshots, Table, TableSnapshot, Visit};

#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Inner>>);

type Tables = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

#[derive(Default)]
struct Inner {
    /// Content for readers; a power cut reduces it to `synced`.
    applied: Tables,
    synced: Tables,
    /// Sizes of the applied batches.
    batches: Vec<usize>,
    openings: Vec<Opening>,
    fault: Option<Fault>,
}

/// A kind of call that fails until the fault is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Apply,
    /// Syncing fails, and loses the applied changes.
    Sync,
    Open,
    Panic,
}

impl MemoryDisk {
    pub(super) fn opener(&self) -> Opener {
        let disk = self.clone();
        Box::new(move |opening| {
            let mut inner = disk.inner();
            inner.openings.push(opening);
            if inner.fault == Some(Fault::Open) {
                return Err(BackendError::new("cannot be opened"));
            }
            drop(inner);
            Ok(Box::new(disk.clone()))
        })
    }

    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.inner().fault = fault;
    }

    /// Removes everything.
    pub(crate) fn clear(&self) {
        *self.inner() = Inner::default();
    }

    /// Returns the content after a power cut.
    pub(crate) fn synced(&self, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        let inner = self.inner();
        let rows = inner.synced.iter().filter(|((of, _), _)| *of == table);
        rows.map(|((_, key), value)| (key.clone(), value.clone())).collect()
    }

    pub(super) fn batches(&self) -> Vec<usize> {
        self.inner().batches.clone()
    }

    pub(super) fn openings(&self) -> Vec<Opening> {
        self.inner().openings.clone()
    }

    /// Blocks all writes while the returned guard lives.
    pub(super) fn stall(&self) -> impl Drop {
        self.inner()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Backend for MemoryDisk {
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let mut inner = self.inner();
        match inner.fault {
            Some(Fault::Apply) => return Err(BackendError::new("no space\nleft")),
            Some(Fault::Panic) => panic!("as the test wants it"),
            _ => {}
        }
        inner.batches.push(batch.len());
        for (table, key, value) in batch.iter() {
            match value {
                Some(value) => drop(inner.applied.insert((table, key.to_vec()), value.to_vec())),
                None => drop(inner.applied.remove(&(table, key.to_vec()))),
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BackendError> {
        let mut inner = self.inner();
        if inner.fault == Some(Fault::Sync) {
            inner.applied = inner.synced.clone();
            return Err(BackendError::new("input/output error"));
        }
        inner.synced = inner.applied.clone();
        Ok(())
    }

    fn snapshots(&self) -> Option<Snapshots> {
        let disk = self.clone();
        Some(Box::new(move || Box::new(disk.inner().applied.clone())))
    }

    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        let inner = self.inner();
        inner.applied.iter().filter(|((of, _), _)| *of == table).for_each(|((_, key), value)| visit(key, value));
        Ok(())
    }
}

impl TableSnapshot for Tables {
    fn visit(&self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        self.iter().all(|((table, key), value)| visit(*table, key, value));
        Ok(())
    }
}
