use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use argon2::Block;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::recent::RecentSet;

/// Password checks are made slow on purpose. So many run at a time, on threads of their own, and the others wait.
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
/// Each queue lets as many on as checks may run at a time. So whoever connects with wrong passwords again and again
/// has no more than these before those of another address, nor a listener before those of another one; and where
/// nobody else waits, all threads are his. All addresses together from which a wrong password came lately have one queue
/// more, and so have all from which no right one came: a login from an address where one was right lately waits for few of
/// their checks, however many addresses guess. Whoever does not wait any more is in no queue; of
/// those that have closed their side, and may wait or not, few of an address are: see [`crate::half_closed`].
#[derive(Debug)]
pub(super) struct HashWorkers {
    workers: usize,
    all: Arc<Semaphore>,
    queues: Mutex<HashMap<Origin, Weak<Semaphore>>>,
    /// Addresses from which a wrong password came lately.
    failed: RecentSet<IpAddr>,
    /// Addresses from which a right password came lately.
    succeeded: RecentSet<IpAddr>,
    /// Memory for checks that do not run now: never allocated anew, since what many threads allocate and free stays theirs.
    memory: Mutex<Vec<Memory>>,
}

/// Memory for one check at a time.
pub(super) type Memory = Vec<Block>;

/// Whose checks wait in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Origin {
    Address(Arc<str>, IpAddr),
    /// All addresses at one listener from which a wrong password came lately.
    Failed(Arc<str>),
    /// All addresses at one listener from which no password came lately.
    Unknown(Arc<str>),
    Listener(Arc<str>),
}

impl HashWorkers {
    /// Half of the processors, at least one, at most four: each check takes about 20 MiB while it runs.
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

    /// Runs `check` in its turn; `None` if it could not run. Dropped before that, it never runs; work that has begun
    /// counts until it is done, even if nobody waits for it any more.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        listener: &Arc<str>,
        address: IpAddr,
        check: impl FnOnce(&mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let (workers, listener) = (Arc::clone(self), Arc::clone(listener));
        let work = move |turn| {
            let _turn = turn;
            // A panic under this lock leaves at worst a piece of memory out.
            let memory = workers.memory.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut memory = memory.unwrap_or_default();
            let checked = check(&mut memory);
            if memory.len() <= KEPT_BLOCKS {
                workers.memory.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
            }
            checked
        };
        // A task of its own: whoever waits may have to wait for a turn on its thread, and holds up no worker meanwhile.
        let (workers, mut task) = (Arc::clone(self), JoinSet::new());
        task.spawn(async move {
            let turn = workers.turn(&listener, address).await?;
            tokio::task::spawn_blocking(move || work(turn)).await.ok()
        });
        task.join_next().await?.ok()?
    }

    /// A wrong password came from this address.
    pub(super) fn failed(&self, address: IpAddr) {
        self.failed.insert(address, Instant::now());
    }

    /// A right password came from this address.
    pub(super) fn succeeded(&self, address: IpAddr) {
        self.succeeded.insert(address, Instant::now());
    }

    /// The queue of addresses of which is known as much; `None` = a right password came from this one lately, and no wrong one.
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

    /// No check runs any more.
    #[cfg(test)]
    pub(super) fn close(&self) {
        self.all.close();
    }

    fn queue(&self, origin: Origin) -> Arc<Semaphore> {
        // A panic under this lock leaves at worst a queue out, which is made again.
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&origin).and_then(Weak::upgrade) {
            return queue;
        }
        // Before it grows: those in which nobody is any more are forgotten. Not again before as many new ones have come
        // as are left, so that a flood of addresses costs each a look at two or so, and not at all.
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

/// How long an address is known by a wrong password, at least.
const FAILED_FOR: Duration = Duration::from_secs(60);
/// How long an address is known by a right password, at least.
const SUCCEEDED_FOR: Duration = Duration::from_secs(3600);
/// Addresses of either kind, of such a time.
const ADDRESSES_MAX: usize = 16_384;
/// Blocks (KiB) that are kept from check to check; larger memory, which a password file may ask for, is given back.
const KEPT_BLOCKS: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;

    /// One worker that is at a check until the sender is dropped; checks that wait write their names down.
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

        /// Begins to wait.
        async fn spawn(
            &self,
            listener: &'static str,
            address: [u8; 4],
            check: impl FnOnce() + Send + 'static,
        ) -> JoinHandle<Option<()>> {
            let workers = Arc::clone(&self.workers);
            let task = tokio::spawn(async move { workers.run(&listener.into(), address.into(), |_| check()).await });
            tokio::task::yield_now().await; // on one thread: it has run until it waits
            task
        }

        async fn wait(&self, name: &'static str, listener: &'static str, address: [u8; 4]) -> JoinHandle<Option<()>> {
            let ran = Arc::clone(&self.ran);
            self.spawn(listener, address, move || ran.lock().unwrap().push(name)).await
        }

        /// What ran, in order, once the worker is free.
        async fn free(self, tasks: Vec<JoinHandle<Option<()>>>) -> Vec<&'static str> {
            drop(self.blocker);
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            std::mem::take(&mut self.ran.lock().unwrap())
        }
    }

    #[tokio::test]
    async fn neither_an_address_nor_a_listener_holds_up_another() {
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
    async fn login_overtakes_addresses_that_failed_lately() {
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

    /// Guesses from addresses that come for the first time.
    #[tokio::test]
    async fn login_from_known_address_overtakes_unknown_ones() {
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
        // A right password does not make up for wrong ones.
        busy.workers.succeeded([10, 0, 2, 7].into());
        tasks.push(busy.wait("guess of a user", "l", [10, 0, 2, 7]).await);
        let ran = busy.free(tasks).await;
        let position = |wanted| ran.iter().position(|&name| name == wanted);
        assert!(position("login") <= Some(2), "behind one of either kind at most: {ran:?}");
        assert!(position("guess of a user") > Some(100), "{ran:?}");
    }

    #[tokio::test]
    async fn memory_of_checks_is_used_again() {
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
    async fn a_check_that_nobody_waits_for_does_not_begin() {
        let busy = Busy::new("l", [10, 0, 0, 1]).await;
        let gone = busy.wait("gone", "l", [10, 0, 0, 1]).await;
        let stays = busy.wait("stays", "l", [10, 0, 0, 1]).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(busy.free(vec![stays]).await, ["stays"]);
    }

    #[tokio::test]
    async fn queues_are_not_kept_for_ever() {
        let workers = Arc::new(HashWorkers::with(1));
        for number in 0..10_000u32 {
            workers.run(&"l".into(), IpAddr::from(number.to_be_bytes()), |_| ()).await.unwrap();
        }
        assert!(workers.queues.lock().unwrap().capacity() < 100);
    }

    #[test]
    fn queues_are_looked_through_no_more_often_than_their_number_doubles() {
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
            alive.pop(); // at each look one is found to be forgotten, and no more
            let is_full = is_full();
            alive.push(queue(1_000_000 + number));
            is_full
        });
        assert_eq!(looked_through.count(), 1);
    }
}
