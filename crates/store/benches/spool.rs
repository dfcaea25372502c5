//! Cost of storing a message, compared to raw writes and to a key-value store.
//!
//! Disk speed varies within minutes, most of all on shared machines. So all subjects take turns in short rounds. The
//! output has the median of the rounds, and the median ratio within a round. One thread commits and waits for
//! `fdatasync` each time:
//!
//! - `raw`: the bytes that the spool would write, with one `pwrite` to a preallocated file, and `fdatasync`;
//! - `spool`: a batch, and waiting for its position;
//! - `spool, ahead`: the same, but the next batch is appended during the `fdatasync` of this one;
//! - `fjall`: the same messages under queue and sequence, as one batch with `PersistMode::SyncData`.
//!
//! Then another process opens a log of many queues, and prints its memory use.
//!
//! ```text
//! cargo bench -p tenbin-store --bench spool                           # half a minute
//! cargo bench -p tenbin-store --bench spool -- --rounds 9 --ms 500
//! cargo bench -p tenbin-store --bench spool -- --directory DIR        # on another disk than that of temporary files
//! cargo bench -p tenbin-store --bench spool -- --queues 1000 --each 10000
//! ```

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

use std::{
    error::Error,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use tenbin_store::Sync;
use tenbin_store::spool::{Limit, Messages, Options, Place, Position, QueueId, Sequence, Spool};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1).cloned()
    };
    let number_after = |name: &str| after(name).and_then(|text| text.parse::<u64>().ok());
    if let Some(directory) = after("--reopen") {
        return reopen(Path::new(&directory));
    }
    let directory = after("--directory").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = Scratch(directory.join(format!("tenbin-spool-bench-{}", std::process::id())));
    let time = Duration::from_millis(number_after("--ms").unwrap_or(200));
    compare(&scratch.0, number_after("--rounds").unwrap_or(5), time)?;
    open(&scratch.0, number_after("--queues").unwrap_or(100_000), number_after("--each").unwrap_or(10))
}

/// A directory that is removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BODY: [u8; 256] = [b'x'; 256];
const QUEUE: QueueId = QueueId(1);

/// Messages per commit, and whether as many are removed at the head.
#[derive(Clone, Copy)]
struct Load {
    count: u64,
    deletes: bool,
    /// Queued messages, if messages are removed.
    waiting: u64,
}

const LOADS: [Load; 4] = [
    Load { count: 1, deletes: false, waiting: 0 },
    Load { count: 128, deletes: false, waiting: 0 },
    Load { count: 1_024, deletes: false, waiting: 0 },
    Load { count: 1_024, deletes: true, waiting: 8 * 1_024 },
];

/// Stores messages in a new directory.
type Subject = fn(&Path, Load, Duration) -> Result<f64>;

const SUBJECTS: [(&str, Subject); 4] =
    [("raw", raw), ("spool", spool), ("spool, ahead", spool_ahead), ("fjall", with_fjall)];

