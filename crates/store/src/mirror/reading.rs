//! Reading of messages from a copy, by references of its leader.
//!
//! The leader does not wait for readers: it removes a segment once all messages of it are acknowledged, or were appended
//! again. In the second case references to them may be under way to slow clients. So the copy keeps the files of such
//! segments:
//!
//! - for [`KEPT_FOR`], since the leader may have read a reference just before, and
//! - while a client has references from before. [`ReferenceStream`] knows that: each reference tells the oldest segment of the
//!   log when it was read, and the references of a client come in the order of reading.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::spool::{Disk, DiskFile, NoPayload, Payload, Reference, log_name, number_of};

/// Reads payloads from a copy while it follows its leader.
pub struct CopyReader {
    disk: Arc<dyn Disk>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    /// Segments that are being read.
    open: HashMap<u32, Weak<dyn DiskFile>>,
    /// Segments that the log has left, oldest first. Their files have no names.
    left: VecDeque<Left>,
    /// Clients that have had references.
    streams: Vec<Weak<ReferenceStream>>,
    /// When a payload was sought last.
    sought_at: Option<Instant>,
    /// When the segments that the log has left were looked at last.
    looked_at: Option<Instant>,
}

/// A segment that the log has left.
struct Left {
    at: Instant,
    segment: u32,
    bytes: u64,
    file: Arc<dyn DiskFile>,
}

/// Payloads for one client, whose references come in the order in which the leader has read them.
pub struct ReferenceStream {
    reader: Arc<CopyReader>,
    place: Mutex<StreamPlace>,
}

#[derive(Clone, Copy, Default)]
struct StreamPlace {
    /// Since when there has always been something to write to the client; `None`: it has got everything.
    busy_since: Option<Instant>,
    /// There was a reference in this time.
    has_references: bool,
    /// Oldest segment that further references can be about.
    oldest: u32,
    /// The reader knows the stream.
    is_known: bool,
}

impl CopyReader {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, files: Mutex::default() }
    }

    /// Begins the references of a client.
    pub fn stream(self: &Arc<Self>) -> Arc<ReferenceStream> {
        Arc::new(ReferenceStream { reader: Arc::clone(self), place: Mutex::default() })
    }

    /// Finds the payload of a reference, and verifies that the copy's message is the leader's. Blocks for the disk.
    ///
    /// # Errors
    /// The copy does not have the message.
    pub(super) fn find(&self, reference: Reference) -> Result<Payload, NoPayload> {
        let file = self.file(reference.segment()).map_err(|error| NoPayload::Io(reference.segment(), error))?;
        Payload::find(file, reference)
    }

    fn file(&self, segment: u32) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files();
        files.sought_at = Some(Instant::now());
        if let Some(left) = files.left.iter().rev().find(|left| left.segment == segment) {
            return Ok(Arc::clone(&left.file));
        }
        if let Some(file) = files.open.get(&segment).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file: Arc<dyn DiskFile> = Arc::from(self.disk.open(&log_name(segment))?);
        files.open.retain(|_, file| file.strong_count() > 0);
        files.open.insert(segment, Arc::downgrade(&file));
        Ok(file)
    }

    /// Keeps the file of a segment that is about to lose its name. False: nothing is read, so its file may be used again.
    pub(super) fn leaves(&self, name: &str) -> bool {
        let Some(segment) = number_of(name) else { return false };
        let mut files = self.files();
        let at = Instant::now();
        let is_recent = files.sought_at.is_some_and(|sought| at.duration_since(sought) <= KEPT_FOR);
        if !is_recent && !files.streams().any(|place| place.has_references) {
            return false;
        }
        let open = files.open.remove(&segment).and_then(|file| file.upgrade());
        let Some(file) = open.or_else(|| self.disk.open(name).ok().map(Arc::from)) else { return false };
        let bytes = file.length().unwrap_or(0);
        files.left.push_back(Left { at, segment, bytes, file });
        files.let_go(at, &*self.disk);
        true
    }

    /// Closes files that no reference can be about any more.
    pub(super) fn let_go(&self) {
        let mut files = self.files();
        let is_due = |at: Instant| at.elapsed() >= LOOK;
        if !files.left.is_empty() && files.looked_at.is_none_or(is_due) {
            files.let_go(Instant::now(), &*self.disk);
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Places of the clients that have had references.
    fn streams(&self) -> impl Iterator<Item = StreamPlace> {
        self.streams.iter().filter_map(|stream| stream.upgrade().map(|stream| *stream.place()))
    }

    fn let_go(&mut self, now: Instant, disk: &dyn Disk) {
        self.looked_at = Some(now);
        self.streams.retain(|stream| stream.strong_count() > 0);
        let places: Vec<_> = self.streams().collect();
        self.left.retain(|left| {
            now.saturating_duration_since(left.at) <= KEPT_FOR || places.iter().any(|place| place.may_need(left))
        });
        // The log needs room, too. A client whose message has gone connects again.
        let free = disk.space().map_or(u64::MAX, |(free, _)| free);
        let mut bytes = self.left.iter().map(|left| left.bytes).sum::<u64>();
        while self.left.len() > KEPT_MAX || bytes > free / FREE_PART {
            let Some(oldest) = self.left.pop_front() else { return };
            bytes -= oldest.bytes;
        }
    }
}

impl ReferenceStream {
    /// Finds the payload of a reference, and verifies that the copy's message is the leader's. Blocks for the disk.
    ///
    /// # Errors
    /// The copy does not have the message.
    pub fn find(self: &Arc<Self>, reference: Reference) -> Result<Payload, NoPayload> {
        let is_known = {
            let mut place = self.place();
            place.has_references = place.busy_since.is_some();
            place.oldest = place.oldest.max(reference.oldest());
            std::mem::replace(&mut place.is_known, true)
        };
        if !is_known {
            self.reader.files().streams.push(Arc::downgrade(self));
        }
        self.reader.find(reference)
    }

    /// Notes that there is something to write to the client.
    pub fn is_busy(&self) {
        self.place().busy_since.get_or_insert_with(Instant::now);
    }

    /// Notes that the client has got everything that the leader has sent.
    pub fn is_idle(&self) {
        let mut place = self.place();
        (place.busy_since, place.has_references) = (None, false);
    }

    fn place(&self) -> MutexGuard<'_, StreamPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPlace {
    /// Whether references to this segment may be under way. A client that had got everything after the segment left the log
    /// has none.
    fn may_need(&self, left: &Left) -> bool {
        let is_from_before = self.busy_since.is_some_and(|since| since <= left.at + KEPT_FOR);
        is_from_before && self.has_references && self.oldest <= left.segment
    }
}

impl fmt::Debug for CopyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyReader").finish_non_exhaustive()
    }
}

