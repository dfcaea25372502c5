//! Repair of fjall's journal after a crash, before fjall opens it.
//!
//! fjall itself drops unreadable data and everything behind it, without an error if some bytes are missing. It refuses to
//! open if the bytes exist but their checksum is wrong. Neither fits all cases: a power cut may tear unconfirmed data
//! in any way, which is no loss. Confirmed data must not vanish.
//!
//! A journal is a series of batches, followed by zeros up to its size. A batch is a start mark {1, number of items 4,
//! sequence number 8}, the items {2, type 1, compression 1, keyspace 8, length of key 2, of value 4, of value as
//! written 4, key, value} or {4, keyspace 8}, and an end mark {3, XXH3 of the items 8, "FJL\x03"}; numbers are
//! little-endian.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::{BackendError, confirmed};
use crate::directory::private;

/// The end of a journal that was cut off. The text is one line.
#[derive(Debug)]
pub(super) struct Cut {
    journal: PathBuf,
    /// New length of the journal.
    at: u64,
    bytes: u64,
    /// Whether the cut bytes include whole batches.
    has_whole: bool,
    /// File with a copy of the cut bytes.
    copy: Result<PathBuf, BackendError>,
}

/// How much of the journal's end may be unconfirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unconfirmed {
    /// The last batch: each was confirmed before the next began.
    LastBatch,
    /// Any number of batches.
    Any,
}

/// Cuts off a torn, unconfirmed end of the newest journal in `directory`. Keeps a copy if possible.
///
/// Syncs the rest. Changes nothing if there is an error.
///
/// # Errors
/// Confirmed data is damaged: the text names file and byte. Or the journal is missing.
pub(super) fn mend(directory: &Path, unconfirmed: Unconfirmed) -> Result<Option<Cut>, BackendError> {
    let journals = journals(directory)?;
    let Some((newest, sealed)) = journals.split_last() else {
        // fjall creates it after the journal, and it exists as long as the database.
        let is_begun = fs::read_dir(directory.join("keyspaces")).is_ok_and(|mut entries| entries.next().is_some());
        let missing = || BackendError::new(format_args!("{} has no journal (*.jnl): put it back", directory.display()));
        return if is_begun { Err(missing()) } else { Ok(None) };
    };
    for journal in sealed {
        // fjall confirmed all of it before it began the next journal.
        let bytes = fs::read(journal)?;
        let found = Found::of(&bytes);
        if found.whole != found.end {
            return Err(damaged(journal, found.whole, "confirmed changes are damaged"));
        }
    }
    let bytes = fs::read(newest)?;
    let found = Found::of(&bytes);
    if !has_confirmed(directory, newest, &found)? {
        return Err(damaged(newest, found.whole, "confirmed changes are damaged, or missing"));
    }
    if found.whole == found.end {
        // These batches must be on disk before the next one: a killed process may not have confirmed the last.
        File::open(newest)?.sync_all()?;
        return Ok(None);
    }
    if found.has_more && unconfirmed == Unconfirmed::LastBatch {
        return Err(damaged(newest, found.whole, OTHERS_FOLLOW));
    }
    cut(newest, &bytes[found.whole..found.end], &found).map(Some)
}

/// Whether the newest journal has all data that is known to be confirmed.
fn has_confirmed(directory: &Path, newest: &Path, found: &Found) -> Result<bool, BackendError> {
    let Some((number, length)) = confirmed::read(directory)? else { return Ok(true) };
    // A newer journal began after the older one was confirmed; the older one is checked separately.
    let has_all = |newest| newest > number || (newest == number && found.whole as u64 >= length);
    Ok(number_of(newest).is_none_or(has_all))
}

/// Returns number and path of the newest journal, and the end of its last whole batch.
pub(super) fn newest_end(directory: &Path) -> Result<Option<(u64, PathBuf, u64)>, BackendError> {
    let Some(newest) = journals(directory)?.pop() else { return Ok(None) };
    let end = Found::of(&fs::read(&newest)?).whole as u64;
    Ok(number_of(&newest).map(|number| (number, newest, end)))
}

/// Cuts off the result of a failed write or sync, since the writer still has all of that data.
///
/// Any descriptor that is still open belongs to a failed database.
///
/// # Errors
/// As [`mend`].
pub(super) fn cut_failed_write(directory: &Path, unconfirmed: Unconfirmed) -> Result<(), BackendError> {
    let journals = journals(directory)?;
    let Some(newest) = journals.last() else { return Ok(()) };
    let found = Found::of(&fs::read(newest)?);
    if found.whole == found.end {
        return Ok(());
    }
    if found.has_more && unconfirmed == Unconfirmed::LastBatch {
        return Err(damaged(newest, found.whole, OTHERS_FOLLOW));
    }
    shorten(newest, found.whole)
}

/// A journal as an opening would find it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) journal: PathBuf,
    /// End of the readable data.
    pub(super) whole: usize,
    /// End of the written data.
    pub(super) end: usize,
    /// Whether the data in between is unconfirmed: an opening would cut it off. Otherwise it would fail.
    pub(super) is_torn: bool,
}

/// Examines all journals without changing them.
///
/// # Errors
/// A journal cannot be read.
pub(super) fn look(directory: &Path, unconfirmed: Unconfirmed) -> Result<Vec<Seen>, BackendError> {
    let journals = journals(directory)?;
    let sealed = journals.len().saturating_sub(1);
    let seen = journals.into_iter().enumerate().map(|(place, journal)| {
        let found = Found::of(&fs::read(&journal)?);
        let has_confirmed = has_confirmed(directory, &journal, &found)?;
        let Found { whole, end, has_more } = found;
        let is_torn = place == sealed && has_confirmed && (!has_more || unconfirmed == Unconfirmed::Any);
        Ok(Seen { journal, whole, end, is_torn })
    });
    seen.collect()
}

