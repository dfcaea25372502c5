//! Reads messages back from the disk, on a separate thread, so that no task waits for the disk.
//!
//! A connection takes its page with its next poll. A share group has no task, and processes its page on this thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use tenbin_codec::PACKET_SIZE_MAX;
use tenbin_session::{Delivery, Location, SentId, Stored};
use tenbin_store::spool::{Heads, Limit, Messages, QueueId, ReadError, Sequence, Spool, Stored as SpoolMessage};
use tokio::sync::oneshot;

use super::bytes::RecordError;
use super::message;
use super::message_expiry::{MessageClock, RunClock};
use super::queue::QueueKind;
use super::spooled::Mark;

/// Handle of the thread that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    /// `Some` until it is dropped.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

enum Request {
    Page(PageOf, Box<dyn Fn(Page) + Send>),
    UnderWay(QueueId, oneshot::Sender<Option<Vec<UnderWay>>>),
    /// Ends the thread. The sender is dropped at the end.
    End(oneshot::Sender<()>),
}

/// Ranges of entries, in order. A page has the ranges of its request, by which the reader of a backlog recognizes it.
pub(crate) type EntryRanges = Arc<[RangeInclusive<Sequence>]>;

/// Which messages of a queue to read.
#[derive(Debug, Clone)]
pub(crate) struct PageOf {
    pub(crate) queue: QueueId,
    pub(crate) kind: QueueKind,
    pub(crate) ranges: EntryRanges,
    /// Approximate bytes of bodies.
    pub(crate) bytes: usize,
    /// Large payloads stay on disk, and references come in their place.
    pub(crate) by_reference: Option<ByReference>,
    /// Expired messages are read too.
    pub(crate) with_expired: bool,
}

/// The receiver of references.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByReference {
    /// Its Maximum Packet Size.
    pub(crate) packet_bytes_maximum: u32,
    /// Messages whose payloads stay on disk, at most.
    pub(crate) messages: usize,
}

/// Messages of a queue, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Entries that were asked for. The page may end before their end.
    pub(crate) ranges: EntryRanges,
    /// In order. `None`: the message has expired, unless [`PageOf::with_expired`], or has no body.
    pub(crate) messages: Vec<(Sequence, Option<Delivery>)>,
    /// A message cannot be read for now, nor can those behind it.
    pub(crate) is_broken: bool,
}

/// A message that was sent and is not wholly acknowledged.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(crate) id: SentId,
    pub(crate) stored: Stored,
    /// `None`: PUBREC was received, and PUBCOMP was not.
    pub(crate) delivery: Option<Delivery>,
}

impl Page {
    /// A page without messages: nothing can be read for now.
    fn broken(ranges: EntryRanges) -> Self {
        Self { ranges, messages: Vec::new(), is_broken: true }
    }
}

