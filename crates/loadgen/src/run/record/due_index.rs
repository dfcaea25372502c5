use super::lane::SentStream;
use super::layout::Layout;
use crate::run::{DueTimes, Plan};

/// Finds due times of messages, and messages by due time.
#[derive(Debug)]
pub(super) enum DueIndex {
    /// In an open loop: the due times of each publisher.
    Formula(Vec<DueTimes>),
    /// Else the checkpoints of each stream.
    Checkpoints,
}

impl DueIndex {
    /// The index for the run of `plan` that started at `start_ns`.
    pub(super) fn new(plan: &Plan, start_ns: u64) -> Self {
        let of = |publisher| {
            let mut due_times = DueTimes::of(plan, publisher)?;
            due_times.start(start_ns);
            Some(due_times)
        };
        (0..plan.publishers.count).map(of).collect::<Option<_>>().map_or(Self::Checkpoints, Self::Formula)
    }

    /// Number of the first message of `stream` that was due at `ns` or later.
    pub(super) fn below(&self, layout: &Layout, stream: u32, sent: &SentStream, ns: u64) -> u32 {
        match self {
            Self::Formula(publishers) => {
                let messages =
                    ns.checked_sub(1).map_or(0, |ns| publishers[layout.publisher(stream) as usize].due_by(ns));
                layout.sequences_below(stream, messages)
            }
            Self::Checkpoints => sent.sequences_below(ns),
        }
    }

    /// When a message was due; `None` if the stream has no such message.
    pub(super) fn due_ns(&self, layout: &Layout, stream: u32, sent: &SentStream, sequence: u32) -> Option<u64> {
        match self {
            Self::Formula(publishers) => {
                Some(publishers[layout.publisher(stream) as usize].due_ns(layout.message(stream, sequence)))
            }
            Self::Checkpoints => sent.due_ns(sequence),
        }
    }
}
