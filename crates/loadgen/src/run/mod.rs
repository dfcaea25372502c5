//! `run`: any load on any broker, with a verdict on each message.
//!
//! ```text
//! arguments ─┐                       ┌► Recorder ─┐
//! .conf ─────┼► Plan ─► Layout ─► engine ► Recorder ─┼► Part ─► Outcome ─► summary, verdict, JSON, CSV, HTML
//! presets ───┘                       └► … (agents) ┘
//! ```
//!
//! A [`Plan`] describes a run completely. Its layout numbers streams and receivers in all processes alike, so that the
//! results of several threads and machines can be merged by number. In the engine each thread has its own recorder;
//! threads share no records while the load runs. All reports are made from an [`Outcome`].

pub(crate) mod agents;
mod args;
pub(crate) mod assertion;
mod brokers;
mod clients;
pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod conf;
mod connection_options;
mod driver;
mod due_times;
mod engine;
mod execute;
pub(crate) mod figure;
mod junit;
mod load;
mod mqttloader_record;
pub(crate) mod mqttloader_summary;
mod notes;
mod ntp;
mod offset;
mod outcome;
mod plan;
pub(crate) mod planning;
mod record;
pub(crate) mod report;
#[cfg(test)]
pub(crate) mod sample;
mod self_test;
mod slice;
mod stamp;
mod status;
mod term;
pub mod timeline;
mod usage;
pub(crate) mod values;
mod watch;

pub use crate::statistics::CurvePoint;
pub use crate::target::Broker;
pub use agents::{AgentArgs, AgentStream};
pub use args::{LoadArgs, RunArgs};
pub use brokers::{Doors, OnLost};
pub use clock::RunClock;
pub use connection_options::{ConnectionOptions, TlsOptions, Version, WillOptions};
pub use driver::{Assignment, Driver, DriverFuture, DriverRun, Drivers};
pub use due_times::DueTimes;
pub use engine::MqttDriver;
pub(crate) use execute::{ExecuteOptions, Execution, perform};
pub use execute::{run_plan, run_plan_with};
pub use figure::{FIGURES, Figure, Unit};
pub use junit::{Fault, TestCase, TestSuite};
pub use load::{Finished, RunningLoad};
pub use outcome::{
    AudienceOutcome, BrokerUsage, Connections, Latency, Outcome, Second, SubscriberOutcome, Throughput, Verdict,
};
pub use plan::{
    Audience, Carrier, CutWhose, Cuts, Idle, Pace, Plan, Publishers, Reports, Schedule, Slow, Spread, Work,
};
pub(crate) use record::Trace;
#[cfg(test)]
pub(crate) use record::WorkRecord;
pub use record::{Came, Layout, Ledger, LedgerCounts, Part, Receiver, Recorder, Ticks, Unsent};
pub use slice::{ClientKinds, Slice};
pub use stamp::Stamp;
pub use status::{Count, Counters, Status};
pub use tenbin_codec::Secret;
pub use tenbin_simulator::scenario::WorkerKind;
pub use term::{Bound, Relation, Term};
pub use usage::{Usage, listener_at};

/// Record of one arrival, kept if [`Plan::records`] asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MessageRecord {
    /// Number of publisher and topic; `u32::MAX` if the payload is below [`Stamp::LEN`].
    pub stream: u32,
    /// Number in the stream; `u32::MAX` likewise.
    pub sequence: u32,
    /// Number of the subscriber, over all audiences.
    pub receiver: u32,
    /// Due time, in nanoseconds since 1970-01-01 UTC; with [`Pace::Arrivals`] the time of creation.
    pub due_ns: u64,
    /// Time from due to sent, in microseconds.
    pub late_us: u32,
    /// Time of arrival, in nanoseconds since 1970-01-01 UTC.
    pub received_ns: u64,
}

/// Record of one published message, kept if [`Plan::records`] asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PublishRecord {
    /// Number of publisher and topic.
    pub stream: u32,
    /// Number in the stream.
    pub sequence: u32,
    /// Time of writing at QoS 0, of acknowledgement at QoS 1 and 2, in nanoseconds since 1970-01-01 UTC.
    pub published_ns: u64,
}
