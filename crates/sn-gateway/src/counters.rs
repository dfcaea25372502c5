//! Counters and gauges of one gateway.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tenbin_sn::{DropCause, Output};
use tenbin_sn_codec::DecodeError;

macro_rules! counters {
    ($($(#[$description:meta])* $name:ident,)*) => {
        /// Counters and gauges. Each thread writes its own.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$description])* pub(crate) $name: AtomicU64,)*
            malformed: [AtomicU64; MALFORMED.len()],
            dropped: [AtomicU64; DropCause::ALL.len()],
        }

        impl Counters {
            fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.load(Relaxed)),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Clients with a peer: a gauge.
    clients,
    /// Timers of clients: a gauge.
    timers,
    /// Received datagrams.
    datagrams_received,
    /// Sent datagrams.
    datagrams_sent,
    /// Datagrams that the socket did not take.
    datagrams_unsent,
    /// CONNECTs that began a peer.
    connects,
    /// CONNECTs beyond a bound of the gateway.
    connects_refused,
    /// Connections that the broker ended or refused, and failed attempts.
    upstream_ended,
    /// Clients that were silent, overslept, or did not answer.
    clients_lost,
    /// Unconfirmed clients that made room for others.
    unconfirmed_evicted,
    /// Clients that have to prove their address, since they want a session that exists.
    proofs_asked,
    /// Those that have proven it.
    proofs_given,
    /// Those that have not: the session stays untouched.
    proofs_missing,
    /// Sleeping clients that came back from another address.
    rebound,
    /// Sessions that another address took over.
    taken_over,
    /// Datagrams for a client that another thread serves.
    handoffs,
    /// Those that were dropped, since the inbox of that thread was full.
    handoffs_dropped,
    /// Messages of senders without a connection, except CONNECT and SEARCHGW.
    unknown_senders,
    /// Envelopes of senders that are no configured forwarders.
    unknown_forwarders,
    /// Envelopes with a node id of more than 64 bytes.
    node_ids_too_long,
    /// Messages of clients beyond `publishes_per_second`.
    rate_exceeded,
    /// Messages of clients whose broker does not read.
    upstream_full,
    /// DTLS sessions: a gauge.
    dtls_sessions,
    /// Handshakes that opened a DTLS session.
    dtls_opened,
    /// Handshakes that failed.
    dtls_failed,
    /// Handshakes beyond a bound.
    dtls_refused,
    /// Datagrams of senders without a DTLS session, and messages to them.
    dtls_dropped,
    /// Topics of clients that made room for others: their next message costs a REGISTER.
    topics_freed,
    /// Stored states that the writer had no room for.
    state_unsaved,
}

/// Causes of undecodable datagrams.
const MALFORMED: [&str; 16] = [
    "malformed_empty",
    "malformed_length_too_short",
    "malformed_length_mismatch",
    "malformed_reserved_type",
    "malformed_truncated",
    "malformed_surplus_bytes",
    "malformed_utf8",
    "malformed_nul_character",
    "malformed_qos",
    "malformed_topic_id_type",
    "malformed_message_id_zero",
    "malformed_topic_empty",
    "malformed_return_code",
    "malformed_protocol_id",
    "malformed_nested",
    "malformed_other",
];

impl Counters {
    pub(crate) fn malformed(&self, error: DecodeError) {
        let index = match error {
            DecodeError::Empty => 0,
            DecodeError::LengthTooShort(_) => 1,
            DecodeError::LengthMismatch { .. } => 2,
            DecodeError::ReservedType(_) => 3,
            DecodeError::Truncated => 4,
            DecodeError::SurplusBytes => 5,
            DecodeError::InvalidUtf8 => 6,
            DecodeError::NulCharacter => 7,
            DecodeError::QoSReserved => 8,
            DecodeError::TopicIdTypeReserved => 9,
            DecodeError::MessageIdZero => 10,
            DecodeError::TopicEmpty => 11,
            DecodeError::ReturnCode(_) => 12,
            DecodeError::ProtocolId(_) => 13,
            DecodeError::Nested => 14,
            _ => 15,
        };
        self.malformed[index].fetch_add(1, Relaxed);
    }

    /// Publishes the counts of a thread's peers so far.
    pub(crate) fn publish_output(&self, output: &Output) {
        for ((_, count), shown) in output.drops.iter().zip(&self.dropped) {
            shown.store(count, Relaxed);
        }
        self.topics_freed.store(output.topics_freed, Relaxed);
    }

    fn all(&self) -> impl Iterator<Item = (String, u64)> {
        let malformed = MALFORMED.iter().map(|name| (*name).to_owned()).zip(self.malformed.iter().map(load));
        let dropped = DropCause::ALL.iter().map(|cause| format!("dropped_{cause}")).zip(self.dropped.iter().map(load));
        self.named().map(|(name, count)| (name.to_owned(), count)).chain(malformed).chain(dropped)
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Relaxed);
}

/// Counters and gauges of all threads at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats(Vec<(String, u64)>);

impl Stats {
    pub(crate) fn of<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Self {
        Self::sum(threads.into_iter().map(|counters| Self(counters.all().collect())))
    }

    /// Values of all gateways together.
    pub fn sum(gateways: impl IntoIterator<Item = Self>) -> Self {
        gateways.into_iter().reduce(|sum, next| sum.plus(&next)).unwrap_or_default()
    }

    fn plus(mut self, other: &Self) -> Self {
        for ((_, sum), (_, count)) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
        self
    }

    /// Value of a counter; 0 for unknown names.
    pub fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    /// One JSON object on one line.
    pub fn to_json(&self) -> String {
        let mut line = String::from("{");
        for (name, count) in self.iter() {
            let comma = if line.len() > 1 { "," } else { "" };
            let _ = write!(line, "{comma}\"{name}\":{count}");
        }
        line.push('}');
        line
    }

    /// The counters that are not 0, as `name=value`.
    pub fn to_text(&self) -> String {
        let present = self.iter().filter(|(_, count)| *count > 0);
        present.map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(" ")
    }
}
