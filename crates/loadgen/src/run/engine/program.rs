//! An external worker program with its own MQTT client; docs/LOADGEN.md describes its protocol.

use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::driver_thread::DriverThread;
use super::worker::kind_of;
use crate::LoadgenError;
use crate::run::record::WorkRecord;
use crate::run::{Came, Stamp};

/// A subscribed program. Dropping it kills the process.
pub(super) struct Program {
    driver: Rc<DriverThread>,
    /// Its number in the layout.
    receiver: u32,
    process: Process,
    /// Closing it asks the program to disconnect and to end.
    input: Option<ChildStdin>,
    /// Lines of its output.
    lines: mpsc::Receiver<String>,
    /// The run's clock when the system's clock showed 0.
    monotonic_origin_ns: u64,
}

impl Program {
    /// Starts the program of receiver `number` of the layout and waits until it reports its subscription.
    ///
    /// # Errors
    /// It cannot be started, or does not report.
    pub(super) async fn open(driver: Rc<DriverThread>, number: u32) -> Result<Self, LoadgenError> {
        let receiver = &driver.layout().receivers()[number as usize];
        let (work, kind) = kind_of(&driver, number);
        let (audience, broker) = (&driver.plan().audiences[receiver.audience], &driver.plan().brokers[receiver.broker]);
        let (program, arguments) = work.program.split_first().expect("it is for workers that are programs");
        let mut command = Command::new(program);
        command.args(arguments).args([&broker.host, &broker.port.to_string(), &receiver.client_id, &receiver.filter]);
        command.args([audience.qos.to_string(), kind.service.ms().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|source| LoadgenError::Start { program: program.into(), source })?;
        let mut process = Process(child);
        let input = process.0.stdin.take();
        let mut output = BufReader::new(process.0.stdout.take().expect("piped")).lines();
        let (reader, mut lines) = mpsc::channel(LINES_MAX);
        // Ends with the output.
        std::thread::spawn(move || {
            while let Some(Ok(line)) = output.next()
                && reader.blocking_send(line).is_ok()
            {}
        });

        match tokio::time::timeout(START_LIMIT, lines.recv()).await {
            Ok(Some(line)) if line.trim() == "ready" => {}
            _ => return Err(LoadgenError::NotReady { worker: receiver.client_id.clone(), program: program.into() }),
        }
        let monotonic = clock_gettime(ClockId::Monotonic);
        let monotonic_ns = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
        let monotonic_origin_ns = driver.now_ns().saturating_sub(monotonic_ns);
        Ok(Self { driver, receiver: number, process, input, lines, monotonic_origin_ns })
    }

    /// Records the program's messages until the end of the run; then asks it to end, and kills it if it does not.
    pub(super) async fn run(mut self) {
        let driver = Rc::clone(&self.driver);
        let mut is_over = pin!(driver.is_over());
        loop {
            tokio::select! {
                biased;
                () = &mut is_over => break,
                line = self.lines.recv() => match line {
                    Some(line) => self.take(&line),
                    None => {
                        let name = &driver.layout().receivers()[self.receiver as usize].client_id;
                        driver.shared().fail(LoadgenError::lost(name, "its program has ended"));
                        break;
                    }
                }
            }
        }
        drop(self.input.take());
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.process.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Records the message that a line is about.
    fn take(&self, line: &str) {
        let (mut recorder, plan) = (self.driver.recorder(), self.driver.plan());
        let Some(Line { run, mut record }) = Line::parse(line, self.monotonic_origin_ns) else { return };
        record.receiver = self.receiver;
        let (due_ns, sequence, late_us) = (record.created_ns, record.sequence, 0);
        let tag = u16::try_from(run).ok().filter(|tag| *tag == plan.tag);
        let mut payload = vec![0; plan.publishers.payload as usize];
        Stamp { due_ns, tag: tag.unwrap_or(!plan.tag), stream: 0, sequence, late_us }.encode(&mut payload);
        let came = recorder.arrived(self.receiver, &payload, false, record.received_ns);
        if came == Came::NotOurs {
            return;
        }
        recorder.taken(self.receiver, due_ns, record.taken_ns);
        let took = Duration::from_nanos(record.finished_ns.saturating_sub(record.taken_ns));
        recorder.processed(self.receiver, took, record.finished_ns);
        recorder.worked(record);
        let counters = self.driver.counters();
        counters.received.add(u64::from(came == Came::First));
        counters.copies.add(u64::from(came == Came::Again));
    }
}

/// A line of a program about one message.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    run: u64,
    record: WorkRecord,
}

impl Line {
    /// Parses a line; converts times of the system's clock to the run's, which showed `origin_ns` at its 0.
    fn parse(line: &str, origin_ns: u64) -> Option<Self> {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (run, sequence, created_ns) = (next()?, next()?, next()?);
        let [received_ns, taken_ns, finished_ns] = [next()?, next()?, next()?].map(|ns| origin_ns.saturating_add(ns));
        // Keeps `taken_ns` from preceding the creation time.
        let taken_ns = taken_ns.max(created_ns);
        let sequence = u32::try_from(sequence).ok()?;
        let observed_ns = taken_ns;
        let record = WorkRecord { receiver: 0, sequence, created_ns, received_ns, taken_ns, observed_ns, finished_ns };
        numbers.next().is_none().then_some(Self { run, record })
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

/// Lines to queue; beyond that the program waits.
const LINES_MAX: usize = 1024;
const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_with_its_times() {
        let Line { run, record } = Line::parse("3 17 1000 2000 5000 9000\n", 500).unwrap();
        assert_eq!((run, record.sequence, record.created_ns), (3, 17, 1000));
        assert_eq!((record.received_ns, record.taken_ns, record.finished_ns), (2500, 5500, 9500));
        assert_eq!(Line::parse("3 17 9000 2000 5000 9500", 0).unwrap().record.taken_ns, 9000);
        for line in ["", "ready", "1 2 3 4 5", "1 2 3 4 5 6 7", "1 2 3 4 5 x", "1 4294967296 3 4 5 6"] {
            assert_eq!(Line::parse(line, 0), None, "{line}");
        }
    }
}
