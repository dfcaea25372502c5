//! What a crash has left of fjall's journal: looked at, and mended, before fjall sees it.
//!
//! By itself fjall drops whatever it cannot read and all that is behind it, without a word where a few bytes are missing,
//! and refuses to open where the bytes are there and their checksum is wrong. Neither is right everywhere: what was not
//! confirmed when the power went may be torn in any way and is nobody's loss, what was confirmed must not vanish.
//!
//! A journal is one batch after the other, and zeros up to its size. A batch is a start mark {1, number of items 4,
//! sequence number 8}, the items {2, type 1, compression 1, keyspace 8, length of key 2, of value 4, of value as written 4,
//! key, value} or {4, keyspace 8}, and an end mark {3, XXH3 of the items 8, "FJL\x03"}; numbers are little-endian.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::{BackendError, confirmed};

/// The end of a journal that was cut off; the text is one line.
#[derive(Debug)]
pub(super) struct Cut {
    journal: PathBuf,
    /// Where it ends now.
    at: u64,
    bytes: u64,
    /// Whole batches are among them.
    has_whole: bool,
    /// Where they are now.
    copy: Result<PathBuf, BackendError>,
}

/// What may be missing at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unconfirmed {
    /// The last batch: each was confirmed before the next was begun.
    LastBatch,
    /// As many as there are.
    Any,
}

/// Cuts off what was never confirmed of the newest journal in `directory`, if it is torn, and keeps a copy of it.
/// Nothing is touched where there is an error. What is left is on the disk.
///
/// # Errors
/// Something was damaged that was confirmed: file and byte are named. Or there is no journal where there was one.
pub(super) fn mend(directory: &Path, unconfirmed: Unconfirmed) -> Result<Option<Cut>, BackendError> {
    let journals = journals(directory)?;
    let Some((newest, sealed)) = journals.split_last() else {
        // Made after the journal, and there as long as the database is.
        let is_begun = fs::read_dir(directory.join("keyspaces")).is_ok_and(|mut entries| entries.next().is_some());
        let missing = || BackendError::new(format_args!("{} has no journal (*.jnl): put it back", directory.display()));
        return if is_begun { Err(missing()) } else { Ok(None) };
    };
    for journal in sealed {
        // The system has confirmed all of it before the next was begun.
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
        // The next batch must not be on the disk before these: a process that was killed may not have confirmed the last.
        File::open(newest)?.sync_all()?;
        return Ok(None);
    }
    if found.has_more && unconfirmed == Unconfirmed::LastBatch {
        return Err(damaged(newest, found.whole, OTHERS_FOLLOW));
    }
    cut(newest, &bytes[found.whole..found.end], &found).map(Some)
}

/// Whether a newest journal has all that is known to be confirmed.
fn has_confirmed(directory: &Path, newest: &Path, found: &Found) -> Result<bool, BackendError> {
    let Some((number, length)) = confirmed::read(directory)? else { return Ok(true) };
    // One that is newer was begun after the older one had been confirmed, which is looked at for itself.
    let has_all = |newest| newest > number || (newest == number && found.whole as u64 >= length);
    Ok(number_of(newest).is_none_or(has_all))
}

/// Number and path of the newest journal, and where its last whole batch ends.
pub(super) fn newest_end(directory: &Path) -> Result<Option<(u64, PathBuf, u64)>, BackendError> {
    let Some(newest) = journals(directory)?.pop() else { return Ok(None) };
    let end = Found::of(&fs::read(&newest)?).whole as u64;
    Ok(number_of(&newest).map(|number| (number, newest, end)))
}

/// Cuts off what a failed write or confirmation has left, of which the writer has all. Whoever still has the file opened has
/// failed.
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

/// A journal as opening it would find it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) journal: PathBuf,
    /// Where what can be read ends.
    pub(super) whole: usize,
    /// Where what was written ends.
    pub(super) end: usize,
    /// What is between was not confirmed: it would be cut off. Else it would be refused.
    pub(super) is_torn: bool,
}

/// Looks at all journals, and changes nothing.
///
/// # Errors
/// One cannot be read.
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

/// Makes the newest journal empty.
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
    let mut file = File::create(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    // A part of it on a full disk helps nobody.
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

/// In the order in which they were written. Files of other names are not looked at: fjall says what is wrong with them.
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

/// What is in a journal.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Where the whole batches end with which it begins.
    whole: usize,
    /// Behind the last byte that is not zero. Every batch ends with such a one.
    end: usize,
    /// There are whole batches behind what is damaged.
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
        // Where the next one begins is not known: lengths may be what is damaged.
        let later = |at: usize| journal[at] == START && batch(journal, at).is_some_and(|(_, sequence)| sequence > last);
        let has_more = (whole + 1..end).any(later);
        Self { whole, end, has_more }
    }
}

/// The whole batch that begins at `at`: where it ends, and its sequence number.
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

/// Of a batch, beside its items, and of an item, beside its key and its value.
pub(super) const BATCH_BYTES: usize = 26;
pub(super) const ITEM_BYTES: usize = 21;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
pub(super) const MAGIC: &[u8; 4] = b"FJL\x03";
/// It knows 0, 1, 2 and 4.
const VALUE_TYPE_MAX: u8 = 4;
/// None and LZ4.
const COMPRESSION_MAX: u8 = 1;
