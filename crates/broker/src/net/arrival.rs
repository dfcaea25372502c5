//! Partly received packets: their memory and their progress.
//!
//! A large packet is read only after its owner's account has room for all of it. So partly received packets never wait
//! for each other's memory: each packet that has begun can be completed.

use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::connection::ConnectionTask;
use super::ending::End;
use super::sending::OUT_FULL;
use super::stream::Stream;
use crate::memory::{Charge, Kind};
use crate::values::UNCHARGED_PACKET;

/// A partly received packet. Boxed, and present only during its arrival and for one deadline after it.
#[derive(Debug)]
pub(super) struct Arrival {
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
    /// The account has no room: the client is not read from.
    is_starved: bool,
    deadline: Pin<Box<Sleep>>,
    /// When to ask the account again.
    retry: Option<Pin<Box<Sleep>>>,
}

impl<S: Stream> ConnectionTask<S> {
    /// Records that all whole packets, `packets` of them, were decoded and the next needs `missing` more bytes.
    #[inline]
    pub(super) fn needs_input(&mut self, missing: usize, packets: u64) {
        if self.arrival.is_some() || self.transport.input.len() + missing > FREE_BYTES {
            self.note_arrival(missing, packets);
        }
    }

    #[cold]
    fn note_arrival(&mut self, missing: usize, packets: u64) {
        let size = self.transport.input.len() + missing;
        let arrival = self.arrival();
        // The next packet has begun, or its length has become known.
        if packets > 0 || arrival.missing_at_mark.is_some_and(|before| before < missing) {
            arrival.missing_at_mark = None;
        }
        arrival.size = size;
        arrival.missing = missing;
        self.charge_arrival();
    }

    /// Charges the packet's memory to the account.
    fn charge_arrival(&mut self) {
        let account = self.lease.client.outbox.account();
        let Some((arrival, account)) = self.arrival.as_mut().zip(account) else { return };
        if arrival.size <= FREE_BYTES {
            (arrival.charge, arrival.is_starved) = (None, false);
            return;
        }
        let charge = arrival.charge.get_or_insert_with(|| Charge::nothing(&account, Kind::Input));
        arrival.is_starved = charge.resize(arrival.size).is_err();
        if !arrival.is_starved {
            // Reserve all at once: growth by doubling would take twice as much.
            self.transport.input.reserve(arrival.missing);
        }
    }

    /// Whether the account has no room for the partly received packet.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        self.arrival.as_ref().is_some_and(|arrival| arrival.is_starved)
    }

    /// Whether the client is not read from for want of memory for its packet; asks the account again at intervals.
    pub(super) fn waits_for_memory(&mut self, context: &mut Context<'_>) -> bool {
        let Some(arrival) = self.arrival.as_mut().filter(|arrival| arrival.is_starved) else { return false };
        let retry = arrival.retry.get_or_insert_with(|| Box::pin(tokio::time::sleep(RETRY)));
        if retry.as_mut().poll(context).is_pending() {
            return true;
        }
        arrival.retry = None;
        if arrival.charge.as_ref().is_none_or(|charge| charge.may_become(arrival.size)) {
            self.charge_arrival();
        }
        // Polls the next timer, if another attempt is needed.
        self.waits_for_memory(context)
    }

    /// Whether a partly received packet makes no progress; asked while the connection has nothing to do.
    ///
    /// A deadline restarts if the client met it, or missed it because of the broker. It also restarts at most
    /// [`UNREAD_DEADLINES_MAX`] times in a row while the client does not read. The broker does not read from such a
    /// client, which may be about to read.
    #[inline]
    pub(super) fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        (self.arrival.is_some() || !self.transport.input.is_empty()) && self.has_stalled(context)
    }

    #[cold]
    fn has_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let timeout = self.shared.config.packet_timeout();
        while self.arrival().deadline.as_mut().poll(context).is_ready() {
            if self.transport.input.is_empty() {
                self.arrival = None;
                return false;
            }
            let is_our_fault = self.waits_for_us() || self.throttle.is_paused();
            let is_unread = self.transport.out.len() >= OUT_FULL;
            let arrival = self.arrival();
            let has_progressed = arrival.missing_at_mark.is_none_or(|before| arrival.missing + PROGRESS <= before);
            if is_our_fault || has_progressed {
                arrival.unread_deadlines = 0;
            } else if is_unread && arrival.unread_deadlines < UNREAD_DEADLINES_MAX {
                arrival.unread_deadlines += 1;
            } else {
                return true;
            }
            arrival.missing_at_mark = Some(arrival.missing);
            arrival.deadline.as_mut().reset((Instant::now() + timeout).into());
        }
        false
    }

    /// Reason why an overdue connection ends.
    pub(super) fn overdue(&self) -> End {
        match self.arrival.as_deref() {
            Some(&Arrival { is_starved: true, size, .. }) => End::NoMemory(size),
            _ => End::Stalled,
        }
    }

    /// Replaces timers after a migration, as they belong to the old runtime.
    pub(super) fn forget_arrival_timers(&mut self) {
        let timeout = self.shared.config.packet_timeout();
        if let Some(arrival) = &mut self.arrival {
            arrival.retry = None;
            arrival.deadline = Box::pin(tokio::time::sleep(timeout));
        }
    }

    fn arrival(&mut self) -> &mut Arrival {
        let timeout = self.shared.config.packet_timeout();
        self.arrival.get_or_insert_with(|| Box::new(Arrival::new(timeout)))
    }
}

impl Arrival {
    fn new(timeout: Duration) -> Self {
        Self {
            charge: None,
            size: 0,
            missing: 0,
            missing_at_mark: Some(0),
            unread_deadlines: 0,
            is_starved: false,
            deadline: Box::pin(tokio::time::sleep(timeout)),
            retry: None,
        }
    }
}

/// See [`UNCHARGED_PACKET`].
pub(super) const FREE_BYTES: usize = UNCHARGED_PACKET;
/// Bytes that a partly received packet must gain within one deadline, if so many are missing.
const PROGRESS: usize = 32 * 1024;
/// Consecutive deadlines that a packet may miss while its client does not read.
const UNREAD_DEADLINES_MAX: u8 = 2;
/// Interval at which an account without room is asked again.
pub(super) const RETRY: Duration = Duration::from_millis(100);
