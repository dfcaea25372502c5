//! Input of an estimate in addition to the evidence, and its output for the clock.

/// The hot fields of a client at the moment of the evidence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// When the evidence arrived.
    pub(crate) now: u64,
    /// F before this evidence.
    pub(crate) finish: u64,
    /// One-way delay.
    pub(crate) delay: u64,
    /// Messages sent since the session was established.
    pub(crate) sent: u64,
    /// Time of the last send.
    pub(crate) sent_at: u64,
    /// Messages that are neither written nor acknowledged, after this evidence.
    pub(crate) outstanding: u64,
    /// Messages that the client works on at a time, as it told; 0 = unknown.
    pub(crate) concurrency: u64,
    /// Whether the client shares a group with one whose acknowledgements come early.
    pub(crate) is_suspect: bool,
    /// Whether the client was sent something that it has to acknowledge.
    pub(crate) is_asked: bool,
}

/// The published result of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The effective processing time; 0 = unknown.
    pub(crate) processing_ns: u64,
    /// The client's [flags](super::flag).
    pub(crate) flags: u8,
    /// The margin of F, for [`in_sixteenths`](super::margin::in_sixteenths).
    pub(crate) margin: u8,
    /// Change of F, the instant at which the client will have finished all messages sent to it.
    pub(crate) finish: Finish,
    /// Time at which the next evidence is due, if that changes; `MAX` = none is expected.
    pub(crate) due: Option<u64>,
}

/// A change of F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The evidence does not concern F.
    Keep,
    /// F is within these bounds.
    Within { least: u64, most: u64 },
    /// F has this value.
    Exactly(u64),
}