impl Reader {
    /// Starts the thread. It keeps the directory locked until it is done with the spool.
    pub(super) fn start<D: Send + Sync + 'static>(
        spool: Arc<Spool>,
        directory: Arc<D>,
        clock: RunClock,
    ) -> std::io::Result<Self> {
        #[expect(
            clippy::disallowed_methods,
            reason = "each client and each share group has one request there at most, and waits for it"
        )]
        let (requests, received) = mpsc::channel();
        let work = move || {
            let mut passed = PassedOver::default();
            let mut end = None;
            for request in received {
                if let Request::End(reply) = request {
                    end = Some(reply);
                    break;
                }
                answer(&spool, clock, request, &mut passed);
            }
            drop((spool, directory));
            drop(end);
        };
        let thread = thread::Builder::new().name("tenbin-reader".to_owned()).spawn(work)?;
        Ok(Self { requests: Some(requests), thread: Some(thread) })
    }

    /// Reads the next messages of a queue. The channel closes without a page once the reader has ended.
    pub(crate) fn page(&self, page: PageOf) -> oneshot::Receiver<Page> {
        let (reply, answer) = oneshot::channel();
        let reply = Cell::new(Some(reply));
        self.page_for(page, move |page| drop(reply.take().map(|reply| reply.send(page))));
        answer
    }

    /// As [`Reader::page`], for callers without a task.
    ///
    /// `take` runs on the thread that reads, which serves all queues: it must be short, and may wait for short locks
    /// only. If it panics, it is called once more, with a broken page.
    pub(crate) fn page_for(&self, page: PageOf, take: impl Fn(Page) + Send + 'static) {
        let _ = self.requests.as_ref().map(|requests| requests.send(Request::Page(page, Box::new(take))));
    }

    /// Reads a session's messages that were sent and are not wholly acknowledged, in the order of sending. `None`: some
    /// cannot be read for now.
    pub(crate) fn under_way(&self, queue: QueueId) -> oneshot::Receiver<Option<Vec<UnderWay>>> {
        self.ask(|reply| Request::UnderWay(queue, reply))
    }

    /// Ends reading. Completes once the thread has answered the requests before this one.
    pub(crate) async fn end(&self) {
        let _ = self.ask(Request::End).await;
    }

    fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        // Without a thread, there is no answer: the caller sees the closed channel.
        let _ = self.requests.as_ref().map(|requests| requests.send(request(reply)));
        answer
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.requests = None;
        // `take` may drop the last owner of the reader on this very thread, which then ends without being joined.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id());
        let _ = thread.map(JoinHandle::join);
    }
}

fn answer(spool: &Spool, clock: RunClock, request: Request, passed: &mut PassedOver) {
    // Errors are ignored: the caller may have gone.
    match request {
        Request::Page(of, take) => {
            let page = go_on(of.queue, || page(spool, clock, &of, passed));
            let page = page.unwrap_or_else(|| Page::broken(Arc::clone(&of.ranges)));
            if go_on(of.queue, || take(page)).is_none() {
                let _ = go_on(of.queue, || take(Page::broken(of.ranges)));
            }
        }
        Request::UnderWay(queue, reply) => {
            let under_way = go_on(queue, || under_way(spool, clock, queue)).flatten();
            let _ = go_on(queue, || drop(reply.send(under_way)));
        }
        Request::End(_) => {} // handled by the thread itself
    }
}

/// Runs `work`; `None`: it panicked, which is a bug that concerns one queue. Ending the thread would stop reads of all
/// queues.
fn go_on<T>(QueueId(queue): QueueId, work: impl FnOnce() -> T) -> Option<T> {
    // All users of the locks taken here go on after a panic, on the threads of connections too.
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    done.map_err(|_| tracing::error!(queue, "the reader of stored messages has panicked: they stay on disk")).ok()
}

fn page(spool: &Spool, clock: RunClock, of: &PageOf, passed: &mut PassedOver) -> Page {
    let mut from = Sequence(0);
    loop {
        let (page, last) = read_page(spool, clock, of, from, passed);
        match last {
            // More messages may follow a page of which none can be decoded.
            Some(Sequence(last)) if page.messages.is_empty() && !page.is_broken => from = Sequence(last + 1),
            _ => {
                if !(page.is_broken && page.messages.is_empty()) {
                    passed.goes_on(of.queue);
                }
                return page;
            }
        }
    }
}

/// Undecodable messages that were logged, of queues with an unreadable message behind them. Reads of such a queue are
/// repeated, and would log them again. For each queue: the offset up to which they were logged.
#[derive(Debug, Default)]
struct PassedOver(HashMap<QueueId, Sequence>);

impl PassedOver {
    /// Whether this message was not logged yet. Notes that it is.
    fn is_new(&mut self, queue: QueueId, sequence: Sequence) -> bool {
        if self.0.len() >= PASSED_OVER_MAX && !self.0.contains_key(&queue) {
            self.0.clear(); // they are logged once more
        }
        let told = self.0.entry(queue).or_insert(Sequence(0));
        let is_new = sequence > *told;
        *told = sequence.max(*told);
        is_new
    }

