//! Figures of each phase, from a run's ledger and series.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tenbin_loadgen::run::LedgerCounts;
use tenbin_loadgen::statistics::median;

use super::figure::Figure;
use super::recovery::{Normal, Second, Tick, recovered, unavailable, whole_seconds};
use super::windows::{Phase, Window};
use crate::units::Time;

/// Measurements of one run. All times are from the end of the warm-up.
pub trait Measurements {
    /// Ledger counts of messages that were due in `window`; `None` without a ledger.
    fn counts(&self, window: Range<Time>) -> Option<LedgerCounts>;

    /// Latency of messages that were due in these times, which are whole ticks; `None` if none came.
    fn latency(&self, times: &[Range<Time>]) -> Option<Percentiles>;

    /// Time to acknowledgement of messages that were due in these times, likewise; `None` if none was acknowledged.
    fn acknowledgement(&self, times: &[Range<Time>]) -> Option<Percentiles>;

    /// One entry for each second.
    fn seconds(&self) -> &[Second];

    /// One entry for each 10 ms.
    fn ticks(&self) -> &[Tick];
}

/// Percentiles of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Median.
    pub p50: Time,
    /// 90 % are at most this.
    pub p90: Time,
    /// 99 % are at most this.
    pub p99: Time,
    /// 99.9 % are at most this.
    pub p999: Time,
    /// Greatest.
    pub max: Time,
}

/// Figures by phase. Values are numbers, seconds, messages a second or bytes a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Figures(
    #[cfg_attr(test, schemars(with = "BTreeMap<String, BTreeMap<String, f64>>"))]
    BTreeMap<Phase, BTreeMap<Figure, f64>>,
);

impl Figures {
    /// All figures of a run in its `windows`.
    pub fn of(measurements: &dyn Measurements, windows: &[Window]) -> Self {
        let before = windows.iter().find(|window| window.phase == Phase::Before);
        let normal = before.and_then(|window| {
            let p99 = measurements.latency(&window.in_ticks()).map(|latency| latency.p99);
            Normal::of(measurements.seconds(), window.times.first()?.clone(), p99)
        });
        let mut figures = Self::default();
        for window in windows {
            figures.add_counts(measurements, window);
            figures.add_rates(measurements.seconds(), window);
            figures.add_latencies(measurements, window);
            let silences = window.times.iter().map(|times| unavailable(measurements.ticks(), times.clone()));
            if let Some(longest) = silences.max().filter(|_| !measurements.ticks().is_empty()) {
                figures.set(window.phase.clone(), Figure::Unavailable, longest.secs());
            }
            if let (Phase::After(_), Some(normal)) = (&window.phase, &normal) {
                // All repetitions have to recover; the slowest counts.
                let times = window.times.iter().map(|times| recovered(measurements.seconds(), normal, times.clone()));
                let slowest = times.collect::<Option<Vec<_>>>().and_then(|times| times.into_iter().max());
                if let Some(slowest) = slowest {
                    figures.set(window.phase.clone(), Figure::Recovered, slowest.secs());
                }
            }
        }
        figures
    }

    /// A figure of a phase; `None` if it is absent.
    pub fn get(&self, phase: &Phase, figure: Figure) -> Option<f64> {
        self.0.get(phase)?.get(&figure).copied()
    }

    /// Sets a figure of a phase.
    pub fn set(&mut self, phase: Phase, figure: Figure, value: f64) {
        self.0.entry(phase).or_default().insert(figure, value);
    }

    /// All phases with their figures.
    pub fn phases(&self) -> impl Iterator<Item = (&Phase, &BTreeMap<Figure, f64>)> {
        self.0.iter()
    }

    /// The median of each figure over several runs. Runs without a figure do not count for it.
    pub fn medians(runs: &[Self]) -> Self {
        let mut values: BTreeMap<(&Phase, Figure), Vec<f64>> = BTreeMap::new();
        for (phase, figures) in runs.iter().flat_map(Self::phases) {
            for (&figure, &value) in figures {
                values.entry((phase, figure)).or_default().push(value);
            }
        }
        let mut medians = Self::default();
        for ((phase, figure), values) in values {
            medians.set(phase.clone(), figure, median(&values).unwrap_or_default());
        }
        medians
    }

