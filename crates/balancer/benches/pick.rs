//! What a pick costs, by policy, size of the group and number of threads that pick from the one group.
//!
//! The times printed are those of one pick (scan, booking, and the look at the group's snapshot before it) *per
//! thread*: with two threads, twice as many messages are spread in that time. Every member reports and is ready,
//! every second one acknowledges, and time goes on by 1 µs per pick. `snapshot` is the look at the snapshot alone, which a caller can make once
//! for a batch.

#![allow(missing_docs, reason = "the macros of criterion make undocumented functions")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::{
    hint::black_box,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tenbin_balancer::{Acknowledged, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng};

const SIZES: [u64; 6] = [3, 16, 64, 256, 1000, 10_000];
const START: Nanos = Nanos(1_000_000_000);

fn group_of(policy: Policy, len: u64) -> Group<u64> {
    let group = Group::new(policy);
    for id in 0..len {
        let load = Arc::new(MemberLoad::new(Nanos(id)));
        let report = LoadReport {
            messages_in_queue: id * 7 % 5,
            processing_time: Duration::from_micros(20 + id * 13 % 17),
            draining: false,
        };
        load.report(&report, START);
        if id % 2 == 0 {
            // Known by its acknowledgements; the others by their reports.
            load.acknowledged(&Acknowledged::one(Nanos(START.0 - 30_000), 100, START));
        }
        group.join(MemberId(id), load, 1, id, Nanos(id));
    }
    group
}

fn at(now: Nanos) -> Dispatch {
    // Many publishers and topics, as if hashed.
    let (publisher, topic) = (now.0.wrapping_mul(0x9E37_79B9_7F4A_7C15), now.0.wrapping_mul(0xBF58_476D_1CE4_E5B9));
    Dispatch { at: now, bytes: 100, publisher, topic, ..Dispatch::default() }
}

/// The time for `count` picks in each of `threads` threads, from the first start to the last end.
fn time_picks(group: &Group<u64>, threads: u64, count: u64) -> Duration {
    let barrier = Barrier::new(threads as usize);
    let work = |seed| {
        let mut rng = Rng::new(seed);
        barrier.wait();
        let start = Instant::now();
        for step in 0..count {
            let members = group.members();
            black_box(members.pick(&at(Nanos(START.0 + step * 1_000)), &mut rng).map(|member| *member.value()));
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
                    bencher.iter_custom(|count| time_picks(&group, threads, count));
                });
            }
            benches.finish();
        }
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
