use std::time::Duration;

/// Policy that decides when a write counts as durable, and so how much a crash can lose.
///
/// | policy | lost when killed (`kill -9`) | lost in a power cut |
/// |---|---|---|
/// | `Always` | nothing durable | nothing durable |
/// | `Interval` | nothing durable | writes of the last interval |
/// | `Never` | nothing durable | data the system had not flushed; in the [`spool`](crate::spool), one segment at most |
///
/// A loss always affects the end: the remaining data has no gap. The next start cuts off torn data.
///
/// Intact changes of the [`state`](crate::state) can stand behind damaged ones only if they were never confirmed, or if
/// the disk lost confirmed data. Then `Always` refuses to open, and the other policies cut off there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// A write is durable once `fdatasync` has confirmed it. Writes that arrive during one `fdatasync` share the next.
    Always,
    /// A write is durable once the system has it. `fdatasync` runs at this interval; for the spool's log at least
    /// daily, and whenever 8 MiB are unconfirmed.
    Interval(Duration),
    /// A write is durable once the system has it. The system decides when to flush; the spool's log is synced at the
    /// end of each segment.
    Never,
}
