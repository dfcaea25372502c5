//! Simulates `adaptive` message by message, with workers that lie, that leave, or of unknown speed.

#![cfg(not(loom))]

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use tenbin_balancer::{Acknowledged, Dispatch, Group, LoadReport, Member, MemberId, MemberLoad, Nanos, Policy, Rng};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const REFUSER_NS: u64 = 10 * MS;

/// How a worker treats messages.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Finishes each message after this number of ns of work, one at a time, and then acknowledges it.
    Honest(u64),
    /// Finishes none; reports an empty queue and a microsecond per message. Acknowledges the first few at once.
    Swallow { acknowledges: usize },
    /// Finishes the first few, each after [`REFUSER_NS`] of work, and refuses the others at once. Reports an empty
    /// queue and that processing time.
    Refuse { finishes: usize },
}

struct World {
    group: Group<usize>,
    workers: Vec<(Work, Arc<MemberLoad>)>,
    /// When each worker will have finished its messages.
    free_at: Vec<u64>,
    taken: Vec<usize>,
    waited_ns: u64,
    rng: Rng,
}

impl World {
    fn new(works: &[Work]) -> Self {
        let group = Group::new(Policy::Adaptive);
        let join = |(index, &work)| {
            let load = Arc::new(MemberLoad::new(Nanos(0)));
            group.join(MemberId(index as u64), Arc::clone(&load), 1, index, Nanos(0));
            (work, load)
        };
        let workers = works.iter().enumerate().map(join).collect();
        let (free_at, taken) = (vec![0; works.len()], vec![0; works.len()]);
        Self { group, workers, free_at, taken, waited_ns: 0, rng: Rng::new(11) }
    }

    /// Sends `messages` at random times, `interval_ns` apart on average, to workers that report each second.
    fn run(&mut self, messages: usize, interval_ns: u64) {
        let mut acks: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
        let mut reported: Vec<(u64, u64)> = vec![(0, 0); self.workers.len()];
        let mut next_report = vec![SECOND; self.workers.len()];
        let mut now = 0;
        for _ in 0..messages {
            now += self.rng.next_u64() % (2 * interval_ns);
            while let Some(&Reverse((at, sent_at, worker))) = acks.peek()
                && at <= now
            {
                acks.pop();
                let (work, load): &(Work, Arc<MemberLoad>) = &self.workers[worker];
                load.acknowledged(&Acknowledged::one(Nanos(sent_at), 100, Nanos(at)));
                if let Work::Honest(service_ns) = *work {
                    reported[worker].0 += 1;
                    reported[worker].1 += service_ns;
                }
            }
            for (worker, (work, load)) in self.workers.iter().enumerate() {
                if next_report[worker] > now {
                    continue;
                }
                next_report[worker] = now + SECOND;
                let (finished, total_ns) = std::mem::take(&mut reported[worker]);
                let report = match *work {
                    Work::Honest(service_ns) => LoadReport {
                        messages_in_queue: self.free_at[worker].saturating_sub(now) / service_ns,
                        processing_time: Duration::from_nanos(total_ns.checked_div(finished).unwrap_or(0)),
                        draining: false,
                    },
                    Work::Refuse { .. } => {
                        LoadReport { processing_time: Duration::from_nanos(REFUSER_NS), ..LoadReport::default() }
                    }
                    Work::Swallow { .. } => {
                        LoadReport { processing_time: Duration::from_micros(1), ..LoadReport::default() }
                    }
                };
                load.report(&report, Nanos(now));
            }
            let worker = self.pick(now);
            match self.workers[worker].0 {
                Work::Honest(service_ns) => {
                    let start = self.free_at[worker].max(now);
                    self.waited_ns += start - now;
                    self.free_at[worker] = start + service_ns;
                    acks.push(Reverse((start + service_ns, now, worker)));
                }
                Work::Swallow { acknowledges } if self.taken[worker] <= acknowledges => {
                    acks.push(Reverse((now, now, worker)));
                }
                Work::Swallow { .. } => {}
                Work::Refuse { finishes } if self.taken[worker] <= finishes => {
                    let start = self.free_at[worker].max(now);
                    self.free_at[worker] = start + REFUSER_NS;
                    acks.push(Reverse((start + REFUSER_NS, now, worker)));
                }
                Work::Refuse { .. } => self.workers[worker].1.refused(1, 100, Nanos(now)),
            }
        }
    }

    fn pick(&mut self, now: u64) -> usize {
        let dispatch = Dispatch { at: Nanos(now), bytes: 100, is_acknowledged: true, ..Dispatch::default() };
        let members = self.group.members();
        let worker = members.pick(&dispatch, &mut self.rng).map(Member::value).copied().expect("there are members");
        self.taken[worker] += 1;
        worker
    }
}

