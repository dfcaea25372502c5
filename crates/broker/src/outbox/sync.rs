//! Lock and atomics of the outbox. The models in `tests/models.rs` run the same code with loom's versions.

#[cfg(not(tenbin_model))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64},
};

#[cfg(tenbin_model)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64},
};
