use std::time::Duration;

/// How a state is run. [`Default`] is what the broker does when nobody says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When changes are durable. Default: [`Sync::Always`].
    pub sync: Sync,
    /// From how many bytes that wait to be written [`State::is_congested`](super::State::is_congested) says so; default
    /// 64 MiB. They are in memory until then, and nothing but the caller stops them from becoming more.
    pub congested_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: Sync::Always, congested_bytes: 64 << 20 }
    }
}

/// When changes count as durable, and so what can be lost.
///
/// | policy | killed (`kill -9`) | power cut |
/// |---|---|---|
/// | `Always` | nothing that was durable | nothing that was durable |
/// | `Interval` | nothing that was durable | what was changed in the last interval |
/// | `Never` | nothing that was durable | what the system had not written yet |
///
/// What is lost are always the last changes: those before are all there, and what was torn is cut off when the state is
/// opened ([`State::cut_off`](super::State::cut_off)). Where whole changes are behind damaged ones, which only happens to what
/// was not confirmed or to a disk that lost what it had confirmed, `Always` refuses to open, and the others cut off there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Durable is what `fdatasync` has confirmed. All that came while one was running is confirmed by the next.
    Always,
    /// Durable is what was given to the system. It is confirmed this often.
    Interval(Duration),
    /// Durable is what was given to the system, which decides.
    Never,
}
