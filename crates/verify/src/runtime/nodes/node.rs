//! The remote end: `tenbin-verify node` at the standard input and output of `ssh`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tenbin_kit::programs::Program;
use tenbin_lab::journal::{self, Journal};
use tenbin_loadgen::run::Secret;

use super::logs::{self, Logs};
use super::wire::{Call, Directories, Numbered, Said, Signal, Started, bytes_of, text_of, write_line};
use super::{relay, ssh, trunk};
use crate::line::Programs;
use crate::plan::{Machine, Plan, missing};
use crate::runtime::{Namespaces, Proc, Site, World, processors_here};

/// Pause between two looks at the logs, and between two at the controller's silence.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of a part of a file.
pub(super) const PART: u64 = 256 << 10;
/// Longest wait of one call for the end of a process.
const LONG: Duration = Duration::from_secs(3600);

/// State of a node.
struct NodeState {
    output: Mutex<File>,
    awaited: Arc<trunk::Awaited>,
    run: OnceLock<Run>,
    /// Held while the run's directory is there and its undo is not recorded.
    making: Mutex<()>,
    processes: Mutex<HashMap<u64, Arc<dyn Proc>>>,
}

/// The one run of a node.
struct Run {
    /// Name of this node.
    name: String,
    token: Secret<String>,
    work: PathBuf,
    logs: Logs,
    journal: Arc<Journal>,
    /// `None` after [`Call::End`].
    world: Mutex<Option<Arc<Namespaces>>>,
}

/// Serves the controller until standard input ends, or is silent for `silence`. Then this process ends, and its guards
/// undo everything, as they do when it is killed.
pub(crate) fn serve(silence: Duration) -> Result<(), String> {
    let standard = || -> io::Result<(File, File)> {
        let (input, output) = (io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?);
        Ok((input.into(), output.into()))
    };
    let (input, output) = standard().map_err(|error| format!("cannot use the standard streams: {error}"))?;
    let node = Arc::new(NodeState {
        output: Mutex::new(output),
        awaited: Arc::default(),
        run: OnceLock::new(),
        making: Mutex::default(),
        processes: Mutex::default(),
    });
    let heard = Arc::new(Mutex::new(Instant::now()));
    let (watched, watching) = (Arc::clone(&node), Arc::clone(&heard));
    // Neither this thread nor the one that reads writes anything: a controller that reads nothing must not hold them up.
    let watch = move || {
        loop {
            thread::sleep(LOOK);
            let heard = *watching.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.elapsed() > silence {
                watched.exit(1);
            }
        }
    };
    start_thread("watch", watch)?;
    let logging = Arc::clone(&node);
    start_thread("logs", move || {
        loop {
            thread::sleep(LOOK);
            logging.flush_logs();
        }
    })?;
    let (beat, beats) = sync_channel(1);
    let alive = Arc::clone(&node);
    start_thread("alive", move || beats.iter().for_each(|id| alive.say(&Said::Done { id, value: Value::Null })))?;
    for line in BufReader::new(input).lines().map_while(Result::ok) {
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let Numbered { id, call } = serde_json::from_str(&line).map_err(|error| format!("an unknown call: {error}"))?;
        if matches!(call, Call::Alive) {
            // A single waiting answer is enough to show that the node is alive.
            let _ = beat.try_send(id);
            continue;
        }
        let node = Arc::clone(&node);
        let answer = move || {
            let said = match node.answer(call) {
                Ok(value) => Said::Done { id, value },
                Err(reason) => Said::Failed { id, reason },
            };
            node.say(&said);
        };
        start_thread("call", answer)?;
    }
    node.exit(0)
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(|_| ()).map_err(|error| format!("cannot start a thread: {error}"))
}

/// Undoes the rest of runs whose node and guards were killed.
fn restore_leftovers() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let is_run = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(crate::runtime::WORK)) && path.is_dir()
    };
    for work in entries.map(|entry| entry.path()).filter(is_run) {
        if journal::left_over(&work).is_ok_and(|left| left > 0) {
            // A failure concerns another run; its journal keeps it.
            let _ = journal::restore(&work);
        }
    }
}

