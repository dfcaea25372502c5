//! Long random histories of three machines in virtual time.

use super::plant::{MS, NODES, Plant, node};
use crate::event::Input;
use crate::machine::Machine;
use crate::node::Node;
use crate::settings::{Agreement, Settings};

/// Time after the end of all faults within which there are a leader and two copies.
const HEALS_WITHIN: u64 = 30_000 * MS;

fn settings(seed: u64) -> Settings {
    let is_sync_always = seed.is_multiple_of(3);
    let copies_minimum = 1 + u8::from(seed.is_multiple_of(5));
    Settings { is_sync_always, copies_minimum, ..Settings::new(Node(0), Agreement::Engine, 0) }
}

impl Plant {
    /// True if any one node may lose its directory: the leader counts two copies, both marks are on the disks, and no node
    /// is about to go on alone.
    fn bears_loss(&self) -> bool {
        let Some(record) = self.record else { return false };
        let marked = |n: Node| {
            let mark = self.nodes[usize::from(n.0)].mark;
            mark.is_some_and(|mark| mark.record == record && mark.is_same_boot)
        };
        let changes = |n: usize| self.nodes[n].machine.as_ref().is_some_and(|m| m.status(self.clock(n)).is_changing);
        let is_quiet = self.changes == 0 && !(0..NODES).any(changes);
        is_quiet && self.copies() > 1 && marked(record.leader) && record.follower.is_some_and(marked)
    }

    /// True if no other node can show that it has a copy.
    fn is_only_copy(&self, n: usize) -> bool {
        let Some(record) = self.record else { return true };
        let marked = |m: Node| self.nodes[usize::from(m.0)].mark.is_some_and(|mark| mark.record == record);
        record.leader == node(n) && !record.follower.is_some_and(marked)
    }

    fn power_cut(&mut self, n: usize) {
        self.nodes[n].is_off = true;
        self.kill(n);
        let is_only = self.is_only_copy(n);
        let host = &mut self.nodes[n];
        host.messages = host.durable.clone();
        host.mark.iter_mut().for_each(|mark| mark.is_same_boot = false);
        if is_only {
            self.acked_one.keep(&self.nodes[n].durable);
        }
    }

    fn fault(&mut self) {
        let n = usize::try_from(self.random.below(NODES as u64)).unwrap_or(0);
        let other = (n + 1 + usize::try_from(self.random.below(2)).unwrap_or(0)) % NODES;
        match self.random.below(22) {
            0 | 1 => self.kill(n),
            2 if self.bears_loss() => self.power_cut(n),
            3 if self.bears_loss() => {
                self.power_cut(n);
                self.wipe(n);
            }
            4 => self.nodes[n].is_frozen = self.nodes[n].machine.is_some(),
            5 => {
                (self.cuts[n][other], self.cuts[other][n]) = (true, true);
                self.break_later(n, other);
            }
            6 => {
                self.cuts[n][other] = true;
                self.break_later(n, other);
            }
            7 => self.is_engine_up = false,
            8 => self.nodes[n].is_cut_from_engine = true,
            9 => self.feed(n, Input::Stop),
            10 => self.feed(n, Input::Promote { accept_loss: false }),
            11 => self.feed(n, Input::Switch { to: None }),
            12 => self.feed(n, Input::DiskUnusable),
            _ => self.mend(),
        }
    }

    /// Ends one of the faults, or all.
    fn mend(&mut self) {
        match self.random.below(4) {
            0 => self.is_engine_up = true,
            1 => self.cuts = Default::default(),
            2 => {
                for n in 0..NODES {
                    self.nodes[n].is_cut_from_engine = false;
                    if self.nodes[n].is_frozen {
                        self.thaw(n);
                    }
                }
            }
            _ => {
                for n in 0..NODES {
                    if self.nodes[n].machine.is_none() {
                        self.start(n);
                    }
                }
            }
        }
    }

    fn mend_all(&mut self) {
        self.is_engine_up = true;
        self.is_lossy = false;
        self.cuts = Default::default();
        for n in 0..NODES {
            self.nodes[n].is_cut_from_engine = false;
            if self.nodes[n].is_frozen {
                self.thaw(n);
            }
            if self.nodes[n].machine.is_none() {
                self.start(n);
            }
        }
    }

    /// Events and epochs.
    fn figures(&self) -> [u64; 2] {
        let of_nodes = self.nodes.iter().filter_map(|host| host.machine.as_ref().and_then(Machine::record));
        let epoch = of_nodes.chain(self.record).map(|record| record.epoch).max();
        [self.steps, epoch.unwrap_or(0)]
    }

