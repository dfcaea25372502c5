//! Space that the committer makes ahead of time, and the room it announces.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::space::Space;
use super::Committer;

impl Committer {
    /// Returns the space that is available for message files.
    pub(super) fn space(&mut self) -> Space {
        let maximum = self.options.bytes_maximum;
        let used = if maximum == 0 { 0 } else { self.used() };
        let used = used.saturating_add(self.shared.bytes_elsewhere.load(Ordering::Relaxed));
        let entries = self.shared.log().index.references();
        Space::of(&*self.disk, self.grows_to.unwrap_or(self.options.segment_bytes), entries, maximum, used)
    }

    /// Returns the size of all files, measured at most once per [`LOOK_AGAIN`]: with many files that is expensive.
    fn used(&mut self) -> u64 {
        if let Some((_, used)) = self.used.filter(|(looked_at, _)| looked_at.elapsed() < LOOK_AGAIN) {
            return used;
        }
        let used = self.disk.used().unwrap_or(0);
        self.used = Some((Instant::now(), used));
        used
    }

    pub(super) fn note_used(&mut self, change: impl FnOnce(u64) -> u64) {
        self.used = self.used.map(|(looked_at, used)| (looked_at, change(used)));
    }

    /// Announces how many more bytes of messages may be appended: the rest of the files made ahead, plus whole segments
    /// that the disk has room for.
    ///
    /// A disk that is short announces 0 for new messages: the rest is for acknowledgements.
    pub(super) fn tell_room(&mut self) {
        let segment_bytes = u64::from(self.options.segment_bytes);
        let segments = self.reclaim.spares_for_messages() + self.space().available / segment_bytes;
        let log = self.shared.log();
        // Without a spare segment, acknowledgements have only the files made ahead.
        let made = if self.reclaim.has_spare() { log.made_room(self.made.0) } else { 0 };
        let is_refused = log.shortage.is_some() || log.failure.as_ref().is_some_and(|failure| failure.is_full);
        let all = if is_refused { 0 } else { made.saturating_add_unsigned(segments.saturating_mul(segment_bytes)) };
        let must = if is_refused { made } else { all };
        self.shared.set_room(&log, [all, must].map(|room| u64::try_from(room).unwrap_or(0)));
    }

    /// Makes the next segment's file and a spare segment before they are needed.
    ///
    /// A failure is announced while acknowledgements still have room; they let space be reclaimed.
    pub(super) fn prepare_next(&mut self) {
        let next = self.written.segment() + 1;
        self.grow(next);
        let is_made = self.made.0 >= next && self.reclaim.has_spare();
        if self.is_closing || self.prepare_after.is_some_and(|time| time > Instant::now()) {
            return;
        }
        self.prepare_after = None;
        if is_made && !self.shared.has_shortage() {
            return;
        }
        let error = self.make_ahead(next).err();
        self.prepare_after = error.is_some().then(|| Instant::now() + PREPARE_RETRY);
        self.shared.set_shortage(error.map(|error| self.named(next, &error).to_string()));
    }

    /// Lets segments have their full size, once the log is no longer small and the disk has room for them.
    ///
    /// The spare segment comes first: without it acknowledgements would have no room. If it cannot be made, segments stay
    /// small.
    fn grow(&mut self, next: u32) {
        let appended = self.shared.log().appended;
        let Some(bytes) = self.grows_to.filter(|_| appended > u64::from(self.options.segment_bytes / 2)) else {
            return;
        };
        if self.is_closing || self.space().available < 3 * u64::from(bytes) {
            return;
        }
        self.grows_to = None;
        if self.reclaim.replace_spares(bytes).is_err() {
            return;
        }
        self.used = None;
        self.options.segment_bytes = bytes;
        self.shared.grow(bytes);
        // The file made ahead is made anew, unless the log needs it already.
        if self.made.0 == next && self.shared.log().end().segment() < next {
            let _ = self.remove_unused(next);
        }
    }

    fn make_ahead(&mut self, next: u32) -> io::Result<()> {
        let bytes = self.options.segment_bytes;
        let has_space = |committer: &mut Self| match committer.space() {
            space if space.available < u64::from(bytes) => {
                Err(io::Error::new(io::ErrorKind::StorageFull, space.shortage()))
            }
            _ => Ok(()),
        };
        if self.made.0 < next {
            if self.reclaim.spares_for_messages() == 0 {
                has_space(self)?;
            }
            self.prepared = Some((next, self.make(next, bytes)?));
        }
        if self.reclaim.has_spare() {
            return Ok(());
        }
        has_space(self)?;
        self.reclaim.make_spare(bytes)?;
        self.note_used(|used| used + u64::from(bytes));
        Ok(())
    }
}

/// Interval between measurements. They correct `used`, since a file's disk usage may differ from its length.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait after the next segment's file could not be made.
const PREPARE_RETRY: Duration = Duration::from_secs(1);
