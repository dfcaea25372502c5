use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{ProtocolVersion, Secret, Text};

/// Behaviour and bounds of a gateway, the same for all its peers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Protocol version towards the broker. 3.1.1 costs Will updates of Clean Session clients and reasons of refusals.
    pub upstream_version: ProtocolVersion,
    /// User Name and Password for the broker.
    pub upstream_login: Option<Login>,
    /// Keep Alive towards the broker; zero = off, as befits an upstream in memory.
    pub upstream_keep_alive: Duration,
    /// Time for the broker's CONNACK and PINGRESP.
    pub upstream_timeout: Duration,
    /// Time until an unanswered message is sent again: the specification's T_RETRY.
    pub retry: Duration,
    /// Repetitions of an unanswered message, after which the client is lost: the specification's N_RETRY.
    pub retries: u8,
    /// QoS 1 and 2 messages under way to a client: the Receive Maximum towards the broker.
    pub in_flight: NonZeroU16,
    /// QoS 1 and 2 messages, SUBSCRIBEs and UNSUBSCRIBEs under way from a client; more are answered "congestion".
    pub inbound_in_flight: u16,
    /// Session Expiry Interval of clients without Clean Session.
    pub session_expiry: Duration,
    /// Time after which a silent client with Duration 0 is asked whether it is there.
    pub silence: Duration,
    /// Whether the source addresses of datagrams cannot be forged. Else a client gets messages only once it has answered
    /// a REGISTER.
    pub trusts_addresses: bool,
    /// Whether clients have to send their credentials, which then are User Name and Password for the broker. A client
    /// without them is refused.
    pub asks_credentials: bool,
    /// Whether QoS −1 is accepted.
    pub qos_minus_one: bool,
    /// Bound on QoS 0 messages to a client, in bytes of datagrams; `None` = no bound.
    pub pace_bytes_per_second: Option<NonZeroU32>,
    /// Topics of a client.
    pub topics_maximum: u16,
    /// Bytes of a client's topic names.
    pub topic_bytes_maximum: usize,
    /// Bytes of topic and payload of a Will.
    pub will_bytes_maximum: usize,
    /// Bytes of a client id. The specification allows 23.
    pub client_id_bytes_maximum: usize,
    /// Bytes of a datagram to a client.
    pub datagram_bytes_maximum: u16,
    /// Messages kept for a sleeping client, and for one that is slow to answer.
    pub sleep_messages: usize,
    /// Bytes of the payloads of those messages.
    pub sleep_bytes: usize,
    /// Longest sleep; longer ones are shortened.
    pub sleep_maximum: Duration,
    /// Messages at each wake of a sleeping client; `None` = all.
    pub awake_messages: Option<NonZeroU16>,
    /// Payloads of the load reports when a client falls asleep and when it wakes, for brokers that offer load reports.
    pub sleep_reports: Option<SleepReports>,
}

/// User Name and Password for the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// User Name.
    pub user: Text,
    /// Password, if there is one.
    pub password: Option<Secret>,
}

/// Load reports by which a member of a share group leaves and enters the group's dispatch.
#[derive(Debug, Clone)]
pub struct SleepReports {
    /// Published when the client falls asleep.
    pub asleep: Bytes,
    /// Published when the client is active again.
    pub active: Bytes,
}

impl SleepReports {
    /// Reports of a member without a queue: it drains, and it drains no more.
    pub fn of_idle_member() -> Self {
        Self {
            asleep: Bytes::from_static(br#"{"msgsInQueue":0,"processingTimePerMsg":0,"draining":true}"#),
            active: Bytes::from_static(br#"{"msgsInQueue":0,"processingTimePerMsg":0}"#),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            upstream_version: ProtocolVersion::V5,
            upstream_login: None,
            upstream_keep_alive: Duration::ZERO,
            upstream_timeout: Duration::from_secs(10),
            retry: Duration::from_secs(10),
            retries: 4,
            in_flight: NonZeroU16::MIN,
            inbound_in_flight: 16,
            session_expiry: Duration::from_secs(24 * 3600),
            silence: Duration::from_secs(3600),
            trusts_addresses: false,
            asks_credentials: false,
            qos_minus_one: false,
            pace_bytes_per_second: None,
            topics_maximum: 256,
            topic_bytes_maximum: 16 * 1024,
            will_bytes_maximum: 1024,
            client_id_bytes_maximum: 255,
            datagram_bytes_maximum: 1400,
            sleep_messages: 64,
            sleep_bytes: 16 * 1024,
            sleep_maximum: Duration::from_secs(u16::MAX as u64),
            awake_messages: None,
            sleep_reports: None,
        }
    }
}

impl Settings {
    /// Time in which a client may still repeat a message whose answer was lost.
    pub(crate) fn retry_time(&self) -> Duration {
        self.retry * (u32::from(self.retries) + 1)
    }
}

/// A stated time with the specification's tolerance: half of it up to a minute, a tenth above `[SN-KEEPALIVE-1]`.
pub(crate) fn with_tolerance(stated: Duration) -> Duration {
    if stated <= Duration::from_secs(60) { stated + stated / 2 } else { stated + stated / 10 }
}
