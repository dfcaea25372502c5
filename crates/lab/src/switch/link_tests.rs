//! Links in virtual time.

use std::time::Duration;

use super::super::fabric::{Fabric, hardware_address};
use super::super::shape::{Rate, Shape};
use super::Counters;
use crate::switch::frame::HEADER;

const A: u16 = 0;
const B: u16 = 1;
const C: u16 = 2;

/// A frame for machine `to` with a number, `bytes` long on the wire.
fn frame(to: u16, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADER + bytes];
    frame[HEADER..HEADER + 6].copy_from_slice(&hardware_address(to));
    frame[HEADER + 14..HEADER + 18].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[HEADER + 14..HEADER + 18].try_into().expect("four bytes"))
}

struct Net {
    fabric: Fabric,
    now: Duration,
    /// Receiver, time and frame.
    arrived: Vec<(u16, Duration, Vec<u8>)>,
}

impl Net {
    fn new(seed: u64) -> Self {
        let mut fabric = Fabric::new(seed);
        ["a", "b", "c"].into_iter().for_each(|name| assert!(fabric.add(name) < 3));
        Self { fabric, now: Duration::ZERO, arrived: Vec::new() }
    }

    fn send(&mut self, from: u16, frame: &[u8]) {
        let (now, arrived) = (self.now, &mut self.arrived);
        let mut send = |to, frame: &[u8]| {
            arrived.push((to, now, frame.to_vec()));
            true
        };
        self.fabric.frame(now, from, frame, &mut send);
    }

    /// Lets the time pass, and stops wherever a frame or a fault is due.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.now = self.fabric.next().unwrap_or(end).clamp(self.now, end);
            let (now, arrived) = (self.now, &mut self.arrived);
            let mut send = |to, frame: &[u8]| {
                arrived.push((to, now, frame.to_vec()));
                true
            };
            self.fabric.advance(now, &mut send);
            if now == end {
                return;
            }
        }
    }

    fn counters(&self, from: u16, to: u16) -> Counters {
        let name = |number: u16| ["a", "b", "c"][usize::from(number)];
        let all = self.fabric.counters();
        all.into_iter().find(|link| (&*link.from, &*link.to) == (name(from), name(to))).expect("a link").counters
    }

    fn numbers(&self) -> Vec<u32> {
        self.arrived.iter().map(|(_, _, frame)| number(frame)).collect()
    }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn delay_holds_frames_of_one_direction_and_one_pair() {
    let mut net = Net::new(1);
    net.fabric.impair(1, &[(A, B)], &Shape { delay: ms(10), ..Shape::default() }, None);
    net.send(A, &frame(B, 1, 100));
    net.send(B, &frame(A, 2, 100));
    net.send(A, &frame(C, 3, 100));
    assert_eq!(net.numbers(), [2, 3]);
    assert_eq!(net.counters(A, B).queued_bytes, 100);
    net.wait(ms(9));
    net.send(A, &frame(B, 4, 100));
    net.wait(ms(30));
    let times = net.arrived.iter().map(|(to, time, frame)| (*to, *time, number(frame))).collect::<Vec<_>>();
    assert_eq!(times, [(A, ms(0), 2), (C, ms(0), 3), (B, ms(10), 1), (B, ms(19), 4)]);
    assert_eq!(net.counters(A, B), Counters { packets: 2, bytes: 200, ..Counters::default() });
}

#[test]
fn a_shorter_delay_never_lets_frames_overtake() {
    let mut net = Net::new(1);
    net.fabric.impair(1, &[(A, B)], &Shape { delay: ms(10), ..Shape::default() }, None);
    net.send(A, &frame(B, 1, 100));
    net.fabric.lift(1);
    net.send(A, &frame(B, 2, 100));
    net.wait(ms(10));
    net.send(A, &frame(B, 3, 100));
    assert_eq!(net.numbers(), [1, 2, 3]);
    assert_eq!(net.arrived.last().map(|(_, time, _)| *time), Some(ms(10)));
}

#[test]
fn jitter_keeps_the_order_unless_reorder_is_set() {
    for reorder in [false, true] {
        let mut net = Net::new(7);
        let shape = Shape { delay: ms(10), jitter: ms(5), reorder, ..Shape::default() };
        net.fabric.impair(1, &[(A, B)], &shape, None);
        for at in 0..1_000 {
            net.send(A, &frame(B, at, 100));
            net.wait(ms(1));
        }
        net.wait(ms(20));
        let numbers = net.numbers();
        assert_eq!(numbers.len(), 1_000);
        assert_eq!(numbers.is_sorted(), !reorder);
        let delays = net.arrived.iter().map(|(_, time, frame)| *time - ms(number(frame).into())).collect::<Vec<_>>();
        assert!(delays.iter().all(|delay| (ms(5)..=ms(15)).contains(delay)), "{:?}", delays.iter().max());
        assert!(delays.iter().max() > delays.iter().min());
    }
}

#[test]
fn loss_and_duplicates_are_as_frequent_as_asked() {
    let mut net = Net::new(1);
    net.fabric.impair(1, &[(A, B)], &Shape { loss: 0.01, ..Shape::default() }, None);
    net.fabric.impair(2, &[(B, A)], &Shape { duplicate: 0.01, ..Shape::default() }, None);
    for at in 0..100_000 {
        net.send(A, &frame(B, at, 100));
        net.send(B, &frame(A, at, 100));
    }
    let (there, back) = (net.counters(A, B), net.counters(B, A));
    assert!((900..=1_100).contains(&there.lost), "{there:?}");
    assert_eq!(there.packets + there.lost, 100_000);
    assert!((900..=1_100).contains(&back.duplicated), "{back:?}");
    assert_eq!(back.packets, 100_000 + back.duplicated);
}