impl NodeState {
    /// Ends this process. Other threads may use the lab: nothing else ends it for sure.
    fn exit(&self, code: i32) -> ! {
        let _made = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        std::process::exit(code)
    }

    fn say(&self, said: &Said) {
        // Without a reader standard input ends too.
        let _ = write_line(&mut *self.output.lock().unwrap_or_else(PoisonError::into_inner), said);
    }

    fn flush_logs(&self) {
        if let Some(run) = self.run.get() {
            run.logs.flush(|log, bytes| self.say(&Said::Output { log, text: text_of(bytes) }));
        }
    }

    fn run(&self) -> Result<&Run, String> {
        self.run.get().ok_or_else(|| "the node has no run yet".to_owned())
    }

    fn world(&self) -> Result<Arc<Namespaces>, String> {
        let world = self.run()?.world.lock().unwrap_or_else(PoisonError::into_inner).clone();
        world.ok_or_else(|| "the run has ended".to_owned())
    }

    fn process(&self, number: u64) -> Result<Arc<dyn Proc>, String> {
        let known = self.processes.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        known.ok_or_else(|| format!("no process number {number}"))
    }

    fn answer(self: &Arc<Self>, call: Call) -> Result<Value, String> {
        match call {
            Call::Alive => Ok(Value::Null),
            Call::Start { plan, node, token, tenbin } => value(&self.start(&plan, node, token, tenbin)?),
            Call::Listen { address, peers } => {
                let (own, secret) = (Arc::clone(self), self.run()?.token.clone());
                let join = move |peer: &str, stream| own.join(peer, stream);
                let port = trunk::listen(address, peers, secret, &self.awaited, join);
                value(&port.map_err(|error| format!("cannot listen at {address}: {error}"))?)
            }
            Call::Join { peer, address } => {
                let run = self.run()?;
                let stream = trunk::connect(address, &run.name, &run.token);
                let stream = stream.map_err(|error| format!("cannot connect to {peer} at {address}: {error}"))?;
                self.join(&peer, stream)?;
                Ok(Value::Null)
            }
            Call::AwaitPeers => self.awaited.wait().map(|()| Value::Null),
            Call::Write { path, from, content, mode } => {
                check_inside(&path, &self.run()?.work)?;
                write_part(&path, from, &bytes_of(&content), mode).map(|()| Value::Null)
            }
            Call::Results { machine } => value(&results(&self.world()?.directories(&machine)?.1)?),
            Call::Read { path, from } => value(&text_of(&read_inside(&path, &self.run()?.work, from)?)),
            Call::Spawn { process, machine, line, log, with_stream } => {
                let log = self.run()?.logs.path(log);
                let world = self.world()?;
                let socket = match with_stream {
                    false => {
                        self.watch(process, world.spawn(&machine, &line, &log)?)?;
                        None
                    }
                    true => {
                        let path = self.run()?.work.join(format!("a{process}"));
                        let listener = UnixListener::bind(&path).map_err(|error| error.to_string())?;
                        let (proc, stream) = world.spawn_with_stream(&machine, &line, &log)?;
                        self.watch(process, proc)?;
                        let socket = path.clone();
                        thread::spawn(move || relay::join(stream, listener, &path));
                        Some(socket)
                    }
                };
                value(&socket)
            }
            Call::Signal { process, signal } => {
                let known = self.process(process)?;
                match signal {
                    Signal::Terminate => known.terminate(),
                    Signal::Kill => known.kill(),
                    Signal::Stop(time) => known.stop(time),
                    Signal::Resume => known.resume(),
                }?;
                // The next start of an instance appends to its log.
                self.flush_logs();
                Ok(Value::Null)
            }
            Call::Usage { process } => value(&self.process(process)?.usage()),
            Call::Exec { machine, line } => value(&self.world()?.exec(&machine, &line)?),
            Call::Impair { links, shape, time } => value(&self.world()?.impair(&links, &shape, time)?),
            Call::Lift { fault } => self.world()?.lift(fault).map(|()| Value::Null),
            Call::Limit { machine, limit } => value(&self.world()?.limit(&machine, limit)?),
            Call::EndLimit { number } => self.world()?.end_limit(number).map(|()| Value::Null),
            Call::PowerCut { machines } => self.world()?.power_cut(&machines).map(|()| Value::Null),
            Call::Links => value(&self.world()?.links()),
            Call::End => value(&self.end()),
        }
    }

