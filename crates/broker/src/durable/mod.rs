//! What is kept on disk of the broker's state: see `record` for its form, `load` for the start.
//!
//! Written where it changes, under the lock or lease under which it changes in memory, so that what is on disk has the
//! same order. A [`SafeAt`] says when; nobody waits for it but whoever acknowledges.

mod asked_wake;
mod bytes;
mod endings;
mod error;
mod health;
mod load;
mod record;
mod retained;
mod safe_at;
mod session;
mod speeds;
#[cfg(test)]
mod tests;
mod wall_clock;
mod will;

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use endings::Endings;
use error::Cause;
use tenbin_store::LockedDirectory;
use tenbin_store::state::{Change, Health, Options, State, Stats, Sync, Table};

pub(crate) use asked_wake::AskedWake;
pub use error::StoreError;
pub(crate) use load::load;
pub(crate) use retained::EncodedRetained;
pub(crate) use safe_at::SafeAt;
pub(crate) use session::DurableSession;
pub(crate) use speeds::{keep_speeds, keep_speeds_now, new_speed_key};

/// The broker's state on disk.
#[derive(Debug)]
pub(crate) struct Durable {
    state: State,
    numbers: Mutex<Numbers>,
    endings: Endings,
    /// Ours as long as we write there.
    directory: LockedDirectory,
}

/// Of sessions: never given twice, whatever becomes of the process.
#[derive(Debug)]
struct Numbers {
    /// The last one given.
    last: u64,
    /// Up to here they are taken, says the disk, or a change that goes before those who have one.
    reserved: u64,
}

/// Changes that are made together.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<(Table, Vec<u8>, Option<Vec<u8>>)>);

impl Durable {
    /// That of `directory`, which is made if it is not there; see [`load`].
    ///
    /// # Errors
    /// The directory is in use, or cannot be used, or was written by another version.
    pub(crate) fn open(directory: &Path, sync: Sync) -> Result<Self, StoreError> {
        let directory = LockedDirectory::open(directory).map_err(Cause::Directory)?;
        let options = Options { sync, ..Options::default() };
        let state = State::open(&directory, options, health::log).map_err(Cause::Open)?;
        let numbers = Mutex::new(Numbers { last: 0, reserved: 0 });
        Ok(Self { state, numbers, endings: Endings::default(), directory })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Whether these can be acknowledged.
    #[inline]
    pub(crate) fn is_safe(&self, at: SafeAt) -> bool {
        self.state.is_done(at.state)
    }

    /// Wakes once when they can, as long as the answer is kept.
    #[must_use]
    pub(crate) fn wake_when_safe(self: &Arc<Self>, at: SafeAt, waker: &Waker) -> AskedWake {
        AskedWake { durable: Arc::clone(self), wake: self.state.wake_at(at.state, waker) }
    }

    /// When all is safe that has changed until now.
    pub(crate) fn all(&self) -> SafeAt {
        SafeAt { state: self.state.last() }
    }

    /// Whether no further changes are to be made for now which nobody waits for: the disk is behind, or fails.
    pub(crate) fn is_congested(&self) -> bool {
        self.state.is_congested()
    }

    /// Whether changes do not become safe.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.health() != Health::Writing
    }

    pub(crate) fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// Blocks until all is safe, or `patience` is over.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        self.state.wait(self.state.last(), patience)
    }

    pub(crate) fn make(&self, changes: &Changes) -> SafeAt {
        if changes.0.is_empty() {
            return SafeAt::NOW;
        }
        let changes = changes.0.iter();
        let state = self.state.change(changes.map(|(table, key, value)| Change {
            table: *table,
            key,
            value: value.as_deref(),
        }));
        SafeAt { state }
    }

    /// A number for a session. Where it needs more of them to be taken, that is written before anything that has it.
    fn next_number(&self) -> NonZeroU64 {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.last += 1;
        if numbers.last > numbers.reserved {
            numbers.reserved = numbers.last + NUMBERS_RESERVED;
            let value = numbers.reserved.to_le_bytes();
            // Under the lock: who gets the next number may be written before us.
            self.state.change([Change { table: Table::Meta, key: NUMBERS_KEY, value: Some(&value) }]);
        }
        NonZeroU64::new(numbers.last).expect("it begins with 1 and does not come round")
    }

    /// Goes on behind all numbers that were given.
    fn set_last_number(&self, last: u64) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = Numbers { last, reserved: last };
    }
}

impl Changes {
    pub(super) fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((table, key, Some(value)));
    }

    pub(super) fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.0.push((table, key, None));
    }
}

/// Longest Client Identifier, topic and filter of a broker with a store, in bytes: keys have a limit.
pub(crate) const NAME_BYTES_MAX: u64 = 65_000;

const NUMBERS_KEY: &[u8] = b"session numbers";
/// Numbers that a crash may skip.
const NUMBERS_RESERVED: u64 = 1 << 20;
