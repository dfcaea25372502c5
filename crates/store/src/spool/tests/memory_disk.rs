//! In-memory directory with faults and power cuts on demand.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::spool::disk::{Disk, DiskFile};

/// Unit in which unconfirmed writes are lost or kept.
const PAGE: usize = 512;

#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: BTreeMap<String, usize>,
    safe_names: BTreeMap<String, usize>,
    /// Changes of names since the last sync of names.
    changes: Vec<Change>,
    files: Vec<Content>,
    faults: Faults,
    random: Random,
    /// Number of calls of `used`.
    looks: usize,
}

#[derive(Clone)]
enum Change {
    Link(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Default)]
struct Content {
    /// Content as programs see it.
    bytes: Vec<u8>,
    /// Content after a power cut if no unconfirmed page was written.
    safe: Vec<u8>,
    unsafe_pages: BTreeSet<usize>,
}

/// Faults to inject.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Nothing more can be written or allocated.
    pub(crate) is_full: bool,
    /// Number of syncs that will fail. As in Linux, the system then treats the lost pages as written.
    pub(crate) failing_syncs: u32,
    /// Writes take fewer bytes than given.
    pub(crate) short_writes: bool,
    /// Bytes that can still be allocated. Files keep their bytes, and removed bytes can be allocated again.
    pub(crate) space: Option<usize>,
    /// Number of opens that will fail.
    pub(crate) failing_opens: u32,
    pub(crate) failing_reads: u32,
    /// Number of failures of renaming, removing and syncing names.
    pub(crate) failing_names: u32,
    /// Writes panic.
    pub(crate) panics: bool,
    /// Number of changes after which every further change fails.
    pub(crate) changes_left: Option<u32>,
}

/// Fails if a failure is left, and counts it.
fn fails(left: &mut u32) -> io::Result<()> {
    let is_failing = *left > 0;
    *left -= u32::from(is_failing);
    if is_failing { Err(io::Error::other("input/output error")) } else { Ok(()) }
}

/// xorshift with a fixed seed, so that each disk is reproducible.
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

impl MemoryDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn set_faults(&self, set: impl FnOnce(&mut Faults)) {
        set(&mut self.state().faults);
    }

    /// Returns the directory after a power cut: unconfirmed data survives in part, at random.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Self {
        let state = self.state();
        let mut random = Random(seed | 1);
        for _ in 0..8 {
            random.below(2);
        }
        let mut names = state.safe_names.clone();
        let count = random.below(state.changes.len() + 1);
        state.changes[..count].iter().for_each(|change| change.apply(&mut names));
        let files = state.files.iter().map(|content| {
            let mut bytes = content.safe.clone();
            if random.below(2) == 0 {
                bytes.resize(content.bytes.len(), 0);
            }
            // Often nothing or everything survives.
            let share = [0, 1, 5, 9, 10][random.below(5)];
            for &page in &content.unsafe_pages {
                let range = page * PAGE..((page + 1) * PAGE).min(content.bytes.len()).min(bytes.len());
                if random.below(10) < share && !range.is_empty() {
                    bytes[range.clone()].copy_from_slice(&content.bytes[range]);
                }
            }
            Content { safe: bytes.clone(), bytes, unsafe_pages: BTreeSet::new() }
        });
        let files = files.collect();
        let state = State { safe_names: names.clone(), names, files, random, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns an independent directory with the same content.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::default();
        for name in self.names() {
            copy.put(&name, self.content(&name));
        }
        copy
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub(crate) fn content(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].bytes.clone()
    }

    /// Returns the number of the file with this name; `name_of` is its inverse.
    pub(crate) fn file(&self, name: &str) -> usize {
        self.state().names[name]
    }

    pub(crate) fn name_of(&self, file: usize) -> Option<String> {
        self.state().names.iter().find(|(_, id)| **id == file).map(|(name, _)| name.clone())
    }

    /// Writes a file durably.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let id = state.files.len();
        state.files.push(Content { safe: bytes.clone(), bytes, unsafe_pages: BTreeSet::new() });
        state.names.insert(name.to_owned(), id);
        state.safe_names.insert(name.to_owned(), id);
    }

    /// Number of calls of `used`.
    pub(crate) fn looks(&self) -> usize {
        self.state().looks
    }

    pub(crate) fn take_away(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name);
        state.safe_names.remove(name);
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(name, id) => drop(names.insert(name.clone(), *id)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
        }
    }
}

