use std::fmt;
use std::ops::BitOr;

/// Set of the events that a program wants.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Events(u64);

/// Defines the events, in the order of the methods of [`Hooks`](super::Hooks).
macro_rules! events {
    ($($name:ident $method:literal,)*) => {
        /// Position of an event in [`Events`].
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the names of the constants")]
        enum Bit {
            $($name,)*
        }

        impl Events {
            $(
                #[doc = concat!("Event of [`Hooks::", $method, "`](super::Hooks::", $method, ").")]
                pub const $name: Self = Self(1 << Bit::$name as u64);
            )*

            /// All events, each with the name of its method.
            pub const ALL: &[(&'static str, Self)] = &[$(($method, Self::$name),)*];
        }
    };
}

events! {
    STARTED "started",
    STOPPED "stopped",
    SYS_TICK "sys_tick",
    CONNECT "connect",
    SESSION_ESTABLISH "session_establish",
    SESSION_ESTABLISHED "session_established",
    DISCONNECTED "disconnected",
    PACKET_READ "packet_read",
    PACKET_PROCESSED "packet_processed",
    PACKET_ENCODE "packet_encode",
    PACKET_SENT "packet_sent",
    SUBSCRIBE "subscribe",
    SUBSCRIBED "subscribed",
    UNSUBSCRIBE "unsubscribe",
    UNSUBSCRIBED "unsubscribed",
    SELECT "select",
    PUBLISH "publish",
    PUBLISHED "published",
    DROPPED "dropped",
    RETAINED "retained",
    RETAINED_SENT "retained_sent",
    QOS_SENT "qos_sent",
    QOS_COMPLETE "qos_complete",
    QOS_DROPPED "qos_dropped",
    SEND_QUOTA_EXHAUSTED "send_quota_exhausted",
    WILL "will",
    WILL_SENT "will_sent",
    SESSION_EXPIRED "session_expired",
    RETAINED_EXPIRED "retained_expired",
    SLOW_BEGUN "slow_begun",
    SLOW_ENDED "slow_ended",
    GROUP_BACKLOG "group_backlog",
    DEAD_LETTER "dead_letter",
    DENIED "denied",
    LEADER_CHANGED "leader_changed",
    COPIES_CHANGED "copies_changed",
}

impl Events {
    /// No event.
    pub const NONE: Self = Self(0);

    /// Every event.
    #[must_use]
    pub fn all() -> Self {
        Self::ALL.iter().fold(Self::NONE, |all, (_, event)| all | *event)
    }

    /// Whether it has an event of `others`.
    #[inline]
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether it has no event.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds `others`, in constants too.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        self.and(others)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Self::ALL.iter().filter(|(_, event)| self.has(*event)).map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_a_bit_of_its_own() {
        let all = Events::all();
        assert_eq!(all.0.count_ones() as usize, Events::ALL.len());
        assert_eq!(format!("{:?}", Events::WILL | Events::CONNECT), r#"{"connect", "will"}"#);
        assert!(!Events::NONE.has(all) && Events::WILL.has(all) && !Events::WILL.has(Events::CONNECT));
    }
}
