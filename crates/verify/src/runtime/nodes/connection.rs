//! The controller's connection to a node.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ssh::Ssh;
use super::wire::{Call, Numbered, Said, Signal, bytes_of, write_line};
use crate::runtime::{Proc, Usage};

/// Time between two signs of life to the node.
const ALIVE: Duration = Duration::from_millis(500);
/// Silence after which a node is lost. A node that hears nothing undoes everything after the same time.
const SILENCE: Duration = Duration::from_secs(5);
/// Most time until the first line of a node: `ssh` and the login there may be slow.
const FIRST: Duration = Duration::from_secs(30);
/// Most characters that errors show of a line.
const SHOWN: usize = 100;
/// Time in which `ssh` ends by itself.
const GRACE: Duration = Duration::from_secs(1);
/// Most time for counters of links and processes: the run must go on without the counters of a silent node.
pub(super) const COUNTS: Duration = Duration::from_millis(500);
/// Time in which the loss of a node explains a cut trunk.
const BETTER_REASON: Duration = Duration::from_millis(1500);
/// Number of calls without a waiting caller.
const UNAWAITED: u64 = 0;

/// A connection, which ends when it is dropped or closed.
#[derive(Debug)]
pub(super) struct Connection {
    /// Node with its address, for errors.
    name: String,
    writer: Mutex<UnixStream>,
    shared: Arc<Shared>,
    next: AtomicU64,
    child: Mutex<Child>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Output of `ssh`, and of the node itself.
    log: PathBuf,
}

#[derive(Debug)]
struct State {
    /// When a line came last, or the start.
    heard: Instant,
    /// Most time until the next line.
    patience: Duration,
    lost: Option<String>,
    /// A trunk that was cut, and when that was seen.
    cut: Option<(String, Instant)>,
    /// Set while the run ends: then a cut trunk is no loss.
    is_ending: bool,
    calls: HashMap<u64, SyncSender<Result<Value, String>>>,
    processes: HashMap<u64, Arc<End>>,
    logs: Vec<PathBuf>,
}

/// End of a process, once it is known.
#[derive(Debug, Default)]
struct End {
    how: Mutex<Option<String>>,
    changed: Condvar,
}

impl End {
    fn set(&self, how: &str) {
        self.how.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| how.to_owned());
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that the node cannot be reached any more. The first reason counts.
    fn lose(&self, reason: String) {
        let mut state = self.lock();
        if state.lost.is_none() {
            state.processes.drain().for_each(|(_, end)| end.set(&reason));
            state.calls.clear();
            state.lost = Some(reason);
        }
    }

    fn take(&self, said: Said) {
        let mut state = self.lock();
        (state.heard, state.patience) = (Instant::now(), SILENCE);
        match said {
            Said::Done { id, value } => answer(&mut state, id, Ok(value)),
            Said::Failed { id, reason } => answer(&mut state, id, Err(reason)),
            Said::Ended { process, how } => {
                if let Some(end) = state.processes.remove(&process) {
                    end.set(&how);
                }
            }
            Said::Output { log, text } => {
                let path = state.logs.get(log).cloned();
                drop(state);
                // A log that cannot be written must not end the run.
                let _ = path.map(|path| append(&path, &bytes_of(&text)));
            }
            Said::Lost { reason } => {
                if !state.is_ending {
                    state.cut.get_or_insert((reason, Instant::now()));
                }
            }
        }
    }

