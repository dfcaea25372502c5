//! Calls between the program, the guard and the machines: lines of JSON on a pair of sockets.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::command::Command;
use crate::disk::Disk;
use crate::error::Error;
use crate::signal::{Exit, Signal};
use crate::switch::{PortKind, Shape};

/// Name of the hosts file in the lab's directory.
pub(crate) const HOSTS: &str = "hosts";

/// Settings of the guard, which it gets as its argument.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) directory: PathBuf,
    pub(crate) port: PortKind,
    pub(crate) helper: Vec<String>,
}

/// Calls of the program to the guard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToGuard {
    Hello,
    Machine {
        name: String,
        data: PathBuf,
        disk: Option<Disk>,
    },
    Guest {
        name: String,
        data: PathBuf,
    },
    /// The guest's network namespace comes over the socket `stream`.
    Join {
        machine: u16,
        stream: PathBuf,
    },
    /// Adds a machine of another lab.
    Remote {
        name: String,
    },
    /// The connection to the lab of these machines comes over the socket `stream`.
    Trunk {
        machines: Vec<u16>,
        stream: PathBuf,
    },
    Spawn {
        machine: u16,
        process: u64,
        command: Command,
    },
    Signal {
        machine: u16,
        process: u64,
        signal: Signal,
        time: Option<Duration>,
    },
    Usage {
        machine: u16,
        process: u64,
    },
    Impair {
        id: u64,
        links: Vec<(u16, u16)>,
        shape: Shape,
        time: Option<Duration>,
    },
    Lift {
        id: u64,
    },
    Counters,
    PowerCut {
        machines: Vec<u16>,
    },
}

/// Calls of the guard to a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToMachine {
    /// Runs a program of the lab itself to its end, in the machine's namespaces.
    Run {
        line: Vec<String>,
        input: String,
    },
    Spawn {
        process: u64,
        command: Command,
    },
    Signal {
        process: u64,
        signal: Signal,
        time: Option<Duration>,
    },
    /// Sends a signal to all processes of the machine.
    SignalAll {
        signal: Signal,
    },
    Usage {
        process: u64,
    },
}

/// Lines in the other direction.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done { id: u64, value: Value },
    Failed { id: u64, reason: String },
    Exited { process: u64, exit: Exit },
}

#[derive(Serialize, Deserialize)]
struct Call<T> {
    id: u64,
    call: T,
}

/// The calling side.
#[derive(Debug)]
pub(crate) struct Caller {
    stream: UnixStream,
    next: AtomicU64,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    ended: bool,
    calls: HashMap<u64, SyncSender<Result<Value, String>>>,
}

impl Caller {
    /// Starts the thread that reads answers. `exited` is called there for each ended process, and `ended` at last.
    pub(crate) fn start(
        stream: UnixStream,
        mut exited: impl FnMut(u64, Exit) + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let waiting = Arc::<Mutex<Waiting>>::default();
        let (lines, answered) = (BufReader::new(stream.try_clone()?), Arc::clone(&waiting));
        let read = move || {
            for line in lines.lines().map_while(Result::ok) {
                let (id, result) = match serde_json::from_str(&line) {
                    Ok(Answer::Done { id, value }) => (id, Ok(value)),
                    Ok(Answer::Failed { id, reason }) => (id, Err(reason)),
                    Ok(Answer::Exited { process, exit }) => {
                        exited(process, exit);
                        continue;
                    }
                    Err(_) => break,
                };
                if let Some(call) = lock(&answered).calls.remove(&id) {
                    let _ = call.send(result);
                }
            }
            let mut waiting = lock(&answered);
            waiting.ended = true;
            waiting.calls.clear();
            drop(waiting);
            ended();
        };
        thread::Builder::new().name("lab-answers".to_owned()).spawn(read)?;
        Ok(Self { stream, next: AtomicU64::new(1), waiting })
    }

    /// Makes a call and waits for its answer.
    pub(crate) fn call<R: DeserializeOwned>(&self, call: &impl Serialize) -> Result<R, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = sync_channel(1);
        let line = line(&Call { id, call }).map_err(Error::io("encode a call"))?;
        {
            // The lock is held while writing, so that lines of two threads do not mix.
            let mut waiting = lock(&self.waiting);
            if waiting.ended {
                return Err(Error::Ended);
            }
            waiting.calls.insert(id, answer);
            (&self.stream).write_all(&line).map_err(|_| Error::Ended)?;
        }
        let value = answered.recv().map_err(|_| Error::Ended)?.map_err(Error::Failed)?;
        serde_json::from_value(value).map_err(|error| Error::Failed(format!("unexpected answer: {error}")))
    }

    /// Ends the connection; the other side ends with it.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The answering side's end of the connection, for answers and events.
#[derive(Clone)]
pub(crate) struct Answers(Arc<Mutex<UnixStream>>);

impl Answers {
    pub(crate) fn send(&self, answer: &Answer) {
        // Without a reader the process ends anyway, as it reads the end of the connection too.
        if let Ok(line) = line(answer) {
            let _ = lock(&self.0).write_all(&line);
        }
    }
}

/// Handles calls until the connection ends, each on a new thread, so that a long call does not block the others.
pub(crate) fn serve<T: DeserializeOwned + Send + 'static>(
    stream: UnixStream,
    answers: &Answers,
    handle: impl Fn(T) -> Result<Value, Error> + Send + Sync + 'static,
) {
    let handle = Arc::new(handle);
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(Call { id, call }) = serde_json::from_str::<Call<T>>(&line) else { return };
        let (handle, answers) = (Arc::clone(&handle), answers.clone());
        let _ = thread::Builder::new().name("lab-call".to_owned()).spawn(move || {
            answers.send(&match handle(call) {
                Ok(value) => Answer::Done { id, value },
                Err(error) => Answer::Failed { id, reason: error.to_string() },
            });
        });
    }
}

/// The connection that this process got as its standard input, which is empty from here on: children must not hold it.
pub(crate) fn standard_input() -> io::Result<(UnixStream, Answers)> {
    use std::os::fd::AsFd;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let answers = Answers(Arc::new(Mutex::new(stream.try_clone()?)));
    Ok((stream, answers))
}

/// A value from JSON that another process of the lab wrote.
pub(crate) fn decoded<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Failed(format!("unreadable settings: {error}")))
}

/// The value of an answer.
pub(crate) fn value(of: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(of).map_err(|error| Error::Failed(error.to_string()))
}

/// One line of JSON.
pub(crate) fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
