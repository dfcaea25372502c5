use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenbin_codec::{Packet, PacketType, QoS};

use super::central_queue;
use super::kind::Kind;
use super::worker::Worker;
use crate::support::{BrokerProcess, DelayProxy, Dice, PATIENCE, RawClient, Silence, at_qos};

/// A run of one group `$share/g/work`.
pub(super) struct Setup<'a> {
    pub(super) kind: &'a Kind,
    /// User Properties of the workers: `concurrency=N`, `receive-maximum=N`.
    pub(super) told: &'static [&'static str],
    pub(super) policy: &'static str,
    /// For each worker, by how much its work takes longer than the message says.
    pub(super) factors: &'static [u32],
    /// Mean of the exponential work.
    pub(super) work: Duration,
    /// Arrivals, as a fraction of all messages that the workers can process.
    pub(super) load: f64,
    pub(super) messages: usize,
    /// Between workers and broker.
    pub(super) path: Option<Path>,
}

/// One-way delay of each direction, made by a proxy.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
}

pub(super) struct Outcome {
    /// From the publication of a message to the begin of its work.
    pub(super) waits: Times,
    /// The same of an ideal central queue at the workers' end of the path.
    pub(super) ideal: Times,
    /// By how much messages were published late: how busy the machine is.
    pub(super) lag: Times,
    /// Number of messages of each worker.
    pub(super) worked: Vec<usize>,
    /// Messages that were worked on more than once.
    pub(super) repeated: usize,
}

/// A message to be published.
struct Job {
    /// Since the first one.
    at: Duration,
    work_us: u64,
}