    fn add_counts(&mut self, measurements: &dyn Measurements, window: &Window) {
        let mut sum = LedgerCounts::default();
        for times in &window.times {
            let Some(counts) = measurements.counts(times.clone()) else { return };
            sum += counts;
        }
        for (figure, value) in [
            (Figure::Lost, sum.lost),
            (Figure::Duplicated, sum.duplicated),
            (Figure::OutOfOrder, sum.out_of_order),
            (Figure::Unconfirmed, sum.unconfirmed),
            (Figure::Refused, sum.refused),
        ] {
            self.set(window.phase.clone(), figure, value as f64);
        }
    }

    /// Means over the whole seconds of a window. A window without a whole second has no rates.
    fn add_rates(&mut self, seconds: &[Second], window: &Window) {
        let inside: Vec<_> =
            window.times.iter().flat_map(|times| whole_seconds(seconds, times)).map(|(_, second)| second).collect();
        if inside.is_empty() {
            return;
        }
        let mean =
            |of: fn(&Second) -> u64| inside.iter().map(|second| of(second)).sum::<u64>() as f64 / inside.len() as f64;
        let reconnects = inside.iter().map(|second| second.reconnects).sum::<Option<u64>>();
        let backlog = inside.iter().map(|second| second.backlog).max().unwrap_or_default();
        for (figure, value) in [
            (Figure::SentMessages, mean(|second| second.sent)),
            (Figure::SentBytes, mean(|second| second.sent_bytes)),
            (Figure::PublishedMessages, mean(|second| second.published)),
            (Figure::PublishedBytes, mean(|second| second.published_bytes)),
            (Figure::ReceivedMessages, mean(|second| second.received)),
            (Figure::ReceivedBytes, mean(|second| second.received_bytes)),
            (Figure::Backlog, backlog as f64),
        ] {
            self.set(window.phase.clone(), figure, value);
        }
        if let Some(reconnects) = reconnects {
            self.set(window.phase.clone(), Figure::Reconnects, reconnects as f64);
        }
    }

