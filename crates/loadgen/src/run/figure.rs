//! Figures of a run, which assertions and comparisons refer to by name.

use tenbin_simulator::Span;

use super::{Latency, Outcome, Verdict};

/// A figure of a run with a name.
#[derive(Debug)]
pub struct Figure {
    /// Its name in assertions.
    pub name: &'static str,
    /// Description in `--help`.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Value of the figure; `None` if the run has none.
    pub of: fn(&Outcome) -> Option<f64>,
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Number,
    /// Parsed and printed with a unit.
    Milliseconds,
}

impl Figure {
    /// The figure with this name; `p99.9` is `p999`.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.replace("p99.9", "p999");
        FIGURES.iter().find(|figure| figure.name == name)
    }
}

/// Figures with the same name are equal.
impl PartialEq for Figure {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Unit {
    /// Formats a value: `61.2 ms`, `1000`.
    pub fn text(self, value: f64) -> String {
        let number = format!("{value:.3}");
        let number = number.trim_end_matches('0').trim_end_matches('.');
        match self {
            Self::Number => number.to_owned(),
            Self::Milliseconds => format!("{number} ms"),
        }
    }

    /// Parses a value; a latency is a time with its unit.
    ///
    /// # Errors
    /// The text is no number, or no time with a unit.
    pub fn parse(self, text: &str) -> Result<f64, String> {
        let number = text.parse::<f64>().ok().filter(|value| value.is_finite());
        match self {
            Self::Number => number.ok_or_else(|| format!("{text:?} is no number")),
            // A number alone would be seconds, though latencies are printed in milliseconds.
            Self::Milliseconds if number.is_some() => Err(format!("{text:?} has no unit: us, ms, s, m or h")),
            Self::Milliseconds => text.parse::<Span>().map(Span::ms),
        }
    }
}

const fn number(name: &'static str, what: &'static str, of: fn(&Outcome) -> Option<f64>) -> Figure {
    Figure { name, what, unit: Unit::Number, of }
}

const fn ms(name: &'static str, what: &'static str, of: fn(&Outcome) -> Option<f64>) -> Figure {
    Figure { name, what, unit: Unit::Milliseconds, of }
}

fn due(outcome: &Outcome, of: fn(&Latency) -> f64) -> Option<f64> {
    outcome.latency.as_ref().map(of)
}

fn sent(outcome: &Outcome, of: fn(&Latency) -> f64) -> Option<f64> {
    outcome.latency_uncorrected.as_ref().map(of)
}

fn connect(outcome: &Outcome, of: fn(&Latency) -> f64) -> Option<f64> {
    outcome.connects.as_ref().map(of)
}

/// A count of the verdict; `None` without publishers.
fn judged(outcome: &Outcome, of: fn(&Verdict) -> u64) -> Option<f64> {
    (outcome.plan.publishers.count > 0).then(|| of(&outcome.verdict) as f64)
}

/// A count of the verdict; `None` if payloads do not identify messages.
fn told_apart(outcome: &Outcome, of: fn(&Verdict) -> u64) -> Option<f64> {
    if outcome.verdict.exact { judged(outcome, of) } else { None }
}

/// Waiting time of the audience whose messages wait longest.
fn waiting(outcome: &Outcome, of: fn(&Latency) -> f64) -> Option<f64> {
    outcome.audiences.iter().filter_map(|audience| audience.waiting.as_ref().map(of)).reduce(f64::max)
}

/// The smallest of the known values.
fn least(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().reduce(f64::min)
}

/// All figures, in the order of `--help`.
pub const FIGURES: &[Figure] = &[
    number("expected", "deliveries that published messages call for", |o| judged(o, |v| v.expected)),
    number("received", "of these, those that came", |o| judged(o, |v| v.received)),
    number("lost", "of these, those that never came", |o| judged(o, |v| v.lost)),
    number("duplicated", "further copies", |o| judged(o, |v| v.duplicated)),
    number("duplicated_unmarked", "of these, those without the DUP flag", |o| judged(o, |v| v.duplicated_unmarked)),
    number("to_another_member", "of these, those to another member of the share group", |o| {
        told_apart(o, |v| v.to_another_member)
    }),
    number("out_of_order", "arrivals behind a later message of the same publisher and topic", |o| {
        told_apart(o, |v| v.out_of_order)
    }),
    number("unconfirmed", "arrivals of messages that were not acknowledged to their publisher", |o| {
        judged(o, |v| v.unconfirmed)
    }),
    number("foreign", "arrivals from outside of this run", |o| Some(o.verdict.foreign as f64)),
    number("wrong", "arrivals that are damaged, or match no subscription", |o| told_apart(o, |v| v.wrong)),
    number("published", "messages published", |o| Some(o.published.messages as f64)),
    number("published_per_second", "mean of the seconds that count", |o| Some(o.published.average_per_second)),
    number("published_maximum", "best second that counts", |o| Some(o.published.maximum_per_second as f64)),
    number("received_per_second", "mean of the seconds that count", |o| Some(o.received.average_per_second)),
    number("received_maximum", "best second that counts", |o| Some(o.received.maximum_per_second as f64)),
    number("unacknowledged", "messages that the broker has neither taken nor refused", |o| {
        Some(o.unacknowledged as f64)
    }),
    number("not_taken", "messages that the broker has refused", |o| Some(o.not_taken as f64)),
    number("missing", "lost, unacknowledged and not_taken together: 0 where nothing at all is missing", |o| {
        judged(o, |v| v.lost).map(|lost| lost + (o.unacknowledged + o.not_taken) as f64)
    }),
    number("unsent", "messages that were due but had not been sent at the end", |o| Some(o.unsent as f64)),
    number("seconds", "how long it took", |o| Some(o.seconds)),
    ms("mean", "latency from the due time: mean", |o| due(o, |l| l.mean)),
    ms("min", "… least", |o| due(o, |l| l.min)),
    ms("p50", "… median", |o| due(o, |l| l.p50)),
    ms("p90", "… of 90 % at most", |o| due(o, |l| l.p90)),
    ms("p99", "… of 99 % at most", |o| due(o, |l| l.p99)),
    ms("p999", "… of 99.9 % at most, also p99.9", |o| due(o, |l| l.p999)),
    ms("max", "… most", |o| due(o, |l| l.max)),
    ms("uncorrected_mean", "latency from sending, without correction for coordinated omission", |o| {
        sent(o, |l| l.mean)
    }),
    ms("uncorrected_min", "…", |o| sent(o, |l| l.min)),
    ms("uncorrected_p50", "…", |o| sent(o, |l| l.p50)),
    ms("uncorrected_p90", "…", |o| sent(o, |l| l.p90)),
    ms("uncorrected_p99", "…", |o| sent(o, |l| l.p99)),
    ms("uncorrected_p999", "…", |o| sent(o, |l| l.p999)),
    ms("uncorrected_max", "…", |o| sent(o, |l| l.max)),
    ms("waiting_mean", "until a simulated worker takes a message, of the worst audience: mean", |o| {
        waiting(o, |l| l.mean)
    }),
    ms("waiting_p50", "…", |o| waiting(o, |l| l.p50)),
    ms("waiting_p90", "…", |o| waiting(o, |l| l.p90)),
    ms("waiting_p99", "…", |o| waiting(o, |l| l.p99)),
    ms("waiting_p999", "…", |o| waiting(o, |l| l.p999)),
    ms("waiting_max", "…", |o| waiting(o, |l| l.max)),
    ms("latest_send", "longest time by which a message went out after its due time", |o| Some(o.latest_send_ms)),
    ms("connect_mean", "from opening a connection to CONNACK", |o| connect(o, |l| l.mean)),
    ms("connect_p50", "…", |o| connect(o, |l| l.p50)),
    ms("connect_p99", "…", |o| connect(o, |l| l.p99)),
    ms("connect_max", "…", |o| connect(o, |l| l.max)),
    number("jain", "Jain's index of the shares of a share group, the least of all groups", |o| {
        least(o.audiences.iter().filter(|audience| audience.shared).map(|audience| audience.jain))
    }),
    number("connections_accepted", "connections that were accepted", |o| Some(o.connections.accepted as f64)),
    number("connections_refused", "… refused", |o| Some(o.connections.refused as f64)),
    number("connections_lost", "… that ended by themselves", |o| Some(o.connections.lost as f64)),
    number("reconnects", "… made again after a cut or a loss", |o| Some(o.connections.reconnected as f64)),
    number("connections_cut", "… that the run cut", |o| Some(o.connections.cut as f64)),
    number("connections_per_second", "… accepted a second", |o| Some(o.connections.accepted_per_second)),
    number("sessions_present", "sessions that were there when a client came back", |o| {
        Some(o.connections.sessions_present as f64)
    }),
    number("wills", "Wills that arrived", |o| Some(o.connections.wills as f64)),
    number("cpu_seconds", "processor seconds of all brokers", |o| {
        o.broker_usage.iter().map(|usage| usage.cpu_seconds).reduce(|a, b| a + b)
    }),
    number("deliveries_per_cpu_second", "of the broker with the fewest", |o| {
        least(o.broker_usage.iter().map(|usage| usage.deliveries_per_cpu_second))
    }),
    number("resident_kib", "memory of the largest broker at the end", |o| {
        o.broker_usage.iter().map(|usage| usage.resident_kib as f64).reduce(f64::max)
    }),
    number("resident_peak_kib", "most memory of a broker", |o| {
        o.broker_usage.iter().map(|usage| usage.resident_peak_kib as f64).reduce(f64::max)
    }),
    number("own_cpu_seconds", "processor seconds of this program and its agents", |o| Some(o.own_cpu_seconds)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        for (value, expected) in [(61.2, "61.2"), (50.0, "50"), (0.0, "0"), (1e5, "100000"), (0.12345, "0.123")] {
            assert_eq!(Unit::Number.text(value), expected);
        }
        assert_eq!(Unit::Milliseconds.text(0.25), "0.25 ms");
    }

    #[test]
    fn names_are_unique_and_found() {
        for figure in FIGURES {
            assert_eq!(FIGURES.iter().filter(|other| *other == figure).count(), 1, "{}", figure.name);
            assert_eq!(Figure::find(figure.name), Some(figure));
        }
        assert_eq!(Figure::find("uncorrected_p99.9").map(|figure| figure.name), Some("uncorrected_p999"));
    }
}
