use std::future::Future;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use crate::LoadgenError;

/// Network thread of one worker. Like a separate process it can be paused and killed.
///
/// Dropping it closes the sockets without DISCONNECT.
#[derive(Debug)]
pub(super) struct Network {
    /// `None` only during drop.
    runtime: Option<Runtime>,
}

impl Network {
    pub(super) fn start() -> Result<Self, LoadgenError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("worker-net").enable_all().build();
        Ok(Self { runtime: Some(runtime.map_err(LoadgenError::Runtime)?) })
    }

    /// Runs `work` on the thread, which also runs the tasks that it spawns.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime.spawn(work).await.expect("the work does not panic, and its thread lives")
    }

    /// Pauses reading and sending until `until`.
    pub(super) fn stand_still(&self, until: Instant) {
        let runtime = self.runtime.as_ref().expect("it lives");
        // Blocks the only thread on purpose.
        runtime.spawn(async move { std::thread::sleep(until.saturating_duration_since(Instant::now())) });
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
