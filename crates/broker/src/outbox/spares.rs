use std::cell::RefCell;

/// Memory of bursts that are over, a few pieces for each thread: giving it back to the allocator after each burst costs as
/// much as the burst itself.
#[derive(Debug)]
pub(super) struct Spares<T>(RefCell<Vec<T>>);

impl<T> Spares<T> {
    pub(super) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    pub(super) fn take(&self) -> Option<T> {
        self.0.borrow_mut().pop()
    }

    /// Keeps an empty piece for the next burst, or gives it back where there are enough.
    pub(super) fn give(&self, spare: T) {
        let mut spares = self.0.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(spare);
        }
    }
}

/// Pieces that one thread keeps.
const SPARES_MAX: usize = 16;
