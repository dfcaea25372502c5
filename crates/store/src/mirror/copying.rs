//! The leader's threads of a join: they copy data that the joining node lacks, and read its confirmations.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_128;

use super::operation::{Operation as O, encode_change, read_frame};
use super::stream::Stream;
use super::{Channel, JoinId, Mirror, small};
use crate::spool::{Disk, FIRST_RECORD, number_of};
use crate::state::TableSnapshot;

/// Bytes that are compared and copied together.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Pieces of which the copy has not confirmed one: they fit into the buffers of a connection.
const WINDOW_PIECES: usize = 4;
/// Copied bytes after which the copy syncs its file. A later sync would be longer, and keep a shared disk from others.
const SYNC_BYTES: usize = 4 << 20;
/// Bytes of a hash.
pub(super) const HASH_BYTES: usize = 16;

/// Hash of a piece.
pub(super) fn hash(piece: &[u8]) -> [u8; HASH_BYTES] {
    xxh3_128(piece).to_le_bytes()
}

/// Bytes of a piece up to the last one that is not zero.
pub(super) fn used(piece: &[u8]) -> usize {
    piece.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Whether a copy leaves out a file of the log's directory: locks, the store's name, and files of other programs.
pub(super) fn is_apart(name: &str) -> bool {
    !(number_of(name).is_some() || name.ends_with(".spare") || name == "confirmed")
}

/// A file in the copy's directory of the log, while operations are performed there.
pub(super) const UNFINISHED: &str = "copying";

/// Whether the content of a file matters; the content of a spare segment does not.
pub(super) fn has_content(name: &str) -> bool {
    number_of(name).is_some() || name == "confirmed"
}

/// Bound on the rate of copying.
#[derive(Clone)]
pub(super) struct Rate {
    bytes_per_second: u64,
    /// Whether nothing is to be waited for any more.
    is_over: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Rate {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), is_over: None }
    }

    /// Waits no longer than until `is_over`.
    pub(super) fn until(self, is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_over: Some(Arc::new(is_over)), ..self }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.as_ref().is_some_and(|is_over| is_over())
    }

    /// Waits as long as `bytes` take at this rate, counted from `began`.
    pub(super) fn wait(&self, began: Instant, bytes: usize) {
        let due = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        loop {
            let left = due.saturating_sub(began.elapsed());
            if left.is_zero() || self.is_over() {
                return;
            }
            std::thread::sleep(if self.is_over.is_some() { left.min(LOOK_EVERY) } else { left });
        }
    }
}

/// How often a wait is interrupted for a look at its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Pieces that are on their way to a copy.
///
/// A copy that waits for its disk reads nothing. Without this bound the connection would fill up, and a piece would wait
/// in it with the channel's lock, which each commit needs.
#[derive(Default)]
struct Window {
    unconfirmed: VecDeque<u64>,
}

impl Window {
    /// Waits until the copy may get another piece.
    fn wait(&mut self, channel: &Channel, join: JoinId) -> io::Result<()> {
        while self.unconfirmed.len() >= WINDOW_PIECES {
            let Some(number) = self.unconfirmed.pop_front() else { break };
            if !channel.wait_for_copy(join, number) {
                return Err(io::Error::other("the connection has ended"));
            }
        }
        Ok(())
    }

    /// Notes a piece, by the number of the operation after it.
    fn sent(&mut self, number: u64) {
        self.unconfirmed.push_back(number);
    }
}

/// Serves the log's connection until it ends.
pub(super) fn serve_log(mirror: &Arc<Mirror>, join: JoinId, disk: &Arc<dyn Disk>, from: Box<dyn Stream>, rate: &Rate) {
    let mut from = io::BufReader::new(from);
    let served = read_inventory(&mut from).and_then(|inventory| {
        let copier = (Arc::clone(mirror), Arc::clone(disk), from.get_ref().duplicate()?, rate.clone());
        mirror.spawn("tenbin-copy-files", move || {
            let (mirror, disk, stream, rate) = copier;
            if let Err(error) = copy_log(&mirror, join, &*disk, stream, &inventory, &rate) {
                mirror.lost(join, &error.to_string());
            }
        })?;
        read_confirmations(&mirror.log, join, &mut from)
    });
    ended(mirror, join, served);
}

