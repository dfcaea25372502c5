//! What goes into an estimate beside the evidence itself, and what comes out for the clock.

/// The hot fields of a client at the moment of the evidence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// When the evidence arrived.
    pub(crate) now: u64,
    /// One-way delay.
    pub(crate) delay: u64,
    /// Messages sent since the session was established.
    pub(crate) sent: u64,
    /// When the last one was.
    pub(crate) sent_at: u64,
    /// Messages that are neither written nor acknowledged, after this evidence.
    pub(crate) outstanding: u64,
    /// Whether the client shares a group with one whose acknowledgements come early.
    pub(crate) is_suspect: bool,
    /// Whether the client was sent something that it has to acknowledge.
    pub(crate) is_asked: bool,
}

/// What is to be published of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The effective processing time; 0 = unknown.
    pub(crate) processing_ns: u64,
    /// The client's [flags](super::flag).
    pub(crate) flags: u8,
    /// What to do with F, the instant at which the client will have finished all it was sent.
    pub(crate) finish: Finish,
    /// When the next evidence is due, if that changes; `MAX` = none is expected.
    pub(crate) due: Option<u64>,
}

/// A change of F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The evidence says nothing of it.
    Keep,
    /// It is somewhere in between.
    Within { least: u64, most: u64 },
    /// It is this.
    Exactly(u64),
}
