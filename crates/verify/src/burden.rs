//! Load processes that a fault starts beside an instance: they run until they are killed.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::BurdenArgs;

/// Length of a turn of computing and waiting.
const TURN: Duration = Duration::from_millis(20);
/// Bytes that a writer of a disk load has in its file before it begins anew.
const FILE: u64 = 16 << 20;

/// Runs a load. It returns only if it cannot go on.
pub(crate) fn run(args: &BurdenArgs) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "this command is for the program's own use");
    let number = |place: usize| args.numbers.get(place).copied().ok_or_else(wrong);
    match args.kind.as_str() {
        "cpu" => in_threads(number(0)?, compute, number(1)?),
        "memory" => keep(number(0)?),
        "disk" => {
            let (directory, bytes) = (args.directory.clone(), number(1)? as usize);
            let mut writers = Vec::new();
            for writer in 0..number(0)? as u32 {
                let file = directory.join(format!(".disk-load-{writer}"));
                writers.push(thread::spawn(move || write(&file, bytes)));
            }
            writers.into_iter().try_for_each(|writer| writer.join().unwrap_or(Ok(())))
        }
        _ => Err(wrong()),
    }
}

fn in_threads(threads: f64, work: fn(f64), share: f64) -> io::Result<()> {
    let threads: Vec<_> = (0..threads as u32).map(|_| thread::spawn(move || work(share))).collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Computes for `share` of each turn.
fn compute(share: f64) {
    loop {
        let begin = Instant::now();
        while begin.elapsed() < TURN.mul_f64(share) {
            std::hint::spin_loop();
        }
        thread::sleep(TURN.mul_f64(1.0 - share));
    }
}

/// Keeps `bytes` in use: it writes to each page again and again, so that they stay in memory.
fn keep(bytes: f64) -> io::Result<()> {
    let mut memory = vec![1_u8; bytes as usize];
    loop {
        for page in memory.chunks_mut(4096) {
            page[0] = page[0].wrapping_add(1);
        }
        std::hint::black_box(&memory);
        thread::sleep(TURN);
    }
}

/// Writes `bytes` at a time, and syncs each write.
fn write(path: &Path, bytes: usize) -> io::Result<()> {
    let block = vec![b'x'; bytes];
    loop {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        let mut written = 0;
        while written < FILE {
            file.write_all(&block)?;
            file.sync_data()?;
            written += bytes.max(1) as u64;
        }
    }
}
