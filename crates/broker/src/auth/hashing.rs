use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

/// Password checks are made slow on purpose. So many run at a time, on threads of their own, and the others wait:
/// whoever connects with wrong passwords again and again delays others who connect, but not the broker's work.
#[derive(Debug)]
pub(super) struct HashWorkers {
    permits: Arc<Semaphore>,
}

impl HashWorkers {
    /// Half of the processors, at least one, at most four: each check takes about 20 MiB while it runs.
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new((processors / 2).clamp(1, 4))) }
    }

    /// Runs `check` in its turn; `None` if it could not run. Work that has begun counts until it is done, even if
    /// nobody waits for it any more.
    pub(super) async fn run<T: Send + 'static>(&self, check: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let work = move || {
            let _permit = permit;
            check()
        };
        tokio::task::spawn_blocking(work).await.ok()
    }
}
