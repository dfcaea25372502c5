//! The backup that a node is writing, one at a time, and counts of all.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Backups of a node.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    running: Mutex<Option<Running>>,
    counts: [AtomicU64; RESULTS.len()],
}

#[derive(Debug)]
struct Running {
    /// The process that reads it.
    reader: String,
    since: Instant,
}

/// The right to write a backup. Dropping it lets another one begin.
#[derive(Debug)]
pub(crate) struct BackupPlace(Arc<Backups>);

/// How backups end, in the words of metrics.
const RESULTS: [&str; 4] = ["written", "stalled", "failed", "refused"];
const WRITTEN: usize = 0;
const STALLED: usize = 1;
const FAILED: usize = 2;
const REFUSED: usize = 3;

impl Backups {
    /// Begins a backup, which this process reads.
    ///
    /// # Errors
    /// Another one is under way. The text names its reader.
    pub(crate) fn begin(self: &Arc<Self>, reader: String) -> Result<BackupPlace, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Running { reader: other, since }) = &*running {
            self.count(REFUSED);
            let seconds = since.elapsed().as_secs();
            tracing::warn!(reader, other, seconds, "a backup is refused: another one is under way");
            return Err(format!(
                "another backup is under way: {other} began it {seconds} s ago. It ends by itself if its reader takes nothing"
            ));
        }
        tracing::info!(reader, "a backup begins");
        *running = Some(Running { reader, since: Instant::now() });
        Ok(BackupPlace(Arc::clone(self)))
    }

    /// Counts since the start of the node, by result.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RESULTS.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count(&self, result: usize) {
        self.counts[result].fetch_add(1, Ordering::Relaxed);
    }
}

impl BackupPlace {
    /// Lets another backup begin, and counts this one.
    pub(crate) fn end(self, written: &io::Result<()>) {
        let backups = Arc::clone(&self.0);
        drop(self);
        match written {
            Ok(()) => {
                backups.count(WRITTEN);
                tracing::info!("a backup has ended");
            }
            Err(error) => {
                backups.count(if error.kind() == io::ErrorKind::TimedOut { STALLED } else { FAILED });
                tracing::warn!(%error, "a backup has ended early");
            }
        }
    }
}

impl Drop for BackupPlace {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_backup_is_refused_by_name_until_the_first_has_ended() {
        let backups = Arc::<Backups>::default();
        let first = backups.begin("process 7 of user 0".to_owned()).expect("none is under way");
        let refused = backups.begin("process 8 of user 0".to_owned()).expect_err("one is under way");
        assert!(refused.starts_with("another backup is under way: process 7 of user 0 began it 0 s ago"), "{refused}");
        first.end(&Err(io::ErrorKind::TimedOut.into()));
        backups.begin("process 9 of user 0".to_owned()).expect("the first has ended").end(&Ok(()));
        drop(backups.begin("process 10 of user 0".to_owned()).expect("it has ended"));
        let last = backups.begin("process 11 of user 0".to_owned()).expect("a dropped one has ended");
        last.end(&Err(io::ErrorKind::BrokenPipe.into()));
        let counts: Vec<_> = backups.counts().collect();
        assert_eq!(counts, [("written", 1), ("stalled", 1), ("failed", 1), ("refused", 1)]);
    }
}
