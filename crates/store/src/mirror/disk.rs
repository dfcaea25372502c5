//! The leader's log: its operations go to the copy too.
//!
//! Changes of names and lengths are made at the leader first, since they may fail there; the copy must have no name that
//! the leader lacks. Writes and syncs are sent first: bytes that only the copy has are like bytes of a torn write.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::channel::Channel;
use super::operation::Operation as O;
use crate::spool::{Disk, DiskFile};

/// A disk whose operations a copy performs, too.
pub(crate) struct MirroredDisk {
    inner: Arc<dyn Disk>,
    channel: Arc<Channel>,
    names: Arc<Names>,
}

/// Present names of open files.
#[derive(Default)]
struct Names {
    open: Mutex<FxHashMap<u64, String>>,
    last: AtomicU64,
}

struct MirroredFile {
    inner: Box<dyn DiskFile>,
    channel: Arc<Channel>,
    names: Arc<Names>,
    number: u64,
}

impl MirroredDisk {
    pub(super) fn new(inner: Arc<dyn Disk>, channel: Arc<Channel>) -> Self {
        Self { inner, channel, names: Arc::default() }
    }

    fn file(&self, name: &str, inner: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let number = self.names.last.fetch_add(1, Ordering::Relaxed);
        self.names.open().insert(number, name.to_owned());
        Box::new(MirroredFile { inner, channel: Arc::clone(&self.channel), names: Arc::clone(&self.names), number })
    }
}

impl Names {
    fn open(&self) -> MutexGuard<'_, FxHashMap<u64, String>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files with the name `to` have none any more: another file has replaced them, or they were removed.
    fn renamed(&self, from: Option<&str>, to: &str) {
        let mut open = self.open();
        open.retain(|_, name| name != to);
        if let Some(from) = from {
            open.values_mut().filter(|name| *name == from).for_each(|name| to.clone_into(name));
        }
    }
}

impl Disk for MirroredDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let file = self.channel.disk.perform(|| self.inner.create(name))?;
        self.names.renamed(None, name);
        sender.send(&O::Create { name });
        Ok(self.file(name, file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        // Without the lock, which may wait for the copy: files are renamed and written by the committer alone.
        let file = self.channel.disk.perform(|| self.inner.open(name))?;
        Ok(self.file(name, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        if sender.backup.as_ref().is_some_and(|backup| backup.is_pinned(from)) {
            return Err(io::Error::other("a backup reads the file"));
        }
        self.channel.disk.perform(|| self.inner.rename(from, to))?;
        self.names.renamed(Some(from), to);
        sender.send(&O::Rename { from, to });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        self.channel.disk.perform(|| self.inner.remove(name))?;
        self.names.renamed(None, name);
        sender.send(&O::Remove { name });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let number = sender.send_numbered(|number| O::SyncNames { number });
        drop(sender);
        self.channel.disk.perform(|| self.inner.sync_names())?;
        self.channel.wait(number)
    }

    fn is_pinned(&self, name: &str) -> bool {
        self.channel.sender().backup.as_ref().is_some_and(|backup| backup.is_pinned(name))
    }

    fn space(&self) -> Option<(u64, u64)> {
        let own = self.inner.space()?;
        let copy = self.channel.space();
        Some(copy.filter(|&(free, size)| size > 0 && free < own.0).unwrap_or(own))
    }

    fn used(&self) -> io::Result<u64> {
        self.inner.used()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.inner.path(name)
    }
}

impl MirroredFile {
    /// Present name of the file; `None` if it has none any more.
    fn name(&self) -> Option<String> {
        self.names.open().get(&self.number).cloned()
    }
}

impl Drop for MirroredFile {
    fn drop(&mut self) {
        self.names.open().remove(&self.number);
    }
}

impl DiskFile for MirroredFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.channel.disk.perform(|| self.inner.read_at(bytes, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        let mut sender = self.channel.sender();
        sender.check()?;
        if (sender.has_peer() || sender.backup.is_some())
            && let Some(name) = self.name()
        {
            sender.send(&O::Write { name: &name, offset, bytes });
            if let Some(backup) = &mut sender.backup {
                backup.note_write(&name, offset);
            }
        }
        self.channel.disk.perform(|| self.inner.write_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let name = self.name().filter(|_| sender.has_peer());
        let number = sender.next();
        match &name {
            Some(name) => sender.send(&O::Sync { number, name }),
            None => sender.send(&O::Settle { number }),
        }
        // A failure shows in the wait.
        let _ = sender.flush();
        drop(sender);
        self.channel.disk.perform(|| self.inner.sync())?;
        self.channel.wait(number)
    }

    fn settle(&self) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let number = sender.send_numbered(|number| O::Settle { number });
        drop(sender);
        self.channel.wait(number)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        self.channel.disk.perform(|| self.inner.allocate(length))?;
        if let Some(name) = self.name() {
            sender.send(&O::Allocate { name: &name, length });
        }
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut sender = self.channel.sender();
        sender.check()?;
        self.channel.disk.perform(|| self.inner.truncate(length))?;
        if let Some(name) = self.name() {
            sender.send(&O::Truncate { name: &name, length });
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }
}

/// Most bytes of one write: a copy that joins has its turn in between.
const WRITE_BYTES: usize = 1 << 20;
