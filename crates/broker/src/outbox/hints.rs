//! What any thread may see of a queue without its lock: one word of hints.

use std::sync::atomic::Ordering;

use tenbin_codec::ProtocolVersion;

use super::Wire;
use super::sync::AtomicU64;

/// Hints about a queue for threads that do not hold its lock.
///
/// ```text
///  bits 63–32  number of the current or last connection                              ┐
///          16  KEEPS_UNACKNOWLEDGED  QoS 0 messages spill to disk, too                │ written together
///  bits  15–8  form of packets it takes: protocol 5 or 4; 0 if no ready-made ones     │ by `Hints::publish`
///           7  IS_OVER_QUOTA         QoS 1 and 2 messages are to be refused           │
///           6  HAS_TAIL              there is an on-disk backlog                      ┘
///           5  LAGS                  much was left in the queue at the last take
///           4  IS_WATCHED            the slow-consumer monitor watches the receiver
///           3  KEEPS_BACK            shared messages are blocked by quota or socket
///           2  HAS_BACKLOGS          share groups of the client may have backlogs
///           1  HAS_ROOM_AGAIN        the receiver has to look at its groups' backlogs
///           0  AT_REST               the receiver's task sleeps until it is woken
/// ```
///
/// Each change is one read-modify-write operation: writers that do not hold the lock lose no hint of the others. A reader
/// checks under the lock what it concludes, or is woken after the change. Therefore accesses are relaxed, except to the
/// connection: a publisher that sees it also sees its Maximum Packet Size.
#[derive(Debug, Default)]
pub(super) struct Hints(AtomicU64);

/// Bits of [`Hints`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Hint(u64);

impl Hint {
    /// The queue is empty, no control is pending, and the receiver's task will be woken when either changes.
    ///
    /// Written under the lock, read without it by the receiver's task. A writer that clears it wakes the task, which
    /// orders the two accesses. It need not wake the task if nothing can be sent. Then the task learns of it through the
    /// lock of [`set_socket_blocked`](super::Outbox::set_socket_blocked), or takes again anyway because its quota changed.
    pub(super) const AT_REST: Self = Self(1);
    /// The queue was full and has room since the last [`take_room_again`](super::Outbox::take_room_again), or groups are
    /// left to look at.
    ///
    /// Set under the lock, cleared by the receiver's task without it. The task is woken after it was set.
    pub(super) const HAS_ROOM_AGAIN: Self = Self(1 << 1);
    /// Share groups of the client may have backlogs. Written under the lock, read without it, with a fence: see
    /// [`may_have_backlogs`](super::Outbox::may_have_backlogs).
    pub(super) const HAS_BACKLOGS: Self = Self(1 << 2);
    /// Shared-subscription messages are queued but blocked by quota or socket. Written under the lock by the receiver's
    /// task. Read by it and by publishers, under the lock or as a hint.
    pub(super) const KEEPS_BACK: Self = Self(1 << 3);
    /// The slow-consumer monitor watches this receiver. Set by the receiver's task without the lock, cleared by the
    /// monitor under it.
    pub(super) const IS_WATCHED: Self = Self(1 << 4);
    /// Much was left in the queue when the receiver last took from it. Written under the lock.
    pub(super) const LAGS: Self = Self(1 << 5);
    /// There is an on-disk backlog.
    pub(super) const HAS_TAIL: Self = Self(1 << 6);
    /// The queue on disk or in memory is over limit: QoS 1 and 2 messages are to be refused.
    pub(super) const IS_OVER_QUOTA: Self = Self(1 << 7);
    /// QoS 0 messages spill to disk too, because the receiver is slow and needs them in order.
    pub(super) const KEEPS_UNACKNOWLEDGED: Self = Self(1 << 16);

    /// Both hints.
    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn if_set(self, is_set: bool) -> u64 {
        if is_set { self.0 } else { 0 }
    }
}

/// The hints that follow from what the lock guards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guarded {
    pub(super) has_tail: bool,
    pub(super) is_over_quota: bool,
    pub(super) keeps_unacknowledged: bool,
    /// Number of the current or last connection.
    pub(super) connection: u32,
    /// Its version, if it takes ready-made packets.
    pub(super) plain: Option<ProtocolVersion>,
}

impl Guarded {
    /// All bits that are not written one by one.
    const MASK: u64 = !(Hint::HAS_TAIL.0 - 1);

    fn bits(self) -> u64 {
        Hint::HAS_TAIL.if_set(self.has_tail)
            | Hint::IS_OVER_QUOTA.if_set(self.is_over_quota)
            | Hint::KEEPS_UNACKNOWLEDGED.if_set(self.keeps_unacknowledged)
            | self.plain.map_or(0, |version| if version.is_v5() { 5 } else { 4 }) << VERSION
            | u64::from(self.connection) << CONNECTION
    }
}

impl Hints {
    #[inline]
    pub(super) fn has(&self, hint: Hint) -> bool {
        self.0.load(Ordering::Relaxed) & hint.0 != 0
    }

    /// Sets a hint; returns whether it was clear.
    #[inline]
    pub(super) fn set(&self, hint: Hint) -> bool {
        self.0.fetch_or(hint.0, Ordering::Relaxed) & hint.0 == 0
    }

    /// Clears hints; returns whether one of them was set.
    #[inline]
    pub(super) fn clear(&self, hint: Hint) -> bool {
        self.0.fetch_and(!hint.0, Ordering::Relaxed) & hint.0 != 0
    }

    /// Writes a hint, if it differs: publishers read this cache line for each message. Correct only for a hint that is
    /// written under the lock alone.
    #[inline]
    pub(super) fn put(&self, hint: Hint, is_set: bool) {
        match is_set {
            is_set if is_set == self.has(hint) => {}
            true => _ = self.set(hint),
            false => _ = self.clear(hint),
        }
    }

    /// Writes what follows from the guarded state, if it differs. The caller holds the lock.
    pub(super) fn publish(&self, guarded: Guarded) {
        let bits = guarded.bits();
        let mut word = self.0.load(Ordering::Relaxed);
        while word & Guarded::MASK != bits {
            let changed = word & !Guarded::MASK | bits;
            match self.0.compare_exchange_weak(word, changed, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => word = current,
            }
        }
    }

    /// Whether the receiver's task sleeps and there is no on-disk backlog to read.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Hint::AT_REST.and(Hint::HAS_TAIL).0 == Hint::AT_REST.0
    }

    /// Number of the current or last connection.
    #[inline]
    pub(super) fn connection(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> CONNECTION) as u32
    }

    /// The current or last connection, if it takes ready-made packets.
    #[inline]
    pub(super) fn wire(&self) -> Option<Wire> {
        let word = self.0.load(Ordering::Acquire);
        let version = match (word >> VERSION) as u8 {
            5 => ProtocolVersion::V5,
            4 => ProtocolVersion::V311,
            _ => return None,
        };
        Some(Wire { connection: (word >> CONNECTION) as u32, version })
    }
}

/// Lowest bit of the form of packets. It has a byte, since it is read for each delivery.
const VERSION: u32 = 8;
/// Lowest bit of the connection's number.
const CONNECTION: u32 = 32;
