//! One message size against a broker, from the first connection until the slow receivers have read their backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenbin_client::{Client, ClientOptions, PublishTicket, Reconnect};
use tenbin_codec::{TopicFilter, TopicName};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::args::SizeLoad;
use super::figures::Record;
use super::publisher::{Published, Publisher};
use super::receiver::{Receiver, Throttle};
use super::spooling::SpoolingWatch;
use super::{SlowArgs, SlowFigures};
use crate::child_broker::ChildBroker;
use crate::progress::Progress;
use crate::{Clock, LoadgenError};

/// Runs one size against the broker at `address`. `child` is the broker if it was started for this run.
pub(super) async fn run(
    args: &SlowArgs,
    size: SizeLoad,
    address: &str,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<SlowFigures, LoadgenError> {
    let mut play = match Play::assemble(args, size, address).await {
        Ok(play) => play,
        Err(error) => return Err(blame(child, error)),
    };
    match play.perform(child.as_deref_mut(), progress).await {
        Ok(shown) => Ok(SlowFigures::of(args, size, &play.end(shown).await)),
        Err(error) => Err(blame(child, error)),
    }
}

/// Replaces the error of a lost connection by the broker's end, if it has ended.
fn blame(child: Option<&mut ChildBroker>, error: LoadgenError) -> LoadgenError {
    child.and_then(|child| child.check_alive().err()).unwrap_or(error)
}

/// All participants of a run.
struct Play<'a> {
    args: &'a SlowArgs,
    size: SizeLoad,
    clock: Clock,
    run: u64,
    topic: TopicName,
    publisher: Client,
    normal: Vec<Receiver>,
    slow: Vec<Receiver>,
    spooling: SpoolingWatch,
    /// Messages that all receivers of each kind have got.
    normal_got: Arc<AtomicU64>,
    slow_got: Arc<AtomicU64>,
    /// Whether the slow receivers read everything again.
    is_over: watch::Sender<bool>,
    stop: Stop,
}

/// Stops the publisher on drop.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Results of a run before the receivers' records.
struct Shown {
    slow_from_ns: u64,
    published: Published,
    backlog: u64,
    drain: Duration,
    is_draining: bool,
}

impl<'a> Play<'a> {
    async fn assemble(args: &'a SlowArgs, size: SizeLoad, address: &str) -> Result<Self, LoadgenError> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let (clock, run) = (Clock::start(), RUNS.fetch_add(1, Ordering::Relaxed));
        // A given broker may have other clients, or state of an earlier run.
        let label = format!("{}-{run}", std::process::id());
        let topic = TopicName::try_from(format!("slow/{label}").as_str()).expect("digits are plain");
        let filter = TopicFilter::try_from(format!("slow/{label}").as_str()).expect("digits are plain");
        let (mut normal, mut slow) = (Vec::new(), Vec::new());
        for number in 0..args.normal {
            normal.push(Receiver::join(address, format!("normal-{number}-{label}"), &filter, false).await?);
        }
        for number in 0..args.slow {
            slow.push(Receiver::join(address, format!("slow-{number}-{label}"), &filter, true).await?);
        }
        let id = format!("watch-{label}");
        let spooling = SpoolingWatch::begin(address, id, args.spooling_filter()?, clock).await?;
        let options = ClientOptions::new(address, format!("publisher-{label}")).reconnect(Reconnect::Never);
        let connected = Client::connect(options).await;
        let (publisher, _) = connected.map_err(|error| LoadgenError::connect(address, error))?;
        Ok(Self {
            args,
            size,
            clock,
            run,
            topic,
            publisher,
            normal,
            slow,
            spooling,
            normal_got: Arc::default(),
            slow_got: Arc::default(),
            is_over: watch::Sender::new(false),
            stop: Stop::default(),
        })
    }

    async fn perform(
        &mut self,
        mut child: Option<&mut ChildBroker>,
        progress: &mut Progress,
    ) -> Result<Shown, LoadgenError> {
        let start_ns = self.clock.now_ns() + LEAD_NS;
        let slow_from_ns = start_ns + self.args.before.as_nanos() as u64;
        self.receive(slow_from_ns);
        let publisher = self.publish(start_ns);
        while !publisher.is_finished() {
            self.look(child.as_deref_mut(), progress).await?;
        }
        let published = publisher.await.expect("the publisher does not panic")?;
        let messages = published.tickets.len() as u64;
        let (all_normal, all_slow) = (messages * self.normal.len() as u64, messages * self.slow.len() as u64);
        let backlog = all_slow.saturating_sub(self.slow_got.load(Ordering::Relaxed));
        self.is_over.send_replace(true);

        let begun = Instant::now();
        let (mut got, mut last_at) = ((0, 0), begun);
        let is_draining = loop {
            let now = (self.normal_got.load(Ordering::Relaxed), self.slow_got.load(Ordering::Relaxed));
            if now != got {
                (got, last_at) = (now, Instant::now());
            }
            if got.0 >= all_normal && got.1 >= all_slow || last_at.elapsed() > IDLE_LIMIT {
                break false;
            }
            if begun.elapsed() > self.args.drain {
                break true;
            }
            self.look(child.as_deref_mut(), progress).await?;
        };
        let drain = last_at - begun;
        // Time in which late copies are still seen.
        tokio::time::sleep(GRACE).await;
        Ok(Shown { slow_from_ns, published, backlog, drain, is_draining })
    }

