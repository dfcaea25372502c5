//! The time of a pick by `adaptive`, on a machine that other programs slow down.
//!
//! If other programs take processor time, caches and clock rate, the same code may take twice as long a minute later. A
//! bench that measures one size after the other then compares minutes, not sizes. Here many short rounds go through all
//! sizes. Each measurement stands between two runs of a chain of arithmetic that always takes the same number of
//! cycles. The results are
//!
//! - the best round, in ns: the time of an undisturbed pick;
//! - the median, in ns: the time on this machine today;
//! - the median ratio to the chain beside it, in cycles, for comparisons with other days; and the same in ns by the
//!   chain's best time.
//!
//! `--picks` sets the number of consecutive picks of one size, by default 2,000. Then most of 10,000 members have left
//! the nearest caches before their next round, as with other work in between. With 50,000 they stay there, as in the
//! other bench.
//!
//! With two threads the time is that of one pick *per thread*: twice as many messages are dispatched in it.
//!
//! ```text
//! cargo bench -p tenbin-balancer --bench pick_ratio                    # 100 rounds: about ten seconds
//! cargo bench -p tenbin-balancer --bench pick_ratio -- --rounds 400 --picks 50000
//! cargo bench -p tenbin-balancer --bench pick_ratio --no-run           # then, with its path, instructions:
//! valgrind --tool=callgrind --toggle-collect='*picks_of_one_size*' PATH --count 64
//! ```

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

mod subject;

use std::{
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Instant,
};

use subject::{at_step, group_of};
use tenbin_balancer::{Group, Policy, Rng};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number_after = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1)?.parse::<u64>().ok()
    };
    match number_after("--count") {
        Some(len) => count(len),
        None => compare(number_after("--rounds").unwrap_or(100), number_after("--picks").unwrap_or(2_000)),
    }
}

/// Makes picks for an external instruction counter.
fn count(len: u64) {
    let group = group_of(Policy::Adaptive, len);
    // The first picks compute the group's figures and fill cold caches.
    picks_of_another_size(&group, 0..1_000);
    picks_of_one_size(&group, 1_000..1_000 + COUNTED);
    println!("{COUNTED} picks from {len} members: divide what is counted by that");
}

const COUNTED: u64 = 10_000;

#[inline(never)]
fn picks_of_one_size(group: &Group<u64>, steps: std::ops::Range<u64>) {
    picks(group, steps, 0);
}

#[inline(never)]
fn picks_of_another_size(group: &Group<u64>, steps: std::ops::Range<u64>) {
    picks(group, steps, 0);
}

#[inline(always)]
fn picks(group: &Group<u64>, steps: std::ops::Range<u64>, seed: u64) {
    let mut rng = Rng::new(seed);
    for step in steps {
        let members = group.members();
        black_box(members.pick(&at_step(step), &mut rng).map(|member| *member.value()));
    }
}

fn compare(rounds: u64, count: u64) {
    let groups = SIZES.map(|len| group_of(Policy::Adaptive, len));
    let subjects: Vec<_> = groups.iter().flat_map(|group| [(group, 1), (group, 2)]).collect();
    let mut found = vec![Found::default(); subjects.len()];
    let mut cycles_ns = Vec::new();
    // The first round warms up caches and branch predictors.
    for round in 0..=rounds {
        let mut before = cycle_ns();
        for (&(group, threads), found) in subjects.iter().zip(&mut found) {
            let first = (2 * round + threads - 1) * count;
            let steps = first..first + count;
            let ns = if threads == 1 { alone(group, steps) } else { together(group, steps) };
            let after = cycle_ns();
            if round > 0 {
                found.ns.push(ns);
                found.cycles.push(ns / ((before + after) / 2.0));
                cycles_ns.push(after);
            }
            before = after;
        }
    }
    let best_cycle_ns = least(&cycles_ns);
    println!("a cycle takes {best_cycle_ns:.3} ns at best, {:.3} in the median; {rounds} rounds", median(&cycles_ns));
    println!("members  threads   best ns   median ns   median cycles   these at best, ns   per thread of one");
    for (index, &(group, threads)) in subjects.iter().enumerate() {
        let len = group.len();
        let Found { ns, cycles } = &found[index];
        let cycles = median(cycles);
        print!("{len:>7}{threads:>9}{:>10.0}{:>12.0}{cycles:>16.0}", least(ns), median(ns));
        print!("{:>20.0}", cycles * best_cycle_ns);
        let ratio = |of_one: &[f64]| {
            let ratios: Vec<_> = ns.iter().zip(of_one).map(|(two, one)| two / one).collect();
            median(&ratios)
        };
        println!("{}", if threads == 1 { String::new() } else { format!("{:>20.2}", ratio(&found[index - 1].ns)) });
    }
}

const SIZES: [u64; 5] = [3, 16, 64, 1_000, 10_000];

/// Measurements of one size and number of threads, per pick, round by round.
#[derive(Clone, Default)]
struct Found {
    ns: Vec<f64>,
    cycles: Vec<f64>,
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Measures the present duration of a cycle, by a chain of dependent steps. Each is a multiplication and a rotation:
/// four cycles on today's processors.
#[inline(never)]
fn cycle_ns() -> f64 {
    let start = Instant::now();
    let mut value = black_box(1_u64);
    for _ in 0..CHAIN {
        value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }
    black_box(value);
    start.elapsed().as_nanos() as f64 / (CHAIN * 4) as f64
}

const CHAIN: u64 = 20_000;

/// Measures one thread.
fn alone(group: &Group<u64>, steps: std::ops::Range<u64>) -> f64 {
    let (start, count) = (Instant::now(), steps.end - steps.start);
    picks(group, steps, 0);
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Measures two concurrent threads, from the first start to the last end.
fn together(group: &Group<u64>, steps: std::ops::Range<u64>) -> f64 {
    let waiting = AtomicU64::new(2);
    let work = |seed| {
        waiting.fetch_sub(1, SeqCst);
        // Not a `Barrier`: one thread could finish before the other wakes up.
        while waiting.load(SeqCst) > 0 {
            spin_loop();
        }
        let start = Instant::now();
        picks(group, steps.clone(), seed);
        (start, Instant::now())
    };
    let [one, other] = thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        [work(0), other.join().expect("a pick does not panic")]
    });
    (one.1.max(other.1) - one.0.min(other.0)).as_nanos() as f64 / (steps.end - steps.start) as f64
}
