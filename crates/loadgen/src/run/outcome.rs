//! Outcome of a run: the figures of all reports, in milliseconds and messages a second.

use serde::{Deserialize, Serialize};

use super::{CurvePoint, Plan};

/// All results of a run. `summary.json` is its serialized form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The plan of the run.
    pub plan: Plan,
    /// When the load began, in milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// Time from the start to the last message published or received, or the last new connection.
    pub seconds: f64,
    /// Published messages: written at QoS 0, acknowledged at QoS 1 and 2.
    pub published: Throughput,
    /// Arrivals at all subscribers, with copies; without foreign and wrong messages.
    pub received: Throughput,
    /// Latency from a message's due time to its arrival.
    ///
    /// It covers arrivals between the ramps, and those after the time limit of the run. Messages that were due and
    /// never sent ([`Outcome::unsent`]) count with their waiting time up to the end of publishing, which understates
    /// it. With [`Pace::Open`](super::Pace::Open) this is the latency that a user sees.
    pub latency: Option<Latency>,
    /// Latency from handing a message to the socket to its arrival; `None` if payloads are too small to carry that
    /// time.
    ///
    /// This is the figure of load testers that do not correct for coordinated omission.
    pub latency_uncorrected: Option<Latency>,
    /// Full distribution of `latency`; empty if there is none.
    pub latency_curve: Vec<CurvePoint>,
    /// Full distribution of `latency_uncorrected`; empty if there is none.
    pub latency_uncorrected_curve: Vec<CurvePoint>,
    /// Time from CONNECT to CONNACK of first connections, TCP and TLS included.
    ///
    /// For idle connections with a rate it starts at the due time.
    pub connects: Option<Latency>,
    /// Each second of the run, with those of ramp-up and ramp-down; see [`Second::counts`].
    pub per_second: Vec<Second>,
    /// Each audience on each broker, in the plan's order.
    pub audiences: Vec<AudienceOutcome>,
    /// Verdict on all audiences together.
    pub verdict: Verdict,
    /// Usage of each broker's process, if it is known.
    pub broker_usage: Vec<BrokerUsage>,
    /// Processor seconds of this process and its agents: the cost of the load itself.
    pub own_cpu_seconds: f64,
    /// Messages that were handed to a socket and that the broker has neither accepted nor refused.
    ///
    /// At QoS 1 and 2 they are unacknowledged at the end. At QoS 0 they are unwritten, or were on a connection that was
    /// cut with its session. They are not expected, so that they are not in [`Verdict::lost`] although they are lost.
    pub unacknowledged: u64,
    /// Messages that the broker refused in PUBACK or PUBREC; they are not expected.
    pub not_taken: u64,
    /// Messages that were due but not sent when the time was over.
    pub unsent: u64,
    /// Longest time from due to sent, in milliseconds.
    pub latest_send_ms: f64,
    /// Counts of refused, lost and cut connections, and of sessions.
    pub connections: Connections,
    /// Notes for judging the figures: this program was the bottleneck, clocks differ …
    pub notes: Vec<String>,
}

/// Message count and rate.
///
/// As with MQTTLoader, rates leave out ramp-up and ramp-down. They also leave out messages that are under way when the
/// time of the run is over. The message count includes all of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Number of all messages.
    pub messages: u64,
    /// Mean of the counted seconds.
    pub average_per_second: f64,
    /// Maximum of the counted seconds.
    pub maximum_per_second: u64,
    /// Number of the first counted second.
    ///
    /// As with MQTTLoader, ramps begin and end with the messages of each side. Seconds without messages are left out at
    /// both ends.
    pub from_second: u32,
    /// Number of counted seconds.
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

/// Figures of one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Number of the second, from 0.
    pub second: u32,
    /// Whether the second counts, on at least one side: it is outside ramp-up and ramp-down.
    pub counts: bool,
    /// Messages published in this second.
    pub published: u64,
    /// Arrivals in this second.
    pub received: u64,
    /// Latency of the arrivals in this second.
    pub latency: Option<Latency>,
    /// Payload bytes of the messages published in this second.
    #[serde(default)]
    pub published_bytes: u64,
    /// Payload bytes of the arrivals in this second.
    #[serde(default)]
    pub received_bytes: u64,
    /// Time from due to acknowledged of the messages that were acknowledged in this second; `None` at QoS 0.
    #[serde(default)]
    pub acknowledgement: Option<Latency>,
    /// Messages that the broker refused in this second.
    #[serde(default)]
    pub refused: u64,
    /// Attempts to connect that were refused or failed in this second.
    #[serde(default)]
    pub connections_refused: u64,
    /// Connections that ended unexpectedly in this second.
    #[serde(default)]
    pub connections_lost: u64,
    /// Connections that were made again in this second, after a cut or a loss.
    #[serde(default)]
    pub reconnects: u64,
}

