use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tenbin_kit::within;
use tenbin_sn::{PredefinedTopics, Settings, SleepReports};

use super::error::ConfigError;
use super::value::{self, Rebind};

/// Defines the table: each key with its type and its default.
macro_rules! listener {
    ($($(#[$attribute:meta])* $key:ident: $type:ty = $default:expr,)*) => {
        /// Table `[listener]`: the UDP address and its bounds.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Listener {
            $($(#[$attribute])* pub $key: $type,)*
        }

        impl Default for Listener {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

listener! {
    /// UDP address.
    address: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 10_000)),
    /// Threads, each with a separate socket at the same address.
    #[serde(deserialize_with = "within::<1, 64, _, _>")]
    threads: usize = 1,
    /// Bytes of the kernel's buffer for received datagrams; the system may bound it.
    #[serde(deserialize_with = "within::<0, 1_073_741_824, _, _>")]
    receive_buffer_bytes: usize = 4 << 20,
    /// Multicast address for ADVERTISE and SEARCHGW; none = SEARCHGW is not answered.
    multicast: Option<SocketAddr> = None,
    /// Seconds between two ADVERTISE.
    #[serde(deserialize_with = "within::<1, 65_535, _, _>")]
    advertise_seconds: u16 = 900,
    /// Id of the gateway in ADVERTISE and GWINFO.
    #[serde(deserialize_with = "within::<0, 255, _, _>")]
    gateway_id: u8 = 1,
    /// Hops of ADVERTISE: the TTL of its datagrams.
    #[serde(deserialize_with = "within::<1, 255, _, _>")]
    radius: u8 = 1,
    /// Addresses of forwarders.
    forwarders: Vec<IpAddr> = Vec::new(),
    /// Time until an unanswered message is sent again.
    #[serde(deserialize_with = "value::seconds")]
    retry_seconds: Duration = Duration::from_secs(10),
    /// Repetitions of an unanswered message, after which the client is lost.
    #[serde(deserialize_with = "within::<0, 100, _, _>")]
    retries: u8 = 4,
    /// Seconds after which a silent client with Duration 0 gets PINGREQ. It is lost if it answers none of all repetitions.
    #[serde(deserialize_with = "within::<1, 4_294_967_295, _, _>")]
    silence_seconds: u32 = 3600,
    /// QoS 1 and 2 messages under way to a client.
    #[serde(deserialize_with = "within::<1, 65_535, _, _>")]
    in_flight: u16 = 1,
    /// QoS 1 and 2 messages, SUBSCRIBEs and UNSUBSCRIBEs under way from a client.
    #[serde(deserialize_with = "within::<1, 1024, _, _>")]
    inbound_in_flight: u16 = 16,
    /// Lifetime of a session without Clean Session after its connection. At least a minute: a Will update replaces the
    /// connection.
    #[serde(deserialize_with = "within::<60, 4_294_967_295, _, _>")]
    session_expiry_seconds: u32 = 24 * 3600,
    /// Bytes of QoS 0 messages to a client in a second; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 4_294_967_295, _, _>")]
    pace_bytes_per_second: u32 = 0,
    /// Messages kept for a sleeping client.
    #[serde(deserialize_with = "within::<1, 65_535, _, _>")]
    sleep_messages: usize = 64,
    /// Bytes of the payloads of those messages.
    #[serde(deserialize_with = "within::<0, 1_073_741_824, _, _>")]
    sleep_bytes: usize = 16 * 1024,
    /// Longest sleep; longer ones are shortened.
    #[serde(deserialize_with = "within::<1, 65_535, _, _>")]
    sleep_maximum_seconds: u16 = u16::MAX,
    /// Messages at each wake of a sleeping client; 0 = all.
    #[serde(deserialize_with = "within::<0, 65_535, _, _>")]
    awake_messages: u16 = 0,
    /// Whether share groups learn by load reports that a member sleeps, so that others get its messages. Brokers that
    /// take such reports say so in CONNACK; the client needs the right to publish to `$load`.
    sleep_reports: bool = true,
    /// Whether source addresses cannot be forged, as in a network of your own. Else a client has to answer a REGISTER
    /// before it gets messages, also on predefined and short topics.
    trust_addresses: bool = false,
    /// From which addresses a sleeping client may come back, to which its messages then go.
    rebind: Rebind = Rebind::Address,
    /// Clients.
    #[serde(deserialize_with = "within::<1, 16_777_216, _, _>")]
    clients_maximum: usize = 100_000,
    /// Clients by thread that have not proven their address. The one that is silent for the longest time makes room; if it
    /// has sent more than CONNECT, it is asked for its proof first. Half as many may be ending at the broker.
    #[serde(deserialize_with = "within::<1, 16_777_216, _, _>")]
    unconfirmed_maximum: usize = 3_000,
    /// Clients of one IP address; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 16_777_216, _, _>")]
    per_address_maximum: u32 = 1_000,
    /// CONNECTs a second; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    connects_per_second: u32 = 5_000,
    /// CONNECTs a second of one IP address; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    connects_per_second_per_address: u32 = 10,
    /// IP addresses that many clients share, such as a NAT's. Forwarders and loopback addresses are such addresses too.
    shared_addresses: Vec<IpAddr> = Vec::new(),
    /// Clients of one shared address; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 16_777_216, _, _>")]
    per_shared_address_maximum: u32 = 0,
    /// CONNECTs, answers to unknown senders, and QoS −1 messages a second of one shared address, each; 0 = no bound. No
    /// less than for other addresses.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    events_per_second_per_shared_address: u32 = 500,
    /// Answers a second to messages of unknown senders at one IP address.
    #[serde(deserialize_with = "within::<1, 1_000_000_000, _, _>")]
    unknown_answers_per_second: u32 = 10,
    /// QoS 0 messages a second of all clients; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    publishes_per_second: u32 = 0,
    /// Whether QoS −1 messages are accepted, also without a connection: the gateway's own client publishes them.
    qos_minus_one: bool = false,
    /// QoS −1 messages a second; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    qos_minus_one_per_second: u32 = 1_000,
    /// QoS −1 messages a second of one IP address; 0 = no bound.
    #[serde(deserialize_with = "within::<0, 1_000_000_000, _, _>")]
    qos_minus_one_per_second_per_address: u32 = 10,
    /// Topics of a client. With more, the one that was not used for the longest time makes room, but for those that the
    /// client has subscribed to by name, or registered and used in the last hour.
    #[serde(deserialize_with = "within::<1, 65_534, _, _>")]
    topics_maximum: u16 = 256,
    /// Bytes of a client's topic names.
    #[serde(deserialize_with = "within::<1, 16_777_216, _, _>")]
    topic_bytes_maximum: usize = 16 * 1024,
    /// Bytes of all clients' topic names, each counted once.
    #[serde(deserialize_with = "within::<1024, 17_179_869_184, _, _>")]
    name_bytes_maximum: usize = 64 << 20,
    /// Bytes of topic and payload of a Will.
    #[serde(deserialize_with = "within::<0, 65_535, _, _>")]
    will_bytes_maximum: usize = 1024,
    /// Bytes of a client id.
    #[serde(deserialize_with = "within::<1, 65_535, _, _>")]
    client_id_bytes_maximum: usize = 255,
    /// Bytes of a datagram to a client.
    #[serde(deserialize_with = "within::<64, 65_507, _, _>")]
    datagram_bytes_maximum: u16 = 1400,
    /// DTLS; none = datagrams are not encrypted.
    dtls: Option<Dtls> = None,
    /// Whether clients have to send user name and password in AUTH, which the broker then gets.
    credentials: bool = false,
    /// Predefined topics by id. `%c` in a name stands for the client id.
    topics: BTreeMap<String, String> = BTreeMap::new(),
}

/// Table `[listener.dtls]`: clients have to use DTLS.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dtls {
    /// File with lines of `IDENTITY:KEY`, the key in hexadecimal digits. A changed file counts for later handshakes.
    pub psk_file: Option<PathBuf>,
    /// PEM file with the gateway's certificate, of ECDSA.
    pub certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
    /// PEM file with the authorities of client certificates. With it, clients need a certificate or a pre-shared key.
    pub client_ca: Option<PathBuf>,
    /// Handshakes at a time; the oldest one whose address is unproven makes room.
    #[serde(default = "handshakes", deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub handshakes_maximum: usize,
}

fn handshakes() -> usize {
    1000
}

impl Listener {
    /// A listener whose address stands in another table than its keys.
    pub(super) fn from_table(address: SocketAddr, keys: toml::Table) -> Result<Self, ConfigError> {
        if keys.contains_key("address") {
            return Err(ConfigError::of_key("sn.address", "stands in the table of the listener"));
        }
        Ok(Self { address, ..keys.try_into().map_err(|error| ConfigError::in_table("sn", &error))? })
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.dtls.is_some() {
            let excluded = [
                ("threads", self.threads > 1),
                ("multicast", self.multicast.is_some()),
                ("forwarders", !self.forwarders.is_empty()),
                ("qos_minus_one", self.qos_minus_one),
            ];
            if let Some((key, _)) = excluded.iter().find(|(_, is_given)| *is_given) {
                return Err(ConfigError::of_key(key, "does not go together with DTLS"));
            }
        }
        match self.multicast {
            Some(group) if !group.ip().is_multicast() => {
                Err(ConfigError::of_key("listener.multicast", format!("{group} is no multicast address")))
            }
            Some(group) if group.is_ipv4() != self.address.is_ipv4() => Err(ConfigError::of_key(
                "listener.multicast",
                format!("{group} and the address {} are of different IP versions", self.address),
            )),
            _ => Ok(()),
        }
    }

    /// A protection that `new`, which replaces this listener, leaves out: the key, and the effect.
    pub(super) fn left_out_in(&self, new: &Self) -> Option<(&'static str, &'static str)> {
        match (&self.dtls, &new.dtls) {
            (Some(_), None) => return Some(("dtls", "clients without a key would be admitted")),
            (Some(Dtls { client_ca: Some(_), .. }), Some(Dtls { client_ca: None, .. })) => {
                return Some(("dtls.client_ca", "clients without a certificate would be admitted"));
            }
            _ => {}
        }
        let opens = self.credentials && !new.credentials;
        opens.then_some(("credentials", "clients without credentials would be admitted"))
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            retry: self.retry_seconds,
            retries: self.retries,
            in_flight: NonZeroU16::new(self.in_flight).unwrap_or(NonZeroU16::MIN),
            inbound_in_flight: self.inbound_in_flight,
            session_expiry: Duration::from_secs(self.session_expiry_seconds.into()),
            pace_bytes_per_second: NonZeroU32::new(self.pace_bytes_per_second),
            sleep_messages: self.sleep_messages,
            sleep_bytes: self.sleep_bytes,
            silence: Duration::from_secs(self.silence_seconds.into()),
            sleep_maximum: Duration::from_secs(self.sleep_maximum_seconds.into()),
            awake_messages: NonZeroU16::new(self.awake_messages),
            sleep_reports: self.sleep_reports.then(SleepReports::of_idle_member),
            trusts_addresses: self.trust_addresses,
            asks_credentials: self.credentials,
            qos_minus_one: self.qos_minus_one,
            topics_maximum: self.topics_maximum,
            topic_bytes_maximum: self.topic_bytes_maximum,
            will_bytes_maximum: self.will_bytes_maximum,
            client_id_bytes_maximum: self.client_id_bytes_maximum,
            datagram_bytes_maximum: self.datagram_bytes_maximum,
            ..Settings::default()
        }
    }

    pub(super) fn predefined(&self) -> Result<PredefinedTopics, ConfigError> {
        let error = |reason: String| ConfigError::of_key("listener.topics", reason);
        let mut topics = Vec::with_capacity(self.topics.len());
        for (id, name) in &self.topics {
            let id = id.parse::<u16>().map_err(|_| error(format!("{id:?} is no topic id: 1 to 65534")))?;
            topics.push((id, name.as_str()));
        }
        PredefinedTopics::new(topics).map_err(|reason| error(reason.to_string()))
    }
}
