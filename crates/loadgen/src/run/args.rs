//! The command line of `run`, and what `compare` has in common with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::assertion::{self, Assertions};
use super::values::{PidArg, cuts, qos, service, version};
use super::{Cuts, Service, Version};
use crate::args::Reports;
use crate::target::TargetList;
use crate::values::{duration, positive_duration, positive_number, positive_seconds, whole_seconds};

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = assertion::help())]
pub struct RunArgs {
    /// Brokers: [NAME=]HOST[:PORT][,pid=PID],…, or tenbin or mosquitto to start one [default: 127.0.0.1:1883]
    #[arg(long, value_name = "BROKER,…")]
    pub(crate) broker: Option<TargetList>,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Fail, with exit code 1, where this does not hold: 'missing=0,p99<50ms'; --help lists the figures
    #[arg(long = "assert", value_name = "EXPR,…", help_heading = "Results")]
    pub(crate) assertions: Vec<Assertions>,

    /// Find the highest rate of publishing at which this holds ('p99<50ms'), nothing is missing and the rate is reached
    #[arg(long, value_name = "EXPR,…", help_heading = "Results")]
    #[arg(conflicts_with_all = ["assertions", "interval", "closed", "messages", "time", "out", "junit", "record_file"])]
    pub(crate) find_rate: Option<Assertions>,

    /// How long each rate is tried
    #[arg(long, value_name = "TIME", help_heading = "Results", requires = "find_rate")]
    #[arg(value_parser = positive_seconds, default_value = "5s")]
    pub(crate) step: Duration,

    /// Write summary.json and reports with plots into this directory
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub(crate) out: Option<PathBuf>,

    /// Keep each message, for plots and messages.csv below --out
    #[arg(long, help_heading = "Results", requires = "out")]
    pub(crate) records: bool,

    /// Write MQTTLoader's record of sending and receiving, mqttloader_DATE-TIME.csv, into this directory
    #[arg(long, alias = "output", value_name = "DIR", help_heading = "Results")]
    pub(crate) record_file: Option<PathBuf>,

    /// Write a JUnit report: a test case for each assertion, or for each kind of fault where there is none (of which none
    /// changes the exit code), or one with an error where the run fails
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(crate) junit: Option<PathBuf>,

    /// The brokers' processes, for processor time and memory [default: whoever listens there, on this machine]
    #[arg(long, value_name = "[NAME=]PID,…", value_delimiter = ',', help_heading = "Results")]
    pub(crate) pid: Vec<PidArg>,

    /// Set the clock by this NTP server
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Load")]
    pub(crate) ntp: Option<String>,

    /// Spread the clients over these agents (tenbin loadgen agent)
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', help_heading = "Load")]
    pub(crate) agents: Vec<String>,

    /// What the agents want to hear first
    #[arg(long, value_name = "SECRET", requires = "agents", help_heading = "Load")]
    pub(crate) token: Option<String>,

    /// Measure this program: a sink that takes everything, in place of a broker
    #[arg(long, conflicts_with_all = ["broker", "agents", "tls"], help_heading = "Load")]
    pub(crate) self_test: bool,
}

/// What load a run makes. What is not given here is as the `.conf` file has it, or else as MQTTLoader by default.
#[derive(Debug, Clone, Default, Args)]
pub struct LoadArgs {
    /// Read MQTTLoader's configuration; what is given beside it wins
    #[arg(long, value_name = "FILE")]
    pub(crate) conf: Option<PathBuf>,

    /// Protocol version [default: 5]
    #[arg(long, alias = "mqtt-version", value_name = "5|3.1.1", value_parser = version, help_heading = "Connections")]
    pub(crate) protocol: Option<Version>,

    /// User Name
    #[arg(long, alias = "user-name", value_name = "NAME", help_heading = "Connections")]
    pub(crate) user: Option<String>,

    /// Password
    #[arg(long, value_name = "PASSWORD", help_heading = "Connections")]
    pub(crate) password: Option<String>,

    /// Use TLS; the port is 8883 by default
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Connections")]
    pub(crate) tls: Option<bool>,

    /// Certificates (PEM) of who may vouch for the broker [default: the system's]
    #[arg(long, alias = "tls-rootca-cert", value_name = "FILE", help_heading = "Connections")]
    pub(crate) ca: Option<PathBuf>,

    /// The clients' private key (PEM)
    #[arg(long, alias = "tls-client-key", value_name = "FILE", help_heading = "Connections", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,

    /// The clients' certificates (PEM), their own first
    #[arg(long, alias = "tls-client-cert-chain", value_name = "FILE;…", value_delimiter = ';')]
    #[arg(help_heading = "Connections", requires = "client_key")]
    pub(crate) client_cert: Vec<PathBuf>,

    /// Take any certificate
    #[arg(long, help_heading = "Connections")]
    pub(crate) insecure: bool,

    /// Keep Alive; 0 for none [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16), help_heading = "Connections")]
    pub(crate) keep_alive: Option<u16>,

    /// Let sessions outlive their connections for so long [default: they end with them]
    #[arg(long, value_name = "TIME", value_parser = positive_seconds, help_heading = "Connections")]
    pub(crate) session_expiry: Option<Duration>,

    /// Start of all Client Identifiers [default: tenbin-XXXX, another one in each run]
    #[arg(long, value_name = "PREFIX", help_heading = "Connections")]
    pub(crate) client_id: Option<String>,

    /// Give each publisher and each idle connection a Will on this topic
    #[arg(long, value_name = "TOPIC", help_heading = "Connections")]
    pub(crate) will: Option<String>,

