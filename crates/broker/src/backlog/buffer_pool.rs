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
    pub(super) fn give(&self, buffer: T) {
        let mut buffers = self.0.borrow_mut();
        if buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
    }
}

/// Maximum number of buffers in a pool.
const BUFFERS_MAX: usize = 16;
