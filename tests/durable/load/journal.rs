use std::fmt;
use std::time::Instant;

use tenbin_codec::{PacketId, PacketType, QoS, ReasonCode};

use super::ledger::Number;

/// A violation, and the message that it is about.
#[derive(Clone)]
pub(crate) struct Complaint {
    pub(crate) text: String,
    pub(crate) message: Option<Number>,
}

/// Everything that a client did and saw, in order.
#[derive(Default)]
pub(crate) struct Journal {
    entries: Vec<Entry>,
}

struct Entry {
    at: Instant,
    message: Option<Number>,
    what: What,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    Connected {
        session_present: bool,
    },
    Left(&'static str),
    Published {
        id: Option<PacketId>,
        dup: bool,
    },
    Answered(PacketType, ReasonCode),
    Received {
        id: Option<PacketId>,
        qos: QoS,
        dup: bool,
    },
    /// PUBREL of a QoS 2 message arrived.
    Released,
}

impl Journal {
    pub(crate) fn note(&mut self, message: Option<Number>, what: What) {
        self.entries.push(Entry { at: Instant::now(), message, what });
    }

    /// Entries about a message, and about connections between the first and the last of them.
    pub(crate) fn about(&self, message: Number) -> Vec<(Instant, What)> {
        let is_about = |entry: &Entry| entry.message == Some(message);
        let Some(first) = self.entries.iter().position(is_about) else { return Vec::new() };
        let last = self.entries.iter().rposition(is_about).unwrap_or(first);
        let around = &self.entries[first..=last];
        let shown = around.iter().filter(|entry| entry.message.is_none_or(|one| one == message));
        shown.map(|entry| (entry.at, entry.what)).collect()
    }
}

impl From<String> for Complaint {
    fn from(text: String) -> Self {
        Self { text, message: None }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<PacketId>| id.map_or(0, PacketId::get);
        match self {
            Self::Connected { session_present } => write!(f, "connected, session present: {session_present}"),
            Self::Left(how) => write!(f, "connection ended: {how}"),
            Self::Published { id: number, dup } => write!(f, "published, identifier {}, DUP {dup}", id(number)),
            Self::Answered(packet, reason) => write!(f, "got {packet} {reason}"),
            Self::Received { id: number, qos, dup } => {
                write!(f, "received at QoS {qos}, identifier {}, DUP {dup}", id(number))
            }
            Self::Released => write!(f, "got PUBREL"),
        }
    }
}
