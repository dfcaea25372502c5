//! A running client program.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::ops::Range;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::LoadgenError;
use crate::run::{Counters, DueTimes, Part, Plan, RunClock, Status};
use tokio::sync::oneshot;

use super::line::{Line, parse};
use super::records::Records;

/// A program with one or more clients. Dropping it kills its process.
pub(super) struct Program {
    shared: Arc<SharedProgram>,
    input: Mutex<Option<ChildStdin>>,
    ended: oneshot::Receiver<Option<Part>>,
}

/// State that the thread reads which follows the program's output.
struct SharedProgram {
    /// Name in errors.
    name: String,
    child: Mutex<Child>,
    clock: RunClock,
    counters: Counters,
    start_ns: AtomicU64,
    stop_ns: AtomicU64,
    /// Messages that are due since the start, by time, and those that have ended.
    due: Due,
    ended: AtomicU64,
    /// Whether its input is closed, so that it may end.
    is_ending: AtomicBool,
    failure: Mutex<Option<LoadgenError>>,
    /// Last lines of its standard error.
    said: Mutex<VecDeque<String>>,
}

impl Program {
    /// Starts `command`, and waits until its clients are connected. `publishers` are those among them.
    ///
    /// # Errors
    /// It cannot be started, ends early, prints another line, or is not ready in time.
    pub(super) async fn start(
        mut command: Command,
        name: String,
        records: Records,
        publishers: Range<u32>,
        plan: &Plan,
        clock: RunClock,
    ) -> Result<Self, LoadgenError> {
        let begun = Instant::now();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| fail(&name, format!("cannot start its program: {error}")))?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(fail(&name, "its program has no pipes"));
        };
        let shared = Arc::new(SharedProgram {
            name,
            child: Mutex::new(child),
            clock,
            counters: Counters::default(),
            start_ns: AtomicU64::new(u64::MAX),
            stop_ns: AtomicU64::new(u64::MAX),
            due: Due::of(plan, publishers.clone()),
            ended: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            failure: Mutex::new(None),
            said: Mutex::default(),
        });
        shared.counters.publishing.set(publishers.len() as u64);
        let (ready, is_ready) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        // It exists before the threads, so that an error kills the process.
        let program = Self { shared: Arc::clone(&shared), input: Mutex::new(Some(input)), ended: has_ended };
        let listener = spawn("client-errors", {
            let shared = Arc::clone(&shared);
            move || shared.listen(errors)
        })?;
        spawn("client-lines", move || {
            let mut reader = LineReader { records, ready: Some((ready, begun)), shared: Arc::clone(&shared) };
            let followed = reader.follow(output);
            let part = shared.close(&mut reader, followed, &listener).map(|()| reader.into_part());
            let _ = ended.send(part);
        })?;
        match tokio::time::timeout(READY, is_ready).await {
            Ok(Ok(ready)) => ready.map(|()| program),
            Ok(Err(_)) => Err(fail(&program.shared.name, "the thread that reads its lines ended")),
            Err(_) => {
                let reason = format!("its program was not ready after {} s{}", READY.as_secs(), program.shared.said());
                Err(fail(&program.shared.name, reason))
            }
        }
    }

    /// Lets the publishers begin at `start_ns` of the run's clock.
    pub(super) fn begin(&self, start_ns: u64) {
        self.shared.start_ns.store(start_ns, Ordering::Release);
        self.say(&format!("start {start_ns}\n"));
    }

    /// Lets the publishers end.
    pub(super) fn stop(&self) {
        self.shared.stop_ns.fetch_min(self.shared.clock.now_ns(), Ordering::Relaxed);
        self.say("stop\n");
    }

    pub(super) fn status(&self) -> Status {
        let shared = &self.shared;
        let failure = lock(&shared.failure).as_ref().map(ToString::to_string);
        let mut status = Status::of(std::slice::from_ref(&shared.counters), failure);
        if status.publishing > 0 {
            let now_ns = shared.clock.now_ns().min(shared.stop_ns.load(Ordering::Relaxed));
            let since_ns = now_ns.checked_sub(shared.start_ns.load(Ordering::Relaxed));
            let due = since_ns.map_or(0, |since_ns| shared.due.by(since_ns));
            status.in_flight = due.saturating_sub(shared.ended.load(Ordering::Relaxed));
        }
        status
    }

    pub(super) fn take_failure(&self) -> Option<LoadgenError> {
        lock(&self.shared.failure).take()
    }

    /// Closes the program's input, by which it ends.
    pub(super) fn close(&self) {
        self.shared.stop_ns.fetch_min(self.shared.clock.now_ns(), Ordering::Relaxed);
        self.shared.is_ending.store(true, Ordering::Release);
        lock(&self.input).take();
    }

    /// Closes the program's input and waits for its end; returns the recorded part.
    ///
    /// # Errors
    /// It failed, or does not end.
    pub(super) async fn finish(mut self) -> Result<Part, LoadgenError> {
        self.close();
        let part = tokio::time::timeout(END, &mut self.ended).await;
        match part {
            Ok(Ok(Some(part))) => Ok(part),
            Ok(_) => Err(self.take_failure().unwrap_or_else(|| fail(&self.shared.name, "its program failed"))),
            Err(_) => {
                let reason = format!("its program did not end within {} s after its input", END.as_secs());
                Err(fail(&self.shared.name, reason))
            }
        }
    }

    /// Writes a line to the program. The thread that reads its lines reports the end of the program.
    fn say(&self, line: &str) {
        if let Some(input) = lock(&self.input).as_mut() {
            let _ = input.write_all(line.as_bytes());
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.shared.kill();
    }
}