/// Returns the share of worker 0 among `honest` others, as a multiple of the fair one. The others alone could handle
/// 1/`load` times the messages.
fn share_of(work: Work, honest: usize, load: f64) -> f64 {
    const MESSAGES: usize = 5_000;
    let mut works = vec![work];
    // The others have different speeds.
    works.extend((0..honest).map(|index| Work::Honest((10 + 10 * (index as u64 % 3)) * MS)));
    let per_ns: f64 = (0..honest).map(|index| 1.0 / ((10 + 10 * (index % 3)) as f64 * MS as f64)).sum();
    let mut world = World::new(&works);
    world.run(MESSAGES, (1.0 / (per_ns * load)) as u64);
    world.taken[0] as f64 * works.len() as f64 / MESSAGES as f64
}

#[test]
fn worker_that_finishes_nothing_attracts_no_load() {
    for honest in [2, 3, 10] {
        for load in [0.2, 0.7, 0.95, 1.1] {
            for acknowledges in [0, 1, 20] {
                let share = share_of(Work::Swallow { acknowledges }, honest, load);
                assert!(share <= 2.0, "{honest} honest, load {load}, {acknowledges} acknowledged: {share:.2} × fair");
            }
        }
    }
}

/// Compared with workers of the speed that it has shown, or claims.
#[test]
fn worker_that_refuses_everything_gets_no_extra_load() {
    for honest in [2, 3, 10] {
        for load in [0.2, 0.7, 0.95, 1.1] {
            let fair = share_of(Work::Honest(REFUSER_NS), honest, load);
            for finishes in [0, 1, 20] {
                let share = share_of(Work::Refuse { finishes }, honest, load);
                assert!(
                    share <= 1.1 * fair,
                    "{honest} honest, load {load}, {finishes} finished: {share:.2} × fair, {fair:.2} if it worked"
                );
            }
        }
    }
}

/// Under light load other workers are always free. A wrong estimate must not keep a worker from showing its speed.
#[test]
fn delayed_acknowledgement_does_not_starve_a_worker() {
    for acknowledged_before in [0, 1, 5, 100] {
        let (group, loads) = group_of(3);
        let acknowledge =
            |load: &MemberLoad, sent_at, at| load.acknowledged(&Acknowledged::one(Nanos(sent_at), 100, Nanos(at)));
        let mut taken = [0_usize; 3];
        // Send times of the delayed messages; all are acknowledged together at the end of the delay.
        let (mut held_up, mut is_over) = (Vec::new(), false);
        // One message each 25 ms, 5 ms of work each.
        for step in 0..8_000_u64 {
            let now = step * 25 * MS;
            if held_up.first().is_some_and(|&at| at + 2 * SECOND <= now) {
                let mut acknowledged = Acknowledged::new(Nanos(now));
                held_up.drain(..).for_each(|sent_at| acknowledged.add(Nanos(sent_at), 100));
                loads[0].acknowledged(&acknowledged);
                (taken, is_over) = ([0; 3], true);
            }
            let dispatch = Dispatch { at: Nanos(now), bytes: 100, is_acknowledged: true, ..Dispatch::default() };
            let worker = group.members().pick(&dispatch, &mut Rng::new(step)).map(Member::value).copied();
            let worker = worker.expect("there are members");
            taken[worker] += 1;
            if worker == 0 && taken[0] > acknowledged_before && !is_over {
                held_up.push(now);
            } else {
                acknowledge(&loads[worker], now, now + 5 * MS);
            }
        }
        assert!(is_over);
        let share = taken[0] as f64 / taken.iter().sum::<usize>() as f64;
        assert!(share > 0.2, "{acknowledged_before} acknowledged before: {taken:?}");
    }
}

#[test]
fn honest_worker_gets_its_share() {
    for honest in [2, 3, 10] {
        let share = share_of(Work::Honest(10 * MS), honest, 0.7);
        assert!(share > 1.0, "{honest} others, none faster: {share:.2} × fair");
    }
}

#[test]
fn acknowledgements_alone_keep_waiting_short() {
    // Round robin would let messages wait for seconds at the slow worker: 40 messages a second of 50 ms.
    let mut world = World::new(&[Work::Honest(10 * MS), Work::Honest(10 * MS), Work::Honest(50 * MS)]);
    world.run(3_000, 8_333_333);
    let mean_ms = world.waited_ns as f64 / 3_000.0 / MS as f64;
    assert!(mean_ms < 5.0, "{mean_ms} ms");
}

/// Returns the workers picked for `count` messages at one instant.
fn picks(group: &Group<usize>, at: u64, count: usize) -> Vec<usize> {
    let dispatch = Dispatch { at: Nanos(at), bytes: 100, ..Dispatch::default() };
    let mut rng = Rng::new(5);
    (0..count).filter_map(|_| group.members().pick(&dispatch, &mut rng).map(|member| *member.value())).collect()
}

fn group_of(len: usize) -> (Group<usize>, Vec<Arc<MemberLoad>>) {
    let group = Group::new(Policy::Adaptive);
    let loads: Vec<_> = (0..len).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
    for (index, load) in loads.iter().enumerate() {
        group.join(MemberId(index as u64), Arc::clone(load), 1, index, Nanos(0));
    }
    (group, loads)
}

