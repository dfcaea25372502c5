//! A spool that is looked at.

use std::{path::Path, sync::Arc};

use super::{
    Limit, Marked, Messages, OpenError, Options, QueueContent, QueueId, ReadError, Recovered, Sequence, Spool,
    disk::Directory, opening::Beginning, recovery,
};

/// What a directory holds, as opening it would find it. Nothing is changed, and nobody is kept from using it: to be
/// trusted, nobody should write in it meanwhile.
#[derive(Debug)]
pub struct Snapshot {
    /// Without a thread, nothing is ever written.
    spool: Spool,
    recovered: Recovered,
}

impl Snapshot {
    /// Reads all of a directory.
    ///
    /// # Errors
    /// [`OpenError`]: those that [`Spool::open`] has, but for that of who has it.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let disk = Directory::to_read(directory);
        let examined = recovery::examine(&disk)?;
        let (spool, _, recovered) = Spool::over(Arc::new(disk), examined, Options::default(), 0, Beginning::default());
        Ok(Self { spool, recovered })
    }

    /// What was found.
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
    /// As there.
    pub fn read(&self, queue: QueueId, from: Sequence, limit: Limit, out: &mut Messages) -> Result<(), ReadError> {
        self.spool.read(queue, from, limit, out)
    }
}
