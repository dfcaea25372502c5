//! Partly received packets: their memory and their progress.
//!
//! A large packet is read only after its owner's account has room for all of it. So no partly received packet waits
//! for the memory of another: each packet that has begun can be completed.

use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::core::Core;
use super::end::End;
use super::output::OUT_FULL;
use super::read_buffer::ReadBuffer;
use crate::memory::{Charge, Kind, OverLimit};
use crate::values::{Bound, UNCHARGED_PACKET};

/// Watch over partly received packets.
#[derive(Debug, Default)]
pub(super) struct Arrival(
    /// Boxed, and present only during an arrival and for one deadline after it.
    Option<Box<Partial>>,
);

/// A partly received packet.
#[derive(Debug)]
struct Partial {
    /// Charge for the whole packet, if it is large.
    charge: Option<Charge>,
    /// Total size of the packet in bytes, as far as known.
    size: usize,
    /// Bytes still missing.
    missing: usize,
    /// `missing` when the deadline was set; `None` = a whole packet has arrived since.
    missing_at_mark: Option<usize>,
    /// Consecutive deadlines missed while the client left output unread.
    unread_deadlines: u8,
    /// The account has no room by this bound: the client is not read from.
    starved_by: Option<Bound>,
    deadline: Pin<Box<Sleep>>,
    /// When to ask the account again.
    retry: Option<Pin<Box<Sleep>>>,
}

impl Arrival {
    /// Whether a packet is partly received, or was until lately. If not, there is nothing to record below
    /// [`FREE_BYTES`], and nothing is overdue while there is no input.
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        self.0.is_some()
    }

    /// Records that all whole packets, `packets` of them, were decoded and the next needs `missing` more bytes.
    #[cold]
    pub(super) fn needs_input(&mut self, core: &Core, input: &mut ReadBuffer, missing: usize, packets: u64) {
        let partial = self.partial(core);
        // The next packet has begun, or its length has become known.
        if packets > 0 || partial.missing_at_mark.is_some_and(|before| before < missing) {
            partial.missing_at_mark = None;
        }
        partial.size = input.len() + missing;
        partial.missing = missing;
        partial.charge(core, input);
    }

    /// Notes that whole packets were decoded, and that the rest of the input waits.
    #[cold]
    pub(super) fn progressed(&mut self) {
        if let Some(partial) = &mut self.0 {
            partial.missing_at_mark = None;
        }
    }

    /// Whether the account has no room for the partly received packet.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        self.0.as_ref().is_some_and(|partial| partial.starved_by.is_some())
    }

    /// Whether the client is not read from for want of memory for its packet; asks the account again at intervals.
    #[inline]
    pub(super) fn waits_for_memory(&mut self, core: &Core, input: &mut ReadBuffer, context: &mut Context<'_>) -> bool {
        self.0.as_mut().is_some_and(|partial| partial.waits_for_memory(core, input, context))
    }

    /// Whether a partly received packet makes no progress; asked while the connection has nothing to do.
    ///
    /// A deadline restarts if the client met it, or missed it because of the broker, as `is_our_fault` tells. It also
    /// restarts at most [`UNREAD_DEADLINES_MAX`] times in a row while the client does not read. The broker does not read
    /// from such a client, which may be about to read.
    #[cold]
    pub(super) fn is_overdue(
        &mut self,
        core: &Core,
        input: &ReadBuffer,
        is_our_fault: impl Fn() -> bool,
        context: &mut Context<'_>,
    ) -> bool {
        let timeout = core.open.shared.config.packet_timeout();
        loop {
            let partial = self.partial(core);
            if partial.deadline.as_mut().poll(context).is_pending() {
                return false;
            }
            if input.is_empty() {
                self.0 = None;
                return false;
            }
            let is_unread = core.out.len() >= OUT_FULL;
            let has_progressed = partial.missing_at_mark.is_none_or(|before| partial.missing + PROGRESS <= before);
            if is_our_fault() || has_progressed {
                partial.unread_deadlines = 0;
            } else if is_unread && partial.unread_deadlines < UNREAD_DEADLINES_MAX {
                partial.unread_deadlines += 1;
            } else {
                return true;
            }
            partial.missing_at_mark = Some(partial.missing);
            partial.deadline.as_mut().reset((Instant::now() + timeout).into());
        }
    }

    /// Reason why an overdue connection ends.
    pub(super) fn overdue(&self) -> End {
        match self.0.as_deref() {
            Some(&Partial { starved_by: Some(bound), size, .. }) => End::NoMemory(size, bound),
            _ => End::Stalled,
        }
    }

    /// Replaces timers after a migration, as they belong to the old runtime.
    pub(super) fn migrated(&mut self, core: &Core) {
        if let Some(partial) = &mut self.0 {
            partial.retry = None;
            partial.deadline = Box::pin(tokio::time::sleep(core.open.shared.config.packet_timeout()));
        }
    }

    fn partial(&mut self, core: &Core) -> &mut Partial {
        self.0.get_or_insert_with(|| Box::new(Partial::new(core.open.shared.config.packet_timeout())))
    }
}

impl Partial {
    fn new(timeout: Duration) -> Self {
        Self {
            charge: None,
            size: 0,
            missing: 0,
            missing_at_mark: Some(0),
            unread_deadlines: 0,
            starved_by: None,
            deadline: Box::pin(tokio::time::sleep(timeout)),
            retry: None,
        }
    }

    /// Charges the packet's memory to the account.
    fn charge(&mut self, core: &Core, input: &mut ReadBuffer) {
        let Some(account) = core.lease.client.outbox.account() else { return };
        if self.size <= FREE_BYTES {
            (self.charge, self.starved_by) = (None, None);
            return;
        }
        let charge = self.charge.get_or_insert_with(|| Charge::nothing(&account, Kind::Input));
        self.starved_by = charge.resize(self.size).err().map(|OverLimit(bound)| bound);
        if self.starved_by.is_none() {
            // Reserve all at once: growth by doubling would take twice as much.
            input.reserve(self.missing);
        }
    }

    /// See [`Arrival::waits_for_memory`].
    fn waits_for_memory(&mut self, core: &Core, input: &mut ReadBuffer, context: &mut Context<'_>) -> bool {
        while self.starved_by.is_some() {
            let retry = self.retry.get_or_insert_with(|| Box::pin(tokio::time::sleep(RETRY)));
            if retry.as_mut().poll(context).is_pending() {
                return true;
            }
            self.retry = None;
            if self.charge.as_ref().is_none_or(|charge| charge.may_become(self.size)) {
                self.charge(core, input);
            }
        }
        false
    }
}

/// See [`UNCHARGED_PACKET`].
pub(super) const FREE_BYTES: usize = UNCHARGED_PACKET;
/// Bytes that a partly received packet must gain within one deadline, if at least this number is missing.
const PROGRESS: usize = 32 * 1024;
/// Consecutive deadlines that a packet may miss while its client does not read.
const UNREAD_DEADLINES_MAX: u8 = 2;
/// Interval at which an account without room is asked again.
pub(super) const RETRY: Duration = Duration::from_millis(100);
