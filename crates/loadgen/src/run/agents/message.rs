use serde::{Deserialize, Serialize, Serializer};
use tenbin_codec::Secret;
use tenbin_kit::printable::printable;

use crate::run::{Plan, Slice, Status};

/// Messages between controller and agent, each a JSON frame after its length in four bytes, big endian.
///
/// ```text
/// controller                               agent
/// Hello ─────────────────────────────────►          the same program, the same token
///   ◄───────────────────────────────── Hello
/// Probe ─────────────────────────────────►          40 times
///   ◄───────────────────────────────── Answer
/// Prepare ───────────────────────────────►          connects its clients …
///   ◄────────────────────── Working … Ready
/// Start ─────────────────────────────────►          … and lets them go
///   ◄──────────────────────────────── Status …  each 20 ms
/// Watching … ────────────────────────────►          each second, also before: a load without a controller ends
/// StopCutting, StopPublishing, Finish ───►
///   ◄─────────────── Working … Part, and its bytes
/// Probe ─────────────────────────────────►          again, to see how the clocks drift
///   ◄───────────────────────────────── Answer
/// ```
///
/// At any time an agent may send [`AgentMessage::Error`] and close. A controller that closes ends the run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum AgentMessage {
    /// First message of both sides.
    Hello(Hello),
    /// Asks for the agent's time.
    Probe,
    /// The agent's clock when the probe arrived and when this was sent, in nanoseconds since 1970-01-01 UTC.
    Answer { received_ns: u64, answered_ns: u64 },
    /// The plan, the password that it does not show, and the agent's slice. The agent moves its clock by `move_clock_ns`.
    Prepare {
        plan: Box<Plan>,
        #[serde(serialize_with = "exposed")]
        password: Option<Secret<String>>,
        slice: Slice,
        move_clock_ns: i64,
    },
    /// The agent is connecting clients or preparing its results; sent once a second.
    Working,
    /// All clients are connected.
    Ready,
    /// Sets second 0 of the run, by the controller's clock.
    Start { at_unix_ns: u64 },
    /// Progress of the run.
    Status(Status),
    /// The controller is alive.
    Watching,
    /// All publishers of all agents have sent their messages: stop cutting connections.
    StopCutting,
    /// Stop publishing.
    StopPublishing,
    /// Disconnect and send the results.
    Finish,
    /// Results follow in this many bytes, as [`Part::to_bytes`](crate::run::Part::to_bytes) writes them.
    Part { bytes: u64 },
    /// Why the agent stops.
    Error(String),
}

impl AgentMessage {
    /// Name of the message, for errors about unexpected messages.
    pub(super) fn name(&self) -> String {
        format!("{self:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
    }
}

/// Identification of one side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Version of this protocol.
    pub(super) protocol: u32,
    /// Version of the program, whose types define plan and results.
    pub(super) program: String,
    /// Secret that the controller must know.
    #[serde(serialize_with = "exposed")]
    pub(super) token: Option<Secret<String>>,
}

impl Hello {
    pub(super) fn new(token: Option<&Secret<String>>) -> Self {
        Self { protocol: PROTOCOL, program: PROGRAM.to_owned(), token: token.cloned() }
    }

    /// Checks that the other side has this version.
    ///
    /// # Errors
    /// Program or protocol differ.
    pub(super) fn check_version(&self) -> Result<(), String> {
        if (self.protocol, self.program.as_str()) == (PROTOCOL, PROGRAM) {
            return Ok(());
        }
        let theirs = format!("tenbin {} (protocol {})", printable(&self.program), self.protocol);
        Err(format!("{theirs} there, tenbin {PROGRAM} (protocol {PROTOCOL}) here: both sides must be the same"))
    }
}

/// Writes a secret itself, for the other side.
fn exposed<S: Serializer>(secret: &Option<Secret<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::expose).serialize(serializer)
}

/// Increase it with every change of [`AgentMessage`], of plans and of results.
const PROTOCOL: u32 = 8;
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
