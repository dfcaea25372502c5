//! Complete description of a run: command line, `.conf` file and an agent's controller all yield a [`Plan`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenbin_codec::ReportCarrier;
use tenbin_simulator::scenario::WorkerKind;
use tenbin_simulator::{Arrivals, Rng};

use super::{Broker, ConnectionOptions, Doors, OnLost, Stamp};
use crate::values;

/// A run. It is serialized for agents, so that it holds no references and no open files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Number that distinguishes this run's messages from other runs' messages on the same topics.
    pub tag: u16,
    /// Protocol, by which the run's [`Drivers`](super::Drivers) select a driver; [`Plan::MQTT`] by default.
    #[serde(default = "mqtt")]
    pub protocol: String,
    /// Brokers, at least one.
    pub brokers: Vec<Broker>,
    /// How several brokers belong together.
    #[serde(default)]
    pub doors: Doors,
    /// Reaction to the unexpected loss of a connection.
    #[serde(default)]
    pub on_lost: OnLost,
    /// Connection options of all clients.
    pub connection: ConnectionOptions,
    /// Settings of the protocol's driver by name; MQTT has none.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// The publishers.
    pub publishers: Publishers,
    /// The subscribers. Each share group gets each message once; in any other audience, each member gets it once.
    pub audiences: Vec<Audience>,
    /// Idle connections.
    pub idle: Option<Idle>,
    /// Cuts of connections during the run.
    pub cuts: Option<Cuts>,
    /// Ramps and end of the run.
    pub schedule: Schedule,
    /// Driver threads of each process.
    ///
    /// 1 is for all connections together, 2 for publishers and subscribers apart (the default), more to spread both.
    pub threads: u16,
    /// Whether to keep a [`MessageRecord`](super::MessageRecord) of each arrival, for files and plots.
    pub records: bool,
    /// Whether to keep [`Ticks`](super::Ticks): latencies and counts for any period of the run, in about two bytes a message.
    #[serde(default)]
    pub ticks: bool,
}

fn mqtt() -> String {
    Plan::MQTT.to_owned()
}

impl Plan {
    /// Protocol of MQTT-SN clients over UDP.
    pub const MQTT_SN: &str = "mqtt-sn";
    /// Protocol of publishers that send POST requests.
    pub const HTTP: &str = "http";
    /// Setting of MQTT-SN and HTTP: broker of the subscribers, `HOST:PORT`, who use MQTT 5.0 then. HTTP needs it.
    pub const MQTT_BROKER: &str = "mqtt_broker";
    /// Setting of HTTP, with any value: each request opens a connection.
    pub const CONNECTION_PER_REQUEST: &str = "connection_per_request";
    /// The protocol of the built-in driver.
    pub const MQTT: &str = "mqtt";

    /// A run of `publishers` and `audiences` at `brokers`, with defaults for all else.
    ///
    /// It is over MQTT, brokers are independent, and a lost connection ends the run. It has no idle connections, no cuts, the default [`Schedule`], 2 threads and no records. Client Identifiers are
    /// `tenbin-TAG-…`, with the tag in hexadecimal.
    pub fn new(tag: u16, brokers: Vec<Broker>, publishers: Publishers, audiences: Vec<Audience>) -> Self {
        Self {
            tag,
            protocol: mqtt(),
            brokers,
            doors: Doors::default(),
            on_lost: OnLost::default(),
            connection: ConnectionOptions::new(format!("tenbin-{tag:04x}")),
            settings: BTreeMap::new(),
            publishers,
            audiences,
            idle: None,
            cuts: None,
            schedule: Schedule::default(),
            threads: 2,
            records: false,
            ticks: false,
        }
    }
}

impl Plan {
    /// Whether a client of this kind connects again after the unexpected loss of its connection.
    ///
    /// That is so if the plan says so, and while the plan cuts connections of this kind, as a broker may answer a cut late.
    pub(crate) fn reconnects(&self, whose: CutWhose) -> bool {
        self.on_lost.reconnects() || self.cuts.is_some_and(|cuts| cuts.whose == whose)
    }
}

/// The publishers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Publishers {
    /// Number of connections; 0 for a run that only receives.
    pub count: u32,
    /// QoS, 0 to 2.
    pub qos: u8,
    /// RETAIN flag of each message.
    pub retain: bool,
    /// Topic name, with `{publisher}` for the publisher's number and `{topic}` for the topic's, both from 0.
    pub topic: String,
    /// Topics that each publisher rotates over; more than 1 needs `{topic}`.
    pub topics: u32,
    /// Payload size in bytes, at least [`Stamp::TIME_LEN`](super::Stamp).
    ///
    /// Below [`Stamp::LEN`](super::Stamp) a payload carries only the time, so that losses are found only by counting.
    pub payload: u32,
    /// Messages per publisher; `None` = no limit but the time.
    pub messages: Option<u64>,
    /// When to send messages.
    pub pace: Pace,
    /// Maximum number of unacknowledged messages per publisher at QoS 1 and 2; the broker's Receive Maximum also
    /// applies.
    pub in_flight: u16,
    /// Which broker each publisher connects to.
    pub spread: Spread,
    /// Keep Alive of MQTT in seconds, 0 for none; `None` for the one of [`ConnectionOptions`].
    #[serde(default)]
    pub keep_alive: Option<u16>,
}

