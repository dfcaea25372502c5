//! Latencies by due time, and counts by time, for periods that are known only after the run.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::latencies::{Latencies, PackedLatencies, RecentLatencies, latency};
use super::part::merge_numbered;
use super::recorder::DIGITS;
use super::tally::at_second;
use crate::run::Latency;

/// Latencies and counts of each tick of 10 ms, kept if [`Plan::ticks`](crate::run::Plan::ticks) asks for them.
///
/// Ticks count from the start of the run. A latency belongs to the tick in which its message was due, a count to the
/// tick in which the event took place. Latencies have three significant digits; their extremes are exact.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ticks {
    /// Known once the parts of all recorders are merged.
    start_ns: u64,
    // All lists are by number of the tick, without empty ticks.
    arrivals: Vec<(u32, PackedLatencies)>,
    acknowledgements: Vec<(u32, PackedLatencies)>,
    arrived: Vec<(u32, u32)>,
    answered: Vec<(u32, u32)>,
}

impl Ticks {
    /// Length of a tick, in nanoseconds.
    pub const NS: u64 = 10_000_000;

    /// Latency from due to arrived of the messages that were due in the ticks that begin in these `windows`.
    ///
    /// The first copy at each receiver counts. Windows are in nanoseconds since 1970-01-01 UTC.
    pub fn latency(&self, windows: &[Range<u64>]) -> Option<Latency> {
        self.of(&self.arrivals, windows)
    }

    /// Time from due to acknowledged of the messages that were due in the ticks that begin in these `windows`.
    pub fn acknowledgement(&self, windows: &[Range<u64>]) -> Option<Latency> {
        self.of(&self.acknowledgements, windows)
    }

    /// Begin of each tick in which messages arrived, and the number of first copies.
    pub fn arrived(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.arrived.iter().map(|&(tick, count)| (self.begin(tick), count))
    }

    /// Begin of each tick in which messages were answered, and their number: published or refused.
    pub fn answered(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.answered.iter().map(|&(tick, count)| (self.begin(tick), count))
    }

    pub(super) fn starting_at(self, start_ns: u64) -> Self {
        Self { start_ns, ..self }
    }

    pub(super) fn merge(&mut self, other: Self) {
        merge_numbered(&mut self.arrivals, other.arrivals, PackedLatencies::merge);
        merge_numbered(&mut self.acknowledgements, other.acknowledgements, PackedLatencies::merge);
        merge_numbered(&mut self.arrived, other.arrived, |mine, other| *mine = mine.saturating_add(other));
        merge_numbered(&mut self.answered, other.answered, |mine, other| *mine = mine.saturating_add(other));
    }

    fn begin(&self, tick: u32) -> u64 {
        self.start_ns.saturating_add(u64::from(tick) * Self::NS)
    }

    fn of(&self, list: &[(u32, PackedLatencies)], windows: &[Range<u64>]) -> Option<Latency> {
        let inside = windows.iter().flat_map(|window| {
            let below = |ns: u64| list.partition_point(|(tick, _)| self.begin(*tick) < ns);
            let (from, to) = (below(window.start), below(window.end));
            &list[from..to.max(from)]
        });
        latency(DIGITS, inside.map(|(_, times)| times))
    }
}

/// [`Ticks`] that are being recorded.
#[derive(Debug)]
pub(super) struct TickTally {
    start_ns: u64,
    /// The current tick, and its end.
    now: u32,
    end_ns: u64,
    arrivals: TimesByTick,
    acknowledgements: TimesByTick,
    arrived: Vec<u32>,
    answered: Vec<u32>,
}

/// Times by the tick in which their messages were due.
#[derive(Debug)]
struct TimesByTick {
    ticks: Vec<RecentLatencies>,
    /// Ticks with times that are not packed, behind the tick in which the first of these was recorded.
    unpacked: VecDeque<(u32, u32)>,
    empty: Latencies,
}

