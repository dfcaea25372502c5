//! What came of a run: the figures that every report is made of, in milliseconds and messages a second.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Plan;

/// Everything that is known when a run is over. `summary.json` is this, serialized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was to be done.
    pub plan: Plan,
    /// When the load began, in milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// From then to the last message that was published or came, or the last new connection.
    pub seconds: f64,
    /// Messages that publishers have published: written at QoS 0, acknowledged at QoS 1 and 2.
    pub published: Throughput,
    /// Arrivals at all subscribers, copies too; without foreign and wrong ones.
    pub received: Throughput,
    /// From a message's due time to its arrival, of arrivals in the seconds between the ramps, and in those after the time
    /// of the run too. Messages that were due and never sent ([`Outcome::unsent`]) are in it with what they had waited when
    /// the time was over, which is less than they would have. With [`Pace::Open`](super::Pace::Open) this is what a user waits.
    pub latency: Option<Latency>,
    /// From the moment at which a message was handed to the socket to its arrival: what a load tester shows that does
    /// not correct for coordinated omission. `None` where payloads are too small to carry it.
    pub latency_uncorrected: Option<Latency>,
    /// The whole distribution of `latency`; empty where there is none.
    pub latency_curve: Vec<CurvePoint>,
    /// The whole distribution of `latency_uncorrected`; empty where there is none.
    pub latency_uncorrected_curve: Vec<CurvePoint>,
    /// From CONNECT to CONNACK, TCP and TLS included, of first connections; of idle ones with a rate from the moment at
    /// which they were to be made.
    pub connects: Option<Latency>,
    /// Each second of the run, from its first one; ramp-up and ramp-down too, which [`Second::counts`] tells.
    pub per_second: Vec<Second>,
    /// Each audience on each broker, in the plan's order.
    pub audiences: Vec<AudienceOutcome>,
    /// All of them together.
    pub verdict: Verdict,
    /// Each broker's process, where it is known.
    pub broker_usage: Vec<BrokerUsage>,
    /// This process and its agents: what the load itself cost, in processor seconds.
    pub own_cpu_seconds: f64,
    /// Messages that were handed to a socket and that the broker has neither taken nor refused: at QoS 1 and 2 not
    /// acknowledged at the end, at QoS 0 not written, or on a connection that was cut with its session. They are not
    /// expected, and are lost without being in [`Verdict::lost`].
    pub unacknowledged: u64,
    /// Messages that the broker has refused, in PUBACK or PUBREC; they are not expected.
    pub not_taken: u64,
    /// Messages that publishers were ready to send but had not sent when the time was over.
    pub unsent: u64,
    /// Longest time by which a message went out after its due time, in milliseconds.
    pub latest_send_ms: f64,
    /// Connections that were refused, lost or cut, and sessions.
    pub connections: Connections,
    /// What a reader must know to judge the figures: that this program was the bottleneck, that clocks differ …
    pub notes: Vec<String>,
}

/// Messages and their rate. Rates leave ramp-up and ramp-down out, as MQTTLoader's do, and what is on its way when the
/// time of the run is over; the count does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// All of them.
    pub messages: u64,
    /// Mean of the seconds that count.
    pub average_per_second: f64,
    /// The best second that counts.
    pub maximum_per_second: u64,
    /// Number of the first second that counts. As with MQTTLoader, ramps begin and end where messages do, on each side
    /// for itself, and seconds without any are left out at both ends.
    pub from_second: u32,
    /// Seconds that count.
    pub seconds: u32,
}

/// Latency in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// A point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// A share of all, from 0 to 1 …
    pub share: f64,
    /// … took at most so long, in milliseconds.
    pub ms: f64,
}

impl CurvePoint {
    /// The distribution in `histogram`, whose values are multiples of `unit_ms`: from the shortest to the longest, five
    /// points for each half of what is left.
    pub fn curve(histogram: &Histogram<u64>, unit_ms: f64) -> Vec<Self> {
        if histogram.is_empty() {
            return Vec::new();
        }
        let shortest = Self { share: 0.0, ms: histogram.min() as f64 * unit_ms };
        let longest_ms = histogram.max() as f64 * unit_ms;
        let points = histogram.iter_quantiles(5).map(|step| Self {
            share: step.quantile_iterated_to(),
            ms: (step.value_iterated_to() as f64 * unit_ms).min(longest_ms),
        });
        std::iter::once(shortest).chain(points).collect()
    }
}

/// One second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Number of the second, from 0.
    pub second: u32,
    /// Whether it counts on one side at least: is outside ramp-up and ramp-down.
    pub counts: bool,
    /// Messages published in it.
    pub published: u64,
    /// Arrivals in it.
    pub received: u64,
    /// Latency of the arrivals in it.
    pub latency: Option<Latency>,
}

