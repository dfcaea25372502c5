//! Atomics, locks and the published snapshot. All other modules import them from here, so that the concurrency models
//! in `tests/loom.rs` run the same code with loom's versions. So do the models of the broker's outbox (`tenbin_model`).
//!
//! `Arc` is std's in both: it is part of the public API, and no code here depends on its counts.

#[cfg(not(any(loom, tenbin_model)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU8, AtomicU16, AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

#[cfg(any(loom, tenbin_model))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU8, AtomicU16, AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

pub(crate) use published::{Published, PublishedGuard};

/// Locks a mutex, also after a panic of another holder: the data under this crate's mutexes is consistent after every
/// statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Replaces the value by `next` of it, atomically.
#[inline]
pub(crate) fn change(value: &AtomicU64, next: impl Fn(u64) -> u64) {
    // Never `Err`, since there always is a next value.
    let _ = value.fetch_update(Relaxed, Relaxed, |value| Some(next(value)));
}

/// A value alone on its cache line, so that writes to it do not slow readers of its neighbours.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct OwnLine<T>(pub(crate) T);

#[cfg(not(any(loom, tenbin_model)))]
mod published {
    use std::sync::Arc;

    /// A value that is replaced as a whole and read without a lock.
    ///
    /// A load that returns a value sees all writes from before that value was stored (release/acquire, given by
    /// `ArcSwap`).
    #[derive(Debug)]
    pub(crate) struct Published<T>(arc_swap::ArcSwap<T>);

    pub(crate) type PublishedGuard<T> = arc_swap::Guard<Arc<T>>;

    impl<T> Published<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(arc_swap::ArcSwap::from_pointee(value))
        }

        pub(crate) fn load(&self) -> PublishedGuard<T> {
            self.0.load()
        }

        pub(crate) fn store(&self, value: T) {
            self.0.store(Arc::new(value));
        }
    }
}

/// Stand-in for `ArcSwap`, which loom cannot inspect. A load clones the `Arc` under a loom mutex. That keeps the
/// release/acquire promise above, and also orders loads among each other, which `ArcSwap` does not. So the models check
/// this crate's use of the snapshot, not `ArcSwap` itself.
#[cfg(any(loom, tenbin_model))]
mod published {
    use std::sync::Arc;

    #[derive(Debug)]
    pub(crate) struct Published<T>(super::Mutex<Arc<T>>);

    pub(crate) type PublishedGuard<T> = Arc<T>;

    impl<T> Published<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(super::Mutex::new(Arc::new(value)))
        }

        pub(crate) fn load(&self) -> PublishedGuard<T> {
            Arc::clone(&super::lock(&self.0))
        }

        pub(crate) fn store(&self, value: T) {
            *super::lock(&self.0) = Arc::new(value);
        }
    }
}