    /// Starts all receivers.
    fn receive(&mut self, slow_from_ns: u64) {
        let (clock, run, messages) = (self.clock, self.run, self.size.messages(self.args));
        let share = self.args.slow_reads;
        let throttle = Throttle {
            from_ns: slow_from_ns,
            each: (share > 0.0).then(|| Duration::from_nanos((self.size.interval_ns() / share) as u64)),
            is_over: self.is_over.subscribe(),
        };
        for receiver in &mut self.normal {
            receiver.receive(clock, run, messages, None, Arc::clone(&self.normal_got));
        }
        for receiver in &mut self.slow {
            receiver.receive(clock, run, messages, Some(throttle.clone()), Arc::clone(&self.slow_got));
        }
    }

    fn publish(&self, start_ns: u64) -> JoinHandle<Result<Published, LoadgenError>> {
        let publisher = Publisher {
            client: self.publisher.clone(),
            topic: self.topic.clone(),
            clock: self.clock,
            run: self.run,
            start_ns,
            interval_ns: self.size.interval_ns(),
            messages: self.size.messages(self.args),
            bytes: self.size.bytes,
            is_stopped: Arc::clone(&self.stop.0),
            runtime: Handle::current(),
        };
        tokio::task::spawn_blocking(move || publisher.publish())
    }

    /// Waits for one tick, then checks that broker and receivers are alive.
    async fn look(&self, child: Option<&mut ChildBroker>, progress: &mut Progress) -> Result<(), LoadgenError> {
        tokio::time::sleep(TICK).await;
        if let Some(child) = child {
            child.check_alive()?;
        }
        progress.show(|| {
            let each = |got: &AtomicU64, of: usize| got.load(Ordering::Relaxed) / (of.max(1) as u64);
            let (normal, slow) = (each(&self.normal_got, self.normal.len()), each(&self.slow_got, self.slow.len()));
            let messages = self.size.messages(self.args);
            format!("{}: of {messages} messages a normal receiver has {normal}, a slow one {slow}", self.size)
        });
        match self.normal.iter().chain(&self.slow).find(|receiver| receiver.has_ended()) {
            Some(receiver) => Err(LoadgenError::lost(receiver.id(), "the broker has closed it")),
            None => Ok(()),
        }
    }

    async fn end(self, shown: Shown) -> Record {
        let Shown { slow_from_ns, published, backlog, drain, is_draining } = shown;
        let Published { tickets, made_ns, lateness_ns } = published;
        let published = tickets.len() as u64;
        let (refused, unacknowledged) = outcomes(tickets).await;
        let (mut normal, mut slow) = (Vec::new(), Vec::new());
        for receiver in self.normal {
            normal.push(receiver.end().await);
        }
        for receiver in self.slow {
            slow.push(receiver.end().await);
        }
        let _ = self.publisher.disconnect().await;
        Record {
            made_ns,
            slow_from_ns,
            normal,
            slow,
            said: self.spooling.end().await,
            backlog,
            drain,
            is_draining,
            published,
            refused,
            unacknowledged,
            lateness_ns,
        }
    }
}

/// Numbers of refused messages and of unanswered ones.
async fn outcomes(tickets: Vec<PublishTicket>) -> (u64, u64) {
    let deadline = tokio::time::Instant::now() + ANSWER_LIMIT;
    let (mut refused, mut unacknowledged) = (0, 0);
    for ticket in tickets {
        match tokio::time::timeout_at(deadline, ticket).await {
            Ok(Ok(reason)) => refused += u64::from(reason.is_error()),
            Ok(Err(_)) | Err(_) => unacknowledged += 1,
        }
    }
    (refused, unacknowledged)
}

/// Time from the start of the receivers to the first message.
const LEAD_NS: u64 = 300_000_000;

/// Interval between two checks of a run.
const TICK: Duration = Duration::from_millis(20);

/// If no receiver gets a message for this time, the rest is lost.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

const GRACE: Duration = Duration::from_millis(200);

/// Time limit for the last acknowledgements after the last arrival.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
