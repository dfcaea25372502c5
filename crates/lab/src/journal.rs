//! Undo journal for changes outside the lab's namespaces: cgroup values, containers, files.
//!
//! The undo of a change is on disk before the change is made, and is crossed out after it was done. A second guard process
//! waits for the end of the program and does the open undos; [`restore`] does them after the end of both, as after a
//! power cut.
//!
//! ```no_run
//! use tenbin_lab::Helper;
//! use tenbin_lab::journal::{Journal, Undo};
//!
//! let helper = Helper::this_program(&["guard"])?;
//! let journal = Journal::open(&helper, "results/run-1")?;
//! let limit = "/sys/fs/cgroup/test/memory.max";
//! let entry = journal.record(Undo::Write { path: limit.into(), content: std::fs::read_to_string(limit)? })?;
//! std::fs::write(limit, "100000000")?;
//! // … the fault lasts …
//! journal.undo(entry)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::helper::Helper;
use crate::program;
use crate::protocol::{line, lock};

/// Name of the journal in its directory.
const FILE: &str = "undo.jsonl";
/// Most time that processes of a control group, or writers of a directory, may take to their end.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Step that takes a change back. It must do no harm if it is done twice, or without the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    /// Runs a program with arguments, until it ends with exit code 0.
    Run {
        /// The program and its arguments.
        line: Vec<String>,
    },
    /// Writes a file's former content. Does nothing if the file's directory is gone. A control group's directory is gone
    /// after a restart of the system.
    Write {
        /// The file. An absolute path, since the undo may happen from another directory.
        path: PathBuf,
        /// Its former content.
        content: String,
    },
    /// Removes a file, or a directory with its content. An absent one is no error.
    Remove {
        /// The file or directory. An absolute path.
        path: PathBuf,
    },
    /// Removes a control group or an empty directory. It waits some seconds for the end of the group's processes. An absent
    /// directory is no error.
    RemoveGroup {
        /// The directory. An absolute path.
        path: PathBuf,
    },
}

/// A recorded undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(u64);

/// An undo that failed. It stays in the journal.
#[derive(Debug)]
pub struct Failure {
    /// The step.
    pub undo: Undo,
    /// Reason of the failure.
    pub error: Error,
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Undo { id: u64, undo: Undo },
    Done { id: u64 },
}

/// The journal of a running program. It holds a lock on the file, which tells a dead owner from a living one.
///
/// Dropping it does all open undos.
#[derive(Debug)]
pub struct Journal {
    book: Mutex<Option<Book>>,
    guard: Child,
}

/// The file, and the undos that are not crossed out.
#[derive(Debug)]
struct Book {
    file: File,
    open: BTreeMap<u64, Undo>,
    next: u64,
}

