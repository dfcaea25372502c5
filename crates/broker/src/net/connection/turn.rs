//! Turns of a connection's task among the others of its thread.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Whether the task yields before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    GoesOn,
    /// Acknowledgements are to be written after the receivers have run.
    ReceiversFirst,
    /// A receiver needs processor time, tasks wait for a search to end, or this task has used up its turn.
    Over,
}

/// Yields once, to tasks that were woken earlier.
///
/// So messages leave before their publisher's acknowledgements. Receivers' acknowledgements may arrive until then, which
/// saves the thread a sleep and a wake-up. A separate future, since an `async fn` would enlarge each connection.
#[derive(Default)]
pub(super) struct ReceiversFirst {
    has_yielded: bool,
}

impl Future for ReceiversFirst {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Packets, without plain messages to known topics, that a task applies before it yields. Small ones cost more time than
/// their bytes tell: 256 KiB of PINGREQs, or of messages that rules deny, would hold other clients up for tens of
/// milliseconds.
pub(super) const TURN_PACKETS: u64 = 512;