    /// Forgets a queue whose reads have got past these messages.
    fn goes_on(&mut self, queue: QueueId) {
        self.0.remove(&queue);
    }
}

/// Reads one page, at offsets from `from` on. Also returns the last message that was read, decoded or not. An
/// undecodable message is left out of the page, and stays on disk.
fn read_page(
    spool: &Spool,
    clock: RunClock,
    of: &PageOf,
    from: Sequence,
    passed: &mut PassedOver,
) -> (Page, Option<Sequence>) {
    if let Some(page) = of.by_reference.and_then(|receiver| read_page_by_reference(spool, clock, of, from, receiver)) {
        return page;
    }
    let PageOf { queue, kind, ref ranges, bytes, .. } = *of;
    let mut read = Messages::default();
    let unread: Vec<_> = ranges.iter().map(|range| from.max(*range.start())..=*range.end()).collect();
    let result = spool.read_ranges(queue, &unread, Limit { messages: PAGE_MESSAGES, bytes }, &mut read);
    let clock = clock.now();
    let all = Bytes::from(read.take_bytes());
    let decoded = read.iter().map(|message| (message.sequence, decode(message, &all, read.tags(), clock)));
    let mut decoded: Vec<_> = decoded.collect();
    let last = decoded.last().map(|(sequence, _)| *sequence);
    // Undecodable messages at the end come again with the next page, and are logged then.
    decoded.truncate(decoded.iter().rposition(|(_, decoded)| decoded.is_ok()).map_or(decoded.len(), |at| at + 1));
    let messages = decoded.into_iter().filter_map(|(sequence, decoded)| {
        if let Err(error) = &decoded
            && passed.is_new(queue, sequence)
        {
            tell_undecodable(queue, sequence, error);
        }
        let read = decoded.ok()?;
        let is_wanted = |is_over: bool| !is_over || of.with_expired; // [MQTT-3.3.2-5]
        let mut delivery = read.filter(|(_, is_over)| is_wanted(*is_over)).map(|(delivery, _)| delivery);
        if let Some(delivery) = &mut delivery {
            delivery.stored = Some(kind.locate(sequence, delivery.qos).to_stored());
        }
        Some((sequence, delivery))
    });
    let messages = messages.collect();
    let is_broken = result.is_err_and(|error| tell(&error));
    (Page { ranges: Arc::clone(ranges), messages, is_broken }, last)
}

/// As [`read_page`], but with references in place of large payloads. The page ends before a message that has to be read
/// whole. `None`: the first one has to.
fn read_page_by_reference(
    spool: &Spool,
    clock: RunClock,
    of: &PageOf,
    from: Sequence,
    receiver: ByReference,
) -> Option<(Page, Option<Sequence>)> {
    let PageOf { queue, kind, ref ranges, bytes, .. } = *of;
    if kind != QueueKind::Session {
        return None;
    }
    let mut read = Messages::default();
    let unread: Vec<_> = ranges.iter().map(|range| from.max(*range.start())..=*range.end()).collect();
    let limit = Limit { messages: PAGE_MESSAGES, bytes };
    // The messages before an unreadable one are a page, too.
    let heads = Heads { from_bytes: REFERENCED_FROM, messages: receiver.messages, bytes: REFERENCED_BYTES_MAX };
    let _ = spool.read_heads(queue, &unread, limit, heads, &mut read);
    let clock = clock.now();
    let all = Bytes::from(read.take_bytes());
    let fits = |delivery: &Delivery| {
        let packet = delivery.template.whole_len() + OWN_BYTES + delivery.identifiers().len() * IDENTIFIER_BYTES;
        packet <= receiver.packet_bytes_maximum.min(PACKET_SIZE_MAX) as usize
    };
    let mut messages = Vec::new();
    for message in read.iter() {
        let delivery = match (&message.record, message.body.clone()) {
            (Some(record), Some(body)) => {
                let tag = &read.tags()[message.tag.clone()];
                let delivery = message::decode_beginning(all.slice(body), record, tag, clock).filter(fits);
                let Some(delivery) = delivery else { break };
                Some(delivery)
            }
            _ => {
                let Ok(read) = decode(message, &all, read.tags(), clock) else { break };
                read.filter(|(_, is_over)| !is_over).map(|(delivery, _)| delivery) // [MQTT-3.3.2-5]
            }
        };
        let located = delivery.map(|mut delivery| {
            delivery.stored = Some(kind.locate(message.sequence, delivery.qos).to_stored());
            delivery
        });
        messages.push((message.sequence, located));
    }
    let last = messages.last().map(|(sequence, _)| *sequence)?;
    Some((Page { ranges: Arc::clone(ranges), messages, is_broken: false }, Some(last)))
}

