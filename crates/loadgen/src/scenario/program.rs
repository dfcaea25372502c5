//! An external worker program with its own MQTT client; docs/LOADGEN.md describes its protocol.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::role::Role;
use super::shared::Shared;
use super::stage::Stage;
use super::worker::{Delivery, Taken, WorkerRecord};
use crate::payload::Stamp;
use crate::{Clock, LoadgenError};

/// A subscribed program. Dropping it kills the process.
pub(super) struct Program {
    process: Process,
    /// Closing it asks the program to disconnect and to end.
    input: Option<ChildStdin>,
    /// Reads the program's output.
    reader: JoinHandle<WorkerRecord>,
}

impl Program {
    /// Starts the program and waits until it reports its subscription.
    pub(super) async fn start(stage: &Stage<'_>, role: &Role, command: &[String]) -> Result<Self, LoadgenError> {
        let (host, port) = stage.address.rsplit_once(':').unwrap_or((stage.address, "1883"));
        let (program, arguments) = command.split_first().expect("the plan has checked it");
        let mut command = Command::new(program);
        command.args(arguments).args([host.trim_matches(['[', ']']), port, &stage.client_id(role)]);
        let (filter, qos, service_ms) = (&stage.filter, stage.plan.qos.bits(), role.kind.service.ms());
        command.args([filter.to_string(), qos.to_string(), service_ms.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|source| LoadgenError::Start { program: program.into(), source })?;
        let mut process = Process(child);
        let input = process.0.stdin.take();
        let output = process.0.stdout.take().expect("piped");

        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let (shared, clock, run) = (Arc::clone(&stage.shared), stage.clock, stage.run);
        let reader = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(output);
            let mut first = String::new();
            let subscribed = matches!(lines.read_line(&mut first), Ok(1..)) && first.trim() == "ready";
            // The waiting side may have given up.
            let _ = ready.send(subscribed);
            if subscribed { read(lines, run, clock, &shared) } else { WorkerRecord::default() }
        });
        match tokio::time::timeout(START_LIMIT, is_ready).await {
            Ok(Ok(true)) => Ok(Self { process, input, reader }),
            _ => Err(LoadgenError::NotReady { worker: role.name.clone(), program: program.into() }),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.reader.is_finished()
    }

    /// Asks the program to end, and kills it if it does not.
    pub(super) async fn end(mut self) -> WorkerRecord {
        drop(self.input.take());
        let deadline = tokio::time::Instant::now() + END_LIMIT;
        while matches!(self.process.0.try_wait(), Ok(None)) && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(self.process);
        self.reader.await.expect("the reader does not panic")
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Records the messages of run `run` that a program reports, up to the end of its output.
fn read(mut lines: BufReader<ChildStdout>, run: u64, clock: Clock, shared: &Shared) -> WorkerRecord {
    let mut record = WorkerRecord::default();
    let mut line = String::new();
    while matches!(lines.read_line(&mut line), Ok(1..)) {
        match processed(&line, clock) {
            Some((stamp, received_ns, taken)) if stamp.run == run => {
                let receipt = shared.receive(stamp.sequence);
                // Messages finished after the run do not count as taken.
                let taken = (!shared.is_stopped()).then_some(taken);
                record.deliveries.push(Delivery { stamp, received_ns, receipt, taken });
            }
            _ => shared.receive_foreign(),
        }
        line.clear();
    }
    record
}

/// Parses a line about one message; converts times from the system's clock to the run's.
fn processed(line: &str, clock: Clock) -> Option<(Stamp, u64, Taken)> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let stamp = Stamp { run: next()?, sequence: next()?, created_ns: next()? };
    let [received_ns, taken_ns, finished_ns] =
        [next()?, next()?, next()?].map(|monotonic_ns| clock.at_monotonic_ns(monotonic_ns));
    // Keeps `taken_ns` from preceding the creation time.
    let taken_ns = taken_ns.max(stamp.created_ns);
    let taken = Taken { taken_ns, observed_ns: taken_ns, finished_ns };
    numbers.next().is_none().then_some((stamp, received_ns, taken))
}

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_with_its_times() {
        let clock = Clock::start();
        let at = |ns: u64| clock.monotonic_ns(ns);
        let line = format!("3 17 1000 {} {} {}\n", at(2000), at(5000), at(9000));
        let (stamp, received_ns, taken) = processed(&line, clock).unwrap();
        assert_eq!(stamp, Stamp { run: 3, sequence: 17, created_ns: 1000 });
        assert_eq!((received_ns, taken.taken_ns, taken.finished_ns), (2000, 5000, 9000));
        for line in ["", "ready", "1 2 3 4 5", "1 2 3 4 5 6 7", "1 2 3 4 5 x"] {
            assert!(processed(line, clock).is_none(), "{line}");
        }
    }
}