impl SharedProgram {
    fn kill(&self) {
        // It fails for a process that has ended.
        let _ = lock(&self.child).kill();
    }

    /// Passes the program's errors on, and keeps the last ones.
    fn listen(&self, errors: ChildStderr) {
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // The log is a help, and no result.
            let _ = writeln!(io::stderr(), "{line}");
            if !line.trim().is_empty() {
                let mut said = lock(&self.said);
                said.push_back(line.trim().to_owned());
                if said.len() > MOST_SAID {
                    said.pop_front();
                }
            }
        }
    }

    /// The last lines of its standard error, as the end of a sentence.
    fn said(&self) -> String {
        let said = lock(&self.said);
        if said.is_empty() { String::new() } else { format!(": {}", Vec::from(said.clone()).join(" | ")) }
    }

    /// Waits for the end of the program, and notes its failure; `None` if it failed.
    fn close(
        &self,
        reader: &mut LineReader,
        followed: Result<(), String>,
        listener: &thread::JoinHandle<()>,
    ) -> Option<()> {
        let ended = match followed {
            Ok(()) => self.wait(reader, listener),
            Err(reason) => {
                self.kill();
                let _ = self.status(Duration::from_secs(1));
                Err(reason)
            }
        };
        self.counters.publishing.set(0);
        let Err(reason) = ended else { return Some(()) };
        let error = fail(&self.name, reason);
        match reader.ready.take() {
            // The receiver is gone if the run was given up.
            Some((ready, _)) => drop(ready.send(Err(error))),
            None => drop(lock(&self.failure).get_or_insert(error)),
        }
        None
    }

    /// Checks that the program may end, and that it ends well.
    fn wait(&self, reader: &LineReader, listener: &thread::JoinHandle<()>) -> Result<(), String> {
        let status = self.status(END);
        let until = Instant::now() + Duration::from_secs(1);
        while !listener.is_finished() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        let Some(status) = status else { return Err("its program closed its output, and did not end".to_owned()) };
        let when = if reader.ready.is_some() { "before it was ready" } else { "during the run" };
        match status.success() {
            true if self.is_ending.load(Ordering::Acquire) || reader.records.is_done() => Ok(()),
            true => Err(format!("its program ended {when}{}", self.said())),
            false => Err(format!("its program failed {when}, by {status}{}", self.said())),
        }
    }

    /// How the process ended, if it does within `time`.
    fn status(&self, time: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + time;
        loop {
            if let Ok(Some(status)) = lock(&self.child).try_wait() {
                return Some(status);
            }
            if Instant::now() > until {
                return None;
            }
            thread::sleep(LOOK);
        }
    }
}

