use std::fmt;
use std::sync::Arc;

use tenbin_store::state::Wake;

use super::Durable;

/// A pending wake-up for a commit point. Dropping it cancels the wake-up and leaves nothing behind.
pub(crate) struct AskedWake {
    pub(super) durable: Arc<Durable>,
    pub(super) wake: Wake,
}

impl Drop for AskedWake {
    fn drop(&mut self) {
        self.durable.state.forget_wake(self.wake);
    }
}

impl fmt::Debug for AskedWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wake.fmt(f)
    }
}
