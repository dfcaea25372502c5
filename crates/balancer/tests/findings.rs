//! Members that reject messages at once, or acknowledge none, beside working ones, with every policy.

#![cfg(not(loom))]

use std::{collections::VecDeque, sync::Arc};

use tenbin_balancer::{Acknowledged, Dispatch, Group, Member, MemberId, MemberLoad, Nanos, Policy, Rng};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Time of a message at a working member.
const WORK: u64 = 5 * MS;

/// Members, the last of which rejects messages at once while it is broken.
struct World {
    group: Group<usize>,
    loads: Vec<Arc<MemberLoad>>,
    is_broken: bool,
    /// Messages that working members will acknowledge: time, time of sending, member.
    at_work: VecDeque<(u64, u64, usize)>,
    taken: Vec<usize>,
    now: u64,
    rng: Rng,
}

impl World {
    fn new(policy: Policy, members: usize) -> Self {
        let group = Group::new(policy);
        let loads: Vec<_> = (0..members).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        for (index, load) in loads.iter().enumerate() {
            group.join(MemberId(index as u64), Arc::clone(load), 1, index, Nanos(0));
        }
        let (at_work, taken) = (VecDeque::new(), vec![0; members]);
        Self { group, loads, is_broken: true, at_work, taken, now: SECOND, rng: Rng::new(3) }
    }

    /// Sends messages for `seconds`, one each `interval` ns, and returns the part that the last member got.
    fn run(&mut self, seconds: u64, interval: u64) -> f64 {
        self.taken.fill(0);
        let end = self.now + seconds * SECOND;
        while self.now < end {
            self.now += interval;
            while let Some((at, sent_at, worker)) = self.at_work.pop_front_if(|(at, ..)| *at <= self.now) {
                self.loads[worker].acknowledged(&Acknowledged::one(Nanos(sent_at), 100, Nanos(at)));
            }
            let (publisher, topic) = (self.rng.next_u64(), self.rng.next_u64());
            let dispatch =
                Dispatch { at: Nanos(self.now), bytes: 100, is_acknowledged: true, publisher, topic, key: None };
            let members = self.group.members();
            let chosen = members.pick(&dispatch, &mut self.rng).map(Member::value).copied().expect("it has members");
            self.taken[chosen] += 1;
            if self.is_broken && chosen == self.loads.len() - 1 {
                self.loads[chosen].refused(1, 100, Nanos(self.now));
            } else {
                self.at_work.push_back((self.now + WORK, self.now, chosen));
            }
        }
        let all: usize = self.taken.iter().sum();
        self.taken[self.loads.len() - 1] as f64 / all as f64
    }
}

#[test]
fn member_that_rejects_at_once_gets_few_messages_at_any_rate() {
    for policy in Policy::ALL {
        for (interval, seconds) in [(MS, 30), (20 * MS, 60), (500 * MS, 900)] {
            let mut world = World::new(policy, 4);
            let part = world.run(seconds, interval);
            assert!(part <= 0.05, "{policy}, every {} ms: {part:.3}", interval / MS);
        }
    }
}

#[test]
fn mended_member_gets_its_part_again() {
    // Under `sticky` the publishers stay where they are.
    for policy in Policy::ALL.into_iter().filter(|&policy| policy != Policy::Sticky) {
        let mut world = World::new(policy, 4);
        world.run(100, 20 * MS);
        world.is_broken = false;
        world.run(70, 20 * MS);
        let part = world.run(20, 20 * MS);
        assert!(part >= 0.1, "{policy}: {part:.3}");
    }
}

#[test]
fn a_group_of_suspects_shares_as_one_without() {
    for policy in Policy::ALL {
        let mut world = World::new(policy, 4);
        world.loads.iter().for_each(|load| load.refused(11, 1100, Nanos(world.now)));
        world.is_broken = false;
        world.run(10, 20 * MS);
        assert!(world.loads.iter().all(|load| !load.snapshot().is_suspect), "{policy}");
    }
}

#[test]
fn member_with_every_slot_overdue_is_passed_over() {
    for policy in Policy::ALL {
        let mut world = World::new(policy, 3);
        world.is_broken = false;
        world.loads[2].set_overdue(8);
        assert_eq!(world.run(5, 5 * MS), 0.0, "{policy}");
        world.loads.iter().for_each(|load| load.set_overdue(8));
        world.run(1, 20 * MS);
        assert!(world.taken.iter().sum::<usize>() > 0, "{policy}: a message of QoS 0 has to go somewhere");
    }
}
