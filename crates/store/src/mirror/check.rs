//! Comparison of a copy with its leader's data, so that bit rot shows before a takeover.
//!
//! The leader reads its sealed segments, verifies their records, and sends the hashes of their pieces; then the hash of its
//! state at a marked moment. A thread of the copy compares them with its own. Segments are compared up to their last
//! record: the rest of a reused file may differ. So a difference is damage of the copy, and the leader's damage is told
//! apart from it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::copying::{HASH_BYTES, PIECE_BYTES, Rate, hash, in_pieces};
use super::moment::{CopySnapshot, Moments};
use super::operation::Operation as O;
use super::{CopyEvent, Event, JoinId, Mirror, lock};
use crate::spool::{Disk, Sealed, log_name, number_of, sealed};
use crate::state::TableSnapshot;

/// Number of a moment for a comparison.
pub(super) const CHECK: u64 = 0;

impl Mirror {
    /// Lets the copy compare itself with the leader's data, in the background. The copy tells the result by a
    /// [`CopyEvent`]; [`Event::Damaged`] tells damage here. Does nothing while another comparison is under way.
    ///
    /// `bytes_per_second` bounds the rate at which both read.
    ///
    /// # Errors
    /// The process can start no thread.
    pub fn check(self: &Arc<Self>, bytes_per_second: u64) -> io::Result<()> {
        let disk = lock(&self.disk).as_ref().and_then(std::sync::Weak::upgrade);
        let (Some(join), Some(disk)) = (self.log.peer(), disk) else { return Ok(()) };
        if self.is_checking.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (mirror, of_rate) = (Arc::clone(self), Arc::clone(self));
        let rate = Rate::new(bytes_per_second).until(move || of_rate.has_left(join));
        let spawned = self.spawn("tenbin-copy-check", move || {
            let checked = send_files(&mirror, join, &*disk, &rate).and_then(|()| send_state(&mirror, join, &rate));
            drop(disk);
            mirror.is_checking.store(false, Ordering::Release);
            if let Err(error) = checked
                && !rate.is_over()
            {
                (mirror.on_event)(Event::Damaged(error.to_string()));
            }
        });
        spawned.inspect_err(|_| self.is_checking.store(false, Ordering::Release))
    }

    /// Whether a copy is not connected any more.
    fn has_left(&self, join: JoinId) -> bool {
        self.log.peer() != Some(join) || self.state.peer() != Some(join)
    }
}

/// Sends the hashes of all sealed segments.
///
/// # Errors
/// A file cannot be read, or is damaged. The text names it. The hashes of all others are sent nevertheless.
fn send_files(mirror: &Mirror, join: JoinId, disk: &dyn Disk, rate: &Rate) -> io::Result<()> {
    let mut numbers: Vec<u32> = disk.list()?.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    let mut whole = Ok(());
    for number in numbers {
        let name = &log_name(number);
        let (mut began, mut bytes) = (Instant::now(), 0);
        let verified = sealed(disk, number, |more| {
            bytes += more as usize;
            if bytes >= PIECE_BYTES {
                rate.wait(began, bytes);
                (began, bytes) = (Instant::now(), 0);
            }
        });
        let read = match verified {
            Ok(None) => continue,
            Ok(Some(Sealed::Damaged { offset })) => Err(format!("no valid record at offset {offset}")),
            Ok(Some(Sealed::Whole { end })) => hashes(disk, name, end, rate).map(|all| (end, all)).map_err(text),
            Err(error) => Err(text(error)),
        };
        let mut sender = mirror.log.sender();
        if mirror.has_left(join) {
            return Ok(());
        }
        // The result counts if the file has kept its name: a reused file has another name.
        if disk.open(name).is_ok() {
            match read {
                Ok((end, hashes)) => sender.send(&O::Same { name, end: end.into(), hashes: &hashes }),
                Err(error) => whole = Err(io::Error::other(format!("{name}: {error}"))),
            }
            sender.flush()?;
        }
    }
    whole
}