/// Serves the state's connection until it ends.
pub(super) fn serve_state(mirror: &Arc<Mirror>, join: JoinId, from: Box<dyn Stream>, rate: &Rate) {
    let mut from = io::BufReader::new(from);
    let begun = from.get_ref().duplicate().and_then(|stream| {
        let copier = (Arc::clone(mirror), rate.clone());
        mirror.spawn("tenbin-copy-tables", move || {
            let (mirror, rate) = copier;
            if let Err(error) = copy_state(&mirror, join, stream, &rate) {
                mirror.lost(join, &error.to_string());
            }
        })
    });
    let served = begun.and_then(|()| read_confirmations(&mirror.state, join, &mut from));
    ended(mirror, join, served);
}

fn ended(mirror: &Mirror, join: JoinId, served: io::Result<()>) {
    let reason = served.err().map_or_else(|| "the connection has ended".to_owned(), |error| error.to_string());
    mirror.lost(join, &reason);
}

fn read_confirmations(channel: &Channel, join: JoinId, from: &mut impl io::Read) -> io::Result<()> {
    let mut frame = Vec::new();
    while read_frame(from, &mut frame)? {
        match O::decode(&frame)? {
            O::Confirmed { number, free, size } => {
                channel.confirm(join, number, Some((free, size)).filter(|&(_, size)| size > 0));
            }
            O::Failed { error } => return Err(io::Error::other(format!("the copy has failed: {error}"))),
            _ => return Err(io::Error::other("the copy has sent something else than a confirmation")),
        }
    }
    Ok(())
}

/// Hashes of the pieces of the copy's files.
type Inventory = HashMap<String, Vec<u8>>;

