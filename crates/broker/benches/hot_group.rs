//! Throughput of one hot share group on one and on several threads: 1,000 members, 100 publishers, QoS 0.
//!
//! ```text
//! cargo bench -p tenbin-broker --bench hot_group                 # on one thread, and on one per processor
//! cargo bench -p tenbin-broker --bench hot_group -- --members 64 --publishers 16 --rounds 20 --threads 4
//! ```
//!
//! Each thread has its part of the publishers and members, like the broker's threads, but no sockets. A publisher's
//! messages go to members on all threads. The figure is messages per second that members have taken out of their
//! queues. Rounds with one and with several threads alternate; the ratio compares the medians of one run.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tenbin_broker::bench::{Drained, Publisher, Session, Subscriptions};
use tenbin_codec::{TopicFilter, TopicName};
use tenbin_session::Publication;

/// Messages of one publisher before the next publisher's turn, like those of one read.
const BURST: usize = 32;
/// Duration of a round.
const ROUND: Duration = Duration::from_millis(200);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number_after = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1)?.parse::<usize>().ok()
    };
    let processors = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
    let (members, publishers) =
        (number_after("--members").unwrap_or(1_000), number_after("--publishers").unwrap_or(100));
    let threads = number_after("--threads").unwrap_or(processors).clamp(1, members.min(publishers).max(1));
    let stage = Stage::build(members, publishers);
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..number_after("--rounds").unwrap_or(15) {
        alone.push(stage.round(1));
        together.push(stage.round(threads));
    }
    let (alone, together) = (median(alone), median(together));
    println!("members {}, publishers {}", stage.sessions.len(), stage.publishers);
    println!("  1 thread  {:>6.2} M messages/s, {:>4.0} ns of a thread each", alone / 1e6, 1e9 / alone);
    let each = 1e9 * threads as f64 / together;
    println!("{threads:>3} threads {:>6.2} M messages/s, {each:>4.0} ns of a thread each", together / 1e6);
    println!("{:.2} times one thread", together / alone);
}

struct Stage {
    subscriptions: Subscriptions,
    sessions: Vec<Session>,
    publishers: usize,
}

impl Stage {
    fn build(members: usize, publishers: usize) -> Self {
        let mut subscriptions = Subscriptions::new().expect("the default configuration is sound");
        let filter = TopicFilter::try_from("$share/hot/t").expect("a filter");
        let sessions = (0..members).map(|_| subscriptions.session()).collect::<Vec<_>>();
        for session in &sessions {
            session.attach();
            subscriptions.subscribe(session, &filter, Instant::now());
        }
        Self { subscriptions, sessions, publishers }
    }

    /// Runs a round and returns the messages per second.
    fn round(&self, threads: usize) -> f64 {
        let (taken, start) = (AtomicUsize::new(0), Barrier::new(threads + 1));
        // An almost equal part of publishers and members for each thread.
        let part = |count: usize, thread: usize| count * thread / threads..count * (thread + 1) / threads;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let sessions = &self.sessions[part(self.sessions.len(), thread)];
                let publishers = part(self.publishers, thread).map(|_| self.subscriptions.publisher());
                let publishers: Vec<Publisher> = publishers.collect();
                let (taken, start) = (&taken, &start);
                scope.spawn(move || {
                    start.wait();
                    taken.fetch_add(self.work(publishers, sessions), Relaxed);
                });
            }
            start.wait();
        });
        taken.load(Relaxed) as f64 / ROUND.as_secs_f64()
    }

    /// Publishes and takes alternately until the round ends; returns the number of taken messages.
    fn work(&self, mut publishers: Vec<Publisher>, sessions: &[Session]) -> usize {
        let publication = Publication::new(TopicName::try_from("t").expect("a name"), vec![0; 100].into());
        let (begun, mut taken, mut drained) = (Instant::now(), 0, Drained::default());
        // Visits as many members as messages were published.
        let mut next_session = sessions.iter().cycle();
        loop {
            for publisher in &mut publishers {
                let now = Instant::now();
                if now.duration_since(begun) >= ROUND {
                    return taken;
                }
                let mut batch = Subscriptions::batch();
                (0..BURST).for_each(|_| self.subscriptions.publish(publisher, &mut batch, &publication, now));
                self.subscriptions.flush(publisher, batch, now);
                for session in next_session.by_ref().take(BURST) {
                    taken += self.subscriptions.drain(session, &mut drained, now);
                }
            }
        }
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