    /// Waits until there is a leader with two copies.
    pub(super) fn heals(&mut self) -> bool {
        let end = self.now + HEALS_WITHIN;
        while self.now < end && self.violation.is_none() {
            self.run(50 * MS);
            // Processes that were about to end have ended.
            for n in 0..NODES {
                if self.nodes[n].machine.is_none() {
                    self.start(n);
                }
            }
            if self.copies() > 1 {
                return true;
            }
            // An operator promotes each node that can be promoted.
            if self.is_manual() && self.now % (8_000 * MS) < 50 * MS {
                (0..NODES).for_each(|n| self.feed(n, Input::Promote { accept_loss: false }));
            }
        }
        self.violation.is_some()
    }
}

/// A history with manual agreement: returns true if there was a promotion, and the broken promise.
fn manual_history(seed: u64, copies_minimum: u8) -> (bool, Option<&'static str>) {
    let manual = Settings { agreement: Agreement::Manual { first: Node(1) }, copies_minimum, ..settings(1) };
    let ([_, epoch], violation) = random_faults(Plant::new(seed, manual, 25_000), 60);
    (epoch > 1 << 20, violation)
}

/// One history: returns its events and epochs, and the broken promise.
fn history(seed: u64, faults: u64, drift: u64) -> ([u64; 2], Option<&'static str>) {
    random_faults(Plant::new(seed, settings(seed), drift), faults)
}

fn random_faults(mut plant: Plant, faults: u64) -> ([u64; 2], Option<&'static str>) {
    if !plant.heals() {
        return (plant.figures(), Some("the cluster does not begin"));
    }
    for _ in 0..faults {
        let pause = plant.random.below(600 * MS);
        plant.run(pause);
        plant.fault();
    }
    plant.mend_all();
    if !plant.heals() {
        tell(&plant.summary());
        return (plant.figures(), Some("the cluster does not heal"));
    }
    let leader = (0..NODES).find(|n| plant.may_act(*n) && plant.nodes[*n].messages.has_all(&plant.acked_two));
    let is_lost = leader.is_none() && plant.violation.is_none();
    (plant.figures(), plant.violation.or(is_lost.then_some("acknowledged messages are lost")))
}

fn histories(seeds: std::ops::Range<u64>, faults: u64, drift: u64) -> [u64; 2] {
    let threads = 2;
    let share = |thread: u64| seeds.clone().filter(move |seed| seed % threads == thread);
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let one = move |seed| {
                let (figures, violation) = history(seed, faults, drift);
                assert_eq!(violation, None, "seed {seed}, {faults} faults, drift {drift}");
                figures
            };
            share(thread).map(one).fold([0; 2], sum)
        };
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a history fails")).fold([0; 2], sum)
    })
}

fn sum([events, epochs]: [u64; 2], [more_events, more_epochs]: [u64; 2]) -> [u64; 2] {
    [events + more_events, epochs + more_epochs]
}

#[expect(clippy::print_stderr, reason = "figures of the simulation")]
fn tell(line: &str) {
    eprintln!("{line}");
}

#[test]
fn c2_c6_hold_in_random_histories() {
    let [events, epochs] = histories(0..20_000, 20, 25_000);
    tell(&format!("20000 seeds, {events} events, {epochs} epochs"));
}

#[test]
#[ignore = "minutes"]
fn c2_c6_hold_in_long_histories() {
    let [events, epochs] = histories(1_000_000..1_002_000, 1_000, 25_000);
    tell(&format!("2000 seeds, {events} events, {epochs} epochs"));
    assert!(events > 10_000_000);
}

#[test]
fn promotions_by_command_lose_nothing_with_two_copies() {
    let mut promotions = 0;
    for seed in 4_000_000..4_002_000 {
        let (is_promoted, violation) = manual_history(seed, 2);
        promotions += u32::from(is_promoted);
        assert_eq!(violation, None, "seed {seed}");
    }
    tell(&format!("2000 seeds with manual agreement, {promotions} with promotions"));
    assert!(promotions > 500);
}

#[test]
fn clocks_may_differ_from_the_true_rate_by_a_tenth() {
    histories(2_000_000..2_002_000, 20, 100_000);
}

#[test]
fn two_nodes_act_if_clocks_are_wrong_by_three_twentieths() {
    let wrong = |seed| history(seed, 20, 150_000).1;
    let violation = (3_000_000..3_040_000).find_map(wrong);
    assert!(matches!(violation, Some("two nodes act" | "a stale leader acknowledges")), "{violation:?}");
}
