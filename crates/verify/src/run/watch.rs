//! Asks all nodes of a pair or cluster of Tenbin for their status, from the start of the load to the end of the run.
//! Each node has a thread, so that a stopped one delays no other.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tenbin_loadgen::run::RunClock;

use super::stage::Stage;
use crate::judge::leaders::Led;
use crate::results::{RoleSample, Sample};
use crate::status::{self, Status};
use crate::units::Time;

/// Pause between two questions to a node.
const PAUSE: Duration = Duration::from_millis(25);
/// Pause before the process beside a node is started again. A power cut ends it.
const AGAIN: Duration = Duration::from_millis(100);
/// Most time for the line of that process, which itself waits less for the node.
const PATIENCE: Duration = Duration::from_secs(2);

/// The threads. They end with this value.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    threads: Vec<(String, JoinHandle<Vec<Seen>>)>,
}

/// Equal answers of a node in a row, with nanoseconds of the run's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    first_answered_ns: u64,
    last_asked_ns: u64,
    /// `None` if the node does not answer.
    status: Option<Status>,
}

/// What all nodes told.
pub(crate) struct Watched(Vec<(String, Vec<Seen>)>);

impl Watch {
    /// Starts a thread for each node of `stage`; none for other systems.
    pub(crate) fn start(stage: &Arc<Stage>, clock: RunClock) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let mut threads = Vec::new();
        for node in stage.nodes() {
            let (name, machine) = (node.instance.name.clone(), node.instance.machine.clone());
            let (stage, is_over) = (Arc::clone(stage), Arc::clone(&is_over));
            let mut line = Question { machine, socket: node.socket, stream: None };
            let work = move || {
                let mut seen = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let asked_ns = clock.now_ns();
                    let status = line.ask(&stage);
                    add(&mut seen, asked_ns, clock.now_ns(), status);
                    thread::sleep(PAUSE);
                }
                seen
            };
            let thread = thread::Builder::new().name(format!("watch-{name}")).spawn(work);
            threads.extend(thread.ok().map(|thread| (name, thread)));
        }
        Self { is_over, threads }
    }

    /// Ends the threads.
    pub(crate) fn finish(self) -> Watched {
        self.is_over.store(true, Ordering::Relaxed);
        Watched(self.threads.into_iter().map(|(name, thread)| (name, thread.join().unwrap_or_default())).collect())
    }
}

/// Adds an answer.
fn add(seen: &mut Vec<Seen>, asked_ns: u64, answered_ns: u64, status: Option<Status>) {
    match seen.last_mut() {
        Some(last) if last.status == status => last.last_asked_ns = asked_ns,
        _ => seen.push(Seen { first_answered_ns: answered_ns, last_asked_ns: asked_ns, status }),
    }
}

/// The process that asks a node, on its machine.
struct Question {
    machine: String,
    socket: PathBuf,
    stream: Option<BufReader<UnixStream>>,
}

impl Question {
    fn ask(&mut self, stage: &Stage) -> Option<Status> {
        if stage.is_on_loopback() {
            return Status::parse(&status::ask(&self.socket).ok()?);
        }
        if self.stream.is_none() {
            self.stream = self.start(stage);
        }
        let answer = self.stream.as_mut().map(exchange)?;
        if answer.is_err() {
            self.stream = None;
            thread::sleep(AGAIN);
        }
        Status::parse(&answer.ok()?)
    }

    fn start(&self, stage: &Stage) -> Option<BufReader<UnixStream>> {
        let arguments = ["status".to_owned(), self.socket.display().to_string(), "--stream".to_owned()];
        let line = stage.world.programs(&self.machine).verify(arguments);
        let started = stage.world.spawn_beside_with_stream(&self.machine, &line, &stage.log("watch.status"));
        let started = started.and_then(|(_, stream)| {
            stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
            Ok(BufReader::new(stream))
        });
        // A machine without power starts nothing.
        started.inspect_err(|_| thread::sleep(AGAIN)).ok()
    }
}

