//! The time of a pick by policy, size of the group and number of threads that pick from the one group.
//!
//! The printed times are those of one pick (scan, booking, and the load of the group's snapshot) *per thread*: with two
//! threads, twice as many messages are dispatched in that time. Every member reports and is ready, every second one
//! acknowledges, and time advances by 1 µs per pick. `snapshot` is the load of the snapshot alone, which a caller can
//! make once per batch.

#![allow(missing_docs, reason = "the macros of criterion make undocumented functions")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod subject;

use std::{
    hint::black_box,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use subject::{START, at_step, filled, group_of};
use tenbin_balancer::{Candidates, Chooser, Choosers, Dispatch, Group, Nanos, Policy, Rng, Rules};

const SIZES: [u64; 6] = [3, 16, 64, 256, 1000, 10_000];
/// Returns a message with one of 32 keys, at a pace that members can follow: each key stays with its member.
fn keyed(step: u64) -> Dispatch {
    let key = (step % 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Dispatch { at: Nanos(START.0 + step * 100_000), bytes: 100, key: Some(key), ..Dispatch::default() }
}

/// `least_inflight`, written as a chooser.
struct Fewest;

impl Chooser for Fewest {
    fn choose(&self, _: &Dispatch, candidates: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
        candidates.ready().min_by_key(|&index| (candidates.in_flight(index), candidates.turn(index)))
    }
}

/// Measures `count` picks in each of `threads` threads, from the first start to the last end.
fn time_picks(group: &Group<u64>, threads: u64, count: u64, dispatch: impl Fn(u64) -> Dispatch + Sync) -> Duration {
    let barrier = Barrier::new(threads as usize);
    let work = |seed| {
        let mut rng = Rng::new(seed);
        barrier.wait();
        let start = Instant::now();
        for step in 0..count {
            let members = group.members();
            black_box(members.pick(&dispatch(step), &mut rng).map(|member| *member.value()));
        }
        (start, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = if threads == 1 {
        vec![work(0)]
    } else {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
            workers.into_iter().map(|worker| worker.join().expect("a pick does not panic")).collect()
        })
    };
    let first = times.iter().map(|time| time.0).min().expect("at least one thread");
    let last = times.iter().map(|time| time.1).max().expect("at least one thread");
    last - first
}

fn bench(criterion: &mut Criterion) {
    for threads in [1, 2] {
        for policy in Policy::ALL {
            let mut benches = criterion.benchmark_group(format!("pick/{policy}/{threads}_threads"));
            for len in SIZES {
                benches.bench_function(BenchmarkId::from_parameter(len), |bencher| {
                    let group = group_of(policy, len);
                    bencher.iter_custom(|count| time_picks(&group, threads, count, at_step));
                });
            }
            benches.finish();
        }
        let mut benches = criterion.benchmark_group(format!("pick/own_least_inflight/{threads}_threads"));
        for len in SIZES {
            benches.bench_function(BenchmarkId::from_parameter(len), |bencher| {
                let mut choosers = Choosers::default();
                let policy = choosers.add("own", Fewest).expect("there is room");
                let group = filled(Group::with_choosers(policy, Arc::new(choosers)), len);
                bencher.iter_custom(|count| time_picks(&group, threads, count, at_step));
            });
        }
        benches.finish();
        let mut benches = criterion.benchmark_group(format!("pick/adaptive_by_key/{threads}_threads"));
        for len in SIZES {
            benches.bench_function(BenchmarkId::from_parameter(len), |bencher| {
                let group = group_of(
                    Rules {
                        policy: Policy::Adaptive,
                        is_ordered: true,
                        may_break_order: true,
                        shadow: None,
                        ..Rules::default()
                    },
                    len,
                );
                bencher.iter_custom(|count| time_picks(&group, threads, count, keyed));
            });
        }
        benches.finish();
    }
    let group = group_of(Policy::ThesisScore, 3);
    criterion.bench_function("snapshot", |bencher| bencher.iter(|| black_box(group.members()).len()));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = bench
}
criterion_main!(benches);
