//! Long work in slices, so that others run in between.

use std::time::{Duration, Instant};

/// Lets others run each millisecond of a long work.
#[derive(Debug)]
pub(crate) struct Pace {
    rested_at: Instant,
}

impl Pace {
    /// To be awaited after each piece of the work.
    pub(crate) async fn rest(&mut self) {
        if self.rested_at.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.rested_at = Instant::now();
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { rested_at: Instant::now() }
    }
}

/// Others run after this time at the latest. In tests they run after each piece.
const SLICE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 1 });
