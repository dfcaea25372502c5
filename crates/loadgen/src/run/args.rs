//! Command line of `run`, and the part of it that `compare` shares.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tenbin_codec::Secret;

use super::assertion::{self, Assertions};
use super::values::{PidArg, Protocol, cuts, payload, protocol, qos, reconnect, service};
use super::{Cuts, OnLost, WorkerKind};
use crate::target::TargetList;
use crate::values::Reports;
use crate::values::{duration, keep_alive, positive_duration, positive_number, whole_seconds};

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = assertion::help())]
pub struct RunArgs {
    /// Brokers: [NAME=]HOST[:PORT][,pid=PID],…, or tenbin or mosquitto to start one [default: 127.0.0.1:1883]
    #[arg(long, value_name = "BROKER,…")]
    pub(crate) broker: Option<TargetList>,

    /// The brokers are one system: a message reaches subscribers of all of them, and a client that cannot reach its
    /// broker connects to the next one
    #[arg(long)]
    pub(crate) one_system: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Exit with code 1 unless these hold: 'missing=0,p99<50ms'; --help lists the figures
    #[arg(long = "assert", value_name = "EXPR,…", help_heading = "Results")]
    pub(crate) assertions: Vec<Assertions>,

    /// Find the highest publishing rate at which this holds ('p99<50ms'), nothing is missing and the rate is reached
    #[arg(long, value_name = "EXPR,…", help_heading = "Results")]
    #[arg(conflicts_with_all = ["assertions", "interval", "closed", "messages", "time", "out", "junit", "record_file"])]
    pub(crate) find_rate: Option<Assertions>,

    /// Duration of the test of each rate
    #[arg(long, value_name = "TIME", help_heading = "Results", requires = "find_rate")]
    #[arg(value_parser = positive_duration, default_value = "5s")]
    pub(crate) step: Duration,

    /// Write summary.json and reports with plots into this directory
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub(crate) out: Option<PathBuf>,

    /// Keep a record of each message, for plots and messages.csv in --out
    #[arg(long, help_heading = "Results", requires = "out")]
    pub(crate) records: bool,

    /// Write MQTTLoader's record of sent and received messages, mqttloader_DATE-TIME.csv, into this directory
    #[arg(long, alias = "output", value_name = "DIR", help_heading = "Results")]
    pub(crate) record_file: Option<PathBuf>,

    /// Write a JUnit report: a test case for each assertion; without assertions, one for each kind of fault (these do
    /// not change the exit code); or one with an error if the run fails
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(crate) junit: Option<PathBuf>,

    /// The brokers' processes, for processor time and memory [default: the process that listens there, on this machine]
    #[arg(long, value_name = "[NAME=]PID,…", value_delimiter = ',', help_heading = "Results")]
    pub(crate) pid: Vec<PidArg>,

    /// Adjust the clock to this NTP server
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Load")]
    pub(crate) ntp: Option<String>,

    /// Spread the clients over these agents (tenbin-loadgen agent)
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', help_heading = "Load")]
    pub(crate) agents: Vec<String>,

    /// Secret that the agents ask for
    #[arg(long, value_name = "SECRET", requires = "agents", help_heading = "Load")]
    pub(crate) token: Option<Secret<String>>,

    /// Measure this program itself, with a sink that accepts everything in place of a broker
    #[arg(long, conflicts_with_all = ["broker", "agents", "tls"], help_heading = "Load")]
    pub(crate) self_test: bool,
}

/// Load options. Unset ones are taken from the `.conf` file, or else from MQTTLoader's defaults.
#[derive(Debug, Clone, Default, Args)]
pub struct LoadArgs {
    /// Read MQTTLoader's configuration file; command-line options override it
    #[arg(long, value_name = "FILE")]
    pub(crate) conf: Option<PathBuf>,

    /// Version of MQTT; or MQTT-SN 1.2 over UDP; or HTTP, each publisher by POST requests one after the other [default: 5]
    #[arg(long, alias = "mqtt-version", value_name = "5|3.1.1|mqtt-sn|http", value_parser = protocol)]
    #[arg(help_heading = "Connections")]
    pub(crate) protocol: Option<Protocol>,

    /// With MQTT-SN and HTTP: connect the subscribers over MQTT 5.0 to this broker; HTTP needs it
    #[arg(long, value_name = "HOST:PORT", help_heading = "Connections")]
    pub(crate) mqtt_broker: Option<String>,

    /// With HTTP: open a connection for each request, and close it after the answer
    #[arg(long, help_heading = "Connections")]
    pub(crate) connection_per_request: bool,

    /// User Name
    #[arg(long, alias = "user-name", value_name = "NAME", help_heading = "Connections")]
    pub(crate) user: Option<String>,