    /// QoS of the Wills [default: 0]
    #[arg(long, value_name = "0|1|2", value_parser = qos, requires = "will", help_heading = "Connections")]
    pub(crate) will_qos: Option<u8>,

    /// Hold so many connections that do nothing but be there
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) conns: Option<u32>,

    /// Open so many of them a second [default: as fast as it goes]
    #[arg(long, value_name = "N/S", value_parser = positive_number, requires = "conns", help_heading = "Connections")]
    pub(crate) rate: Option<f64>,

    /// Cut a connection of publishers, subscribers or idle, in turns, every so often; it stays away for so long
    #[arg(long, value_name = "WHOSE:EVERY[/AWAY]", value_parser = cuts, help_heading = "Connections")]
    pub(crate) cut: Option<Cuts>,

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

    /// Topics that each publisher goes round [default: 1]
    #[arg(long, value_name = "N", help_heading = "Publishers", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) topics: Option<u32>,

    /// Bytes of a payload; below 20 a message says no more than its time [default: 20]
    #[arg(long, value_name = "BYTES", help_heading = "Publishers", value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) payload: Option<u32>,

    /// Messages of each publisher [default: 100; as many as the time allows with --time, --publish-rate or
    /// --closed]
    #[arg(long, alias = "num-messages", value_name = "N", help_heading = "Publishers")]
    pub(crate) messages: Option<u64>,

    /// Time between two messages of a publisher; 0: as fast as the socket takes them [default: 0]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Publishers")]
    #[arg(conflicts_with_all = ["publish_rate", "closed"])]
    pub(crate) interval: Option<Duration>,

    /// Messages a second, of all publishers together
    #[arg(long, value_name = "MSG/S", value_parser = positive_number, help_heading = "Publishers")]
    #[arg(conflicts_with = "closed")]
    pub(crate) publish_rate: Option<f64>,

    /// As fast as it goes with at most so many deliveries outstanding: 20000, or as given
    #[arg(long, value_name = "WINDOW", num_args = 0..=1, require_equals = true, default_missing_value = "20000")]
    #[arg(help_heading = "Publishers", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) closed: Option<u64>,

    /// Unacknowledged messages of a publisher at QoS 1 and 2 [default: 100; 1, as MQTTLoader, with --conf]
    #[arg(long, value_name = "N", help_heading = "Publishers", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight: Option<u16>,

    /// Subscribing connections; of each share group, or each filter, where there are several [default: 1]
    #[arg(long, alias = "num-subscribers", value_name = "N", help_heading = "Subscribers")]
    pub(crate) subscribers: Option<u32>,

    /// QoS of subscribers
    #[arg(long, alias = "qos-subscriber", value_name = "0|1|2", value_parser = qos, help_heading = "Subscribers")]
    pub(crate) subscriber_qos: Option<u8>,

    /// The subscribers form a share group, or several: each of these gets each message once [default group: mqttload]
    #[arg(long, alias = "shared-subscription", value_name = "GROUP,…", value_delimiter = ',', num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = super::planning::GROUP, help_heading = "Subscribers")]
    pub(crate) shared: Option<Vec<String>>,

    /// Topic Filters, each with subscribers of its own; may have wildcards and {subscriber} [default: what matches --topic]
    #[arg(long, value_name = "FILTER", help_heading = "Subscribers")]
    pub(crate) filter: Vec<String>,

    /// The last subscriber, of each group or filter, reads no more than so many messages a second; what it has not got
    /// within the subscriber timeout when all is published is lost
    #[arg(long, value_name = "MSG/S", value_parser = positive_number, help_heading = "Subscribers")]
    #[arg(conflicts_with = "service")]
    pub(crate) slow: Option<f64>,

    /// The subscribers are simulated workers. Time of a message, or of each worker in turn: 25ms, exp:25ms,
    /// pareto:25ms:1.5, jitter:25ms:0.2, step:25ms:200ms:5s (from 5 s on), pause:25ms:5s:2s (at 5 s, for 2 s)
    #[arg(long, value_name = "SERVICE,…", value_delimiter = ',', value_parser = service, help_heading = "Subscribers")]
    pub(crate) service: Vec<Service>,

    /// Messages that a worker processes at once [default: 1]
    #[arg(long, value_name = "N", requires = "service", help_heading = "Subscribers")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) parallelism: Option<u16>,

    /// How the workers report their load; not every broker takes it [default: none]
    #[arg(long, value_name = "CARRIER", requires = "service", help_heading = "Subscribers")]
    pub(crate) reports: Option<Reports>,

    /// Time between two load reports of a worker [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = positive_duration, requires = "reports")]
    #[arg(help_heading = "Subscribers")]
    pub(crate) report_interval: Option<Duration>,

    /// Publishing ends after this time at the latest; what is on its way then is waited for [default: 60s]
    #[arg(long, alias = "exec-time", value_name = "TIME", value_parser = positive_seconds, help_heading = "Load")]
    pub(crate) time: Option<Duration>,

    /// Whole seconds at the beginning that figures leave out [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = whole_seconds, help_heading = "Load")]
    pub(crate) ramp_up: Option<u32>,

    /// Whole seconds at the end that figures leave out [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = whole_seconds, help_heading = "Load")]
    pub(crate) ramp_down: Option<u32>,

    /// When all is published: end when nothing has come for so long [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = positive_seconds, help_heading = "Load")]
    pub(crate) subscriber_timeout: Option<Duration>,

    /// Threads: 1 for all connections, 2 for publishers and subscribers apart, or more [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Load")]
    pub(crate) threads: Option<u16>,
}
