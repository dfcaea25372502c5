use std::time::Duration;

use super::SlowArgs;
use crate::statistics::Summary;

/// Phases of a run; a message belongs to a phase by its due time.
pub(crate) const PHASES: [&str; 3] = ["before", "switch", "after"];

/// Latency of the normal receivers in one phase, in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PhaseLatency {
    pub(crate) latency: Summary,
    /// Mean and maximum relative to the mean before, as in the publication.
    pub(crate) mean_ratio: f64,
    pub(crate) worst_ratio: f64,
    /// Maximum relative to the maximum before.
    pub(crate) worst_to_worst: f64,
}

/// Arrival of a message at a normal receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) receiver: usize,
    pub(crate) sequence: u64,
    /// Due time, after the first message's.
    pub(crate) due: Duration,
    pub(crate) latency_ms: f64,
}

/// Boundaries of the phases, as time since the first message was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phases {
    pub(crate) before: Duration,
    pub(crate) switch: Duration,
    pub(crate) after: Duration,
}

impl Phases {
    pub(super) fn of(args: &SlowArgs) -> Self {
        Self { before: args.before, switch: args.switch, after: args.after }
    }

    /// Index into [`PHASES`]; `None` for the warm-up of connections and broker, which is left out, and for the time behind the
    /// phases.
    pub(crate) fn at(self, due: Duration) -> Option<usize> {
        if due < WARM_UP.min(self.before / 4) {
            None
        } else if due < self.before {
            Some(0)
        } else if due < self.before + self.switch {
            Some(1)
        } else {
            (due < self.before + self.switch + self.after).then_some(2)
        }
    }

    /// Figures of each phase; `None` without messages in it or in the phase before the switch.
    pub(super) fn figures(self, arrivals: &[Arrival]) -> [Option<PhaseLatency>; 3] {
        let mut values: [Vec<f64>; 3] = Default::default();
        for arrival in arrivals {
            if let Some(phase) = self.at(arrival.due) {
                values[phase].push(arrival.latency_ms);
            }
        }
        let summaries = values.map(|values| Summary::of(&values));
        let before = summaries[0];
        summaries.map(|latency| {
            let (latency, before) = (latency?, before?);
            Some(PhaseLatency {
                latency,
                mean_ratio: latency.mean / before.mean,
                worst_ratio: latency.max / before.mean,
                worst_to_worst: latency.max / before.max,
            })
        })
    }

    /// Time from the switch until the latency is calm again; `None` if it never is.
    ///
    /// It is calm if the mean latency of the next second is at most [`GOAL_MEAN`] × the mean before.
    pub(super) fn calm_after(self, arrivals: &[Arrival], before_mean_ms: f64) -> Option<Duration> {
        let end = arrivals.iter().map(|arrival| arrival.due).max()?;
        let mut from = self.before;
        while from < end {
            let to = from + CALM;
            let window = arrivals.iter().filter(|arrival| (from..to).contains(&arrival.due));
            let (sum, count) = window.fold((0.0, 0), |(sum, count), arrival| (sum + arrival.latency_ms, count + 1));
            if count > 0 && sum / f64::from(count) <= GOAL_MEAN * before_mean_ms {
                return Some(from - self.before);
            }
            from += STEP;
        }
        None
    }
}

/// Allowed mean after the switch, relative to the mean before.
pub(crate) const GOAL_MEAN: f64 = 1.1;

/// Maximum length of the warm-up.
const WARM_UP: Duration = Duration::from_secs(1);

const CALM: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(latency_ms: impl Fn(u64) -> f64) -> Vec<Arrival> {
        let arrival = |sequence| {
            let due = Duration::from_millis(10 * sequence);
            Arrival { receiver: 0, sequence, due, latency_ms: latency_ms(sequence) }
        };
        (0..1000).map(arrival).collect()
    }

    const PHASES: Phases =
        Phases { before: Duration::from_secs(4), switch: Duration::from_secs(2), after: Duration::from_secs(4) };

    #[test]
    fn phases_are_compared_with_what_was_before() {
        // 10 s with a message each 10 ms: the first second is left out.
        let arrivals = arrivals(|sequence| match sequence {
            0..100 => 99.0,
            100 => 3.0,
            101..400 => 1.0,
            400..600 => 4.0,
            _ => 2.0,
        });
        let [before, switch, after] = PHASES.figures(&arrivals).map(Option::unwrap);
        assert_eq!((before.latency.n, switch.latency.n, after.latency.n), (300, 200, 400));
        let mean = 302.0 / 300.0;
        assert_eq!((before.mean_ratio, before.worst_ratio, before.worst_to_worst), (1.0, 3.0 / mean, 1.0));
        assert_eq!((switch.mean_ratio, switch.worst_to_worst), (4.0 / mean, 4.0 / 3.0));
        assert_eq!((after.mean_ratio, after.worst_ratio), (2.0 / mean, 2.0 / mean));
        assert_eq!(PHASES.figures(&arrivals[..50]), [None; 3]);
    }

    #[test]
    fn calm_starts_with_a_second_as_good_as_before() {
        let calm = |latency_ms: &dyn Fn(u64) -> f64| PHASES.calm_after(&arrivals(latency_ms), 1.0);
        assert_eq!(calm(&|_| 1.0), Some(Duration::ZERO));
        assert_eq!(calm(&|sequence| if sequence < 400 { 1.0 } else { 1.2 }), None);
        // Bad until 1.5 s after the switch. The first second with a mean at most a tenth higher has five bad messages
        // of a hundred.
        let again = calm(&|sequence| if (400..550).contains(&sequence) { 3.0 } else { 1.0 });
        assert_eq!(again, Some(Duration::from_millis(1450)));
    }
}