impl TickTally {
    pub(super) fn new(start_ns: u64) -> Self {
        let times = || TimesByTick { ticks: Vec::new(), unpacked: VecDeque::new(), empty: Latencies::new(DIGITS) };
        Self {
            start_ns,
            now: 0,
            end_ns: start_ns.saturating_add(Ticks::NS),
            arrivals: times(),
            acknowledgements: times(),
            arrived: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Sets the beginning of tick 0, before anything is recorded.
    pub(super) fn start(&mut self, start_ns: u64) {
        (self.start_ns, self.now, self.end_ns) = (start_ns, 0, start_ns.saturating_add(Ticks::NS));
    }

    /// Records the first copy of a message at a receiver.
    #[inline]
    pub(super) fn arrive(&mut self, due_ns: u64, now_ns: u64) {
        self.turn(now_ns);
        let now = self.tick_of_event(now_ns);
        *at_second(&mut self.arrived, now as usize) += 1;
        // A damaged time of a message is not far in the future.
        let due = self.tick(due_ns).min(self.now);
        self.arrivals.record(due, self.now, now_ns.saturating_sub(due_ns));
    }

    /// Records the acknowledgement of a message.
    #[inline]
    pub(super) fn acknowledge(&mut self, due_ns: u64, now_ns: u64) {
        self.turn(now_ns);
        let due = self.tick(due_ns).min(self.now);
        self.acknowledgements.record(due, self.now, now_ns.saturating_sub(due_ns));
    }

    /// Records messages that were published or refused.
    pub(super) fn answer(&mut self, messages: u32, now_ns: u64) {
        self.turn(now_ns);
        let now = self.tick_of_event(now_ns);
        *at_second(&mut self.answered, now as usize) += messages;
    }

    pub(super) fn pack(self) -> Ticks {
        let counts = |counts: Vec<u32>| (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
        Ticks {
            start_ns: 0,
            arrivals: self.arrivals.pack(),
            acknowledgements: self.acknowledgements.pack(),
            arrived: counts(self.arrived),
            answered: counts(self.answered),
        }
    }

    #[inline]
    fn tick(&self, ns: u64) -> u32 {
        let tick = ns.saturating_sub(self.start_ns) / Ticks::NS;
        u32::try_from(tick).unwrap_or(u32::MAX).min(LAST_TICK)
    }

    /// Tick of an event. Events of several clients come out of order, some of them from an earlier tick.
    #[inline]
    fn tick_of_event(&self, ns: u64) -> u32 {
        if ns.saturating_add(Ticks::NS) >= self.end_ns { self.now } else { self.tick(ns) }
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) {
        if now_ns >= self.end_ns {
            self.advance_to(self.tick(now_ns));
        }
    }

    #[cold]
    fn advance_to(&mut self, tick: u32) {
        self.now = tick;
        self.end_ns = match tick {
            LAST_TICK => u64::MAX,
            _ => self.start_ns.saturating_add((u64::from(tick) + 1) * Ticks::NS),
        };
        self.arrivals.pack_before(tick.saturating_sub(RECENT));
        self.acknowledgements.pack_before(tick.saturating_sub(RECENT));
    }
}

impl TimesByTick {
    #[inline]
    fn record(&mut self, due: u32, now: u32, ns: u64) {
        if due as usize >= self.ticks.len() {
            self.ticks.resize_with(due as usize + 1, RecentLatencies::default);
        }
        let times = &mut self.ticks[due as usize];
        if times.is_packed() {
            self.unpacked.push_back((now, due));
        }
        times.record(ns);
    }

    /// Packs the ticks whose first time was recorded before tick `since`.
    fn pack_before(&mut self, since: u32) {
        while let Some((_, due)) = self.unpacked.pop_front_if(|(recorded, _)| *recorded < since) {
            self.ticks[due as usize].pack(&mut self.empty);
        }
    }

    fn pack(mut self) -> Vec<(u32, PackedLatencies)> {
        self.pack_before(u32::MAX);
        (0..).zip(self.ticks).filter_map(|(tick, times)| Some((tick, times.into_packed()?))).collect()
    }
}

/// Ticks in which the times of a tick are collected before they are packed: by then most messages were received.
const RECENT: u32 = 10;

/// Last tick of the longest run, a day; later times, for example by a wrong clock, count here.
const LAST_TICK: u32 = 8_640_000;

#[cfg(test)]
#[path = "ticks_tests.rs"]
mod tests;
