//! `run`: any load on any broker, and a verdict on what became of each message.
//!
//! ```text
//!   arguments ─┐                       ┌► Recorder ─┐
//!   .conf ─────┼► Plan ─► Layout ─► engine ► Recorder ─┼► Part ─► Outcome ─► summary, verdict, JSON, CSV, HTML
//!   presets ───┘                       └► … (agents) ┘
//! ```
//!
//! A [`Plan`] says everything; its layout numbers streams and receivers, in all processes alike, so that what several
//! threads and several machines have recorded can be put together by number. The engine moves bytes and tells a recorder
//! of its own thread; nothing is shared while the load runs. An [`Outcome`] is all that reports look at.

pub(crate) mod agents;
mod args;
pub(crate) mod assertion;
mod clients;
mod clock;
pub(crate) mod command;
pub(crate) mod conf;
mod engine;
mod execute;
pub(crate) mod figure;
mod host_port;
mod junit;
mod mqttloader_record;
mod mqttloader_summary;
mod notes;
mod ntp;
mod offset;
mod outcome;
pub(crate) mod perform;
mod plan;
pub(crate) mod planning;
mod record;
#[cfg(test)]
pub(crate) mod sample;
mod self_test;
mod stamp;
mod summary;
mod usage;
pub(crate) mod utc;
pub(crate) mod values;
mod watch;

pub use agents::AgentArgs;
pub use args::{LoadArgs, RunArgs};
pub use execute::run_plan;
pub(crate) use execute::{ExecuteOptions, Execution, execute_closely};
pub use outcome::{
    AudienceOutcome, BrokerUsage, Connections, CurvePoint, Latency, Outcome, Second, SubscriberOutcome, Throughput,
    Verdict,
};
pub use plan::{
    Audience, Broker, Carrier, ConnectionOptions, CutWhose, Cuts, Idle, Pace, Plan, Publishers, Reports, Schedule,
    Service, Spread, TlsOptions, Version, WillOptions, Work,
};
pub use record::{Came, Layout, Part, Receiver, Recorder, Unsent};
pub use stamp::Stamp;

/// One arrival, kept where [`Plan::records`] asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MessageRecord {
    /// Publisher and topic; `u32::MAX` where the payload is below [`Stamp::LEN`] and does not say.
    pub stream: u32,
    /// Number in the stream; as above.
    pub sequence: u32,
    /// Number of the subscriber, over all audiences.
    pub receiver: u32,
    /// When it was to go out, in nanoseconds since 1970-01-01 UTC.
    pub due_ns: u64,
    /// By how many microseconds it went out later.
    pub late_us: u32,
    /// When it came.
    pub received_ns: u64,
}

/// One published message, kept where [`Plan::records`] asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PublishRecord {
    /// Publisher and topic.
    pub stream: u32,
    /// Number in the stream.
    pub sequence: u32,
    /// When it was written at QoS 0, acknowledged at QoS 1 and 2, in nanoseconds since 1970-01-01 UTC.
    pub published_ns: u64,
}
