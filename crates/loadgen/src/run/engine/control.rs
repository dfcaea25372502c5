use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::run::CutWhose;

/// What others of its thread may do with a connection.
#[derive(Debug)]
pub(super) struct Control {
    /// Whose it is.
    pub(super) whose: CutWhose,
    /// Its number among all of that kind, in all processes.
    pub(super) number: u32,
    waker: RefCell<Option<Waker>>,
    cut: Cell<Option<Duration>>,
}

impl Control {
    pub(super) fn new(whose: CutWhose, number: u32) -> Self {
        Self { whose, number, waker: RefCell::default(), cut: Cell::default() }
    }

    /// Cuts the connection, without DISCONNECT. Its client comes back when it has been away for so long. Nothing happens
    /// to one that is away already.
    pub(super) fn cut(&self, away: Duration) {
        self.cut.set(Some(away));
        self.wake();
    }

    /// Has the connection look at what is new: the phase, the time, the window.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// The connection's task waits.
    #[inline]
    pub(super) fn follow(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Whether it is to be cut, and for how long.
    #[inline]
    pub(super) fn take_cut(&self) -> Option<Duration> {
        self.cut.take()
    }
}
