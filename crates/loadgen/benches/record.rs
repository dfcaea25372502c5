//! Processor time of a load tester's thread for recording one arrival, by pattern of arrivals.
//!
//! The printed times cover one arrival, and writing its stamp, which a run does elsewhere. A second of the run has a
//! million arrivals with latencies from 100 to 1100 µs; closing it is part of the time.

#![allow(missing_docs, reason = "the macros of criterion make undocumented functions")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use tenbin_loadgen::run::{Audience, Broker, Layout, Plan, Publishers, Recorder, Stamp};

const START_NS: u64 = 1_800_000_000_000_000_000;

/// A plan of `count` subscribers to `filter`, and `publishers` publishers with one topic each.
fn plan(publishers: u32, count: u32, filter: &str, share: Option<&str>) -> Plan {
    let publishers = Publishers { payload: 100, ..Publishers::new(publishers, "t/{publisher}") };
    let audience = Audience { share: share.map(Into::into), ..Audience::new("all", count, filter) };
    Plan { threads: 1, ..Plan::new(7, vec![Broker::new("a", "localhost", 1883)], publishers, vec![audience]) }
}

/// The n-th arrival: receiver, stream and sequence number.
type Arrivals = fn(u32) -> (u32, u32, u32);

fn bench_arrivals(criterion: &mut Criterion) {
    let with_ticks = Plan { ticks: true, ..plan(1, 1, "#", None) };
    let cases: [(&str, Plan, Arrivals); 7] = [
        ("in order, 1 receiver", plan(1, 1, "#", None), |n| (0, 0, n)),
        ("in order, with ticks", with_ticks, |n| (0, 0, n)),
        ("every 1000th lost", plan(1, 1, "#", None), |n| (0, 0, n + n / 999)),
        ("pairs in reverse", plan(1, 1, "#", None), |n| (0, 0, n ^ 1)),
        ("share group of 3", plan(1, 3, "#", Some("g")), |n| (n % 3, 0, n)),
        ("8 streams to 8 receivers", plan(8, 8, "#", None), |n| (n % 8, n / 8 % 8, n / 64)),
        ("1000 receivers of their own", plan(1000, 1000, "t/{subscriber}", None), |n| (n % 1000, n % 1000, n / 1000)),
    ];
    let mut group = criterion.benchmark_group("arrived");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(2));
    for (name, plan, arrivals) in cases {
        let layout = Arc::new(Layout::of(&plan).expect("the plan is legal"));
        let mut recorder = Recorder::new(layout, &plan, START_NS);
        let mut payload = vec![0; plan.publishers.payload as usize];
        let mut n = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|count| {
                let before = processor_time();
                for _ in 0..count {
                    let (receiver, stream, sequence) = arrivals(n);
                    let now_ns = START_NS + u64::from(n) * 1_000;
                    let latency_ns = 100_000 + u64::from(n.wrapping_mul(0x9E37_79B9) >> 12);
                    Stamp { due_ns: now_ns - latency_ns, tag: 7, stream, sequence, late_us: 5 }.encode(&mut payload);
                    recorder.arrived(receiver, black_box(&payload), false, now_ns);
                    n += 1;
                }
                processor_time() - before
            });
        });
        black_box(recorder.into_part());
    }
    group.finish();
}

/// Processor time of this thread, which other load on the machine does not lengthen.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

criterion_group!(benches, bench_arrivals);
criterion_main!(benches);
