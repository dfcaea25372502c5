//! Measured times, compared with a hash map look-up, and memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tenbin_codec::TopicName;

/// Results of the rounds of one kind, in nanoseconds per operation.
#[derive(Default)]
pub(crate) struct Found {
    ns: Vec<f64>,
    ratios: Vec<f64>,
}

impl Found {
    /// Adds a round of `count` operations, with the reference's time per operation at that moment.
    pub(crate) fn add(&mut self, took: Duration, count: usize, reference_ns: f64) {
        let ns = took.as_nanos() as f64 / count as f64;
        self.ns.push(ns);
        self.ratios.push(ns / reference_ns);
    }

    pub(crate) fn print(&self, name: &str, goal: &str) {
        let best = self.ns.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{name:<52}{best:>10.0}{:>11.0}{:>9.2}  {goal}", median(&self.ns), median(&self.ratios));
    }

    pub(crate) fn print_head() {
        println!("{:<52}{:>10}{:>11}{:>9}", "", "best ns", "median ns", "ratio");
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The same topics as keys of the standard library's hash map, as a reference for the machine's current speed.
pub(crate) struct Reference(HashMap<Box<[u8]>, u64>);

impl Reference {
    pub(crate) fn of(topics: impl Iterator<Item = String>) -> Self {
        Self(topics.map(|topic| topic.into_bytes().into()).zip(1..).collect())
    }

    /// Looks all `topics` up and returns the nanoseconds per look-up.
    pub(crate) fn look_up(&self, topics: &[TopicName]) -> f64 {
        let begun = Instant::now();
        let found: u64 = topics.iter().filter_map(|topic| self.0.get(topic.as_bytes())).sum();
        let took = begun.elapsed();
        assert!(found > 0, "keys that are there");
        took.as_nanos() as f64 / topics.len() as f64
    }
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells of memory");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number of pages");
    pages * PAGE
}

const PAGE: f64 = 4096.0;
