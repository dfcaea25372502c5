//! Learns the limits of workers with unknown numbers of threads, at full load, in virtual time.

#![cfg(not(loom))]

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque, sync::Arc};

use tenbin_balancer::{Acknowledged, Dispatch, Group, MemberId, MemberLoad, Nanos, Policy, Rng, Service};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Mean time for a message; the work is exponential.
const WORK_NS: f64 = 50e6;
/// Messages that wait at most. Later ones are lost, so that the load stays at the group's capacity.
const WAITING_MOST: usize = 400;
const THREADS: [usize; 8] = [1, 1, 1, 1, 4, 4, 8, 16];

struct Worker {
    load: Arc<MemberLoad>,
    threads: usize,
    busy: usize,
    queue: VecDeque<u64>,
}

struct World {
    group: Group<usize>,
    workers: Vec<Worker>,
    waiting: usize,
    /// Ends of work: when, sent when, by which worker.
    ends: BinaryHeap<Reverse<(u64, u64, usize)>>,
    next_message: u64,
    rng: Rng,
}

impl World {
    fn new(threads: &[usize]) -> Self {
        let group = Group::new(Policy::Adaptive);
        let join = |(index, &threads)| {
            let load = Arc::new(MemberLoad::new(Nanos(0)));
            group.join(MemberId(index as u64), Arc::clone(&load), 1, index, Nanos(0));
            Worker { load, threads, busy: 0, queue: VecDeque::new() }
        };
        let workers = threads.iter().enumerate().map(join).collect();
        Self { group, workers, waiting: 0, ends: BinaryHeap::new(), next_message: 0, rng: Rng::new(5) }
    }

    fn exponential(&mut self, mean_ns: f64) -> u64 {
        let uniform = ((self.rng.next_u64() >> 34) as f64 + 0.5) / f64::from(1 << 30);
        (-uniform.ln() * mean_ns) as u64
    }

    /// Messages that the workers can finish in a second.
    fn capacity(&self) -> f64 {
        self.workers.iter().map(|worker| worker.threads).sum::<usize>() as f64 * 1e9 / WORK_NS
    }

    /// Runs until `until`, with as many messages as the workers can finish; returns how many they finished.
    fn run(&mut self, until: u64) -> u64 {
        let interval_ns = 1e9 / self.capacity();
        let mut finished = 0;
        loop {
            let end = self.ends.peek().map_or(u64::MAX, |&Reverse((at, ..))| at);
            let now = end.min(self.next_message);
            if now >= until {
                return finished;
            }
            if now == end {
                let Some(Reverse((_, sent_at, index))) = self.ends.pop() else { return finished };
                finished += 1;
                self.workers[index].busy -= 1;
                self.workers[index].load.acknowledged(&Acknowledged::one(Nanos(sent_at), 100, Nanos(now)));
                self.begin(index, now);
            } else {
                self.next_message = now + self.exponential(interval_ns);
                self.waiting = (self.waiting + 1).min(WAITING_MOST);
            }
            self.give(now);
        }
    }

    /// Gives messages that wait to workers, as far as they can begin with them.
    fn give(&mut self, now: u64) {
        while self.waiting > 0 {
            let dispatch = Dispatch { at: Nanos(now), bytes: 100, is_acknowledged: true, ..Dispatch::default() };
            let members = self.group.members();
            let Some(member) = members.pick_late(&dispatch, self.waiting - 1, &mut self.rng) else { return };
            let index = *member.value();
            drop(members);
            self.waiting -= 1;
            self.workers[index].queue.push_back(now);
            self.begin(index, now);
        }
    }

    fn begin(&mut self, index: usize, now: u64) {
        while self.workers[index].busy < self.workers[index].threads
            && let Some(sent_at) = self.workers[index].queue.pop_front()
        {
            self.workers[index].busy += 1;
            let end = now + self.exponential(WORK_NS);
            self.ends.push(Reverse((end, sent_at, index)));
        }
    }

    fn limits(&self) -> Vec<f64> {
        let limit = |worker: &Worker| worker.load.snapshot().outstanding_maximum.unwrap_or(1_000) as f64;
        self.workers.iter().map(limit).collect()
    }
}

#[test]
fn group_reaches_its_capacity_and_keeps_it() {
    let mut world = World::new(&THREADS);
    let capacity = world.capacity();
    world.run(10 * SECOND);
    let mut limits = vec![Vec::new(); THREADS.len()];
    for minute in 0..10 {
        let from = 10 * SECOND + minute * 60 * SECOND;
        for second in 1..=60 {
            let finished = world.run(from + second * SECOND) as f64;
            // Arrivals of one second deviate by 2.6 %.
            assert!(finished >= 0.8 * capacity, "minute {minute}, second {second}: {finished} of {capacity}");
            if minute == 9 {
                limits.iter_mut().zip(world.limits()).for_each(|(limits, limit)| limits.push(limit));
            }
        }
        let finished = world.run(from + 60 * SECOND) as f64;
        assert!(finished <= 1.0, "the minute is over");
    }
    for (threads, limits) in THREADS.iter().zip(&limits) {
        let mean = limits.iter().sum::<f64>() / limits.len() as f64;
        let variance = limits.iter().map(|limit| (limit - mean).powi(2)).sum::<f64>() / limits.len() as f64;
        let variation = variance.sqrt() / mean;
        assert!(variation <= 0.2, "{threads} threads: {variation:.2}, {limits:?}");
        let (least, most) = if *threads == 1 { (1, 1) } else { (threads / 2, 5 * threads) };
        assert!((least as f64..=most as f64).contains(&mean), "{threads} threads: {mean}");
    }
    let services: Vec<_> = world.workers.iter().map(|worker| worker.load.snapshot().lesson.service).collect();
    assert!(services[..4].iter().all(|service| *service != Service::Parallel), "{services:?}");
    assert_eq!(services[4..], [Service::Parallel; 4]);
}

#[test]
fn group_reaches_nine_tenths_of_its_capacity_within_ten_seconds() {
    let mut world = World::new(&THREADS);
    let capacity = world.capacity();
    let by_second: Vec<_> = (1..=20).map(|second| world.run(second * SECOND) as f64 / capacity).collect();
    let ten = |from: usize| by_second[from..from + 10].iter().sum::<f64>() / 10.0;
    assert!(ten(10) >= 0.97, "{by_second:?}");
    assert!(by_second[5..10].iter().all(|part| *part >= 0.9), "{by_second:?}");
}

#[test]
fn worker_that_loses_threads_is_followed_within_five_seconds() {
    let mut world = World::new(&THREADS);
    world.run(60 * SECOND);
    let before = world.limits()[7];
    world.workers[7].threads = 8;
    world.run(65 * SECOND);
    let after = world.limits()[7];
    assert!(after <= 0.8 * before, "{before} → {after}");
    let outstanding = world.workers[7].load.snapshot().outstanding_messages as f64;
    assert!(outstanding <= 2.0 * after, "{outstanding} messages, limit {after}");
}
