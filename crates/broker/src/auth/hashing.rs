use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use argon2::Block;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::recent::RecentSet;

/// Threads for password checks, which are slow on purpose. A fixed number runs at a time; others wait in queues.
///
/// ```text
///   address, right lately ────────┐
///   address ──┐                   │
///   address ──┴─► unknown ────────┼──► listener ──┐
///   address ──┐                   │               ├──► all ──► thread
///   address ──┴─► failed lately ──┘               │
///   address, right lately ───────────► listener ──┘
/// ```
///
/// Each queue lets at most as many checks pass at a time as there are threads. A client that repeats wrong passwords
/// therefore delays another address by at most that many checks, and likewise a listener another listener. A client
/// that waits alone may use all threads.
///
/// All addresses with a recent wrong password share one more queue, and so do all addresses without a recent right
/// password. A login from an address with a recent right password thus waits for few of their checks, however many
/// addresses guess. A client that gives up leaves its queues. Clients that have closed their sending side may still
/// wait; the broker limits them per address.
#[derive(Debug)]
pub(super) struct HashWorkers {
    workers: usize,
    all: Arc<Semaphore>,
    queues: Mutex<HashMap<Origin, Weak<Semaphore>>>,
    /// Addresses with a recent wrong password.
    failed: RecentSet<IpAddr>,
    /// Addresses with a recent right password.
    succeeded: RecentSet<IpAddr>,
    /// Memory of idle checks. Reused, because allocators keep freed memory for each thread.
    memory: Mutex<Vec<Memory>>,
}

/// Memory for one check at a time.
pub(super) type Memory = Vec<Block>;

/// Origin of the checks in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Origin {
    Address(Arc<str>, IpAddr),
    /// All addresses at one listener with a recent wrong password.
    Failed(Arc<str>),
    /// All addresses at one listener without a recent password.
    Unknown(Arc<str>),
    Listener(Arc<str>),
}

impl HashWorkers {
    /// Uses half of the processors, one to four. Each running check takes about 20 MiB.
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::with((processors / 2).clamp(1, 4))
    }

    fn with(workers: usize) -> Self {
        Self {
            workers,
            all: Arc::new(Semaphore::new(workers)),
            queues: Mutex::default(),
            failed: RecentSet::new(ADDRESSES_MAX, FAILED_FOR),
            succeeded: RecentSet::new(ADDRESSES_MAX, SUCCEEDED_FOR),
            memory: Mutex::default(),
        }
    }

    /// Runs `check` in its turn; `None` if it could not run.
    ///
    /// If the future is dropped before the check begins, the check never runs. A running check occupies its thread
    /// until it ends, even if the client gave up.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        listener: &Arc<str>,
        address: IpAddr,
        check: impl FnOnce(&mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let (workers, listener) = (Arc::clone(self), Arc::clone(listener));
        let work = move |turn| {
            let _turn = turn;
            // A panic under this lock loses one piece of memory at worst.
            let memory = workers.memory.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut memory = memory.unwrap_or_default();
            let checked = check(&mut memory);
            if memory.len() <= KEPT_BLOCKS {
                workers.memory.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
            }
            checked
        };
        // In a separate task: the caller's task may be scheduled late, and must not occupy a worker until then.
        let (workers, mut task) = (Arc::clone(self), JoinSet::new());
        task.spawn(async move {
            let turn = workers.turn(&listener, address).await?;
            tokio::task::spawn_blocking(move || work(turn)).await.ok()
        });
        task.join_next().await?.ok()?
    }

    /// Records a wrong password from this address.
    pub(super) fn failed(&self, address: IpAddr) {
        self.failed.insert(address, Instant::now());
    }

    /// Records a right password from this address.
    pub(super) fn succeeded(&self, address: IpAddr) {
        self.succeeded.insert(address, Instant::now());
    }

    /// Queue that similar addresses share; `None` after a recent right password and no recent wrong one.
    fn shared_queue(&self, listener: &Arc<str>, address: IpAddr) -> Option<Arc<Semaphore>> {
        let now = Instant::now();
        if self.failed.contains(&address, now) {
            return Some(self.queue(Origin::Failed(Arc::clone(listener))));
        }
        (!self.succeeded.contains(&address, now)).then(|| self.queue(Origin::Unknown(Arc::clone(listener))))
    }

    async fn turn(&self, listener: &Arc<str>, address: IpAddr) -> Option<[Option<OwnedSemaphorePermit>; 4]> {
        let of_address = self.queue(Origin::Address(Arc::clone(listener), address)).acquire_owned().await.ok()?;
        let of_alike = match self.shared_queue(listener, address) {
            Some(queue) => Some(queue.acquire_owned().await.ok()?),
            None => None,
        };
        let of_listener = self.queue(Origin::Listener(Arc::clone(listener))).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some([Some(of_address), of_alike, Some(of_listener), Some(of_all)])
    }

    /// Makes all later checks fail to run.
    #[cfg(test)]
    pub(super) fn close(&self) {
        self.all.close();
    }

    fn queue(&self, origin: Origin) -> Arc<Semaphore> {
        // A panic under this lock loses one queue at worst, which is created again.
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&origin).and_then(Weak::upgrade) {
            return queue;
        }
        // Drop unused queues before the map grows, and keep room for as many new ones as are left. So the cost of this
        // scan stays at about two entries per new address, even in a flood of addresses.
        if queues.len() == queues.capacity() {
            queues.retain(|_, queue| queue.strong_count() > 0);
            let alive = queues.len();
            queues.reserve(alive);
        }
        let queue = Arc::new(Semaphore::new(self.workers));
        queues.insert(origin, Arc::downgrade(&queue));
        queue
    }
}

