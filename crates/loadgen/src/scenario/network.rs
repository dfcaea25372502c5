use std::future::Future;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use crate::LoadgenError;

/// The thread that moves one worker's bytes, as a process of its own would: it can stand still, and it can die.
///
/// Dropped, it dies: its sockets close without a DISCONNECT.
#[derive(Debug)]
pub(crate) struct Network {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Network {
    pub(crate) fn start() -> Result<Self, LoadgenError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("worker-net").enable_all().build();
        Ok(Self { runtime: Some(runtime.map_err(LoadgenError::Runtime)?) })
    }

    /// Runs `work` on the thread; what it spawns stays there.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime.spawn(work).await.expect("the work does not panic, and its thread lives")
    }

    /// Nothing is read or sent until `until`.
    pub(crate) fn stand_still(&self, until: Instant) {
        let runtime = self.runtime.as_ref().expect("it lives");
        // Blocks the only thread, which is what is wanted.
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