impl Publishers {
    /// `count` publishers that each send 20 bytes at QoS 0 to one topic, as many and as fast as possible.
    ///
    /// If QoS is raised, each has up to 100 messages in flight.
    pub fn new(count: u32, topic: impl Into<String>) -> Self {
        Self {
            count,
            qos: 0,
            retain: false,
            topic: topic.into(),
            topics: 1,
            payload: Stamp::LEN as u32,
            messages: None,
            pace: Pace::Unlimited,
            in_flight: 100,
            spread: Spread::InTurns,
            keep_alive: None,
        }
    }
}

/// When messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// Open loop: each publisher sends one message every `interval`, on a schedule fixed before the run.
    ///
    /// Publisher k of n starts k·interval/n later. A message that cannot be sent in time keeps its due time, from which
    /// its latency counts. So a stalled broker shows in the latency (no coordinated omission).
    Open {
        /// Interval between two messages of a publisher.
        interval: Duration,
    },
    /// Open loop at a scenario's arrival times, counted from the start; each publisher has all of them.
    ///
    /// Latency counts from a message's creation, so that this program's own lateness is no part of it. A message that
    /// became due while the broker took nothing counts from its due time. It needs [`Publishers::messages`].
    Arrivals {
        /// The arrival times.
        arrivals: Arrivals,
        /// Seed of random arrival times.
        seed: u64,
    },
    /// Closed loop: as fast as possible, with a limit on outstanding deliveries of all connections of the process.
    Closed {
        /// Maximum number of outstanding deliveries.
        window: u64,
    },
    /// As fast as the socket accepts it (at QoS 1 and 2, as `in_flight` allows), regardless of receivers.
    ///
    /// An overloaded broker shows as growing latency.
    Unlimited,
}

impl Pace {
    /// Whether messages have due times.
    pub fn is_scheduled(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Arrivals { .. })
    }
}

/// How connections are spread over the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// Connection k to broker k mod n.
    InTurns,
    /// All to the broker with this number.
    Broker(u16),
}

/// Subscribers with the same filter and options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audience {
    /// Name in reports; unique in the plan.
    pub name: String,
    /// Number of subscribers.
    pub count: u32,
    /// Topic Filter without `$share`; may have wildcards and `{subscriber}`, the subscriber's number in the audience.
    pub filter: String,
    /// Name of the share group, if it is one. An audience spread over several brokers is a share group on each.
    pub share: Option<String>,
    /// Requested QoS, 0 to 2.
    pub qos: u8,
    /// Which broker its members connect to.
    pub spread: Spread,
    /// Work of simulated workers; `None` for subscribers that only receive.
    pub work: Option<Work>,
    /// Members that read slowly; `None` for none. Only without `work`.
    pub slow: Option<Slow>,
    /// Keep Alive of MQTT in seconds, 0 for none; `None` for the one of [`ConnectionOptions`]. Only without `work`.
    #[serde(default)]
    pub keep_alive: Option<u16>,
}

impl Audience {
    /// `count` subscribers to `filter` at QoS 0, without share group and work, spread over all brokers.
    pub fn new(name: impl Into<String>, count: u32, filter: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            count,
            filter: filter.into(),
            share: None,
            qos: 0,
            spread: Spread::InTurns,
            work: None,
            slow: None,
            keep_alive: None,
        }
    }
}

/// Members of an audience that read slowly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// Number of these members: the last ones of the audience.
    pub members: u32,
    /// Messages a second that each of them reads at most; 0 for none.
    pub rate: f64,
    /// Beginning of the limit, after the start; 0 also limits what arrives before the start.
    pub from: Duration,
    /// End of the limit, after the start; `None` if it lasts to the end of the run.
    pub until: Option<Duration>,
}

impl Slow {
    /// One slow member, for the whole run.
    pub fn last_member(rate: f64) -> Self {
        Self { members: 1, rate, from: Duration::ZERO, until: None }
    }
}

/// Simulated workers: messages wait in a worker's queue, and it processes one or a few at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The workers: the one with number k in its audience is entry k mod the list's length; at least one entry.
    ///
    /// Times count from the start of the run. The fields `count`, `delay`, `weight` and `remembered` have no effect.
    pub workers: Vec<WorkerKind>,
    /// Seed of random service times, and of the times at which workers connect.
    pub seed: u64,
    /// Load reports of the workers that report; `None` for none.
    pub reports: Option<Reports>,
    /// Workers connect at random times within this.
    pub connect_within: Duration,
    /// Program and arguments of workers that bring an MQTT client; empty for simulated workers.
    ///
    /// A plan from another machine starts no program.
    #[serde(skip)]
    pub program: Vec<String>,
}