/// An audience on one broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AudienceOutcome {
    /// Its name in the plan.
    pub name: String,
    /// The broker's.
    pub broker: String,
    /// Whether each message is for one member only.
    pub shared: bool,
    /// What it had to get and what it got.
    pub verdict: Verdict,
    /// Latency of its arrivals, of the whole run, as exact as its subscribers'.
    pub latency: Option<Latency>,
    /// From a message's due time to the moment at which a simulated worker took it out of its queue, of the whole run:
    /// the latency of the published experiments. `None` where nobody works.
    pub waiting: Option<Latency>,
    /// Jain's index over its members' arrivals: 1 where all got as many, 1/n where one got all.
    pub jain: Option<f64>,
    /// Each member.
    pub subscribers: Vec<SubscriberOutcome>,
}

/// One subscriber.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriberOutcome {
    /// Its client id.
    pub name: String,
    /// Arrivals, as [`Outcome::received`] has them.
    pub received: u64,
    /// Arrivals in each second of the run.
    pub per_second: Vec<u32>,
    /// Latency of its arrivals, of the whole run, to two significant digits; one in a run of more than 10,000.
    pub latency: Option<Latency>,
    /// As [`AudienceOutcome::waiting`].
    pub waiting: Option<Latency>,
    /// Mean processing time of a message in each second, in milliseconds; empty where it is no simulated worker.
    pub processing_ms: Vec<Option<f64>>,
}

/// What was to come and what came. Sums over receivers: a message for three subscribers is expected three times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Deliveries that published messages call for.
    pub expected: u64,
    /// Of these, those that came, each counted once.
    pub received: u64,
    /// Of these, those that never came.
    pub lost: u64,
    /// Further copies to the same receiver, or to another member of the same share group.
    pub duplicated: u64,
    /// Of `duplicated`, those without the DUP flag. Above QoS 0 a broker may deliver a message again after a connection
    /// was lost, but then says so. Of copies at different members, one without the flag is taken for the message itself.
    pub duplicated_unmarked: u64,
    /// Of `duplicated`, those to a member that did not have the message, when another had it.
    pub to_another_member: u64,
    /// Arrivals behind a later message of the same publisher and topic at the same receiver, without copies and without
    /// messages with the DUP flag.
    pub out_of_order: u64,
    /// Messages that came and were attempted, but never published: unacknowledged, or on a connection that was cut.
    pub unconfirmed: u64,
    /// Arrivals that nobody in this run has sent.
    pub foreign: u64,
    /// Arrivals with this run's tag whose payload is damaged or says what was never sent, or which came to an audience
    /// that has not subscribed to them at this broker.
    pub wrong: u64,
    /// Whether all this is exact; it is not where payloads are below [`Stamp::LEN`](super::Stamp), which leaves numbers
    /// of messages only.
    pub exact: bool,
}

/// A broker's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BrokerUsage {
    /// Its name in the plan.
    pub broker: String,
    /// Its process.
    pub pid: u32,
    /// Processor seconds during the seconds that count; of the whole run where no messages came.
    pub cpu_seconds: f64,
    /// Deliveries of the same seconds for each processor second.
    pub deliveries_per_cpu_second: Option<f64>,
    /// Resident memory at the end, in KiB.
    pub resident_kib: u64,
    /// The most resident memory that was seen, in KiB.
    pub resident_peak_kib: u64,
}

/// Connections and sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// CONNACKs with success.
    pub accepted: u64,
    /// CONNACKs with an error, and connections that the broker closed instead.
    pub refused: u64,
    /// Connections that ended by themselves.
    pub lost: u64,
    /// Connections that the run cut.
    pub cut: u64,
    /// Of those that came back, those whose session was there.
    pub sessions_present: u64,
    /// Wills that arrived, at the subscribers that ask for them.
    pub wills: u64,
    /// First connections of clients, accepted in a second, from the first CONNECT to the last CONNACK.
    pub accepted_per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_the_shortest_to_the_longest() {
        let mut histogram = Histogram::new(3).unwrap();
        assert!(CurvePoint::curve(&histogram, 1.0).is_empty());
        (1..=100_000_u64).for_each(|value| histogram.record(value).unwrap());
        let curve = CurvePoint::curve(&histogram, 0.001);
        let (first, last) = (curve[0], curve[curve.len() - 1]);
        assert_eq!((first.share, first.ms, last.share), (0.0, 0.001, 1.0));
        assert!((last.ms - 100.0).abs() < 0.1 && curve.len() < 200, "{last:?}");
        assert!(curve.is_sorted_by_key(|point| point.share) && curve.is_sorted_by_key(|point| point.ms));
        let median = curve.iter().find(|point| point.share >= 0.5).unwrap();
        assert!((median.ms - 50.0).abs() < 0.1, "{median:?}");
    }
}
