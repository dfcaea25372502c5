//! Cost of a message inside the broker: its own connection tasks on one thread, over in-memory streams.
//!
//! It includes decoding, session, routing, queues, encoding, batched writes and tokio's scheduler. It excludes system
//! calls and interaction between threads.
//!
//! ```text
//! cargo bench -p tenbin-broker --bench hot_path                  # nanoseconds per delivery, all cases
//! cargo bench -p tenbin-broker --bench hot_path -- --list        # cases, with the deliveries per round of each
//! cargo bench -p tenbin-broker --bench hot_path -- CASE ROUNDS   # for counting instructions
//! ```
//!
//! `.ci/instructions` counts the instructions of two runs of different length with callgrind. The difference is the
//! cost of messages alone, in steady state. It includes the clients' side, which is always the same: a copy in, a
//! counter out, and above QoS 0 an answer to each packet.
//!
//! The bench does not depend on the time of day or the machine's speed, except that the balancer reads a clock and hash
//! maps have random keys. Counts of two runs differ by less than 1 %.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

mod client;
mod stage;

use std::time::{Duration, Instant};

use stage::Stage;
use tenbin_codec::QoS;

/// Publishers, receivers and messages of one round.
struct Case {
    name: &'static str,
    publishers: usize,
    subscribers: usize,
    /// Whether the subscribers form a share group, with the default policy.
    is_shared: bool,
    qos: QoS,
    /// Messages in one read of a publisher: many under load, one otherwise.
    batch: u16,
}

const CASES: [Case; 8] = [
    Case { name: "one_to_one", publishers: 1, subscribers: 1, is_shared: false, qos: QoS::AtMostOnce, batch: 64 },
    Case { name: "one_to_one_single", publishers: 1, subscribers: 1, is_shared: false, qos: QoS::AtMostOnce, batch: 1 },
    Case { name: "shared", publishers: 10, subscribers: 10, is_shared: true, qos: QoS::AtMostOnce, batch: 64 },
    Case { name: "shared_single", publishers: 10, subscribers: 10, is_shared: true, qos: QoS::AtMostOnce, batch: 1 },
    Case { name: "shared_qos_1", publishers: 10, subscribers: 10, is_shared: true, qos: QoS::AtLeastOnce, batch: 64 },
    Case { name: "shared_qos_2", publishers: 10, subscribers: 10, is_shared: true, qos: QoS::ExactlyOnce, batch: 64 },
    Case { name: "fan_out", publishers: 1, subscribers: 50, is_shared: false, qos: QoS::AtMostOnce, batch: 16 },
    Case { name: "fan_in", publishers: 50, subscribers: 1, is_shared: false, qos: QoS::AtMostOnce, batch: 16 },
];

impl Case {
    fn messages(&self) -> u64 {
        self.publishers as u64 * u64::from(self.batch)
    }

    fn deliveries(&self) -> u64 {
        self.messages() * if self.is_shared { 1 } else { self.subscribers as u64 }
    }
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => CASES.iter().for_each(time),
        ["--list"] => CASES.iter().for_each(|case| println!("{} {}", case.name, case.deliveries())),
        [name, rounds] => {
            let case = CASES.iter().find(|case| case.name == name).expect("a case of --list");
            Stage::of(case).play(rounds.parse().expect("a number of rounds"));
        }
        _ => panic!("want nothing, --list, or CASE ROUNDS"),
    }
}

/// Prints the median and the best of many slices. The best is more reliable if other programs use the processors.
fn time(case: &Case) {
    let mut stage = Stage::of(case);
    let mut rounds = 1;
    let slice = |stage: &mut Stage, rounds| {
        let begun = Instant::now();
        stage.play(rounds);
        begun.elapsed()
    };
    while slice(&mut stage, rounds) < SLICE {
        rounds *= 2;
    }
    let deliveries = f64::from(rounds) * case.deliveries() as f64;
    let mut slices: Vec<_> = (0..SLICES).map(|_| slice(&mut stage, rounds).as_nanos() as f64 / deliveries).collect();
    slices.sort_by(f64::total_cmp);
    let (best, median) = (slices[0], slices[SLICES / 2]);
    println!("{:<20}{best:>10.1} ns a delivery at best, {median:>10.1} in the median", case.name);
}

const SLICE: Duration = Duration::from_millis(50);
const SLICES: usize = 21;