impl Setup<'_> {
    /// Runs it with the arrivals and works of this seed.
    ///
    /// # Panics
    /// If a message is lost.
    pub(super) fn run(&self, seed: u64) -> Outcome {
        let broker = BrokerProcess::start(&["--policy", self.policy]);
        let proxy = self.path.map(|path| DelayProxy::start(broker.address(), path.delay, path.jitter));
        let address = proxy.as_ref().map_or(broker.address(), DelayProxy::address);
        let workers =
            self.factors.iter().enumerate().map(|(number, &factor)| {
                Worker::start(self.kind, address, &format!("worker-{number}"), factor, self.told)
            });
        let workers: Vec<_> = workers.collect();
        wait_until_subscribed(&broker, &workers);
        let jobs = self.jobs(seed);
        let (sent, lag) = publish(&mut broker.v5("publisher"), &jobs);
        let begun = self.wait_until_begun(&workers, &sent);

        let worked: Vec<_> = begun.iter().map(Vec::len).collect();
        let mut first = vec![u64::MAX; self.messages];
        for &(number, begin) in begun.iter().flatten() {
            first[number] = first[number].min(begin);
        }
        // A machine's clock may be set back.
        let waits = first.iter().zip(&sent).map(|(begin, sent)| begin.saturating_sub(*sent)).collect();
        let way = self.path.map_or(0, |path| (path.delay + path.jitter / 2).as_micros() as u64);
        let arrivals: Vec<_> = sent.iter().zip(&jobs).map(|(sent, job)| (sent + way, job.work_us)).collect();
        let ideal = central_queue::waits(&arrivals, self.factors).iter().map(|wait| wait + way).collect();
        let repeated = worked.iter().sum::<usize>() - self.messages;
        Outcome { waits: Times::new(waits), ideal: Times::new(ideal), lag: Times::new(lag), worked, repeated }
    }

    /// Poisson arrivals of exponential work.
    fn jobs(&self, seed: u64) -> Vec<Job> {
        let speed: f64 = self.factors.iter().map(|&factor| 1.0 / f64::from(factor)).sum();
        let pause = self.work.div_f64(speed * self.load);
        let [mut pauses, mut works] = [1, 2].map(|number| Dice::new(seed, number));
        let mut at = Duration::ZERO;
        let job = |_| {
            at += exponential(&mut pauses, pause);
            Job { at, work_us: exponential(&mut works, self.work).as_micros() as u64 }
        };
        (0..self.messages).map(job).collect()
    }

    /// Waits until all messages were begun, and returns the messages of each worker.
    fn wait_until_begun(&self, workers: &[Worker], sent: &[u64]) -> Vec<Vec<(usize, u64)>> {
        let (mut seen, mut until) = (0, Instant::now() + PATIENCE);
        loop {
            let begun: Vec<_> = workers.iter().map(Worker::begun).collect();
            let mut is_begun = vec![false; sent.len()];
            begun.iter().flatten().for_each(|&(number, _)| is_begun[number] = true);
            let count = is_begun.iter().filter(|&&is_begun| is_begun).count();
            if count == sent.len() {
                return begun;
            }
            if count > seen {
                (seen, until) = (count, Instant::now() + PATIENCE);
            }
            let complaints: Vec<_> = workers.iter().map(Worker::complaints).collect();
            assert!(Instant::now() < until, "{}: {count} of {} begun; {complaints:?}", self.kind.name, sent.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn wait_until_subscribed(broker: &BrokerProcess, workers: &[Worker]) {
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/g/work/members", QoS::AtMostOnce);
    let until = Instant::now() + PATIENCE;
    loop {
        let complaints = || workers.iter().map(Worker::complaints).collect::<Vec<_>>();
        // A group without members has no report.
        if let Ok(Packet::Publish(report)) = reader.try_receive(Duration::from_millis(100)) {
            let report: serde_json::Value = serde_json::from_slice(&report.payload).expect("JSON");
            if report["members_total"] == workers.len() {
                return reader.disconnect();
            }
        }
        assert!(Instant::now() < until, "the workers do not subscribe: {:?}", complaints());
    }
}

/// Publishes each message when it is due. Returns the times at which they were published, in microseconds since 1970, and
/// by how many microseconds that was late.
fn publish(publisher: &mut RawClient, jobs: &[Job]) -> (Vec<u64>, Vec<u64>) {
    /// The kernel rounds a limit of reading up.
    const SLACK: Duration = Duration::from_millis(6);
    let mut acknowledged = 0;
    let start = Instant::now();
    let mut publish = |(number, job): (usize, &Job)| {
        while let Some(left) = job.at.checked_sub(start.elapsed() + SLACK) {
            match publisher.try_receive(left) {
                Ok(packet) => acknowledged += usize::from(packet.packet_type() == PacketType::PubAck),
                Err(Silence::TimedOut) => {}
                Err(silence) => panic!("{silence:?} where acknowledgements should come"),
            }
        }
        std::thread::sleep(job.at.saturating_sub(start.elapsed()));
        let sent = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
        let mut message = at_qos("work", &format!("{number} {sent} {}", job.work_us), QoS::AtLeastOnce);
        message.packet_id = Some(publisher.next_id());
        publisher.send(&Packet::Publish(message));
        (sent, (start.elapsed() - job.at).as_micros() as u64)
    };
    let times = jobs.iter().enumerate().map(&mut publish).unzip();
    while acknowledged < jobs.len() {
        publisher.wait_for(PacketType::PubAck);
        acknowledged += 1;
    }
    times
}

fn exponential(dice: &mut Dice, mean: Duration) -> Duration {
    const STEPS: u64 = 1 << 53;
    mean.mul_f64(-((dice.within(0..STEPS) + 1) as f64 / STEPS as f64).ln())
}

/// Sorted times in milliseconds.
pub(super) struct Times(Vec<f64>);

impl Times {
    fn new(mut microseconds: Vec<u64>) -> Self {
        microseconds.sort_unstable();
        Self(microseconds.iter().map(|&time| time as f64 / 1e3).collect())
    }

    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The 99th percentile.
    pub(super) fn p99(&self) -> f64 {
        self.0[(self.0.len() * 99).div_ceil(100) - 1]
    }
}
