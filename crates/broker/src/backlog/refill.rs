//! Reads of an on-disk backlog: one page at a time, repeated after a pause if it fails.
//!
//! The caller reads the page and owns the timer. Nothing here waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::Entries;
use crate::durable::{EntryRanges, Page, PageOf, StoredQueue};

/// State of the reads of one backlog.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    /// Entries of the page that is being read.
    reading: Option<EntryRanges>,
    /// Set from a failed read until a page is read without an error.
    retry: Option<Retry>,
}

/// A failed read. Its messages stay on disk, and the read is repeated: the cause may pass, as with too many open files.
#[derive(Debug)]
struct Retry {
    pause: Duration,
    /// When the pause ends; `None`: it has ended.
    at: Option<Instant>,
}

/// The next page of a backlog.
#[derive(Debug)]
pub(crate) enum NextPage {
    /// There is none, or one is being read.
    None,
    /// To be read now.
    Read(PageOf),
    /// Not before this time, as the last read has failed.
    At(Instant),
}

/// Result of [`Refill::finish`].
#[derive(Debug, Default)]
pub(crate) struct Refilled {
    /// Entries that are done without being sent: expired messages, and entries without a body.
    pub(crate) done: Vec<Sequence>,
    /// The read has failed.
    pub(crate) failed: Option<FailedRead>,
}

/// A failed read that is to be repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedRead {
    pub(crate) retry_at: Instant,
    /// The reads before it did not fail.
    pub(crate) is_first: bool,
}

impl Refill {
    /// Whether a page is being read.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Entries of the page that is being read.
    #[cfg(test)]
    pub(crate) fn reading(&self) -> Option<EntryRanges> {
        self.reading.clone()
    }

    /// Begins to read the first page of `entries`.
    pub(crate) fn begin(&mut self, entries: &Entries, queue: &StoredQueue, bytes: usize, now: Instant) -> NextPage {
        if self.is_reading() || entries.is_empty() {
            return NextPage::None;
        }
        if let Some(at) = self.retry.as_ref().and_then(|retry| retry.at).filter(|at| now < *at) {
            return NextPage::At(at);
        }
        let ranges = entries.first_page();
        self.reading = Some(Arc::clone(&ranges));
        NextPage::Read(PageOf {
            queue: queue.id(),
            kind: queue.kind(),
            ranges,
            bytes,
            by_reference: None,
            with_expired: false,
        })
    }

    /// Makes the page that is being read void.
    pub(crate) fn cancel(&mut self) {
        self.reading = None;
    }

    /// Forgets all reads.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether a failed read may be repeated and has not been since.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.retry.as_ref().and_then(|retry| retry.at).is_some_and(|at| at <= now)
    }

    /// Ends the pause after a failed read, if its time is over.
    pub(crate) fn end_pause(&mut self, now: Instant) {
        if let Some(retry) = &mut self.retry {
            retry.at.take_if(|at| *at <= now);
        }
    }

    /// Moves the messages of a page from `entries` to `put`, in order. `None`: the page is void.
    ///
    /// Messages that are not in `entries` are skipped: they are in memory already, or in flight. Entries that the page
    /// was asked for and lacks are gone from the disk.
    pub(crate) fn finish(
        &mut self,
        entries: &mut Entries,
        page: Page,
        now: Instant,
        mut put: impl FnMut(Delivery),
    ) -> Option<Refilled> {
        // The read goes on until the end: after a panic, a broken page follows.
        let asked = self.reading.clone().filter(|asked| Arc::ptr_eq(asked, &page.ranges))?;
        let last = page.messages.last().map(|(sequence, _)| *sequence);
        let failed = if page.is_broken { Some(self.fail(last.is_some(), now)) } else { None };
        if failed.is_none() {
            self.retry = None;
        }
        let mut done = Vec::new();
        for (sequence, delivery) in page.messages {
            if !entries.take(sequence, delivery.as_ref().map_or(0, |delivery| delivery.template.whole_len())) {
                continue;
            }
            match delivery {
                Some(delivery) => put(delivery),
                None => done.push(sequence),
            }
        }
        match last {
            None if page.is_broken => {} // the content is unknown
            last => entries.remove(&asked, last),
        }
        self.reading = None;
        Some(Refilled { done, failed })
    }

    /// Begins a pause, twice as long as the last one. It starts anew with its shortest value if messages before the
    /// unreadable one were read: the failure is then a different one.
    #[cold]
    fn fail(&mut self, has_some: bool, now: Instant) -> FailedRead {
        let before = self.retry.take();
        let is_first = before.is_none();
        let pause = before.filter(|_| !has_some).map_or(PAUSE, |retry| (retry.pause * 2).min(PAUSE_MAX));
        let retry_at = now + pause;
        self.retry = Some(Retry { pause, at: Some(retry_at) });
        FailedRead { retry_at, is_first }
    }
}

/// First pause after a failed read, and the longest one.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