    /// Password
    #[arg(long, value_name = "PASSWORD", help_heading = "Connections")]
    pub(crate) password: Option<Secret<String>>,

    /// Use TLS; the port is 8883 by default
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Connections")]
    pub(crate) tls: Option<bool>,

    /// Use WebSocket, at this path [default path: /mqtt]
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "/mqtt")]
    #[arg(help_heading = "Connections")]
    pub(crate) websocket: Option<String>,

    /// Connect to this unix socket instead of the broker's address
    #[arg(long, value_name = "PATH", help_heading = "Connections")]
    #[arg(conflicts_with_all = ["tls", "websocket", "ca", "client_key", "client_cert", "insecure"])]
    pub(crate) unix: Option<String>,

    /// Certificates (PEM) of the authorities that the broker's certificate must come from [default: the system's]
    #[arg(long, alias = "tls-rootca-cert", value_name = "FILE", help_heading = "Connections")]
    pub(crate) ca: Option<PathBuf>,

    /// The clients' private key (PEM)
    #[arg(long, alias = "tls-client-key", value_name = "FILE", help_heading = "Connections", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,

    /// The clients' certificates (PEM), their own first
    #[arg(long, alias = "tls-client-cert-chain", value_name = "FILE;…", value_delimiter = ';')]
    #[arg(help_heading = "Connections", requires = "client_key")]
    pub(crate) client_cert: Vec<PathBuf>,

    /// Accept any certificate
    #[arg(long, help_heading = "Connections")]
    pub(crate) insecure: bool,

    /// Keep Alive, in whole seconds; 0 for none [default: 0]
    #[arg(long, value_name = "TIME", value_parser = keep_alive, help_heading = "Connections")]
    pub(crate) keep_alive: Option<u16>,

    /// Keep sessions for this time after their connections end [default: sessions end with their connections]
    #[arg(long, value_name = "TIME", value_parser = positive_duration, help_heading = "Connections")]
    pub(crate) session_expiry: Option<Duration>,

    /// Prefix of all Client Identifiers [default: tenbin-XXXX, different in each run]
    #[arg(long, value_name = "PREFIX", help_heading = "Connections")]
    pub(crate) client_id: Option<String>,

    /// Give each publisher and each idle connection a Will on this topic
    #[arg(long, value_name = "TOPIC", help_heading = "Connections")]
    pub(crate) will: Option<String>,

    /// QoS of the Wills [default: 0]
    #[arg(long, value_name = "0|1|2", value_parser = qos, requires = "will", help_heading = "Connections")]
    pub(crate) will_qos: Option<u8>,

    /// Hold this many idle connections
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) conns: Option<u32>,

    /// Open this many idle connections a second [default: as fast as possible]
    #[arg(long, value_name = "N/S", value_parser = positive_number, requires = "conns", help_heading = "Connections")]
    pub(crate) rate: Option<f64>,

    /// Cut connections of publishers, subscribers or idle clients, one in turn every EVERY; its client stays away for
    /// AWAY
    #[arg(long, value_name = "WHOSE:EVERY[/AWAY]", value_parser = cuts, help_heading = "Connections")]
    pub(crate) cut: Option<Cuts>,

    /// Connect again after the loss of a connection, instead of ending the run: pause before the first attempt, and
    /// longest pause; it doubles with each failure. Sessions are kept for an hour unless --session-expiry is given
    #[arg(long, value_name = "FIRST[,MOST]", value_parser = reconnect, help_heading = "Connections")]
    pub(crate) reconnect: Option<OnLost>,

    /// QoS of publishers and subscribers [default: 0]
    #[arg(long, value_name = "0|1|2", value_parser = qos, help_heading = "Publishers")]
    pub(crate) qos: Option<u8>,

    /// Publishing connections [default: 1]
    #[arg(long, alias = "num-publishers", value_name = "N", help_heading = "Publishers")]
    pub(crate) publishers: Option<u32>,

    /// QoS of publishers
    #[arg(long, alias = "qos-publisher", value_name = "0|1|2", value_parser = qos, help_heading = "Publishers")]
    pub(crate) publisher_qos: Option<u8>,

    /// Set the RETAIN flag
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Publishers")]
    pub(crate) retain: Option<bool>,

    /// Topic; may have {publisher} and {topic}, numbers from 0 [default: mqttloader-test-topic]
    #[arg(long, value_name = "TOPIC", help_heading = "Publishers")]
    pub(crate) topic: Option<String>,

    /// Topics that each publisher rotates over [default: 1]
    #[arg(long, value_name = "N", help_heading = "Publishers", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) topics: Option<u32>,

    /// Payload size, in bytes or as 4KiB; below 20 bytes a message carries only its time [default: 20]
    #[arg(long, value_name = "SIZE", help_heading = "Publishers", value_parser = payload)]
    pub(crate) payload: Option<u32>,

    /// Messages of each publisher [default: 100; unlimited with --time, --publish-rate or --closed]
    #[arg(long, alias = "num-messages", value_name = "N", help_heading = "Publishers")]
    pub(crate) messages: Option<u64>,

    /// Time between two messages of a publisher; 0: as fast as the socket accepts them [default: 0]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Publishers")]
    #[arg(conflicts_with_all = ["publish_rate", "closed"])]
    pub(crate) interval: Option<Duration>,

    /// Messages a second, of all publishers together
    #[arg(long, value_name = "MSG/S", value_parser = positive_number, help_heading = "Publishers")]
    #[arg(conflicts_with = "closed")]
    pub(crate) publish_rate: Option<f64>,

    /// Publish as fast as possible with at most this many deliveries outstanding: 20000, or as given
    #[arg(long, value_name = "WINDOW", num_args = 0..=1, require_equals = true, default_missing_value = "20000")]
    #[arg(help_heading = "Publishers", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) closed: Option<u64>,

    /// Unacknowledged messages of a publisher at QoS 1 and 2 [default: 100; 1, as MQTTLoader, with --conf]
    #[arg(long, value_name = "N", help_heading = "Publishers", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight: Option<u16>,

    /// Subscribing connections; per share group or filter if there are several [default: 1]
    #[arg(long, alias = "num-subscribers", value_name = "N", help_heading = "Subscribers")]
    pub(crate) subscribers: Option<u32>,

    /// QoS of subscribers
    #[arg(long, alias = "qos-subscriber", value_name = "0|1|2", value_parser = qos, help_heading = "Subscribers")]
    pub(crate) subscriber_qos: Option<u8>,

    /// The subscribers form a share group, or several: each group gets each message once [default group: mqttload]
    #[arg(long, alias = "shared-subscription", value_name = "GROUP,…", value_delimiter = ',', num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = super::planning::GROUP, help_heading = "Subscribers")]
    pub(crate) shared: Option<Vec<String>>,

    /// Topic Filters, each with its own subscribers; may have wildcards and {subscriber} [default: a filter that
    /// matches --topic]
    #[arg(long, value_name = "FILTER", help_heading = "Subscribers")]
    pub(crate) filter: Vec<String>,

    /// The last subscriber of each group or filter reads at most this many messages a second; messages that it has not
    /// read within the subscriber timeout after publishing count as lost
    #[arg(long, value_name = "MSG/S", value_parser = positive_number, help_heading = "Subscribers")]
    #[arg(conflicts_with = "service")]
    pub(crate) slow: Option<f64>,

    /// The subscribers are simulated workers. Time per message, or of each worker in turn: 25ms, exp:25ms,
    /// pareto:25ms:1.5, jitter:25ms:0.2, step:25ms:200ms:5s (from 5 s on), pause:25ms:5s:2s (at 5 s, for 2 s)
    #[arg(long, value_name = "SERVICE,…", value_delimiter = ',', value_parser = service, help_heading = "Subscribers")]
    pub(crate) service: Vec<WorkerKind>,

    /// Messages that a worker processes at once [default: 1]
    #[arg(long, value_name = "N", requires = "service", help_heading = "Subscribers")]
    pub(crate) parallelism: Option<NonZeroU16>,

    /// How the workers report their load; not every broker supports it [default: none]
    #[arg(long, value_name = "CARRIER", requires = "service", help_heading = "Subscribers")]
    pub(crate) reports: Option<Reports>,

    /// Time between two load reports of a worker [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration, requires = "reports")]
    #[arg(help_heading = "Subscribers")]
    pub(crate) report_interval: Option<Duration>,

    /// Publishing ends after this time at the latest; the run then waits for messages under way [default: 60s]
    #[arg(long, alias = "exec-time", value_name = "TIME", value_parser = positive_duration, help_heading = "Load")]
    pub(crate) time: Option<Duration>,

    /// Whole seconds at the beginning to leave out of the figures [default: 0]
    #[arg(long, value_name = "TIME", value_parser = whole_seconds, help_heading = "Load")]
    pub(crate) ramp_up: Option<u32>,

    /// Whole seconds at the end to leave out of the figures [default: 0]
    #[arg(long, value_name = "TIME", value_parser = whole_seconds, help_heading = "Load")]
    pub(crate) ramp_down: Option<u32>,

    /// After publishing, end when nothing has arrived for this time [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration, help_heading = "Load")]
    pub(crate) subscriber_timeout: Option<Duration>,

    /// Threads: 1 for all connections, 2 to separate publishers from subscribers, or more [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Load")]
    pub(crate) threads: Option<u16>,
}