    fn start(
        &self,
        plan: &Plan,
        name: String,
        token: Secret<String>,
        tenbin: Option<String>,
    ) -> Result<Started, String> {
        let lacks = plan.needs_of_nodes().filter_map(|need| Some(format!("{need}: {}", missing(&need)?)));
        let lacks = lacks.collect::<Vec<_>>();
        if !lacks.is_empty() {
            return Err(format!("missing {}", lacks.join("; ")));
        }
        restore_leftovers();
        let verify = std::env::current_exe().map_err(|error| format!("cannot find the program: {error}"))?;
        let tenbin = tenbin.and_then(|hash| Some(verify.parent()?.join(ssh::name(Program::Tenbin, &hash))));
        let programs = Programs { verify, tenbin: tenbin.unwrap_or_default() };
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let work = tempfile::Builder::new().prefix(crate::runtime::WORK).tempdir();
        let work = work.map_err(|error| format!("cannot create a directory for the run: {error}"))?;
        // The journal is in the directory that it removes: its last undo takes itself away.
        let journal = crate::restore::journal(Some(&programs), work.path(), work.path())?;
        let (work, journal) = (work.keep(), Arc::new(journal.ok_or("no journal")?));
        drop(making);
        let (logs, results) = (work.join("logs"), work.join("results"));
        for directory in [&logs, &results] {
            fs::create_dir(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        }
        let site = Site { work: &work, results: &results, programs: &programs, journal: Some(&journal) };
        let world = Namespaces::start(plan, &site, Some(&name))?;
        let own = plan.machines.iter().filter(|machine| machine.node.as_ref() == Some(&name));
        let directories = |machine: &Machine| {
            let (files, results) = world.directories(&machine.name)?;
            Ok(Directories { machine: machine.name.clone(), data: world.data(&machine.name), files, results })
        };
        let machines = own.map(directories).collect::<Result<_, String>>()?;
        let started = Started { programs, processors: processors_here(), machines };
        let world = Mutex::new(Some(Arc::new(world)));
        let run = Run { name, token, work, logs: Logs::new(&logs), journal, world };
        self.run.set(run).map_err(|_| "the node has a run already".to_owned())?;
        Ok(started)
    }

    fn join(self: &Arc<Self>, peer: &str, stream: TcpStream) -> Result<(), String> {
        self.world()?.join(peer, &stream)?;
        let (own, name) = (Arc::clone(self), peer.to_owned());
        let lost = move || own.say(&Said::Lost { reason: format!("the trunk to {name} is cut") });
        trunk::watch(stream, lost).map_err(|error| format!("cannot start a thread: {error}"))
    }

    /// Registers a process, and tells of its end.
    fn watch(self: &Arc<Self>, process: u64, proc: Box<dyn Proc>) -> Result<(), String> {
        let proc: Arc<dyn Proc> = proc.into();
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(process, Arc::clone(&proc));
        let node = Arc::clone(self);
        let wait = move || {
            let how = loop {
                if let Some(how) = proc.ended(LONG) {
                    break how;
                }
            };
            node.flush_logs();
            node.say(&Said::Ended { process, how });
        };
        start_thread("process", wait)
    }

    /// Ends the lab, and undoes the rest.
    fn end(&self) -> Vec<String> {
        let Some(run) = self.run.get() else { return Vec::new() };
        let world = run.world.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(world);
        self.flush_logs();
        let failures = run.journal.undo_all();
        failures.into_iter().map(|failure| format!("{:?}: {}", failure.undo, failure.error)).collect()
    }
}

/// Checks that a path is below the run's directory.
fn check_inside(path: &Path, work: &Path) -> Result<(), String> {
    let is_inside = path.strip_prefix(work).is_ok_and(is_below);
    if is_inside { Ok(()) } else { Err(format!("{} is outside of the run's directory", path.display())) }
}

/// True for a relative path that leads down.
pub(super) fn is_below(path: &Path) -> bool {
    !path.as_os_str().is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Writes a part of a file. The first one makes it anew, with its mode.
fn write_part(path: &Path, from: u64, content: &[u8], mode: Option<u32>) -> Result<(), String> {
    if from == 0 {
        return crate::runtime::write_here(path, content, mode);
    }
    let written = OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(content, from));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Reads a part of a file below the run's directory. A link of an instance must not lead elsewhere.
fn read_inside(path: &Path, work: &Path, from: u64) -> Result<Vec<u8>, String> {
    let fail = |error: io::Error| format!("cannot read {}: {error}", path.display());
    check_inside(path, work)?;
    check_inside(&path.canonicalize().map_err(fail)?, &work.canonicalize().map_err(fail)?)?;
    logs::read(path, from, PART).map_err(fail)
}

/// Names and sizes of all files below a directory. Links and pipes are left out: they may lead elsewhere or never end.
fn results(directory: &Path) -> Result<Vec<(String, u64)>, String> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::new()]);
    if !fs::symlink_metadata(directory).is_ok_and(|root| root.is_dir()) {
        return Ok(found);
    }
    while let Some(below) = left.pop() {
        let fail = |error: io::Error| format!("cannot read {}: {error}", directory.join(&below).display());
        for entry in fs::read_dir(directory.join(&below)).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let (path, metadata) = (below.join(entry.file_name()), entry.metadata().map_err(fail)?);
            if metadata.is_dir() {
                left.push(path);
            } else if metadata.is_file() {
                let name = path.to_str().ok_or_else(|| format!("the name of {} is not UTF-8", path.display()))?;
                found.push((name.to_owned(), metadata.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn value(of: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(of).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn paths_outside_of_the_run_are_refused() {
        let check = |path: &str| check_inside(Path::new(path), Path::new("/tmp/run"));
        assert_eq!(check("/tmp/run/config/b/keys/a"), Ok(()));
        for path in ["/tmp/run/../b", "/etc/passwd", "/tmp/running/b", "config/b"] {
            assert!(check(path).unwrap_err().contains(path), "{path}");
        }
        assert!(is_below(Path::new("a/b")) && !is_below(Path::new("")));
        assert!(!is_below(Path::new("/a")) && !is_below(Path::new("a/../../b")));
    }

    #[test]
    fn files_are_written_in_parts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys/tool");
        // The second time replaces a longer file.
        for content in ["abcdef", "abc"] {
            for (from, part) in (0..).zip(content.as_bytes().chunks(2)) {
                write_part(&path, from * 2, part, Some(0o500)).unwrap();
            }
            assert_eq!(fs::read(&path).unwrap(), content.as_bytes());
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn results_of_a_node_never_lead_through_links() {
        let (work, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let results_of = work.path().join("results");
        fs::create_dir_all(results_of.join("keys")).unwrap();
        fs::write(results_of.join("keys/a"), "abc").unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink(outside.path(), results_of.join("elsewhere")).unwrap();
        symlink(outside.path().join("secret"), results_of.join("secret")).unwrap();
        symlink("keys/a", results_of.join("inside")).unwrap();
        symlink(&results_of, results_of.join("keys/around")).unwrap();
        assert_eq!(results(&results_of), Ok(vec![("keys/a".to_owned(), 3)]));
        assert_eq!(results(&results_of.join("elsewhere")), Ok(Vec::new()));
        let read = |name: &str| read_inside(&results_of.join(name), work.path(), 1);
        assert_eq!(read("keys/a"), Ok(b"bc".to_vec()));
        for name in ["elsewhere/secret", "secret", "inside"] {
            assert!(read(name).is_err(), "{name}");
        }
    }
}