fn exchange(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    stream.get_mut().write_all(b"\n")?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl Watched {
    /// Times in which nodes led, counted from `origin_ns`.
    pub(crate) fn led(&self, origin_ns: u64) -> Vec<Led> {
        let time = |ns: u64| Time::from_ns(ns.saturating_sub(origin_ns));
        let led = |node: usize, seen: &Seen| {
            let status = seen.status.as_ref().filter(|status| status.serves())?;
            let (first_answered, last_asked) = (time(seen.first_answered_ns), time(seen.last_asked_ns));
            Some(Led { node, epoch: status.epoch, first_answered, last_asked })
        };
        let nodes = self.0.iter().enumerate();
        nodes.flat_map(|(node, (_, all))| all.iter().filter_map(move |seen| led(node, seen))).collect()
    }

    /// Note about nodes that never told their status.
    pub(crate) fn note(&self) -> Option<String> {
        let is_silent = |(_, seen): &&(String, Vec<Seen>)| seen.iter().all(|seen| seen.status.is_none());
        let silent: Vec<_> = self.0.iter().filter(is_silent).map(|(name, _)| name.as_str()).collect();
        (!silent.is_empty()).then(|| format!("{} never told its status", silent.join(", ")))
    }

    /// Writes `roles.csv` into `directory`, if there are nodes.
    pub(crate) fn write(&self, directory: &Path, origin_ns: u64) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let row = |name: &String, seen: &Seen| {
            let at = (seen.first_answered_ns as f64 - origin_ns as f64) / 1e9;
            let silent = RoleSample { at, name: name.clone(), role: "silent".to_owned(), ..RoleSample::default() };
            let Some(status) = &seen.status else { return silent };
            RoleSample {
                role: status.role.name().to_owned(),
                leader: status.leader.clone().unwrap_or_default(),
                epoch: status.epoch,
                copies: status.copies,
                serving: status.serves(),
                ..silent
            }
        };
        let mut rows: Vec<_> =
            self.0.iter().flat_map(|(name, all)| all.iter().map(move |seen| row(name, seen))).collect();
        rows.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut file = BufWriter::new(File::create(directory.join("roles.csv"))?);
        writeln!(file, "{}", RoleSample::HEAD)?;
        rows.iter().try_for_each(|row| writeln!(file, "{}", row.line()))?;
        file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Option<Status> {
        Status::parse(text)
    }

    #[test]
    fn equal_answers_in_a_row_are_one() {
        let (leads, stopped) = (status(r#"{"role":"leader","epoch":3,"copies":2}"#), None);
        let mut seen = Vec::new();
        for (at, status) in [(10, &leads), (20, &leads), (30, &stopped), (40, &leads)] {
            add(&mut seen, at, at + 5, status.clone());
        }
        let spans: Vec<_> = seen.iter().map(|seen| (seen.first_answered_ns, seen.last_asked_ns)).collect();
        assert_eq!(spans, [(15, 20), (35, 30), (45, 40)]);
        let watched = Watched(vec![("a".to_owned(), seen), ("b".to_owned(), Vec::new())]);
        let led: Vec<_> = watched.led(10).iter().map(|led| (led.node, led.epoch, led.first_answered.ns())).collect();
        assert_eq!(led, [(0, 3, 5), (0, 3, 35)]);
        assert_eq!(watched.note().as_deref(), Some("b never told its status"));
    }

    #[test]
    fn rows_tell_each_change_of_each_node() {
        let directory = tempfile::tempdir().unwrap();
        let seen = |at_ns, text| Seen { first_answered_ns: at_ns, last_asked_ns: at_ns, status: status(text) };
        let second = 1_000_000_000;
        let a = vec![seen(second, r#"{"role":"leader","leader":"a","epoch":3,"copies":1}"#), seen(3 * second, "-")];
        let b = vec![seen(2 * second, r#"{"role":"joiner","leader":"a","epoch":3}"#)];
        Watched(vec![("a".to_owned(), a), ("b".to_owned(), b)]).write(directory.path(), 2 * second).unwrap();
        let text = std::fs::read_to_string(directory.path().join("roles.csv")).unwrap();
        let wanted = "at,name,role,leader,epoch,copies,serving\n-1,a,leader,a,3,1,true\n0,b,joiner,a,3,0,false\n\
                      1,a,silent,,0,0,false\n";
        assert_eq!(text, wanted);
        Watched(Vec::new()).write(directory.path().join("none").as_path(), 0).unwrap();
    }
}
