use crate::Sync;

/// Settings of a state. [`Default`] gives the broker's defaults.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When a change counts as durable. Default: [`Sync::Always`].
    pub sync: Sync,
    /// Unwritten bytes above which [`State::is_congested`](super::State::is_congested) is true. Default 64 MiB.
    ///
    /// They stay in memory, and only the caller limits their growth.
    pub congested_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: Sync::Always, congested_bytes: 64 << 20 }
    }
}