impl Journal {
    /// Opens the journal of a directory, creating both if absent, and starts the second guard.
    ///
    /// # Errors
    ///
    /// Another living program has it, undos of a dead one are open (see [`restore`]), or a file cannot be written.
    pub fn open(helper: &Helper, directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let directory = directory.canonicalize().map_err(Error::io("resolve the journal's directory"))?;
        let book = Book::open(&directory, true)?;
        if !book.open.is_empty() {
            return Err(Error::Failed(format!(
                "{} has {} open undos of an earlier run; restore them first",
                directory.display(),
                book.open.len()
            )));
        }
        // The file's own entry in the directory must survive a power cut too.
        let synced = File::open(&directory).and_then(|directory| directory.sync_all());
        synced.map_err(Error::io(format!("sync {}", directory.display())))?;
        let [program, arguments @ ..] = helper.line() else { return Err(Error::Failed("an empty helper".to_owned())) };
        let guard = Program::new(program)
            .args(arguments)
            .arg("journal")
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io("start the second guard"))?;
        Ok(Self { book: Mutex::new(Some(book)), guard })
    }

    /// Records an undo. When this returns, it is on disk and the change may be made.
    ///
    /// # Errors
    ///
    /// The file cannot be written; then the change must not be made.
    pub fn record(&self, undo: Undo) -> Result<Entry, Error> {
        self.with(|book| {
            let id = book.next;
            book.append(&Line::Undo { id, undo: undo.clone() }).map_err(Error::io("write the journal"))?;
            book.next += 1;
            book.open.insert(id, undo);
            Ok(Entry(id))
        })
    }

    /// Does an undo and crosses it out. An entry that is crossed out is left alone.
    ///
    /// # Errors
    ///
    /// The step failed and stays open, or the file cannot be written.
    pub fn undo(&self, entry: Entry) -> Result<(), Error> {
        self.with(|book| book.undo(entry.0))
    }

    /// Does all open undos, the newest first, and returns those that failed.
    pub fn undo_all(&self) -> Vec<Failure> {
        lock(&self.book).as_mut().map(Book::undo_all).unwrap_or_default()
    }

    fn with<R>(&self, act: impl FnOnce(&mut Book) -> Result<R, Error>) -> Result<R, Error> {
        lock(&self.book).as_mut().map_or(Err(Error::Ended), act)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The guard waits for the lock, and then does the rest.
        *lock(&self.book) = None;
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Does the open undos of a program that has ended, the newest first, and returns those that failed. A directory without
/// a journal has none.
///
/// # Errors
///
/// The program is alive, or the file cannot be read or written. A file that another user may have written is refused too,
/// because its undos are commands.
pub fn restore(directory: impl AsRef<Path>) -> Result<Vec<Failure>, Error> {
    Ok(Book::of_dead(directory.as_ref())?.map(|mut book| book.undo_all()).unwrap_or_default())
}

/// Number of open undos in a directory whose program has ended. 0 while it is alive.
///
/// # Errors
///
/// As [`restore`].
pub fn left_over(directory: impl AsRef<Path>) -> Result<usize, Error> {
    match Book::of_dead(directory.as_ref()) {
        Ok(book) => Ok(book.map_or(0, |book| book.open.len())),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

/// The second guard: waits for the end of its standard input, then does the open undos.
pub(crate) fn guard(directory: &Path) -> Result<(), Error> {
    // Signals of the terminal, and the end of its session, are not for the guard.
    let _ = rustix::process::setsid();
    io::stdin().read_to_end(&mut Vec::new()).map_err(Error::io("wait for the program's end"))?;
    let failures = Book::open(directory, false)?.undo_all();
    failures.first().map_or(Ok(()), |failure| Err(Error::Failed(failure.error.to_string())))
}

impl Book {
    /// The file of a program that has ended; `None` without one. It must be in a directory of this user that others cannot
    /// write to.
    fn of_dead(directory: &Path) -> Result<Option<Self>, Error> {
        if fs::symlink_metadata(directory.join(FILE)).is_err() {
            return Ok(None);
        }
        let shown = directory.display();
        let metadata = fs::metadata(directory).map_err(Error::io(format!("look at {shown}")))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::Failed(format!("{shown} belongs to another user, so the undos in it are left alone")));
        }
        if metadata.mode() & 0o002 != 0 {
            return Err(Error::Failed(format!("all users may write to {shown}, so the undos in it are left alone")));
        }
        Self::open(directory, true).map(Some)
    }

    /// Opens and locks the file. With `at_once`, a living owner is the error `WouldBlock`; else its end is awaited.
    fn open(directory: &Path, at_once: bool) -> Result<Self, Error> {
        let path = directory.join(FILE);
        let shown = path.display();
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(&path);
        let mut file = opened.map_err(Error::io(format!("open {shown}")))?;
        let metadata = file.metadata().map_err(Error::io(format!("look at {shown}")))?;
        if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::Failed(format!("{shown} is no file of this user, so its undos are left alone")));
        }
        // Another name of the file may be in another user's directory.
        if metadata.nlink() != 1 || metadata.mode() & 0o002 != 0 {
            return Err(Error::Failed(format!("others may have written {shown}, so its undos are left alone")));
        }
        let locked = if at_once { file.try_lock() } else { file.lock().map_err(TryLockError::Error) };
        locked.map_err(|error| Error::io(format!("lock {shown}"))(error.into()))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(Error::io(format!("read {shown}")))?;
        let mut book = Self { file, open: BTreeMap::new(), next: 1 };
        // A line that is cut off was not synced, so its change was never made.
        for line in text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()) {
            match line {
                Line::Undo { id, undo } => {
                    book.next = book.next.max(id + 1);
                    book.open.insert(id, undo);
                }
                Line::Done { id } => {
                    book.open.remove(&id);
                }
            }
        }
        if text.last().is_some_and(|last| *last != b'\n') {
            book.file.write_all(b"\n").map_err(Error::io(format!("write {shown}")))?;
        }
        Ok(book)
    }

    fn append(&mut self, record: &Line) -> io::Result<()> {
        self.file.write_all(&line(record)?)?;
        self.file.sync_data()
    }

    fn undo(&mut self, id: u64) -> Result<(), Error> {
        let Some(undo) = self.open.get(&id) else { return Ok(()) };
        undo.act()?;
        self.append(&Line::Done { id }).map_err(Error::io("write the journal"))?;
        self.open.remove(&id);
        Ok(())
    }

    fn undo_all(&mut self) -> Vec<Failure> {
        let all = self.open.clone().into_iter().rev();
        all.filter_map(|(id, undo)| Some(Failure { undo, error: self.undo(id).err()? })).collect()
    }
}

impl Undo {
    fn act(&self) -> Result<(), Error> {
        match self {
            Self::Run { line } => program::run(line, ""),
            Self::Write { path, .. } if path.parent().is_some_and(|directory| !directory.exists()) => Ok(()),
            Self::Write { path, content } => {
                fs::write(path, content).map_err(Error::io(format!("write {}", path.display())))
            }
            Self::RemoveGroup { path } => remove(path, |_| true, || fs::remove_dir(path)),
            Self::Remove { path } => {
                let is_directory = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
                // Processes that are about to end may add files during the removal.
                let may_pass = |error: &io::Error| error.kind() == io::ErrorKind::DirectoryNotEmpty;
                remove(path, may_pass, || if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) })
            }
        }
    }
}

/// Removes `path`, again and again while the error may pass.
fn remove(
    path: &Path,
    may_pass: impl Fn(&io::Error) -> bool,
    remove: impl Fn() -> io::Result<()>,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if may_pass(&error) && Instant::now() < deadline => thread::sleep(PAUSE),
            removed => return removed.map_err(Error::io(format!("remove {}", path.display()))),
        }
    }
}