    /// Last lines of the log of `ssh`.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

fn answer(state: &mut State, id: u64, result: Result<Value, String>) {
    if let Some(call) = state.calls.remove(&id) {
        let _ = call.send(result);
    }
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(bytes)
}

impl Connection {
    /// Starts the remote end, whose program has the hash. Output of `ssh` goes to `log`.
    pub(super) fn open(ssh: &Ssh, hash: &str, log: &Path) -> Result<Arc<Self>, String> {
        let fail = |error: io::Error| format!("{ssh}: {error}");
        let (own, its) = UnixStream::pair().map_err(fail)?;
        let (input, output): (OwnedFd, OwnedFd) = (its.try_clone().map_err(fail)?.into(), its.into());
        let child = ssh.start(hash, &[], log, (input.into(), output.into()))?;
        // A connection that takes nothing is lost, even if a thread writes to it.
        own.set_write_timeout(Some(SILENCE)).map_err(fail)?;
        let reader = BufReader::new(own.try_clone().map_err(fail)?);
        let state = State {
            heard: Instant::now(),
            patience: FIRST,
            lost: None,
            cut: None,
            is_ending: false,
            calls: HashMap::new(),
            processes: HashMap::new(),
            logs: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), log: log.to_owned() });
        let connection = Arc::new(Self {
            name: ssh.to_string(),
            writer: Mutex::new(own),
            shared: Arc::clone(&shared),
            next: AtomicU64::new(UNAWAITED + 1),
            child: Mutex::new(child),
        });
        let weak = Arc::downgrade(&connection);
        let read = move || {
            for line in reader.lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(said) => shared.take(said),
                    Err(_) => {
                        let shown: String = line.chars().take(SHOWN).collect();
                        shared
                            .lose(format!("it says {shown:?}, which is no line of the program; a login may print it"));
                        break;
                    }
                }
            }
            // `ssh` tells the reason before it ends.
            if let Some(connection) = weak.upgrade() {
                connection.end_child();
            }
            shared.lose(format!("the connection has ended: {}", shared.last_words()));
        };
        thread::Builder::new().name("node-answers".to_owned()).spawn(read).map_err(fail)?;
        let weak = Arc::downgrade(&connection);
        let beat = move || {
            while let Some(connection) = weak.upgrade() {
                connection.show_life();
                drop(connection);
                thread::sleep(ALIVE);
            }
        };
        thread::Builder::new().name("node-alive".to_owned()).spawn(beat).map_err(fail)?;
        Ok(connection)
    }

    fn show_life(&self) {
        if self.lost().is_some() {
            return;
        }
        let _ = self.send(&Numbered { id: UNAWAITED, call: Call::Alive });
        let (heard, patience) = {
            let state = self.shared.lock();
            (state.heard, state.patience)
        };
        if heard.elapsed() > patience {
            self.shared.lose(format!("it says nothing for {} s", patience.as_secs()));
            let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
        }
    }

    /// Reason why the node cannot be reached any more.
    pub(super) fn lost(&self) -> Option<String> {
        self.shared.lock().lost.as_ref().map(|reason| format!("{} is lost: {reason}", self.name))
    }

    /// Trunk of the node that was cut. The loss of a node cuts its trunks too, and is the better reason.
    pub(super) fn cut(&self) -> Option<String> {
        let state = self.shared.lock();
        let cut = state.cut.as_ref().filter(|(_, seen)| seen.elapsed() > BETTER_REASON);
        cut.map(|(reason, _)| format!("{}: {reason}", self.name))
    }

    /// Makes a call and waits for its answer. Errors name the node.
    pub(super) fn call<R: DeserializeOwned>(&self, call: Call) -> Result<R, String> {
        self.call_for(call, Duration::MAX)
    }

    /// As [`Connection::call`], but waits no longer than `time`.
    pub(super) fn call_for<R: DeserializeOwned>(&self, call: Call, time: Duration) -> Result<R, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = sync_channel(1);
        {
            let mut state = self.shared.lock();
            if state.lost.is_none() {
                state.calls.insert(id, answer);
            } else {
                drop(state);
                return Err(self.loss());
            }
        }
        self.send(&Numbered { id, call }).map_err(|_| self.loss())?;
        let result = answered.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("{}: no answer within {time:?}", self.name),
            RecvTimeoutError::Disconnected => self.loss(),
        })?;
        let value = result.map_err(|reason| format!("{}: {reason}", self.name))?;
        serde_json::from_value(value).map_err(|error| format!("{}: an unexpected answer: {error}", self.name))
    }

    fn send(&self, call: &Numbered) -> Result<(), ()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        write_line(&mut *writer, call).map_err(|error| {
            // The reader tells the reason of a connection that has ended.
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                self.shared.lose(format!("it takes nothing for {} s", SILENCE.as_secs()));
            }
        })
    }

    /// Reason of the loss, which may take a moment to be known.
    fn loss(&self) -> String {
        let deadline = Instant::now() + 2 * GRACE;
        loop {
            match self.lost() {
                Some(reason) => return reason,
                None if Instant::now() > deadline => return format!("{} is lost", self.name),
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The node's number of a log.
    pub(super) fn log(&self, path: &Path) -> usize {
        let logs = &mut self.shared.lock().logs;
        logs.iter().position(|known| known == path).unwrap_or_else(|| {
            logs.push(path.to_owned());
            logs.len() - 1
        })
    }

    /// Makes the call that starts a process, with the number of that process.
    pub(super) fn spawn<R: DeserializeOwned>(
        self: &Arc<Self>,
        call: impl FnOnce(u64) -> Call,
    ) -> Result<(Process, R), String> {
        let (id, end) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::<End>::default());
        // It may end before the answer to the call comes.
        {
            let mut state = self.shared.lock();
            if state.lost.is_none() {
                state.processes.insert(id, Arc::clone(&end));
            }
        }
        match self.call(call(id)) {
            Ok(answer) => Ok((Process { connection: Arc::clone(self), id, end }, answer)),
            Err(error) => {
                self.shared.lock().processes.remove(&id);
                Err(error)
            }
        }
    }

    /// Takes the end of trunks for a part of the run's end from here on.
    pub(super) fn expect_end(&self) {
        self.shared.lock().is_ending = true;
    }

    /// Ends the run on the node; returns the undos that failed. A lost node undoes by itself, and cannot tell of it.
    pub(super) fn close(&self) -> Vec<String> {
        let failures = self.call::<Vec<String>>(Call::End).unwrap_or_else(|error| {
            let reason = self.shared.lock().lost.clone().unwrap_or(error);
            vec![format!("not known whether all was undone: {reason}")]
        });
        self.end_child();
        failures.into_iter().map(|failure| format!("{}: {failure}", self.name)).collect()
    }

    /// Ends `ssh`. Its remote end then undoes the remaining changes.
    fn end_child(&self) {
        let _ = self.writer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
        end([&mut *self.child.lock().unwrap_or_else(PoisonError::into_inner)]);
    }
}

/// Waits shortly for the end of all of these, and kills the others then.
pub(super) fn end<'a>(children: impl IntoIterator<Item = &'a mut Child>) {
    let deadline = Instant::now() + GRACE;
    for child in children {
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_child();
    }
}

/// A process of a node.
#[derive(Debug)]
pub(super) struct Process {
    connection: Arc<Connection>,
    id: u64,
    end: Arc<End>,
}

impl Process {
    fn signal(&self, signal: Signal) -> Result<(), String> {
        self.connection.call(Call::Signal { process: self.id, signal })
    }
}

impl Proc for Process {
    fn terminate(&self) -> Result<(), String> {
        self.signal(Signal::Terminate)
    }

    fn kill(&self) -> Result<(), String> {
        self.signal(Signal::Kill)
    }

    fn stop(&self, time: Option<Duration>) -> Result<(), String> {
        self.signal(Signal::Stop(time))
    }

    fn resume(&self) -> Result<(), String> {
        self.signal(Signal::Resume)
    }

    fn usage(&self) -> Option<Usage> {
        self.connection.call_for(Call::Usage { process: self.id }, COUNTS).ok().flatten()
    }

    fn ended(&self, time: Duration) -> Option<String> {
        let how = self.end.how.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.changed.wait_timeout_while(how, time, |how| how.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
