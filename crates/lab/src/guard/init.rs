//! The first process of a machine: starts commands in its namespaces, and sends them signals.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command as Program, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::supervisor::Report;
use super::tree;
use crate::command::Command;
use crate::error::Error;
use crate::procfs::{Usage, descendants};
use crate::program;
use crate::protocol::{Answer, Answers, ToMachine, decoded, line, lock, serve, standard_input, value};
use crate::signal::Signal;

/// Supervisors and commands that run, by the number of the process.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<HashMap<u64, RunningProcess>>>);

#[derive(Clone, Copy)]
struct RunningProcess {
    supervisor: u32,
    main: u32,
    /// Counts the signals, so that a timer continues no tree that was stopped anew.
    signals: u64,
}

/// Handles the guard's calls, and returns when the guard has ended.
pub(super) fn run(name: &str, helper: &str) -> Result<(), Error> {
    let helper: Vec<String> = decoded(helper)?;
    rustix::system::sethostname(name.as_bytes()).map_err(|error| Error::io("set the host name")(error.into()))?;
    let (calls, answers) = standard_input().map_err(Error::io("take over standard input"))?;
    let (running, events) = (Running::default(), answers.clone());
    serve(calls, &answers, move |call| match call {
        ToMachine::Run { line, input } => program::run(&line, &input).map(|()| Value::Null),
        ToMachine::Spawn { process, command } => running.spawn(&helper, process, &command, &events).map(Value::from),
        ToMachine::Signal { process, signal, time } => running.signal(process, signal, time).map(|()| Value::Null),
        ToMachine::SignalAll { signal } => running.signal_all(signal).map(|()| Value::Null),
        ToMachine::Usage { process } => value(&running.usage(process)),
    });
    Ok(())
}

impl Running {
    /// Starts a command below a new supervisor, and returns the command's process identifier.
    fn spawn(&self, helper: &[String], process: u64, command: &Command, events: &Answers) -> Result<u32, Error> {
        let (own, its) = UnixStream::pair().map_err(Error::io("make a pair of sockets"))?;
        let mut supervisor = Program::new(&helper[0])
            .args(&helper[1..])
            .arg("process")
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io("start a supervisor"))?;
        line(command).and_then(|line| (&own).write_all(&line)).map_err(Error::io("instruct a supervisor"))?;
        let mut reports = BufReader::new(own).lines().map_while(Result::ok);
        let first = reports.next().and_then(|line| serde_json::from_str(&line).ok());
        let main = match first {
            Some(Report::Started { pid }) => pid,
            other => {
                let _ = supervisor.wait();
                let Some(Report::Failed { reason }) = other else {
                    return Err(Error::Failed("a supervisor ended early".to_owned()));
                };
                return Err(Error::Failed(reason));
            }
        };
        lock(&self.0).insert(process, RunningProcess { supervisor: supervisor.id(), main, signals: 0 });
        let (running, events) = (self.clone(), events.clone());
        let watch = move || running.watch(process, supervisor, reports, &events);
        thread::Builder::new().name("lab-reports".to_owned()).spawn(watch).map_err(Error::io("start a thread"))?;
        Ok(main)
    }

    /// Reports the end of a command, and forgets its tree when that is empty.
    fn watch(&self, process: u64, mut supervisor: Child, reports: impl Iterator<Item = String>, events: &Answers) {
        for line in reports {
            if let Ok(Report::Exited { exit }) = serde_json::from_str(&line) {
                events.send(&Answer::Exited { process, exit });
            }
        }
        let _ = supervisor.wait();
        lock(&self.0).remove(&process);
    }

    fn signal(&self, process: u64, signal: Signal, time: Option<Duration>) -> Result<(), Error> {
        let entry = {
            let mut running = lock(&self.0);
            let Some(entry) = running.get_mut(&process) else { return Ok(()) };
            entry.signals += 1;
            *entry
        };
        if let Some(time) = time {
            let running = self.clone();
            let later = move || {
                thread::sleep(time);
                let now = lock(&running.0).get(&process).copied();
                if now.is_some_and(|now| now.signals == entry.signals) {
                    let _ = running.signal(process, Signal::Continue, None);
                }
            };
            thread::Builder::new().name("lab-timer".to_owned()).spawn(later).map_err(Error::io("start a thread"))?;
        }
        let list = || descendants(entry.supervisor);
        match whole_tree(signal) {
            // The main process may have ended, and its number may belong to another one.
            None => {
                if list().contains(&entry.main) {
                    tree::send(entry.main, single(signal));
                }
                Ok(())
            }
            Some(signal) => send_to(list, signal),
        }
    }

    /// Usage of a tree; `None` if it is gone.
    fn usage(&self, process: u64) -> Option<Usage> {
        let supervisor = lock(&self.0).get(&process)?.supervisor;
        Some(Usage::of(descendants(supervisor)))
    }

    /// Sends a signal to all trees.
    fn signal_all(&self, signal: Signal) -> Result<(), Error> {
        lock(&self.0).values_mut().for_each(|entry| entry.signals += 1);
        let list = || {
            let supervisors = lock(&self.0).values().map(|entry| entry.supervisor).collect::<Vec<_>>();
            supervisors.into_iter().flat_map(descendants).collect::<BTreeSet<_>>()
        };
        send_to(list, whole_tree(signal).unwrap_or_else(|| single(signal)))
    }
}

fn send_to(list: impl Fn() -> BTreeSet<u32>, signal: rustix::process::Signal) -> Result<(), Error> {
    if signal == rustix::process::Signal::KILL {
        return tree::kill(list);
    }
    tree::signal(list, signal);
    Ok(())
}

/// The system's signal, for signals to whole trees.
fn whole_tree(signal: Signal) -> Option<rustix::process::Signal> {
    match signal {
        Signal::Kill => Some(rustix::process::Signal::KILL),
        Signal::Stop => Some(rustix::process::Signal::STOP),
        Signal::Continue => Some(rustix::process::Signal::CONT),
        Signal::Terminate | Signal::Interrupt | Signal::Hangup => None,
    }
}

/// The system's signal, for signals to one process.
fn single(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Hangup => rustix::process::Signal::HUP,
        _ => rustix::process::Signal::TERM,
    }
}