#[test]
fn corrupt_inverts_one_bit_behind_the_ethernet_header() {
    let mut net = Net::new(1);
    net.fabric.impair(1, &[(A, B)], &Shape { corrupt: 0.5, ..Shape::default() }, None);
    let sent = frame(B, 5, 200);
    for _ in 0..1_000 {
        net.send(A, &sent);
    }
    let differing = |frame: &[u8]| frame.iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    let bits = net.arrived.iter().map(|(_, _, frame)| differing(frame)).collect::<Vec<_>>();
    assert!(bits.iter().all(|bits| *bits < 2));
    assert!(net.arrived.iter().all(|(_, _, frame)| frame[..HEADER + 14] == sent[..HEADER + 14]));
    let corrupted = bits.iter().filter(|bits| **bits == 1).count();
    assert!((450..=550).contains(&corrupted), "{corrupted}");
    assert_eq!(net.counters(A, B).corrupted, corrupted as u64);
}

#[test]
fn rate_passes_ten_megabits_and_drops_beyond_its_queue() {
    let mut net = Net::new(1);
    let rate = Rate { bits_per_second: 10_000_000, queue_bytes: 50_000 };
    net.fabric.impair(1, &[(A, B)], &Shape { rate: Some(rate), ..Shape::default() }, None);
    // 12 Mbit/s for a second: 1,000 packets of 1,500 bytes.
    for at in 0..1_000 {
        net.send(A, &frame(B, at, 1_500));
        net.wait(ms(1));
    }
    let counters = net.counters(A, B);
    assert!((1_237_500..=1_262_500).contains(&counters.bytes), "{counters:?}");
    assert!(counters.queued_bytes <= 50_000 + 1_500, "{counters:?}");
    assert!(counters.overflowed > 100, "{counters:?}");
    assert!(net.numbers().is_sorted());
    // A queue smaller than a packet still passes one at a time.
    let rate = Rate { bits_per_second: 10_000_000, queue_bytes: 0 };
    net.fabric.impair(2, &[(B, C)], &Shape { rate: Some(rate), ..Shape::default() }, None);
    net.send(B, &frame(C, 1, 1_500));
    net.send(B, &frame(C, 2, 1_500));
    net.wait(ms(5));
    assert_eq!((net.counters(B, C).packets, net.counters(B, C).overflowed), (1, 1));
}

#[test]
fn partition_cuts_one_way_or_both_as_asked() {
    let mut net = Net::new(1);
    let cut = Shape { partition: true, ..Shape::default() };
    net.fabric.impair(1, &[(A, B)], &cut, None);
    net.send(A, &frame(B, 1, 100));
    net.send(B, &frame(A, 2, 100));
    net.fabric.impair(2, &[(B, A)], &cut, None);
    net.send(B, &frame(A, 3, 100));
    net.fabric.lift(1);
    net.send(A, &frame(B, 4, 100));
    net.send(B, &frame(A, 5, 100));
    assert_eq!(net.numbers(), [2, 4]);
    assert_eq!((net.counters(A, B).lost, net.counters(B, A).lost), (1, 2));
}

#[test]
fn faults_end_by_themselves_and_overlap() {
    let mut net = Net::new(1);
    let delay = |time| Shape { delay: ms(time), ..Shape::default() };
    net.fabric.impair(1, &[(A, B)], &delay(10), Some(ms(100)));
    net.fabric.impair(2, &[(A, B)], &delay(5), Some(ms(200)));
    let mut delays = Vec::new();
    for _ in 0..3 {
        net.wait(ms(50));
        net.send(A, &frame(B, 0, 100));
        let sent = net.now;
        net.wait(ms(50));
        delays.push(net.arrived.last().expect("a frame").1 - sent);
    }
    assert_eq!(delays, [ms(15), ms(5), ms(0)]);
}

#[test]
fn same_seed_draws_the_same_whatever_other_faults_act() {
    let lost = |seed, duplicate, order: [u16; 2]| {
        let mut net = Net::new(seed);
        net.fabric.impair(1, &[(A, B), (A, C)], &Shape { loss: 0.1, duplicate, ..Shape::default() }, None);
        for at in 0..1_000 {
            order.into_iter().for_each(|to| net.send(A, &frame(to, at, 100)));
        }
        let mut numbers =
            net.arrived.iter().filter(|(to, ..)| *to == B).map(|(.., frame)| number(frame)).collect::<Vec<_>>();
        numbers.dedup();
        numbers
    };
    assert_eq!(lost(1, 0.0, [B, C]), lost(1, 0.0, [B, C]));
    assert_eq!(lost(1, 0.0, [B, C]), lost(1, 0.5, [C, B]));
    assert_ne!(lost(1, 0.0, [B, C]), lost(2, 0.0, [B, C]));
}

#[test]
fn foreign_broadcast_and_short_frames_are_dropped() {
    let mut net = Net::new(1);
    let mut broadcast = frame(B, 1, 100);
    broadcast[HEADER..HEADER + 6].fill(0xff);
    net.send(A, &broadcast);
    net.send(A, &frame(A, 2, 100));
    net.send(A, &frame(9, 3, 100));
    net.send(A, &[0; 15]);
    assert!(net.arrived.is_empty());
}