/// Sends the hash of the state.
fn send_state(mirror: &Mirror, join: JoinId, rate: &Rate) -> io::Result<()> {
    // Held as long as the snapshot: the database must not close before.
    let snapshots = mirror.snapshots.hold();
    let Some(make) = snapshots.as_ref() else { return Ok(()) };
    let send = |operation: &O<'_>| {
        let mut sender = mirror.state.sender();
        if mirror.has_left(join) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        sender.send(operation);
        sender.flush()?;
        Ok::<_, io::Error>(sender)
    };
    let snapshot = {
        let _nothing_is_performed = send(&O::Moment { number: CHECK })?;
        make()
    };
    let hash = hash_of_state(&*snapshot, rate).map_err(|error| io::Error::other(format!("the state: {error}")))?;
    send(&O::SameState { hash: &hash }).map(drop)
}

fn text(error: io::Error) -> String {
    error.to_string()
}

/// Hashes of a segment's pieces up to `end`, one behind the other. The system has them in memory: they were just read.
fn hashes(disk: &dyn Disk, name: &str, end: u32, rate: &Rate) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    each_piece(disk, name, end.into(), rate, |piece| {
        all.extend_from_slice(&hash(piece));
        true
    })?;
    Ok(all)
}

/// Reads a file in pieces up to `end`, as long as `visit` returns true and the rate is not over.
fn each_piece(
    disk: &dyn Disk,
    name: &str,
    end: u64,
    rate: &Rate,
    mut visit: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let file = disk.open(name)?;
    let (mut piece, mut offset) = (vec![0; PIECE_BYTES], 0);
    while offset < end && !rate.is_over() {
        let wanted = (end - offset).min(PIECE_BYTES as u64) as usize;
        let length = file.read_at(&mut piece[..wanted], offset)?;
        if !visit(&piece[..length]) || length < wanted {
            break;
        }
        offset += length as u64;
    }
    Ok(())
}

fn hash_of_state(snapshot: &dyn TableSnapshot, rate: &Rate) -> io::Result<[u8; HASH_BYTES]> {
    let mut hash = Xxh3::new();
    in_pieces(snapshot, rate, |changes| {
        hash.update(changes);
        if rate.is_over() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    })?;
    Ok(hash.digest128().to_le_bytes())
}

/// A comparison that a copy is to make.
pub(super) enum Compare {
    File { name: String, end: u64, hashes: Vec<u8> },
    State { snapshot: CopySnapshot, hash: Vec<u8> },
}

/// Compares until the copy ends. Passes results to `tell`.
pub(super) fn compare(jobs: &Receiver<Compare>, disk: &dyn Disk, moments: &Moments, tell: impl Fn(CopyEvent)) {
    // No file comes before the leader has read it at its rate.
    let rate = moments.rate(u64::MAX);
    for job in jobs {
        let (found, is_last) = match job {
            Compare::File { name, end, hashes } => (difference(disk, &name, end, &hashes, &rate), false),
            Compare::State { snapshot, hash } => match hash_of_state(&snapshot, &rate) {
                Ok(own) if own[..] == hash[..] => (None, true),
                Ok(_) => (Some("the state differs from the leader's".to_owned()), true),
                Err(error) => (Some(format!("the state: {error}")), true),
            },
        };
        match found {
            _ if moments.is_over() => {}
            Some(damage) => tell(CopyEvent::Damaged(damage)),
            None if is_last && moments.has_compared_all() => tell(CopyEvent::Checked),
            None => {}
        }
    }
}

/// How a file differs from the leader's.
fn difference(disk: &dyn Disk, name: &str, end: u64, hashes: &[u8], rate: &Rate) -> Option<String> {
    let (mut theirs, mut offset, mut differs) = (hashes.chunks_exact(HASH_BYTES), 0, false);
    let read = each_piece(disk, name, end, rate, |piece| {
        differs = theirs.next().is_none_or(|theirs| theirs != hash(piece));
        if !differs {
            offset += piece.len();
        }
        !differs
    });
    // A file that has left the log since may be reused: then it has another name.
    let is_there = disk.open(name).is_ok();
    match read {
        Err(error) if is_there => Some(format!("{name}: {error}")),
        Ok(()) if differs && is_there => Some(format!("{name}: differs from the leader's from offset {offset} on")),
        _ => None,
    }
}