impl Work {
    /// Work of these workers, which do not report and connect at once.
    pub fn new(workers: Vec<WorkerKind>) -> Self {
        Self { workers, seed: 7, reports: None, connect_within: Duration::ZERO, program: Vec::new() }
    }

    /// The worker with number `member` in its audience.
    pub(crate) fn worker(&self, member: u32) -> &WorkerKind {
        &self.workers[member as usize % self.workers.len()]
    }

    /// Time after which worker `member` connects: random within `connect_within`.
    ///
    /// Load reports count from each connection on, so that the random times keep them unaligned.
    pub(crate) fn connect_delay(&self, member: u32) -> Duration {
        let within_ns = u64::try_from(self.connect_within.as_nanos()).unwrap_or(u64::MAX).max(1);
        let random = Rng::new((self.seed ^ CONNECT_DELAYS).wrapping_add(member.into())).next_u64();
        Duration::from_nanos(random % within_ns)
    }
}

/// Separates these random numbers from others of the same seed.
const CONNECT_DELAYS: u64 = 0x656e_7472_616e_6365;

/// Load reports of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reports {
    /// Carrier of the reports; `None` for one that the broker announces.
    pub carrier: Option<Carrier>,
    /// Interval between two reports.
    pub interval: Duration,
    /// Whether workers also report early, after a large change.
    pub eager: bool,
}

impl From<Carrier> for ReportCarrier {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::PingReq => Self::PingReq,
            Carrier::Ack => Self::Ack,
            Carrier::Publish => Self::Publish,
        }
    }
}

/// Carrier of a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// An extended PINGREQ.
    PingReq,
    /// A User Property of acknowledgements.
    Ack,
    /// A message to `$load`.
    Publish,
}

impl Carrier {
    /// The carrier that an argument names; `None` for workers that do not report.
    pub(crate) fn of(reports: values::Reports) -> Option<Self> {
        match reports {
            values::Reports::None => None,
            values::Reports::Pingreq => Some(Self::PingReq),
            values::Reports::Ack => Some(Self::Ack),
            values::Reports::Publish => Some(Self::Publish),
        }
    }
}

/// Idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Number of connections.
    pub count: u32,
    /// New connections a second; `None` for as fast as possible.
    pub rate: Option<f64>,
}

/// Cuts of connections, without DISCONNECT; their clients reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cuts {
    /// Interval between two cuts, over all connections of that kind.
    pub every: Duration,
    /// Kind of connections to cut, in turns.
    pub whose: CutWhose,
    /// How long the client stays away.
    pub away: Duration,
}

/// Kind of connections that are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutWhose {
    /// Publishers' connections.
    Publishers,
    /// Subscribers' connections.
    Subscribers,
    /// Idle connections.
    Idle,
}

/// Beginning, ramps and end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Time from the last connection to the start of the load.
    pub lead: Duration,
    /// Publishing ends after this time at the latest.
    pub time_limit: Duration,
    /// Whole seconds at the beginning to leave out of the figures. The verdict covers all seconds.
    pub ramp_up: u32,
    /// Whole seconds at the end to leave out of the figures.
    pub ramp_down: u32,
    /// After publishing, the run ends when nothing has arrived for this time, or everything has.
    pub subscriber_timeout: Duration,
}

impl Default for Schedule {
    /// One minute, no lead, no ramps, and five seconds for messages under way.
    fn default() -> Self {
        Self {
            lead: Duration::ZERO,
            time_limit: Duration::from_secs(60),
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenbin_simulator::Span;

    use super::*;

    #[test]
    fn workers_are_dealt_over_the_members() {
        let work = Work::new([25.0, 50.0].map(|ms| WorkerKind::of(Span::from_ms(ms))).into());
        assert_eq!([0, 1, 2, 3].map(|member| work.worker(member).service.ms()), [25.0, 50.0, 25.0, 50.0]);
    }

    #[test]
    fn a_plan_from_another_machine_starts_no_program() {
        let work = Work { program: vec!["program".to_owned()], ..Work::new(vec![WorkerKind::of(Span::from_ms(0.1))]) };
        let json = serde_json::to_string(&work).unwrap();
        assert_eq!(serde_json::from_str::<Work>(&json).unwrap(), Work { program: Vec::new(), ..work });
    }

    #[test]
    fn workers_connect_at_random_within_their_time() {
        let of_seed = |seed| {
            let kind = WorkerKind::of(Span::from_ms(1.0));
            let work = Work { seed, connect_within: Duration::from_secs(1), ..Work::new(vec![kind]) };
            let mut times: Vec<_> = (0..40).map(|member| work.connect_delay(member)).collect();
            times.sort_unstable();
            times
        };
        let (early, late) = (Duration::from_millis(500), Duration::from_secs(1));
        assert!(of_seed(1)[0] < early && of_seed(1)[39] > early && of_seed(1)[39] < late);
        assert_eq!(of_seed(1), of_seed(1));
        assert_ne!(of_seed(1), of_seed(2));
    }
}
