//! What a run is to do, with nothing left to be decided: the command line, a `.conf` file and an agent's controller all
//! end in a [`Plan`].

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Stamp;

/// A run. It is serialized for agents, so that it holds no references and no open files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Tells this run's messages from those of another that uses the same topics.
    pub tag: u16,
    /// At least one.
    pub brokers: Vec<Broker>,
    /// How every client connects.
    pub connection: ConnectionOptions,
    /// Who publishes.
    pub publishers: Publishers,
    /// Who receives. Each entry is an audience of its own: all of it gets each message once if it is a share group, else
    /// every one of its members does.
    pub audiences: Vec<Audience>,
    /// Connections that do nothing but be there.
    pub idle: Option<Idle>,
    /// Cuts of connections while the run goes on.
    pub cuts: Option<Cuts>,
    /// When it starts counting and when it ends.
    pub schedule: Schedule,
    /// Driver threads of each process: 1 for all connections together, 2 for publishers and subscribers apart (the
    /// default), or more, over which both are spread.
    pub threads: u16,
    /// Keep a [`MessageRecord`](super::MessageRecord) of each arrival, for files and plots.
    pub records: bool,
}

impl Plan {
    /// `publishers` and `audiences` at `brokers`, and nothing else: no idle connections, no cuts, the default
    /// [`Schedule`], 2 threads, no records. Clients are called `tenbin-TAG-…`, the tag in hexadecimal.
    pub fn new(tag: u16, brokers: Vec<Broker>, publishers: Publishers, audiences: Vec<Audience>) -> Self {
        Self {
            tag,
            brokers,
            connection: ConnectionOptions::new(format!("tenbin-{tag:04x}")),
            publishers,
            audiences,
            idle: None,
            cuts: None,
            schedule: Schedule::default(),
            threads: 2,
            records: false,
        }
    }
}

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker {
    /// What reports call it.
    pub name: String,
    /// A name or an address. A name with several addresses is taken in turns, one address a connection.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Broker {
    /// `host`, which reports call `name`.
    pub fn new(name: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), host: host.into(), port }
    }
}

/// What all CONNECT packets and the connections below them have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionOptions {
    /// 5.0 or 3.1.1.
    pub version: Version,
    /// User Name, if any.
    pub user_name: Option<String>,
    /// Password, if any.
    pub password: Option<String>,
    /// TLS, if the connections are to use it.
    pub tls: Option<TlsOptions>,
    /// Seconds; 0 for none.
    pub keep_alive: u16,
    /// How long the broker keeps the session when a connection ends; `None` ends it with the connection (Clean Start
    /// with nothing kept). At 3.1.1 anything but `None` is Clean Session 0.
    pub session_expiry: Option<Duration>,
    /// Start of all client ids: `PREFIX-pub-N`, `PREFIX-sub-N`, `PREFIX-idle-N`.
    pub client_id_prefix: String,
    /// A Will on every publisher and idle connection: one of these goes out for each connection that is cut.
    pub will: Option<WillOptions>,
}

impl ConnectionOptions {
    /// MQTT 5.0 on plain TCP, without user name, Keep Alive, Will, and sessions that outlive connections.
    pub fn new(client_id_prefix: impl Into<String>) -> Self {
        Self {
            version: Version::V5,
            user_name: None,
            password: None,
            tls: None,
            keep_alive: 0,
            session_expiry: None,
            client_id_prefix: client_id_prefix.into(),
            will: None,
        }
    }
}

/// Protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.0.
    V5,
}

/// Files are PEM and are read on the machine that opens the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsOptions {
    /// Certificates of those who may vouch for the broker; the system's where there are none.
    pub ca: Option<PathBuf>,
    /// The client's key, for a broker that asks who it is.
    pub client_key: Option<PathBuf>,
    /// The client's certificates, its own first.
    pub client_chain: Vec<PathBuf>,
    /// Take any certificate.
    pub insecure: bool,
}

/// The Will of each publisher and idle connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillOptions {
    /// Its topic.
    pub topic: String,
    /// Its QoS, 0 to 2.
    pub qos: u8,
}

/// Who publishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Publishers {
    /// Connections; 0 for a run that only receives.
    pub count: u32,
    /// 0 to 2.
    pub qos: u8,
    /// RETAIN flag of each message.
    pub retain: bool,
    /// A topic name in which `{publisher}` stands for the publisher's number and `{topic}` for the topic's, both from 0.
    pub topic: String,
    /// Topics that each publisher goes round; more than 1 needs `{topic}`.
    pub topics: u32,
    /// Bytes of a payload, at least [`Stamp::TIME_LEN`](super::Stamp). Below [`Stamp::LEN`](super::Stamp) only the time
    /// fits in, and nothing but numbers can be said of loss.
    pub payload: u32,
    /// Each publisher's messages; `None` for as many as the time allows.
    pub messages: Option<u64>,
    /// When messages go out.
    pub pace: Pace,
    /// Unacknowledged messages of a publisher at QoS 1 and 2, at most; the broker's Receive Maximum applies too.
    pub in_flight: u16,
    /// Which broker each publisher connects to.
    pub spread: Spread,
}