    fn add_latencies(&mut self, measurements: &dyn Measurements, window: &Window) {
        let latency = [Figure::P50, Figure::P90, Figure::P99, Figure::P999, Figure::Max];
        let acknowledgement = [Figure::AckP50, Figure::AckP90, Figure::AckP99, Figure::AckP999, Figure::AckMax];
        let times = window.in_ticks();
        for (names, percentiles) in
            [(latency, measurements.latency(&times)), (acknowledgement, measurements.acknowledgement(&times))]
        {
            let Some(Percentiles { p50, p90, p99, p999, max }) = percentiles else { continue };
            for (figure, time) in names.into_iter().zip([p50, p90, p99, p999, max]) {
                self.set(window.phase.clone(), figure, time.secs());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::windows::{Effect, windows};

    /// 100 s with 1000 messages each; a fault from 40 to 60 s halves the arrivals, which come from 60 to 70 s.
    struct Run {
        seconds: Vec<Second>,
        ticks: Vec<Tick>,
    }

    impl Run {
        fn new() -> Self {
            let second = |at: u64| {
                let (received, backlog, p99_ms) = match at {
                    40..60 => (500, 500 * (at - 39), 1000 * (at - 39)),
                    60..70 => (2000, 10_000 - 1000 * (at - 59), 9000),
                    _ => (1000, 2, 4),
                };
                Second {
                    sent: 1000,
                    sent_bytes: 4_096_000,
                    published: 1000,
                    published_bytes: 4_096_000,
                    received,
                    received_bytes: received * 4096,
                    reconnects: Some(u64::from(at == 45)),
                    backlog,
                    p99: Some(Time::from_ns(p99_ms * 1_000_000)),
                    ..Second::default()
                }
            };
            let tick = |at| Tick { due: 10, answered: if (4000..4025).contains(&at) { 0 } else { 10 } };
            Self { seconds: (0..100).map(second).collect(), ticks: (0..10_000).map(tick).collect() }
        }
    }

    impl Measurements for Run {
        /// Seven messages of second 41 are lost.
        fn counts(&self, window: Range<Time>) -> Option<LedgerCounts> {
            let has = window.start <= Time::from_secs(41) && Time::from_secs(42) <= window.end;
            Some(LedgerCounts { lost: if has { 7 } else { 0 }, ..LedgerCounts::default() })
        }

        fn latency(&self, times: &[Range<Time>]) -> Option<Percentiles> {
            let seconds = times.iter().flat_map(|times| whole_seconds(&self.seconds, times));
            let p99 = seconds.filter_map(|(_, second)| second.p99).max()?;
            Some(Percentiles { p99, ..Percentiles::default() })
        }

        fn acknowledgement(&self, _times: &[Range<Time>]) -> Option<Percentiles> {
            None
        }

        fn seconds(&self) -> &[Second] {
            &self.seconds
        }

        fn ticks(&self) -> &[Tick] {
            &self.ticks
        }
    }

    fn delay() -> Vec<Window> {
        let effect = Effect { action: "delay".to_owned(), begin: Time::from_secs(40), end: Time::from_secs(60) };
        windows(&[effect], Time::from_secs(20), Time::from_secs(100))
    }

    #[test]
    fn each_figure_is_dated_to_its_phase() {
        let figures = Figures::of(&Run::new(), &delay());
        let get = |phase: &str, figure: &str| figures.get(&phase.parse().unwrap(), figure.parse().unwrap());
        assert_eq!((get("", "lost"), get("before", "lost")), (Some(7.0), Some(0.0)));
        assert_eq!((get("during delay", "lost"), get("after delay", "lost")), (Some(7.0), Some(0.0)));
        assert_eq!(
            (get("before", "received_messages"), get("during delay", "received_messages")),
            (Some(1000.0), Some(500.0))
        );
        assert_eq!(get("during delay", "sent_bytes"), Some(4_096_000.0));
        assert_eq!((get("before", "reconnects"), get("during delay", "reconnects")), (Some(0.0), Some(1.0)));
        assert_eq!((get("before", "unavailable"), get("during delay", "unavailable")), (Some(0.0), Some(0.25)));
        assert_eq!((get("before", "p99"), get("during delay", "p99")), (Some(0.004), Some(20.0)));
        assert_eq!(get("during delay", "backlog"), Some(10_000.0));
        assert_eq!(get("after delay", "recovered"), Some(10.0));
        assert_eq!((get("", "recovered"), get("", "ack_p99")), (None, None));
    }

    #[test]
    fn reconnects_that_nobody_counts_are_absent() {
        let mut run = Run::new();
        run.seconds.iter_mut().for_each(|second| second.reconnects = None);
        let figures = Figures::of(&run, &delay());
        assert_eq!(figures.get(&Phase::Whole, Figure::Reconnects), None);
        assert_eq!(figures.get(&Phase::Whole, Figure::Backlog), Some(10_000.0));
    }

    #[test]
    fn one_repetition_without_recovery_leaves_none() {
        let effect =
            |begin, end| Effect { action: "kill".to_owned(), begin: Time::from_secs(begin), end: Time::from_secs(end) };
        let of = |effects: &[Effect]| {
            let windows = windows(effects, Time::from_secs(20), Time::from_secs(100));
            Figures::of(&Run::new(), &windows).get(&Phase::After("kill".to_owned()), Figure::Recovered)
        };
        assert_eq!(of(&[effect(30, 31), effect(60, 61)]), Some(9.0), "the slower of 0 s and 9 s");
        assert_eq!(of(&[effect(30, 31), effect(60, 61), effect(65, 66)]), None, "61 to 65 s is not normal");
    }

    #[test]
    fn medians_are_over_runs_that_have_the_figure() {
        let run = |lost: f64, p99: Option<f64>| {
            let mut figures = Figures::default();
            figures.set(Phase::Whole, Figure::Lost, lost);
            p99.into_iter().for_each(|p99| figures.set(Phase::Whole, Figure::P99, p99));
            figures
        };
        let medians = Figures::medians(&[run(5.0, Some(0.1)), run(0.0, None), run(9.0, Some(0.3))]);
        assert_eq!(medians.get(&Phase::Whole, Figure::Lost), Some(5.0));
        assert_eq!(medians.get(&Phase::Whole, Figure::P99), Some(0.2));
    }
}