/// Reads the messages in flight; `None`: some of them cannot be read for now.
fn under_way(spool: &Spool, clock: RunClock, queue: QueueId) -> Option<Vec<UnderWay>> {
    let marked = spool.marks(queue).into_iter();
    let marked: Vec<_> = marked.filter_map(|marked| Some((marked.sequence, Mark::of(marked.mark)?))).collect();
    let unread = marked.iter().filter(|(_, mark)| !mark.is_received).map(|(sequence, _)| *sequence);
    let mut deliveries = read_sent(spool, clock, queue, &unread.collect::<Vec<_>>())?;
    let mut under_way = Vec::new();
    for (sequence, mark) in marked {
        let mut delivery = deliveries.remove(&sequence);
        if !mark.is_received && delivery.is_none() {
            continue;
        }
        let stored = Location::Own(sequence.0).to_stored();
        if let Some(delivery) = &mut delivery {
            delivery.stored = Some(stored);
        }
        under_way.push(UnderWay { id: mark.id, stored, delivery });
    }
    SentId::sort(&mut under_way, |message| message.id);
    Some(under_way)
}

/// Reads messages that were sent before, in order of their sequences, many at a time. One that has no body, or cannot be
/// decoded, is left out. `None`: some of them cannot be read for now.
fn read_sent(
    spool: &Spool,
    clock: RunClock,
    queue: QueueId,
    mut unread: &[Sequence],
) -> Option<HashMap<Sequence, Delivery>> {
    let (clock, mut read, mut found) = (clock.now(), Messages::default(), HashMap::new());
    while !unread.is_empty() {
        // They need not be consecutive.
        let runs = unread.chunk_by(|Sequence(one), Sequence(next)| one + 1 == *next);
        let runs: Vec<_> = runs.map(|run| run[0]..=run[run.len() - 1]).collect();
        let limit = Limit { messages: PAGE_MESSAGES, bytes: SENT_BYTES };
        if let Err(error) = spool.read_ranges(queue, &runs, limit, &mut read) {
            tell(&error);
            return None;
        }
        let all = Bytes::from(read.take_bytes());
        let Some(last) = read.iter().last().map(|message| message.sequence) else { break };
        for message in read.iter() {
            // Its expiry does not count any more. [MQTT-4.3.3-7]
            match decode(message, &all, read.tags(), clock) {
                Ok(Some((delivery, _))) => drop(found.insert(message.sequence, delivery)),
                Ok(None) => {}
                Err(error) => tell_undecodable(queue, message.sequence, &error),
            }
        }
        unread = &unread[unread.partition_point(|sequence| *sequence <= last)..];
    }
    Some(found)
}

/// Decodes a message and whether it has expired; `None`: it has no body any more.
fn decode(
    message: &SpoolMessage,
    all: &Bytes,
    tags: &[u8],
    clock: MessageClock,
) -> Result<Option<(Delivery, bool)>, RecordError> {
    let Some(body) = message.body.clone() else { return Ok(None) };
    message::decode(all.slice(body), &tags[message.tag.clone()], clock).map(Some)
}

#[cold]
fn tell_undecodable(QueueId(queue): QueueId, Sequence(place): Sequence, error: &RecordError) {
    tracing::error!(queue, place, %error, "a stored message cannot be read, and stays on disk");
}