#[test]
fn adaptive_without_evidence_is_round_robin() {
    for len in [1, 3, 64, 65, 200] {
        let (group, _) = group_of(len);
        let mut picked = Vec::new();
        // In batches at one instant, as from publishers.
        for batch in 0..30 {
            picked.extend(picks(&group, batch * MS, 7));
        }
        let expected: Vec<usize> = (0..picked.len()).map(|index| index % len).collect();
        assert_eq!(picked, expected, "{len} members");
    }
}

#[test]
fn draining_worker_gets_nothing_while_another_is_ready() {
    let (group, loads) = group_of(3);
    let report = |draining| LoadReport { messages_in_queue: 0, processing_time: Duration::from_millis(1), draining };
    loads[0].report(&report(true), Nanos(MS));
    for load in &loads[1..] {
        load.report(&LoadReport { messages_in_queue: 5_000, ..report(false) }, Nanos(MS));
    }
    assert!(!picks(&group, 2 * MS, 50).contains(&0));
    loads[0].report(&report(false), Nanos(3 * MS));
    assert!(picks(&group, 10 * MS, 5).contains(&0));
}

#[test]
fn a_full_socket_at_qos_0_counts_as_evidence() {
    let (group, loads) = group_of(3);
    // Worker 2's socket takes a message in 20 ms; the others' sockets take all messages.
    let mut taken = [0_usize; 3];
    let mut unsent = 0_u32;
    for now in (0..5_000 * MS).step_by(5 * MS as usize) {
        let worker = picks(&group, now, 1)[0];
        taken[worker] += 1;
        match worker {
            2 => unsent += 1,
            _ => loads[worker].written(1, 100, false, Nanos(now)),
        }
        if now % (20 * MS) == 0 {
            let written = unsent.min(1);
            unsent -= written;
            loads[2].written(written, 100 * u64::from(written), unsent > 0, Nanos(now));
        }
    }
    // A third of the 1,000 would be 333; worker 2 can handle 250.
    assert!((150..=275).contains(&taken[2]), "{taken:?}");
    assert!(taken[0].abs_diff(taken[1]) <= 50, "{taken:?}");
}

#[test]
fn assumed_speed_is_used_from_the_first_message() {
    let (group, loads) = group_of(2);
    loads[0].assume_speed(Duration::from_millis(10));
    loads[1].assume_speed(Duration::from_millis(40));
    let picked = picks(&group, MS, 50);
    let slow = picked.iter().filter(|&&worker| worker == 1).count();
    assert!((9..=11).contains(&slow), "{slow} of 50");
    assert_eq!(loads[1].snapshot().effective_processing_time, Duration::from_millis(40));
}

#[test]
fn garbage_reports_change_nothing() {
    let garbage: &[&[u8]] = &[
        br#"{"msgsInQueue":-5,"processingTimePerMsg":1}"#,
        br#"{"msgsInQueue":0,"processingTimePerMsg":-1}"#,
        br#"{"msgsInQueue":0,"processingTimePerMsg":NaN}"#,
        br#"{"msgsInQueue":0,"processingTimePerMsg":1e300}"#,
        br#"{"msgsInQueue":1e300,"processingTimePerMsg":1}"#,
        &[b' '; 1 << 20],
    ];
    for text in garbage {
        assert!(LoadReport::from_json(text).is_err(), "{}", text[..text.len().min(60)].escape_ascii());
    }
}

/// Three clients get few messages and acknowledge as soon as they read.
///
/// Mostly that takes less than a millisecond, sometimes longer, until the processor schedules the client.
#[test]
fn idle_unknown_members_get_as_many_as_known_ones() {
    for seed in 0..500 {
        let group = Group::new(Policy::Adaptive);
        let loads: Vec<_> = (0..3).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        for (id, load) in loads.iter().enumerate() {
            group.join(MemberId(id as u64), Arc::clone(load), 1, id, Nanos(0));
        }
        let mut rng = Rng::new(seed);
        let (mut now, mut taken, mut acks) = (SECOND, [0; 3], BinaryHeap::new());
        for _ in 0..300 {
            now += 5 * MS + rng.next_u64() % (20 * MS);
            while let Some(&Reverse((at, sent_at, worker))) = acks.peek()
                && at <= now
            {
                acks.pop();
                let load: &Arc<MemberLoad> = &loads[worker];
                load.acknowledged(&Acknowledged::one(Nanos(sent_at), 100, Nanos(at)));
            }
            let dispatch = Dispatch { at: Nanos(now), bytes: 100, is_acknowledged: true, ..Dispatch::default() };
            let members = group.members();
            let worker = *members.pick(&dispatch, &mut rng).expect("there are members").value();
            let is_held_up = rng.next_u64().is_multiple_of(10);
            let latency = 50_000 << (rng.next_u64() % if is_held_up { 10 } else { 5 });
            acks.push(Reverse((now + latency, now, worker)));
            taken[worker] += 1;
            if taken.iter().sum::<u32>() == 30 {
                assert!(taken.iter().all(|count| (8..=12).contains(count)), "seed {seed}: {taken:?}");
            }
        }
        assert!(taken.iter().all(|count| (80..=120).contains(count)), "seed {seed}: {taken:?}");
    }
}
