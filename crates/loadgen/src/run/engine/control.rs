use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::run::CutWhose;

/// Handle by which other tasks of a thread wake or cut a connection.
#[derive(Debug)]
pub(super) struct Control {
    /// Kind of the connection.
    pub(super) whose: CutWhose,
    /// Its number among all connections of that kind, in all processes.
    pub(super) number: u32,
    waker: RefCell<Option<Waker>>,
    cut: Cell<Option<Duration>>,
}

impl Control {
    pub(super) fn new(whose: CutWhose, number: u32) -> Self {
        Self { whose, number, waker: RefCell::default(), cut: Cell::default() }
    }

    /// Cuts the connection, without DISCONNECT; its client reconnects after `away`. No effect while the client is away.
    pub(super) fn cut(&self, away: Duration) {
        self.cut.set(Some(away));
        self.wake();
    }

    /// Wakes the connection's task to check phase, time and window.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Registers the connection's task as the one to wake.
    #[inline]
    pub(super) fn follow(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Takes a requested cut: how long the client stays away.
    #[inline]
    pub(super) fn take_cut(&self) -> Option<Duration> {
        self.cut.take()
    }
}
