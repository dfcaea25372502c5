//! The copy of the state: a database that applies the leader's batches.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::check::{CHECK, Compare};
use super::copy::Passes;
use super::moment::CopySnapshot;
use super::operation::{Operation as O, changes};
use crate::state::{Backend, Batch, StateFiles, Table, id_in};
use crate::{StoreId, Sync};

/// Database of a copied state.
pub(super) struct StateCopy {
    create: Create,
    backend: Option<Box<dyn Backend>>,
    /// Keys that the leader has changed since the join, until everything from before is copied.
    changed: Option<HashSet<(Table, Box<[u8]>)>>,
    /// `None` = it is neither backed up nor compared, as in a restore.
    pub(super) passes: Option<Passes>,
    /// The state at the moment of a comparison.
    compared: Option<CopySnapshot>,
}

/// Replaces the state by an empty one.
pub(super) type Create = Box<dyn Fn() -> io::Result<Box<dyn Backend>> + Send>;

impl StateCopy {
    /// A state in a data directory.
    pub(super) fn new(directory: &Path, sync: Sync) -> Self {
        let directory = directory.to_owned();
        Self::with(Box::new(move || StateFiles::create_anew(&directory, sync).map_err(io::Error::other)))
    }

    pub(super) fn with(create: Create) -> Self {
        Self { create, backend: None, changed: None, passes: None, compared: None }
    }

    /// Performs an operation. Returns its number, if it is to be confirmed.
    pub(super) fn perform(&mut self, operation: &O<'_>) -> io::Result<Option<u64>> {
        match *operation {
            O::Clear => {
                self.backend = None;
                self.backend = Some((self.create)()?);
                self.changed = Some(HashSet::new());
                Ok(None)
            }
            O::Entries { changes: bytes } => {
                let mut batch = Batch::default();
                for change in changes(bytes) {
                    let (table, key, value) = change?;
                    let is_changed = |changed: &HashSet<_>| changed.contains(&(table, Box::from(key)));
                    if !self.changed.as_ref().is_some_and(is_changed) {
                        batch.set(table, key, value);
                    }
                }
                self.backend()?.apply(&batch).map_err(io::Error::other)?;
                Ok(None)
            }
            O::EndOfEntries { number } => {
                self.changed = None;
                self.backend()?.sync().map_err(io::Error::other)?;
                Ok(Some(number))
            }
            O::Apply { number, changes: bytes } => {
                let mut batch = Batch::default();
                for change in changes(bytes) {
                    let (table, key, value) = change?;
                    if let Some(changed) = &mut self.changed {
                        changed.insert((table, key.into()));
                    }
                    batch.set(table, key, value);
                }
                // A join sends an empty one to hear how far this copy is.
                if !batch.is_empty() {
                    self.backend()?.apply(&batch).map_err(io::Error::other)?;
                }
                Ok(Some(number))
            }
            O::SyncState { number } => {
                self.backend()?.sync().map_err(io::Error::other)?;
                Ok(Some(number))
            }
            O::Moment { number } => {
                if let (Some(passes), Some(database)) = (&self.passes, &self.backend) {
                    match number {
                        CHECK => self.compared = passes.moments.snapshot_of(&**database),
                        number => passes.moments.leave_state(number, &**database),
                    }
                }
                Ok(None)
            }
            O::SameState { hash } => {
                if let (Some(passes), Some(snapshot)) = (&self.passes, self.compared.take()) {
                    passes.compare(Compare::State { snapshot, hash: hash.to_vec() });
                }
                Ok(None)
            }
            _ => Err(io::Error::other("the leader has sent an operation that is none of a state")),
        }
    }

    /// Id of the store of the state, if it has begun.
    pub(super) fn store_id(&mut self) -> io::Result<Option<StoreId>> {
        id_in(self.backend()?).map_err(io::Error::other)
    }

    fn backend(&mut self) -> io::Result<&mut dyn Backend> {
        match &mut self.backend {
            Some(backend) => Ok(&mut **backend),
            None => Err(io::Error::other("the leader has sent a batch before the beginning of its state")),
        }
    }
}

impl Drop for StateCopy {
    fn drop(&mut self) {
        self.compared = None;
        if let Some(passes) = &self.passes {
            passes.moments.end();
            passes.moments.wait_for_snapshots();
        }
    }
}