/// Numbers of due messages of some publishers.
struct Due {
    /// Due times after the start; none without a schedule.
    schedules: Vec<DueTimes>,
    most: u64,
}

impl Due {
    fn of(plan: &Plan, publishers: Range<u32>) -> Self {
        let schedules = publishers.map_while(|publisher| DueTimes::of(plan, publisher)).collect();
        Self { schedules, most: plan.publishers.messages.unwrap_or(u64::MAX) }
    }

    /// Messages that are due within a time after the start.
    fn by(&self, since_ns: u64) -> u64 {
        self.schedules.iter().map(|schedule| schedule.due_by(since_ns).min(self.most)).sum()
    }
}

/// Reads the lines of a program.
struct LineReader {
    records: Records,
    /// Whom to tell that the program is ready, and when it was started.
    ready: Option<(oneshot::Sender<Result<(), LoadgenError>>, Instant)>,
    shared: Arc<SharedProgram>,
}

impl LineReader {
    /// Reads to the end of the output.
    ///
    /// # Errors
    /// A line that cannot be true, with its text.
    fn follow(&mut self, mut output: ChildStdout) -> Result<(), String> {
        let mut buffer = vec![0; BUFFER];
        let (mut filled, mut count) = (0, 0_u64);
        loop {
            let read = match output.read(&mut buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("its output cannot be read: {error}")),
                Ok(0) if filled == 0 => return Ok(()),
                Ok(0) => return Err(wrong(count + 1, &buffer[..filled], "want the end of the line")),
                Ok(read) => read,
            };
            // The times in the lines are earlier than the time of reading.
            let now_ns = self.shared.clock.now_ns();
            let end = filled + read;
            let mut line = 0;
            for place in filled..end {
                if buffer[place] == b'\n' {
                    count += 1;
                    let text = &buffer[line..place];
                    self.take(text, now_ns).map_err(|reason| wrong(count, text, &reason))?;
                    line = place + 1;
                }
            }
            if end - line > LONGEST {
                return Err(wrong(count + 1, &buffer[line..end], "the line is too long"));
            }
            buffer.copy_within(line..end, 0);
            filled = end - line;
            self.shared.ended.store(self.records.ended(), Ordering::Relaxed);
            self.shared.counters.note_cpu();
            self.shared.counters.p99_us.set(self.records.last_p99_us());
        }
    }

    fn take(&mut self, line: &[u8], now_ns: u64) -> Result<(), String> {
        let line = parse(line)?;
        if let Some((ready, begun)) = self.ready.take_if(|_| line == Line::Ready) {
            self.records.connected(begun.elapsed());
            let _ = ready.send(Ok(()));
            return Ok(());
        }
        if self.ready.is_some() {
            return Err("want ready first".to_owned());
        }
        if !self.records.has_started() {
            let start_ns = self.shared.start_ns.load(Ordering::Acquire);
            if start_ns < u64::MAX {
                self.records.start(start_ns);
            }
        }
        self.records.take(line, now_ns, &self.shared.counters)
    }

    fn into_part(self) -> Part {
        let Self { mut records, shared, .. } = self;
        let start_ns = shared.start_ns.load(Ordering::Acquire);
        if !records.has_started() && start_ns < u64::MAX {
            records.start(start_ns);
        }
        records.into_part(shared.stop_ns.load(Ordering::Relaxed))
    }
}

/// Error text of a line.
fn wrong(number: u64, line: &[u8], reason: &str) -> String {
    let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    format!("line {number} of its program, {shown:?}: {reason}")
}

/// Error of the client `name`.
pub(super) fn fail(name: &str, reason: impl Into<String>) -> LoadgenError {
    LoadgenError::Program { client: name.to_owned(), reason: reason.into() }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, LoadgenError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadgenError::Runtime)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longest start of a program. A JVM on a busy machine takes half a minute.
const READY: Duration = Duration::from_secs(120);

/// Longest end of a program.
const END: Duration = Duration::from_secs(20);

/// Pause between two looks at a process.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// Longest line, in bytes.
const LONGEST: usize = 1024;

/// Bytes of a wrong line in its error.
const SHOWN: usize = 120;

/// Lines of standard error that an error shows.
const MOST_SAID: usize = 3;
