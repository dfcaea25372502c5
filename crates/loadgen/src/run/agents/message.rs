use serde::{Deserialize, Serialize};

use crate::run::Plan;
use crate::run::engine::{Slice, Status};

/// What controller and agent tell each other. Each is one frame of JSON, its length before it in four bytes, big endian.
///
/// ```text
///   controller                               agent
///   Hello ─────────────────────────────────►          the same program, the same token
///         ◄───────────────────────────────── Hello
///   Probe ─────────────────────────────────►          40 times
///         ◄───────────────────────────────── Answer
///   Prepare ───────────────────────────────►          connects its clients …
///         ◄────────────────────── Working … Ready
///   Start ─────────────────────────────────►          … and lets them go
///         ◄──────────────────────────────── Status …  each 20 ms
///   Watching … ────────────────────────────►          each second, also before: a load without a controller ends
///   StopCutting, StopPublishing, Finish ───►
///         ◄─────────────── Working … Part, and its bytes
///   Probe ─────────────────────────────────►          again, to see how the clocks drift
///         ◄───────────────────────────────── Answer
/// ```
///
/// Instead of anything else an agent may say [`Message::Error`] and close. A controller that closes ends the run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// First from both sides.
    Hello(Hello),
    /// What time is it?
    Probe,
    /// The agent's clock when the probe came and when this went, in nanoseconds since 1970-01-01 UTC.
    Answer { received_ns: u64, answered_ns: u64 },
    /// What to do, and which part of it. The clock is to be moved by `move_clock_ns`.
    Prepare { plan: Box<Plan>, slice: Slice, move_clock_ns: i64 },
    /// Connecting, or putting records together; once a second.
    Working,
    /// All clients are connected.
    Ready,
    /// Second 0 of the run, by the controller's clock.
    Start { at_unix_ns: u64 },
    /// How far it is.
    Status(Status),
    /// The controller is still there.
    Watching,
    /// All publishers of all agents have sent what they had: no more connections are to be cut.
    StopCutting,
    /// No further messages.
    StopPublishing,
    /// Disconnect and send what was recorded.
    Finish,
    /// So many bytes follow: what was recorded, as [`Part::to_bytes`](crate::run::Part::to_bytes) writes it.
    Part { bytes: u64 },
    /// Why it goes no further.
    Error(String),
}

impl Message {
    /// Its name, for what is said of a message that should not have come.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Probe => "Probe",
            Self::Answer { .. } => "Answer",
            Self::Prepare { .. } => "Prepare",
            Self::Working => "Working",
            Self::Ready => "Ready",
            Self::Start { .. } => "Start",
            Self::Status(_) => "Status",
            Self::Watching => "Watching",
            Self::StopCutting => "StopCutting",
            Self::StopPublishing => "StopPublishing",
            Self::Finish => "Finish",
            Self::Part { .. } => "Part",
            Self::Error(_) => "Error",
        }
    }
}

/// Who is there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Version of this protocol.
    pub(super) protocol: u32,
    /// Version of the program: a plan and what was recorded are its own types.
    pub(super) program: String,
    /// What the controller has to know.
    pub(super) token: Option<String>,
}

impl Hello {
    pub(super) fn new(token: Option<&str>) -> Self {
        Self { protocol: PROTOCOL, program: PROGRAM.to_owned(), token: token.map(str::to_owned) }
    }

    /// # Errors
    /// It is not of this program and this protocol.
    pub(super) fn check_version(&self) -> Result<(), String> {
        if (self.protocol, self.program.as_str()) == (PROTOCOL, PROGRAM) {
            return Ok(());
        }
        let theirs = format!("tenbin {} (protocol {})", self.program.escape_debug(), self.protocol);
        Err(format!("{theirs} there, tenbin {PROGRAM} (protocol {PROTOCOL}) here: both sides must be the same"))
    }
}

/// Raised with every change of [`Message`], and of what a plan or a record holds.
const PROTOCOL: u32 = 3;
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
