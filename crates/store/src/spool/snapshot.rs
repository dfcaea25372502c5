//! Read-only view of a spool.

use std::{path::Path, sync::Arc};

use super::{
    Limit, Marked, Messages, OpenError, Options, QueueContent, QueueId, ReadError, Recovered, Sequence, Spool,
    disk::Directory, opening::Beginning, recovery,
};

/// Content of a directory as an opening would find it.
///
/// Changes nothing and takes no lock. Reliable only if no process writes in the directory at the same time.
#[derive(Debug)]
pub struct Snapshot {
    /// Without its thread, so it never writes.
    spool: Spool,
    recovered: Recovered,
}

impl Snapshot {
    /// Reads all of a directory.
    ///
    /// # Errors
    /// [`OpenError`], as of [`Spool::open`] except for [`OpenError::InUse`].
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let disk = Directory::to_read(directory);
        let examined = recovery::examine(&disk)?;
        let (spool, _, recovered) = Spool::over(Arc::new(disk), examined, Options::default(), 0, Beginning::default());
        Ok(Self { spool, recovered })
    }

    /// Returns the summary of the opening.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// See [`Spool::queues`].
    pub fn queues(&self) -> Vec<QueueId> {
        self.spool.queues()
    }

    /// See [`Spool::queue`].
    pub fn queue(&self, queue: QueueId) -> Option<QueueContent> {
        self.spool.queue(queue)
    }

    /// See [`Spool::marks`].
    pub fn marks(&self, queue: QueueId) -> Vec<Marked> {
        self.spool.marks(queue)
    }

    /// See [`Spool::read`].
    ///
    /// # Errors
    /// As of [`Spool::read`].
    pub fn read(&self, queue: QueueId, from: Sequence, limit: Limit, out: &mut Messages) -> Result<(), ReadError> {
        self.spool.read(queue, from, limit, out)
    }
}