/// Results of an audience on one broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AudienceOutcome {
    /// Its name in the plan.
    pub name: String,
    /// Name of the broker; all names with `+` between them if brokers are doors of one system.
    pub broker: String,
    /// Whether it is a share group, in which one member gets each message.
    pub shared: bool,
    /// Expected and received messages.
    pub verdict: Verdict,
    /// Latency of its arrivals in the whole run, with the resolution of its subscribers' latency.
    pub latency: Option<Latency>,
    /// Time from due until a simulated worker took the message, in the whole run; `None` without workers.
    ///
    /// This is the latency of the published experiments.
    pub waiting: Option<Latency>,
    /// Jain's index over its members' arrivals: 1 if all got the same number, 1/n if one member got all.
    pub jain: Option<f64>,
    /// Results of each member.
    pub subscribers: Vec<SubscriberOutcome>,
}

/// Results of one subscriber.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriberOutcome {
    /// Its Client Identifier.
    pub name: String,
    /// Arrivals, counted as in [`Outcome::received`].
    pub received: u64,
    /// Arrivals in each second of the run.
    pub per_second: Vec<u32>,
    /// Latency of its arrivals in the whole run, to two significant digits.
    ///
    /// It has one digit in a run of more than 10,000 subscribers.
    pub latency: Option<Latency>,
    /// As [`AudienceOutcome::waiting`].
    pub waiting: Option<Latency>,
    /// Mean processing time of a message in each second, in milliseconds; empty unless it is a simulated worker.
    pub processing_ms: Vec<Option<f64>>,
}

/// Expected and received deliveries, summed over receivers: a message for three subscribers counts three times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Deliveries that published messages call for.
    pub expected: u64,
    /// Expected deliveries that arrived, each counted once.
    pub received: u64,
    /// Expected deliveries that never arrived.
    pub lost: u64,
    /// Further copies to the same receiver, or to another member of the same share group.
    pub duplicated: u64,
    /// Of `duplicated`, copies without the DUP flag.
    ///
    /// At QoS 1 and 2 a broker may deliver a message again after a lost connection, but must set the flag. Of copies at
    /// different members, one without the flag counts as the message itself.
    pub duplicated_unmarked: u64,
    /// Of `duplicated`, first copies at a further member of the share group.
    pub to_another_member: u64,
    /// Arrivals behind a later message of the same stream at the same receiver.
    ///
    /// Copies and messages with the DUP flag do not count.
    pub out_of_order: u64,
    /// Messages that arrived without being published: unacknowledged, or sent on a connection that was cut.
    pub unconfirmed: u64,
    /// Arrivals that no publisher of this run has sent.
    pub foreign: u64,
    /// Arrivals with this run's tag that are wrong.
    ///
    /// The payload is damaged, its message was never sent, or the audience has not subscribed to it at this broker.
    pub wrong: u64,
    /// Whether the verdict is exact.
    ///
    /// It is not if payloads are below [`Stamp::LEN`](super::Stamp), so that only message counts can be compared.
    pub exact: bool,
}

/// Usage of a broker's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BrokerUsage {
    /// Its name in the plan.
    pub broker: String,
    /// Process id.
    pub pid: u32,
    /// Processor seconds during the counted seconds; of the whole run if there were no messages.
    pub cpu_seconds: f64,
    /// Deliveries per processor second, in the same seconds.
    pub deliveries_per_cpu_second: Option<f64>,
    /// Resident memory at the end, in KiB.
    pub resident_kib: u64,
    /// Highest resident memory that was sampled, in KiB.
    pub resident_peak_kib: u64,
}

/// Counts of connections and sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Switches to a server that DISCONNECT has named, and their times from the end of the old connection to CONNACK with the
    /// session, in ms: the median and the longest.
    #[serde(default)]
    pub switches: u64,
    /// See `switches`.
    #[serde(default)]
    pub switch_p50_ms: f64,
    /// See `switches`.
    #[serde(default)]
    pub switch_max_ms: f64,
    /// Of the switches: to the server with which the client began; and when the last one was, in ns of the run's clock.
    #[serde(default)]
    pub switches_back: u64,
    /// See `switches_back`.
    #[serde(default)]
    pub switched_back_at_ns: u64,
    /// Successful CONNACKs.
    pub accepted: u64,
    /// CONNACKs with an error, and connections that the broker closed instead.
    pub refused: u64,
    /// Connections that ended unexpectedly.
    pub lost: u64,
    /// Connections that the run cut.
    pub cut: u64,
    /// Connections that were made again, after a cut or a loss; they count as accepted too.
    #[serde(default)]
    pub reconnected: u64,
    /// Reconnects that found their session.
    pub sessions_present: u64,
    /// Will Messages that arrived at the subscribers for Wills.
    pub wills: u64,
    /// First connections accepted per second, from the first CONNECT to the last CONNACK.
    pub accepted_per_second: f64,
}
