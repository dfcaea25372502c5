//! What a message costs on its way through the broker, without sockets: its own connection tasks, on one thread, over
//! streams that are memory. Decoding, session, routing, queues, encoding and the writes of a batch are in it, as tokio's
//! scheduler is; system calls are not, nor what threads do to each other.
//!
//! ```text
//! cargo bench -p tenbin-broker --bench hot_path                  # nanoseconds a delivery, all cases
//! cargo bench -p tenbin-broker --bench hot_path -- --list        # cases, and deliveries of a round of each
//! cargo bench -p tenbin-broker --bench hot_path -- CASE ROUNDS   # for somebody who counts instructions
//! ```
//!
//! `.ci/instructions` counts the instructions of two runs of different length with callgrind: what lies between them is
//! messages alone, in steady state. The clients' side is part of it and always the same: a copy in, a counter out, and above
//! QoS 0 an answer to each packet.
//!
//! Nothing in it depends on the time of day or on the speed of the machine, but that the balancer reads a clock and hash
//! maps have random keys: counts of two runs differ by less than a hundredth.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

mod client;
mod stage;

use std::time::{Duration, Instant};

use stage::Stage;
use tenbin_codec::QoS;

/// What is published in one round, and to whom.
struct Case {
    name: &'static str,
    publishers: usize,
    subscribers: usize,
    /// The subscribers are one share group, of the default policy.
    is_shared: bool,
    qos: QoS,
    /// Messages that one read of a publisher brings: many under load, one where there is little to do.
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
    // Cargo adds the first.
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

/// Prints the median and the best of many slices: where neighbours take processor time, the best is the better figure.
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