/// How long a wrong password of an address is remembered, at least.
const FAILED_FOR: Duration = Duration::from_secs(60);
/// How long a right password of an address is remembered, at least.
const SUCCEEDED_FOR: Duration = Duration::from_secs(3600);
/// Maximum number of remembered addresses of either kind, per such time.
const ADDRESSES_MAX: usize = 16_384;
/// Blocks (KiB) that are kept for reuse. Larger memory, which a password file may require, is freed.
const KEPT_BLOCKS: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;

    /// One worker, busy until the sender is dropped. Waiting checks record their names when they run.
    struct Busy {
        workers: Arc<HashWorkers>,
        ran: Arc<Mutex<Vec<&'static str>>>,
        blocker: mpsc::SyncSender<()>,
    }

    impl Busy {
        async fn new(listener: &'static str, address: [u8; 4]) -> Self {
            let (blocker, blocked) = mpsc::sync_channel::<()>(0);
            let busy = Self { workers: Arc::new(HashWorkers::with(1)), ran: Arc::default(), blocker };
            busy.spawn(listener, address, move || _ = blocked.recv()).await;
            busy
        }

        /// Starts a check that waits in the queues.
        async fn spawn(
            &self,
            listener: &'static str,
            address: [u8; 4],
            check: impl FnOnce() + Send + 'static,
        ) -> JoinHandle<Option<()>> {
            let workers = Arc::clone(&self.workers);
            let task = tokio::spawn(async move { workers.run(&listener.into(), address.into(), |_| check()).await });
            tokio::task::yield_now().await; // single-threaded runtime: the task has run until it waits
            task
        }

        async fn wait(&self, name: &'static str, listener: &'static str, address: [u8; 4]) -> JoinHandle<Option<()>> {
            let ran = Arc::clone(&self.ran);
            self.spawn(listener, address, move || ran.lock().unwrap().push(name)).await
        }

        /// Frees the worker and returns the names of the checks in the order in which they ran.
        async fn free(self, tasks: Vec<JoinHandle<Option<()>>>) -> Vec<&'static str> {
            drop(self.blocker);
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            std::mem::take(&mut self.ran.lock().unwrap())
        }
    }

    #[tokio::test]
    async fn addresses_and_listeners_take_turns_in_checks() {
        let busy = Busy::new("outside", [10, 0, 0, 1]).await;
        let mut tasks = Vec::new();
        for (name, listener, address) in [
            ("flood 1", "outside", [10, 0, 0, 1]),
            ("flood 2", "outside", [10, 0, 0, 1]),
            ("flood 3", "outside", [10, 0, 0, 1]),
            ("another address", "outside", [10, 0, 0, 2]),
            ("another listener", "inside", [10, 0, 0, 1]),
        ] {
            tasks.push(busy.wait(name, listener, address).await);
        }
        let ran = busy.free(tasks).await;
        assert_eq!(ran, ["another listener", "another address", "flood 1", "flood 2", "flood 3"]);
    }

    #[tokio::test]
    async fn login_overtakes_addresses_with_recent_failures() {
        let busy = Busy::new("l", [10, 0, 0, 1]).await;
        let guessing = |number: u8| [10, 0, 1, number];
        let mut tasks = Vec::new();
        for number in 0..100 {
            busy.workers.failed(guessing(number).into());
            tasks.push(busy.wait("guess", "l", guessing(number)).await);
        }
        tasks.push(busy.wait("login", "l", [10, 0, 0, 2]).await);
        let ran = busy.free(tasks).await;
        assert_eq!(ran.iter().position(|&name| name == "login"), Some(1), "behind one of them");
    }

    /// Guesses from new addresses.
    #[tokio::test]
    async fn login_from_known_address_overtakes_unknown_addresses() {
        let busy = Busy::new("l", [10, 0, 0, 1]).await;
        let mut tasks = Vec::new();
        for number in 0..100 {
            tasks.push(busy.wait("guess", "l", [10, 0, 1, number]).await);
        }
        for number in 0..100 {
            busy.workers.failed([10, 0, 2, number].into());
            tasks.push(busy.wait("guess", "l", [10, 0, 2, number]).await);
        }
        busy.workers.succeeded([10, 0, 0, 2].into());
        tasks.push(busy.wait("login", "l", [10, 0, 0, 2]).await);
        // A right password does not cancel wrong ones.
        busy.workers.succeeded([10, 0, 2, 7].into());
        tasks.push(busy.wait("guess of a user", "l", [10, 0, 2, 7]).await);
        let ran = busy.free(tasks).await;
        let position = |wanted| ran.iter().position(|&name| name == wanted);
        assert!(position("login") <= Some(2), "behind one of either kind at most: {ran:?}");
        assert!(position("guess of a user") > Some(100), "{ran:?}");
    }

    #[tokio::test]
    async fn check_memory_is_reused() {
        let workers = Arc::new(HashWorkers::with(1));
        let check = |address: u8, blocks| {
            let workers = Arc::clone(&workers);
            async move {
                let check = move |memory: &mut Memory| {
                    let before = memory.len();
                    memory.resize(blocks, Block::new());
                    before
                };
                workers.run(&"l".into(), IpAddr::from([10, 0, 0, address]), check).await.unwrap()
            }
        };
        assert_eq!(check(1, 16).await, 0);
        assert_eq!(check(2, KEPT_BLOCKS + 1).await, 16);
        assert_eq!(check(3, 16).await, 0, "too large to be kept");
    }

    #[tokio::test]
    async fn cancelled_check_does_not_begin() {
        let busy = Busy::new("l", [10, 0, 0, 1]).await;
        let gone = busy.wait("gone", "l", [10, 0, 0, 1]).await;
        let stays = busy.wait("stays", "l", [10, 0, 0, 1]).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(busy.free(vec![stays]).await, ["stays"]);
    }

    #[tokio::test]
    async fn unused_queues_are_removed() {
        let workers = Arc::new(HashWorkers::with(1));
        for number in 0..10_000u32 {
            workers.run(&"l".into(), IpAddr::from(number.to_be_bytes()), |_| ()).await.unwrap();
        }
        assert!(workers.queues.lock().unwrap().capacity() < 100);
    }

    #[test]
    fn unused_queues_are_scanned_once_per_doubling() {
        let workers = HashWorkers::with(1);
        let queue = |number: u32| workers.queue(Origin::Address("l".into(), IpAddr::from(number.to_be_bytes())));
        let is_full = || {
            let queues = workers.queues.lock().unwrap();
            queues.len() == queues.capacity()
        };
        let mut alive = vec![queue(0)];
        while alive.len() < 1000 || !is_full() {
            alive.push(queue(alive.len() as u32));
        }
        let looked_through = (0..1000u32).filter(|number| {
            alive.pop(); // each scan finds exactly one unused queue
            let is_full = is_full();
            alive.push(queue(1_000_000 + number));
            is_full
        });
        assert_eq!(looked_through.count(), 1);
    }
}
