use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use tenbin_store::LockedDirectory;
use tenbin_store::spool::{self, Limit, Messages, QueueId, Sequence, Stored};
use tenbin_store::state::{self, Table};

use super::lines::{Line, MessageLine, Numbers, UnderWay, time};
use super::{Found, InspectionError};
use crate::durable::bytes::RecordError;
use crate::durable::message;
use crate::durable::message_expiry::RunClock;
use crate::durable::spooled::Mark;

/// Optional parts of a dump, which always has state and queues.
#[derive(Debug, Clone, Copy, Default)]
pub struct DumpOptions {
    /// Messages in queues.
    pub messages: bool,
    /// Payloads of all messages in the dump, retained ones and Wills too.
    pub payloads: bool,
}

/// Writes the contents of a data directory, a JSON object a line. It goes record by record, so that it takes no more
/// memory than opening the directory, and its largest record.
///
/// # Errors
/// The directory cannot be opened, or `out` cannot be written. Each unreadable part has a line, and is
/// counted.
pub fn dump(directory: &Path, options: DumpOptions, out: &mut dyn Write) -> Result<Found, InspectionError> {
    let locked = LockedDirectory::open_to_read(directory)?;
    let mut dumping = Dumping { out, options, found: Found::default(), result: Ok(()) };
    let numbers = match state::Snapshot::open(&locked) {
        Ok(state) => Some(dumping.state(&state)),
        Err(error) => {
            dumping.found.count(&error);
            dumping.unreadable("state".to_owned(), &error);
            None
        }
    };
    match spool::Snapshot::open(&directory.join("spool")) {
        Ok(spool) => dumping.queues(&spool, numbers.as_ref()),
        Err(error) => {
            match error {
                spool::OpenError::Io { .. } | spool::OpenError::UnknownVersion { .. } => dumping.found.unreadable += 1,
                _ => dumping.found.damaged += 1,
            }
            dumping.unreadable("messages".to_owned(), &error);
        }
    }
    dumping.result?;
    Ok(dumping.found)
}

struct Dumping<'a> {
    out: &'a mut dyn Write,
    options: DumpOptions,
    found: Found,
    /// The first error of `out`, after which nothing is written.
    result: io::Result<()>,
}

impl Dumping<'_> {
    fn say(&mut self, line: &Line) {
        if self.result.is_ok() {
            let said = serde_json::to_writer(&mut *self.out, line).map_err(io::Error::from);
            self.result = said.and_then(|()| self.out.write_all(b"\n"));
        }
    }

    fn unreadable(&mut self, what: String, error: &dyn std::fmt::Display) {
        self.say(&Line::Unreadable { what, error: error.to_string() });
    }

    fn damaged(&mut self, what: String, error: &dyn std::fmt::Display) {
        self.found.damaged += 1;
        self.unreadable(what, error);
    }

    fn state(&mut self, state: &state::Snapshot) -> Numbers {
        let mut numbers = Numbers::default();
        for dropped in state.dropped().iter().filter(|dropped| !dropped.is_torn) {
            let what = format!("{}: offset {}", dropped.path.display(), dropped.offset);
            self.damaged(
                what,
                &format_args!("confirmed changes are damaged; nothing of the last {} bytes can be read", dropped.bytes),
            );
        }
        for table in Table::ALL {
            let what = |key: &[u8]| format!("table {}, key \"{}\"", table.name(), key.escape_ascii());
            let scanned = state.scan(table, &mut |key, value| {
                if self.result.is_err() {
                    return;
                }
                let decoded = Line::decode(table, key, value, self.options.payloads);
                let noted = decoded.and_then(|line| {
                    let Some(line) = line else { return Ok(()) };
                    self.say(&line);
                    numbers.note(&line)
                });
                if let Err(error) = noted {
                    self.damaged(what(key), &error);
                }
            });
            if let Err(error) = scanned {
                self.damaged(format!("table {}", table.name()), &error);
            }
        }
        numbers
    }

    fn queues(&mut self, spool: &spool::Snapshot, numbers: Option<&Numbers>) {
        let mut queues = spool.queues();
        queues.sort_unstable();
        for queue in queues {
            let of = numbers.map(|numbers| match queue.0 {
                number if numbers.sessions.contains(&number) => "session",
                number if numbers.groups.contains(&number) => "group",
                _ => "nobody",
            });
            self.queue(spool, queue, of);
            if self.options.messages {
                self.messages(spool, queue);
            }
            if self.result.is_err() {
                return;
            }
        }
    }

    fn queue(&mut self, spool: &spool::Snapshot, queue: QueueId, of: Option<&'static str>) {
        let Some(content) = spool.queue(queue) else { return };
        let under_way = spool.marks(queue).into_iter().filter_map(|marked| {
            let Mark { id, is_received } = Mark::of(marked.mark)?;
            Some(UnderWay { sequence: marked.sequence.0, packet_id: id.packet_id.get(), is_received })
        });
        self.say(&Line::Queue {
            queue: queue.0,
            of,
            waiting: content.waiting,
            bytes: content.bytes,
            first: content.ends.map(|(Sequence(first), _)| first),
            last: content.ends.map(|(_, Sequence(last))| last),
            under_way: under_way.collect(),
            held: content.held,
        });
    }

    fn messages(&mut self, spool: &spool::Snapshot, queue: QueueId) {
        let mut read = Messages::default();
        let mut from = Some(Sequence(0));
        while let Some(first) = from.filter(|_| self.result.is_ok()) {
            let result = spool.read(queue, first, PAGE, &mut read);
            let all = Bytes::from(read.take_bytes());
            from = None;
            for message in read.iter() {
                self.message(queue, message, &all, read.tags());
                from = message.sequence.0.checked_add(1).map(Sequence);
            }
            if let Err(error) = result {
                // Messages behind it are not read.
                self.damaged(format!("queue {}", queue.0), &error);
                return;
            }
        }
    }

    fn message(&mut self, queue: QueueId, stored: &Stored, all: &Bytes, tags: &[u8]) {
        // PUBREC was received, and the body is gone: the queue's line shows the message.
        let Some(body) = stored.body.clone().map(|body| all.slice(body)) else { return };
        let decoded = || -> Result<_, RecordError> {
            let expires = message::expires(&body)?;
            Ok((message::decode(body.clone(), &tags[stored.tag.clone()], RunClock::begin().now())?.0, expires))
        };
        match decoded() {
            Ok((delivery, expires)) => self.say(&Line::Waiting {
                queue: queue.0,
                sequence: stored.sequence.0,
                published_qos: delivery.published_qos.bits(),
                expires: time(expires),
                subscription_identifiers: delivery.identifiers().to_vec(),
                share_key: delivery.share_key.map(|key| format!("{key:016x}")),
                message: MessageLine::of(&delivery, self.options.payloads),
            }),
            Err(error) => self.damaged(format!("queue {}, place {}", queue.0, stored.sequence.0), &error),
        }
    }
}

/// Limit of one read.
const PAGE: Limit = Limit { messages: 256, bytes: 256 << 10 };