fn tell(error: &ReadError) -> bool {
    tracing::error!(%error, "stored messages cannot be read");
    true
}

/// Queues in `PassedOver` at most.
const PASSED_OVER_MAX: usize = 1000;
/// Bytes of messages in flight that are read together: a message that is not acknowledged keeps the others' memory.
const SENT_BYTES: usize = 256 << 10;
/// Messages of a page at most.
pub(crate) const PAGE_MESSAGES: usize = 256;
/// Least bytes of a message whose payload stays on disk.
const REFERENCED_FROM: usize = 4096;
/// Messages by reference that are on their way to a client at most, about, and bytes of their payloads.
pub(crate) const REFERENCES_MAX: usize = 64;
pub(crate) const REFERENCED_BYTES_MAX: usize = 8 << 20;
/// More than a packet has beside its topic, properties and payload, without Subscription Identifiers.
const OWN_BYTES: usize = 32;
/// Longest Subscription Identifier, with its property.
const IDENTIFIER_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::task::{Context, Waker};
    use std::time::{Duration, Instant};

    use tenbin_store::spool::Options;
    use tenbin_store::{DirectoryError, LockedDirectory};

    use super::*;

    #[test]
    fn undecodable_messages_before_a_read_error_are_logged_once() {
        let mut passed = PassedOver::default();
        let mut told = |queue| [3, 4, 9].map(|sequence| passed.is_new(QueueId(queue), Sequence(sequence)));
        assert_eq!([1, 1, 2].map(&mut told), [[true; 3], [false; 3], [true; 3]]);
        assert!(passed.is_new(QueueId(1), Sequence(10)));
        passed.goes_on(QueueId(1));
        assert!(passed.is_new(QueueId(1), Sequence(3)) && !passed.is_new(QueueId(2), Sequence(3)));
    }

    fn reader(path: &Path) -> Reader {
        let directory = LockedDirectory::open(path).unwrap();
        let (spool, _) = Spool::open(&path.join("spool"), Options::default()).unwrap();
        Reader::start(Arc::new(spool), Arc::new(directory), RunClock::begin()).unwrap()
    }

    #[test]
    fn directory_stays_locked_until_the_reader_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let reader = reader(directory.path());
        let of = PageOf {
            queue: QueueId(1),
            kind: QueueKind::Group,
            ranges: Arc::default(),
            bytes: 1,
            by_reference: None,
            with_expired: false,
        };
        let (going_on, held_up) = mpsc::sync_channel::<()>(0);
        reader.page_for(of.clone(), move |_| {
            let _ = held_up.recv();
        });
        let mut end = Box::pin(reader.end());
        let mut context = Context::from_waker(Waker::noop());
        assert!(end.as_mut().poll(&mut context).is_pending(), "a page is being given");
        let behind = reader.page(of);
        assert!(matches!(LockedDirectory::open(directory.path()), Err(DirectoryError::InUse(_))));
        drop(going_on);
        assert!(behind.blocking_recv().is_err(), "nothing more is read");
        let until = Instant::now() + Duration::from_secs(20);
        while end.as_mut().poll(&mut context).is_pending() {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        drop(end);
        LockedDirectory::open(directory.path()).unwrap();
    }

    #[test]
    fn reader_panic_breaks_the_page_of_one_request_only() {
        let directory = tempfile::tempdir().unwrap();
        let reader = reader(directory.path());
        let of = PageOf {
            queue: QueueId(1),
            kind: QueueKind::Group,
            ranges: Arc::default(),
            bytes: 1,
            by_reference: None,
            with_expired: false,
        };
        let (there, here) = mpsc::sync_channel(2);
        reader.page_for(of.clone(), move |page| {
            there.send(page.is_broken).unwrap();
            panic!("an error of ours");
        });
        let queue = of.queue;
        assert!(!reader.page(of).blocking_recv().unwrap().is_broken);
        assert!(reader.under_way(queue).blocking_recv().unwrap().is_some());
        assert_eq!(here.iter().collect::<Vec<_>>(), [false, true]);
    }
}
