//! Space that the committer makes ahead of time, and what it tells others of it.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::space::Space;
use super::Committer;

impl Committer {
    /// For files of messages.
    pub(super) fn space(&mut self) -> Space {
        let maximum = self.options.bytes_maximum;
        let used = if maximum == 0 { 0 } else { self.used() };
        let used = used.saturating_add(self.shared.bytes_elsewhere.load(Ordering::Relaxed));
        let entries = self.shared.log().index.references();
        Space::of(&*self.disk, self.options.segment_bytes, entries, maximum, used)
    }

    /// Bytes that all files take. To look is dear where there are many.
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

    /// Tells how much more may be appended of messages: what was made ahead has room for, and what the disk has, in whole
    /// segments. On a disk that is short, nothing: what is left is for acknowledgements.
    pub(super) fn tell_room(&mut self) {
        let segment_bytes = u64::from(self.options.segment_bytes);
        let segments = self.reclaim.spares_for_messages() + self.space().available / segment_bytes;
        let log = self.shared.log();
        // Without a spare, acknowledgements have nothing but what was made ahead.
        let made = if self.reclaim.has_spare() { log.made_room(self.made.0) } else { 0 };
        let is_refused = log.shortage.is_some() || log.failure.as_ref().is_some_and(|failure| failure.is_full);
        let all = if is_refused { 0 } else { made.saturating_add_unsigned(segments.saturating_mul(segment_bytes)) };
        let must = if is_refused { made } else { all };
        self.shared.set_room(&log, [all, must].map(|room| u64::try_from(room).unwrap_or(0)));
    }

    /// The next segment's file before it is needed, and a spare one. If that fails it is told while there still is room
    /// for what gives space back.
    pub(super) fn prepare_next(&mut self) {
        let next = self.written.segment() + 1;
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

/// What files take may differ from what they are long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// After the next segment's file could not be made.
const PREPARE_RETRY: Duration = Duration::from_secs(1);
