//! State machine of a queue's receiver: its connection, what blocks it, and how it keeps up.

use tenbin_codec::ProtocolVersion;

use super::health::Pace;
use super::{Limits, Wire};

/// The receiver of one queue.
///
/// ```text
///                      block, unblock
///   Detached ─attach─► Ready ◄──────► Blocked      judge (from both)     judge
///      │ ▲               ▲─────────────────────────► Slow ◄─────────────► Spilling
///      │ └── detach, from each of these           ◄──────────────────────────┘
///    close                                     judge, unless an on-disk backlog holds it back
///      ▼
///   Closed
/// ```
///
/// A slow receiver may be blocked, too: [`Consumer::state`] names the state that matters more. An on-disk backlog makes
/// any connected receiver [`ConsumerState::Spilling`]: new messages have to follow the backlog.
#[derive(Debug, Default)]
pub(super) struct Consumer {
    link: Link,
    /// Number of the current or last connection: how many there were so far.
    connection: u32,
    /// The version of a receiver that takes ready-made packets.
    plain: Option<ProtocolVersion>,
    /// Reasons why it was blocked when it last looked.
    pub(super) blocked: BlockedBy,
    /// Verdict of the slow-consumer monitor.
    pace: Pace,
    /// Bound on bytes in memory while it spools, in-flight messages not included.
    slow_bytes: usize,
}

/// State of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsumerState {
    /// No connection. The session may continue.
    Detached,
    Ready,
    /// Its socket is full, or it has no send quota left.
    Blocked,
    /// Takes messages more slowly than they come: share groups prefer other members.
    Slow,
    /// Its messages are on disk until shortly before they are sent.
    Spilling,
    /// The session is over: no connection will take its messages.
    Closed,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Link {
    #[default]
    Detached,
    Connected,
    Closed,
}

/// Conditions that a receiver waits for before it can be sent messages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockedBy {
    /// Its socket is full and will wake it.
    pub(super) socket: bool,
    /// It has no send quota left; an acknowledgement will wake it.
    pub(super) quota: bool,
}

impl Consumer {
    /// The state. `holds_back`: there is an on-disk backlog.
    pub(super) fn state(&self, holds_back: bool) -> ConsumerState {
        match (self.link, self.pace) {
            (Link::Detached, _) => ConsumerState::Detached,
            (Link::Closed, _) => ConsumerState::Closed,
            (Link::Connected, Pace::Spooling) => ConsumerState::Spilling,
            (Link::Connected, _) if holds_back => ConsumerState::Spilling,
            (Link::Connected, Pace::Watch) => ConsumerState::Slow,
            (Link::Connected, Pace::Normal) if self.blocked != BlockedBy::default() => ConsumerState::Blocked,
            (Link::Connected, Pace::Normal) => ConsumerState::Ready,
        }
    }

    /// Begins a connection. `plain`: its version, if it takes ready-made packets.
    pub(super) fn attach(&mut self, plain: Option<ProtocolVersion>) {
        debug_assert_ne!(self.link, Link::Closed, "a session that is over has no connection");
        let connection = self.connection.wrapping_add(1);
        *self = Self { link: Link::Connected, connection, plain, ..Self::default() };
    }

    /// Ends the connection.
    pub(super) fn detach(&mut self) {
        let link = if self.link == Link::Closed { Link::Closed } else { Link::Detached };
        *self = Self { link, connection: self.connection, ..Self::default() };
    }

    /// Ends the session.
    pub(super) fn close(&mut self) {
        debug_assert_ne!(self.link, Link::Connected, "its connection has ended");
        self.link = Link::Closed;
    }

    /// Takes the monitor's verdict on a connection. Returns whether it holds: not for another connection, and a receiver
    /// that spills goes on while an on-disk backlog holds it back.
    pub(super) fn judge(&mut self, connection: u32, pace: Pace, slow_bytes: usize, holds_back: bool) -> bool {
        let ends_spill = self.is_spooling() && pace != Pace::Spooling;
        if !self.is_connected() || self.connection != connection || (ends_spill && holds_back) {
            return false;
        }
        (self.pace, self.slow_bytes) = (pace, slow_bytes);
        true
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link == Link::Connected
    }

    pub(super) fn is_closed(&self) -> bool {
        self.link == Link::Closed
    }

    /// Number of the current or last connection.
    pub(super) fn connection(&self) -> u32 {
        self.connection
    }

    /// The version of a receiver that takes ready-made packets.
    pub(super) fn plain(&self) -> Option<ProtocolVersion> {
        self.plain
    }

    /// The connection, if it takes ready-made packets.
    pub(super) fn wire(&self) -> Option<Wire> {
        self.plain.map(|version| Wire { connection: self.connection, version })
    }

    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    pub(super) fn keeps_up(&self) -> bool {
        self.pace == Pace::Normal
    }

    /// Whether the monitor wants most of its messages on disk.
    pub(super) fn is_spooling(&self) -> bool {
        self.pace == Pace::Spooling
    }

    /// Limits for messages that are not on disk, if they are lower than `limits` because the receiver is slow.
    pub(super) fn slow_limits(&self, limits: &Limits) -> Option<Limits> {
        self.is_spooling().then(|| Limits { bytes: self.slow_bytes.min(limits.bytes), ..*limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumer_states_follow_the_diagram() {
        let mut consumer = Consumer::default();
        assert_eq!(consumer.state(false), ConsumerState::Detached);
        assert_eq!(consumer.state(true), ConsumerState::Detached, "its backlog waits");
        consumer.attach(None);
        assert_eq!(consumer.state(false), ConsumerState::Ready);
        consumer.blocked.quota = true;
        assert_eq!(consumer.state(false), ConsumerState::Blocked);
        consumer.blocked.quota = false;
        assert_eq!((consumer.state(false), consumer.state(true)), (ConsumerState::Ready, ConsumerState::Spilling));
        assert!(consumer.judge(1, Pace::Watch, 0, true));
        assert_eq!(consumer.state(false), ConsumerState::Slow);
        assert!(consumer.judge(1, Pace::Spooling, 9, false));
        assert_eq!((consumer.state(false), consumer.is_spooling()), (ConsumerState::Spilling, true));
        assert!(!consumer.judge(1, Pace::Normal, 0, true), "the backlog holds it back");
        assert!(!consumer.judge(2, Pace::Normal, 0, false), "that is another connection");
        assert!(consumer.judge(1, Pace::Normal, 0, false) && consumer.keeps_up());
        consumer.detach();
        assert!(!consumer.judge(1, Pace::Watch, 0, false), "the connection has ended");
        consumer.attach(Some(ProtocolVersion::V5));
        assert_eq!((consumer.connection(), consumer.wire().is_some()), (2, true));
        consumer.detach();
        assert_eq!((consumer.state(false), consumer.wire()), (ConsumerState::Detached, None));
        consumer.close();
        assert_eq!(consumer.state(true), ConsumerState::Closed);
    }
}