fn compare(directory: &Path, rounds: u64, time: Duration) -> Result<()> {
    let mut found = vec![vec![Vec::new(); SUBJECTS.len()]; LOADS.len()];
    // The first round warms up caches and clock rates.
    for round in 0..=rounds {
        for (load, found) in LOADS.iter().zip(&mut found) {
            for ((_, subject), found) in SUBJECTS.iter().zip(found) {
                fs::create_dir_all(directory)?;
                let rate = subject(directory, *load, time)?;
                fs::remove_dir_all(directory)?;
                if round > 0 {
                    found.push(rate);
                }
            }
        }
    }
    println!("256 B, fdatasync each commit, median of {rounds} rounds of {} ms", time.as_millis());
    println!("a commit                 store            messages/s   of raw   of fjall");
    for (load, found) in LOADS.iter().zip(&found) {
        let deletes = if load.deletes { " + delete head" } else { "" };
        let name = format!("{}{deletes}", load.count);
        for ((store, _), rates) in SUBJECTS.iter().zip(found) {
            let of = |others: &[f64]| {
                let ratios: Vec<f64> = rates.iter().zip(others).map(|(rate, other)| rate / other).collect();
                median(&ratios)
            };
            let (of_raw, of_fjall) = (of(&found[0]), of(&found[SUBJECTS.len() - 1]));
            println!("{name:<25}{store:<15}{:>12.0}{of_raw:>9.2}{of_fjall:>11.2}", median(rates));
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns messages per second; `commit` stores those from a sequence on.
fn rate(load: Load, time: Duration, mut commit: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let (start, mut sequence) = (Instant::now(), load.waiting);
    while start.elapsed() < time {
        commit(sequence)?;
        sequence += load.count;
    }
    Ok((sequence - load.waiting) as f64 / start.elapsed().as_secs_f64())
}

fn raw(directory: &Path, load: Load, time: Duration) -> Result<f64> {
    let file = File::create_new(directory.join("raw"))?;
    let space: u64 = 256 << 20;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, space)?;
    file.sync_all()?;
    // A message record each, the first record of a write, and an acknowledgement.
    let length = load.count * (32 + 256) + 24 + if load.deletes { 40 } else { 0 };
    let bytes = vec![b'x'; length as usize];
    let mut offset = 0;
    rate(load, time, |_| {
        file.write_all_at(&bytes, offset)?;
        file.sync_data()?;
        offset = if offset + 2 * length > space { 0 } else { offset + length };
        Ok(())
    })
}

fn spool(directory: &Path, load: Load, time: Duration) -> Result<f64> {
    let (spool, _) = Spool::open(directory, Options::default())?;
    spool.wait(fill(&spool, 0, load.waiting)?)?;
    rate(load, time, |sequence| Ok(spool.wait(batch(&spool, load, sequence)?)?))
}

fn spool_ahead(directory: &Path, load: Load, time: Duration) -> Result<f64> {
    let (spool, _) = Spool::open(directory, Options::default())?;
    let mut before = fill(&spool, 0, load.waiting)?;
    let rate = rate(load, time, |sequence| {
        let ticket = batch(&spool, load, sequence)?;
        spool.wait(std::mem::replace(&mut before, ticket))?;
        Ok(())
    });
    spool.wait(before)?;
    rate
}

fn batch(spool: &Spool, load: Load, sequence: u64) -> Result<Position> {
    let room = spool.take_room(load.count * RECORD_BYTES, false).ok_or("the disk is full")?;
    let mut batch = spool.begin();
    for sequence in sequence..sequence + load.count {
        batch.message(&room, &[(Place { queue: QUEUE, sequence: Sequence(sequence) }, "")], None, &[&BODY])?;
    }
    if load.deletes {
        let first = sequence - load.waiting;
        batch.acknowledge(QUEUE, Sequence(first)..=Sequence(first + load.count - 1));
    }
    let end = batch.end();
    drop(batch);
    spool.give_room(room);
    Ok(end)
}

/// Length of a message in the log.
const RECORD_BYTES: u64 = 256 + 64;

fn fill(spool: &Spool, sequence: u64, count: u64) -> Result<Position> {
    batch(spool, Load { count, deletes: false, waiting: 0 }, sequence)
}

fn with_fjall(directory: &Path, load: Load, time: Duration) -> Result<f64> {
    let database = Database::builder(directory.join("fjall")).open()?;
    let messages = database.keyspace("messages", KeyspaceCreateOptions::default)?;
    let key = |sequence: u64| {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&QUEUE.0.to_be_bytes());
        key[8..].copy_from_slice(&sequence.to_be_bytes());
        key
    };
    let commit = |range: std::ops::Range<u64>, deleted: std::ops::Range<u64>| {
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        range.for_each(|sequence| batch.insert(&messages, key(sequence), BODY));
        deleted.for_each(|sequence| batch.remove(&messages, key(sequence)));
        batch.commit()
    };
    commit(0..load.waiting, 0..0)?;
    rate(load, time, |sequence| {
        let first = sequence - load.waiting;
        let deleted = if load.deletes { first..first + load.count } else { 0..0 };
        Ok(commit(sequence..sequence + load.count, deleted)?)
    })
}

/// Fills many queues in turn, like many absent receivers, and lets another process open them.
fn open(directory: &Path, queues: u64, each: u64) -> Result<()> {
    let (spool, _) = Spool::open(directory, Options { sync: Sync::Never, ..Options::default() })?;
    for sequence in 0..each {
        for queue in 0..queues {
            let place = Place { queue: QueueId(queue), sequence: Sequence(sequence) };
            let room = spool.take_room(RECORD_BYTES, false).ok_or("the disk is full")?;
            spool.begin().message(&room, &[(place, "")], None, &[&BODY])?;
            spool.give_room(room);
            if spool.is_congested() {
                let end = spool.begin().end();
                spool.wait(end)?;
            }
        }
    }
    let stats = spool.stats();
    drop(spool);
    println!(
        "\n{queues} queues with {each} messages each, {} MB in {} segments",
        stats.log_bytes / 1_000_000,
        stats.segments
    );
    let status = Command::new(std::env::current_exe()?).arg("--reopen").arg(directory).status()?;
    if status.success() { Ok(()) } else { Err("the process that opens it failed".into()) }
}

fn reopen(directory: &Path) -> Result<()> {
    let before = memory_bytes()?;
    let start = Instant::now();
    let (spool, recovered) = Spool::open(directory, Options::default())?;
    let elapsed = start.elapsed();
    let after = memory_bytes()?;
    println!(
        "opened in {:.2} s, {} messages; {:.1} MB of memory, {:.1} bytes a message",
        elapsed.as_secs_f64(),
        recovered.waiting,
        (after - before) as f64 / 1e6,
        (after - before) as f64 / recovered.waiting as f64,
    );
    let queues = spool.queues();
    let (start, mut messages) = (Instant::now(), Messages::default());
    for &queue in queues.iter().take(READ_BACK) {
        spool.read(queue, Sequence(0), Limit { messages: 4_096, bytes: 64 << 10 }, &mut messages)?;
    }
    let each = start.elapsed().as_secs_f64() / queues.len().min(READ_BACK) as f64;
    println!("the first messages of a queue are read in {:.0} µs, {} of them", each * 1e6, messages.len());
    Ok(())
}

const READ_BACK: usize = 1_000;

/// Memory of this process.
fn memory_bytes() -> Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
