use std::cell::RefCell;

/// Pool of empty buffers of one thread, for reuse by the next burst.
///
/// Freeing and allocating the memory for each burst would double the cost of the burst.
#[derive(Debug)]
pub(super) struct BufferPool<T>(RefCell<Vec<T>>);

impl<T> BufferPool<T> {
    pub(super) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    pub(super) fn take(&self) -> Option<T> {
        self.0.borrow_mut().pop()
    }

    /// Adds an empty buffer to the pool, or frees it if the pool is full.
    pub(super) fn give(&self, spare: T) {
        let mut spares = self.0.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(spare);
        }
    }
}

/// Maximum number of buffers in a pool.
const SPARES_MAX: usize = 16;
