use crate::Sync;

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