fn read_inventory(from: &mut impl io::Read) -> io::Result<Inventory> {
    let (mut inventory, mut frame) = (Inventory::new(), Vec::new());
    while read_frame(from, &mut frame)? {
        match O::decode(&frame)? {
            O::Has { name, hashes } => drop(inventory.insert(name.to_owned(), hashes.to_vec())),
            O::EndOfInventory => return Ok(inventory),
            O::Failed { error } => return Err(io::Error::other(format!("the copy has failed: {error}"))),
            _ => return Err(io::Error::other("the copy has sent something else than its inventory")),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Sends all operations on the log from here on, and copies the files as they are.
fn copy_log(
    mirror: &Mirror,
    join: JoinId,
    disk: &dyn Disk,
    stream: Box<dyn Stream>,
    inventory: &Inventory,
    rate: &Rate,
) -> io::Result<()> {
    let channel = &mirror.log;
    let mut names = Vec::new();
    // All names first: a later rename or removal finds its file.
    channel.attach(join, stream, |sender| {
        let all = disk.list()?;
        for name in all.into_iter().filter(|name| !is_apart(name)) {
            let file = disk.open(&name)?;
            sender.send(&O::File { name: &name, length: file.length()? });
            if !has_content(&name) {
                // Its header may be written already: the next operation may make it a segment.
                let mut header = [0; FIRST_RECORD as usize];
                let length = file.read_at(&mut header, 0)?;
                sender.send(&O::Write { name: &name, offset: 0, bytes: &header[..length] });
            }
            names.push(name);
        }
        sender.send(&O::EndOfFiles);
        sender.flush()
    })?;
    small::send_all(mirror, join, rate)?;
    names.retain(|name| has_content(name));
    names.sort();
    // A file that has gone since is not copied.
    let length = |name: &String| disk.open(name).and_then(|file| file.length()).unwrap_or(0);
    mirror.log_has(names.iter().map(length).sum());
    let (mut piece, mut window) = (vec![0; PIECE_BYTES], Window::default());
    for name in &names {
        let hashes = inventory.get(name).map_or(&[][..], |hashes| hashes);
        copy_file(mirror, join, disk, (name.as_str(), hashes), (&mut piece, &mut window), rate)?;
        // One file at a time: the copy performs nothing else in that time, and commits may wait for it.
        let number = channel.sender().send_numbered(|number| O::SyncAll { number });
        if !channel.wait_for_copy(join, number) {
            return Ok(());
        }
    }
    // Also without any file.
    let number = channel.sender().send_numbered(|number| O::SyncAll { number });
    if channel.wait_for_copy(join, number) {
        mirror.part_is_copied(join);
    }
    Ok(())
}

fn copy_file(
    mirror: &Mirror,
    join: JoinId,
    disk: &dyn Disk,
    (name, hashes): (&str, &[u8]),
    (piece, window): (&mut [u8], &mut Window),
    rate: &Rate,
) -> io::Result<()> {
    let (mut offset, mut unsynced) = (0_u64, 0);
    loop {
        if mirror.log.peer() != Some(join) {
            return Err(io::Error::other("the connection has ended"));
        }
        let began = Instant::now();
        // Without the lock, which a commit may wait for: reading may take long. The copy has all later operations, so what
        // equals its inventory needs no copy.
        let Some(length) = read_piece(disk, name, offset, piece)? else { return Ok(()) };
        let at = (offset / PIECE_BYTES as u64) as usize * HASH_BYTES;
        let theirs = hashes.get(at..at + HASH_BYTES);
        // Behind its inventory, a file of the copy has zeros: space that a segment has booked is not sent.
        let is_equal = match theirs {
            Some(theirs) => theirs == hash(&piece[..length]),
            None => used(&piece[..length]) == 0,
        };
        let mut counted = if used(&piece[..length]) == 0 { 0 } else { length };
        if !is_equal && length > 0 {
            window.wait(&mirror.log, join)?;
            // Under the lock no operation comes between reading and sending.
            let mut sender = mirror.log.sender();
            let Some(length) = read_piece(disk, name, offset, piece)? else { return Ok(()) };
            let sent = if theirs.is_some() { length } else { used(&piece[..length]) };
            sender.send(&O::Write { name, offset, bytes: &piece[..sent] });
            (unsynced, counted) = (unsynced + sent, sent);
            let number = sender.next();
            if unsynced >= SYNC_BYTES {
                unsynced = 0;
                sender.send(&O::Sync { number, name });
            } else {
                sender.send(&O::Settle { number });
            }
            sender.flush()?;
            window.sent(number);
        }
        mirror.copied(counted as u64);
        mirror.has_less(length.saturating_sub(counted) as u64);
        if length < piece.len() {
            return Ok(());
        }
        offset += length as u64;
        rate.wait(began, counted);
    }
}

/// Reads a piece, or less at the end of the file. `None`: there is no such file any more.
fn read_piece(disk: &dyn Disk, name: &str, offset: u64, piece: &mut [u8]) -> io::Result<Option<usize>> {
    match disk.open(name) {
        Ok(file) => file.read_at(piece, offset).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes all entries of a state to `send`, encoded, in pieces at a bounded rate.
pub(super) fn in_pieces(
    snapshot: &dyn TableSnapshot,
    rate: &Rate,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut changes, mut began) = (Vec::new(), Instant::now());
    let mut pass = |changes: &mut Vec<u8>| {
        send(changes)?;
        rate.wait(began, changes.len());
        began = Instant::now();
        changes.clear();
        Ok(())
    };
    let mut passed = Ok(());
    let read = snapshot.visit(&mut |table, key, value| {
        encode_change(&mut changes, table, key, Some(value));
        if changes.len() >= PIECE_BYTES {
            passed = pass(&mut changes);
        }
        passed.is_ok()
    });
    passed?;
    read.map_err(io::Error::other)?;
    pass(&mut changes)
}

/// Sends all batches from here on, and copies the state as it is.
fn copy_state(mirror: &Mirror, join: JoinId, stream: Box<dyn Stream>, rate: &Rate) -> io::Result<()> {
    let channel = &mirror.state;
    // Held as long as the snapshot: the database must not close before.
    let snapshots = mirror.snapshots.hold();
    let make = snapshots.as_ref().ok_or_else(|| io::Error::other("the state is not open"))?;
    let mut snapshot = None;
    channel.attach(join, stream, |sender| {
        snapshot = Some(make());
        sender.send(&O::Clear);
        sender.flush()
    })?;
    let snapshot = snapshot.expect("it was just made");
    let mut window = Window::default();
    in_pieces(&*snapshot, rate, |changes| {
        if channel.peer() != Some(join) {
            return Err(io::Error::other("the connection has ended"));
        }
        window.wait(channel, join)?;
        let mut sender = channel.sender();
        sender.send(&O::Entries { changes });
        // Changes nothing, and is confirmed.
        window.sent(sender.send_numbered(|number| O::Apply { number, changes: &[] }));
        drop(sender);
        mirror.copied(changes.len() as u64);
        Ok(())
    })?;
    drop(snapshot);
    drop(snapshots);
    let number = channel.sender().send_numbered(|number| O::EndOfEntries { number });
    if channel.wait_for_copy(join, number) {
        mirror.part_is_copied(join);
    }
    Ok(())
}