impl fmt::Debug for ReferenceStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceStream").finish_non_exhaustive()
    }
}

/// How long each segment that has left the log can be read.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Segments that are kept, each of which has a file descriptor.
const KEPT_MAX: usize = 256;
/// Kept segments have at most this part of the bytes that are free beside them.
const FREE_PART: u64 = 4;
/// Time between two looks at kept segments.
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::tests::MemoryDisk;

    /// Begin of a reference to a segment, read when `oldest` was the oldest one. The rest is invalid.
    fn reference(segment: u32, oldest: u32) -> Reference {
        let mut bytes = [0; Reference::BYTES];
        bytes[..4].copy_from_slice(&segment.to_be_bytes());
        bytes[Reference::BYTES - 4..].copy_from_slice(&oldest.to_be_bytes());
        Reference::from_bytes(&bytes)
    }

    /// A copy with the segments 1 to 9.
    fn reader() -> (MemoryDisk, Arc<CopyReader>) {
        let disk = MemoryDisk::default();
        for number in 1..10 {
            disk.create(&log_name(number)).unwrap().allocate(100).unwrap();
        }
        (disk.clone(), Arc::new(CopyReader::new(Arc::new(disk))))
    }

    /// Segments that are kept this much later.
    fn kept(reader: &CopyReader, later: Duration) -> Vec<u32> {
        let mut files = reader.files();
        files.let_go(Instant::now() + later, &*reader.disk);
        files.left.iter().map(|left| left.segment).collect()
    }

    #[test]
    fn segments_stay_while_a_slow_client_has_references_from_before() {
        let (_, reader) = reader();
        assert!(!reader.leaves(&log_name(1)), "nothing is read");
        let stream = reader.stream();
        stream.is_busy();
        assert!(stream.find(reference(2, 2)).is_err());
        for segment in 2..6 {
            assert!(reader.leaves(&log_name(segment)));
        }
        assert_eq!(kept(&reader, KEPT_FOR * 100), [2, 3, 4, 5]);
        // Read after 2 and 3 had left.
        assert!(stream.find(reference(5, 4)).is_err());
        assert_eq!(kept(&reader, Duration::ZERO), [2, 3, 4, 5]);
        assert_eq!(kept(&reader, KEPT_FOR * 100), [4, 5]);
        stream.is_idle();
        assert_eq!(kept(&reader, Duration::ZERO), [4, 5]);
        assert_eq!(kept(&reader, KEPT_FOR * 100), [0; 0]);
        // Something to write alone keeps nothing.
        stream.is_busy();
        assert!(reader.leaves(&log_name(6)));
        assert_eq!(kept(&reader, KEPT_FOR * 100), [0; 0]);
        assert!(stream.find(reference(7, 7)).is_err());
        assert!(reader.leaves(&log_name(7)));
        assert_eq!(kept(&reader, KEPT_FOR * 100), [7]);
        drop(stream);
        assert_eq!(kept(&reader, KEPT_FOR * 100), [0; 0]);
    }

    #[test]
    fn kept_segments_leave_the_log_its_room() {
        let (disk, reader) = reader();
        let stream = reader.stream();
        stream.is_busy();
        assert!(stream.find(reference(1, 1)).is_err());
        for segment in 1..6 {
            assert!(reader.leaves(&log_name(segment)));
        }
        disk.set_faults(|faults| faults.space = Some(1200));
        assert_eq!(kept(&reader, Duration::ZERO), [3, 4, 5]);
        disk.set_faults(|faults| faults.is_full = true);
        assert_eq!(kept(&reader, Duration::ZERO), [0; 0]);
    }
}