impl Publishers {
    /// Of `count` publishers each sends 20 bytes at QoS 0 to its one topic, as many and as fast as it can; above QoS 0
    /// with 100 messages in flight.
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
        }
    }
}

/// When messages go out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// Open loop: each publisher sends one message every `interval`, on a schedule that was fixed before; publisher k of
    /// n starts k·interval/n later. A message that cannot go out in time keeps its due time, from which its latency
    /// counts, so that a broker that stops is not hidden (coordinated omission).
    Open {
        /// From one message of a publisher to its next.
        interval: Duration,
    },
    /// Closed loop: as fast as it goes, but never more than this many deliveries outstanding over all connections of
    /// the process.
    Closed {
        /// Deliveries.
        window: u64,
    },
    /// As fast as the socket takes it (and at QoS 1 and 2 as `in_flight` allows), with no look at the receivers: an
    /// overloaded broker shows as latency that grows.
    Unlimited,
}

/// How connections are spread over the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// Connection k to broker k mod n.
    InTurns,
    /// All to the broker of this number.
    Broker(u16),
}

/// Subscribers with one filter and one purpose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audience {
    /// What reports call it; unique in the plan.
    pub name: String,
    /// Subscribers.
    pub count: u32,
    /// Topic Filter without `$share`; may have wildcards and `{subscriber}`, the subscriber's number in the audience.
    pub filter: String,
    /// Name of the share group, if it is one. An audience spread over several brokers is a share group on each.
    pub share: Option<String>,
    /// QoS asked for, 0 to 2.
    pub qos: u8,
    /// Which broker its members connect to.
    pub spread: Spread,
    /// What a subscriber does with a message: nothing, or the work of a simulated worker.
    pub work: Option<Work>,
    /// Its last member reads no more than so many messages a second from its socket; `None` for all that comes. For an
    /// audience without `work`.
    pub slow: Option<f64>,
}

impl Audience {
    /// `count` subscribers to `filter` at QoS 0, each for itself and without work, over all brokers.
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
        }
    }
}

/// A simulated worker: messages wait in its own queue and are processed one after the other, or a few at once. They are
/// acknowledged when they have been processed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Time of one message, of the worker with this number mod the list's length; at least one entry.
    pub service: Vec<Service>,
    /// Messages processed at once.
    pub parallelism: u16,
    /// How it tells its load; `None` for a worker that does not.
    pub reports: Option<Reports>,
}

/// How long one message takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Service {
    /// Always as long.
    Fixed(Duration),
    /// Evenly spread from `mean·(1−by)` to `mean·(1+by)`.
    Jitter {
        /// In the middle.
        mean: Duration,
        /// 0 to 1.
        by: f64,
    },
    /// Exponentially distributed.
    Exponential(Duration),
    /// Pareto distributed with this shape, above 1.
    Pareto {
        /// The mean.
        mean: Duration,
        /// Alpha.
        shape: f64,
    },
    /// `before` until `at` after the start, then `after`.
    Step {
        /// Up to the step.
        before: Duration,
        /// From the step on.
        after: Duration,
        /// When, from the start.
        at: Duration,
    },
    /// `service`, but for a time in which the worker stands still.
    Pause {
        /// Outside the pause.
        service: Duration,
        /// When it begins, from the start.
        at: Duration,
        /// How long it lasts.
        lasts: Duration,
    },
}

/// Load reports of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reports {
    /// What carries them.
    pub carrier: Carrier,
    /// From one to the next.
    pub interval: Duration,
}

/// What carries a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// An extended PINGREQ.
    PingReq,
    /// A User Property of acknowledgements.
    Ack,
    /// A message to `$load`.
    Publish,
}

/// Connections that do nothing but be there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// How many.
    pub count: u32,
    /// New ones a second; `None` for as fast as it goes.
    pub rate: Option<f64>,
}

/// Connections that are cut, without DISCONNECT, and come back.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cuts {
    /// From one cut to the next, over all connections of that kind.
    pub every: Duration,
    /// Whose; in turns.
    pub whose: CutWhose,
    /// How long the client stays away.
    pub away: Duration,
}

/// Whose connections are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutWhose {
    /// Publishers'.
    Publishers,
    /// Subscribers'.
    Subscribers,
    /// Idle ones.
    Idle,
}

/// When a run counts and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// It ends when this is over, whatever is still on its way.
    pub time_limit: Duration,
    /// Whole seconds at the beginning that figures leave out. The verdict leaves out nothing.
    pub ramp_up: u32,
    /// Whole seconds at the end that figures leave out.
    pub ramp_down: u32,
    /// Once everything has been published, it ends when nothing has come for so long, or all has.
    pub subscriber_timeout: Duration,
}

impl Default for Schedule {
    /// A minute at most, no ramps; five seconds for what is on its way.
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(60),
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: Duration::from_secs(5),
        }
    }
}