/// Whether there is no journal but the first, and that has no data.
pub(super) fn is_blank(directory: &Path) -> Result<bool, BackendError> {
    match &journals(directory)?[..] {
        [] => Ok(true),
        [first] if number_of(first) == Some(0) => Ok(fs::read(first)?.iter().all(|&byte| byte == 0)),
        _ => Ok(false),
    }
}

/// Truncates the newest journal to zero bytes.
pub(super) fn clear(directory: &Path) -> Result<(), BackendError> {
    let journals = journals(directory)?;
    let newest = journals.last().ok_or_else(|| BackendError::new("there is no journal"))?;
    shorten(newest, 0)
}

fn cut(journal: &Path, torn: &[u8], found: &Found) -> Result<Cut, BackendError> {
    let mut name = journal.as_os_str().to_owned();
    name.push(format!(".{}.torn", found.whole));
    let copy = keep(Path::new(&name), torn).map(|()| name.into()).map_err(BackendError::from);
    shorten(journal, found.whole)?;
    let (at, bytes) = (found.whole as u64, torn.len() as u64);
    Ok(Cut { journal: journal.to_owned(), at, bytes, has_whole: found.has_more, copy })
}

fn keep(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = private().create(true).truncate(true).write(true).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    // A partial copy on a full disk is useless.
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

fn shorten(journal: &Path, len: usize) -> Result<(), BackendError> {
    let file = OpenOptions::new().write(true).open(journal)?;
    file.set_len(len as u64)?;
    Ok(file.sync_all()?)
}

fn damaged(journal: &Path, at: usize, words: &str) -> BackendError {
    let path = journal.display();
    BackendError::new(format_args!(
        "journal {path}: {words}, from byte {at} on; to go on without all that is behind it, copy the file, shorten it to \
         that length, and remove {}",
        journal.parent().map(confirmed::path).unwrap_or_default().display()
    ))
}

/// Returns the journals in the order in which they were written. Skips files of other names: fjall reports those.
fn journals(directory: &Path) -> Result<Vec<PathBuf>, BackendError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut journals = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let Some(number) = number_of(&path) {
            journals.push((number, path));
        }
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

fn number_of(journal: &Path) -> Option<u64> {
    journal.file_name()?.to_str()?.strip_suffix(".jnl")?.parse().ok()
}

/// Content of a journal.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// End of the whole batches at the beginning.
    whole: usize,
    /// End of the last byte that is not zero. Every batch ends with such a byte.
    end: usize,
    /// Whether there are whole batches behind damaged data.
    has_more: bool,
}

impl Found {
    fn of(journal: &[u8]) -> Self {
        let end = journal.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let journal = &journal[..end];
        let (mut whole, mut last) = (0, 0);
        while let Some((batch_end, sequence)) = batch(journal, whole) {
            (whole, last) = (batch_end, sequence);
        }
        // Tries every byte: a damaged length hides where the next batch begins.
        let later = |at: usize| journal[at] == START && batch(journal, at).is_some_and(|(_, sequence)| sequence > last);
        let has_more = (whole + 1..end).any(later);
        Self { whole, end, has_more }
    }
}

/// Parses a whole batch at `at`. Returns its end and its sequence number.
fn batch(journal: &[u8], at: usize) -> Option<(usize, u64)> {
    let mut fields = Fields { journal, at };
    if fields.u8()? != START {
        return None;
    }
    let (items, sequence) = (fields.u32()?, fields.u64()?);
    let begin = fields.at;
    for _ in 0..items {
        fields.item()?;
    }
    let end = fields.at;
    if fields.u8()? != END {
        return None;
    }
    let (checksum, magic) = (fields.u64()?, fields.take::<4>()?);
    if magic != *MAGIC {
        return None;
    }
    let mut hasher = Xxh3::new();
    hasher.update(&journal[begin..end]);
    (hasher.digest() == checksum).then_some((fields.at, sequence))
}

struct Fields<'a> {
    journal: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.journal.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn item(&mut self) -> Option<()> {
        match self.u8()? {
            ITEM => {
                let [value_type, compression] = self.take()?;
                if value_type > VALUE_TYPE_MAX || compression > COMPRESSION_MAX {
                    return None;
                }
                self.u64()?;
                let key = u16::from_le_bytes(self.take()?);
                self.u32()?;
                let value = self.u32()?;
                self.at += usize::from(key) + value as usize;
                (self.at <= self.journal.len()).then_some(())
            }
            CLEAR => self.u64().map(drop),
            _ => None,
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { journal, at, bytes, has_whole, copy } = self;
        let what = if *has_whole { "changes that were torn, and those behind them" } else { "a change that was torn" };
        write!(f, "{what}: {bytes} bytes from byte {at} of {}, ", journal.display())?;
        match copy {
            Ok(copy) => write!(f, "which are kept in {}", copy.display()),
            Err(error) => write!(f, "of which no copy could be kept: {error}"),
        }
    }
}

const OTHERS_FOLLOW: &str = "confirmed changes are damaged, or missing, and others follow";

/// Overhead of a batch, without its items; and of an item, without key and value.
pub(super) const BATCH_BYTES: usize = 26;
pub(super) const ITEM_BYTES: usize = 21;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
pub(super) const MAGIC: &[u8; 4] = b"FJL\x03";
/// fjall knows 0, 1, 2 and 4.
const VALUE_TYPE_MAX: u8 = 4;
/// None and LZ4.
const COMPRESSION_MAX: u8 = 1;
