use std::time::Duration;

/// When what was written counts as durable, and so what can be lost.
///
/// | policy | killed (`kill -9`) | power cut |
/// |---|---|---|
/// | `Always` | nothing that was durable | nothing that was durable |
/// | `Interval` | nothing that was durable | what was written in the last interval |
/// | `Never` | nothing that was durable | what the system had not written yet; of the [`spool`](crate::spool), a segment at most |
///
/// What is lost is always the end: what remains has no gap. What was torn is cut off at the next start. Of the
/// [`state`](crate::state), where whole changes are behind damaged ones, which only happens to what was not confirmed or to
/// a disk that lost what it had confirmed, `Always` refuses to open, and the others cut off there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Durable is what `fdatasync` has confirmed. All that came while one was running is confirmed by the next.
    Always,
    /// Durable is what was given to the system. It is confirmed this often; the spool's log at least daily, and whenever
    /// 8 MiB are not.
    Interval(Duration),
    /// Durable is what was given to the system, which decides; the spool's log is confirmed when a segment is full.
    Never,
}