impl State {
    fn change(&mut self, change: Change) {
        let used = self.used();
        change.apply(&mut self.names);
        self.changes.push(change);
        let given = used - self.used();
        self.faults.space = self.faults.space.map(|space| space + given);
    }

    fn used(&self) -> usize {
        self.names.values().map(|&id| self.files[id].bytes.len()).sum()
    }

    fn refuse_if_dead(&mut self) -> io::Result<()> {
        match &mut self.faults.changes_left {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes space for a file that grows to `length`.
    fn take_space(&mut self, id: usize, length: usize) -> io::Result<()> {
        let more = length.saturating_sub(self.files[id].bytes.len());
        let left = self.faults.space.map_or(Some(usize::MAX), |space| space.checked_sub(more));
        let (false, Some(left)) = (self.faults.is_full, left) else { return Err(io::ErrorKind::StorageFull.into()) };
        self.faults.space = self.faults.space.map(|_| left);
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.refuse_if_dead()?;
        let id = state.files.len();
        state.files.push(Content::default());
        state.change(Change::Link(name.to_owned(), id));
        Ok(Box::new(MemoryFile { disk: self.clone(), id, has_failed: AtomicBool::new(false) }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        fails(&mut state.faults.failing_opens)?;
        let id = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemoryFile { disk: self.clone(), id, has_failed: AtomicBool::new(false) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.refuse_if_dead()?;
        fails(&mut state.faults.failing_names)?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.refuse_if_dead()?;
        fails(&mut state.faults.failing_names)?;
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.refuse_if_dead()?;
        fails(&mut state.faults.failing_names)?;
        state.safe_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn space(&self) -> Option<(u64, u64)> {
        let state = self.state();
        let free = if state.faults.is_full { Some(0) } else { state.faults.space };
        free.map(|free| (free as u64, (free + state.used()) as u64))
    }

    fn used(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.looks += 1;
        Ok(state.used() as u64)
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    id: usize,
    /// A sync through this descriptor has failed: it must not be used again.
    has_failed: AtomicBool,
}

impl MemoryFile {
    fn assert_trusted(&self) {
        assert!(!self.has_failed.load(Relaxed), "a descriptor is used after a confirmation through it has failed");
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        fails(&mut state.faults.failing_reads)?;
        let there = state.files[self.id].bytes.get(offset as usize..).unwrap_or(&[]);
        let count = there.len().min(bytes.len());
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.assert_trusted();
        let panics = self.disk.state().faults.panics;
        assert!(!panics, "this test wants it");
        let mut state = self.disk.state();
        state.refuse_if_dead()?;
        let count = if state.faults.short_writes { 1 + state.random.below(bytes.len()) } else { bytes.len() };
        let range = offset as usize..offset as usize + count;
        state.take_space(self.id, range.end)?;
        let content = &mut state.files[self.id];
        if content.bytes.len() < range.end {
            content.bytes.resize(range.end, 0);
        }
        content.bytes[range.clone()].copy_from_slice(&bytes[..count]);
        content.unsafe_pages.extend(range.start / PAGE..range.end.div_ceil(PAGE));
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        self.assert_trusted();
        let mut state = self.disk.state();
        state.refuse_if_dead()?;
        let state = &mut *state;
        let content = &mut state.files[self.id];
        let is_failing = state.faults.failing_syncs > 0;
        state.faults.failing_syncs -= u32::from(is_failing);
        self.has_failed.store(is_failing, Relaxed);
        content.safe.resize(content.bytes.len(), 0);
        for page in std::mem::take(&mut content.unsafe_pages) {
            let range = page * PAGE..((page + 1) * PAGE).min(content.bytes.len());
            if !range.is_empty() && (!is_failing || state.random.below(2) == 0) {
                content.safe[range.clone()].copy_from_slice(&content.bytes[range]);
            }
        }
        if is_failing { Err(io::Error::other("input/output error")) } else { Ok(()) }
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.refuse_if_dead()?;
        state.take_space(self.id, length as usize)?;
        let content = &mut state.files[self.id];
        let length = content.bytes.len().max(length as usize);
        content.bytes.resize(length, 0);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.refuse_if_dead()?;
        let content = &mut state.files[self.id];
        let given = content.bytes.len().saturating_sub(length as usize);
        content.bytes.truncate(length as usize);
        content.safe.truncate(length as usize);
        state.faults.space = state.faults.space.map(|space| space + given);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.id].bytes.len() as u64)
    }
}
