use std::num::NonZeroU16;
use std::time::Duration;

use tenbin_codec::{Connect, ProtocolVersion, ReportCarrier, ReportCarriers, Secret, Text, UserProperty, Will};

use crate::{LoadReporter, Reconnect, Transport};

/// Settings of a client and its connection. Each method sets one option and returns the options.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub(crate) broker: String,
    pub(crate) transport: Transport,
    pub(crate) client_id: String,
    pub(crate) version: ProtocolVersion,
    pub(crate) clean_start: bool,
    pub(crate) keep_alive: Duration,
    pub(crate) session_expiry: Duration,
    pub(crate) receive_maximum: u16,
    pub(crate) credentials: Option<(String, Secret)>,
    pub(crate) will: Option<Will>,
    pub(crate) load_reporter: Option<LoadReporter>,
    pub(crate) report_carrier: Option<ReportCarrier>,
    pub(crate) concurrency: Option<NonZeroU16>,
    pub(crate) acknowledge: AcknowledgeMode,
    pub(crate) reconnect: Reconnect,
    pub(crate) queue: usize,
    pub(crate) read_buffer: usize,
}

/// Side that acknowledges received QoS 1 and 2 messages (PUBACK, PUBREC).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AcknowledgeMode {
    /// The client acknowledges on receipt. Messages still in [`Events`](crate::Events) are lost if the process dies.
    #[default]
    OnReceipt,
    /// The application acknowledges with [`Client::acknowledge`](crate::Client::acknowledge).
    ///
    /// The broker sends at most [`ClientOptions::receive_maximum`] unacknowledged messages.
    Manual,
}

impl ClientOptions {
    /// Options of client `client_id` at `broker` ("host:port" or "unix:PATH"): MQTT 5.0, Clean Start, Keep Alive 60 s.
    ///
    /// With an empty `client_id` the broker assigns one.
    pub fn new(broker: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            broker: broker.into(),
            transport: Transport::tcp(),
            client_id: client_id.into(),
            version: ProtocolVersion::V5,
            clean_start: true,
            keep_alive: Duration::from_secs(60),
            session_expiry: Duration::ZERO,
            receive_maximum: u16::MAX,
            credentials: None,
            will: None,
            load_reporter: None,
            report_carrier: None,
            concurrency: None,
            acknowledge: AcknowledgeMode::default(),
            reconnect: Reconnect::default(),
            queue: 1024,
            read_buffer: 64 * 1024,
        }
    }

    /// Transport to the broker; default plain TCP. Unix sockets take none.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Protocol version; default 5.0.
    #[must_use]
    pub fn version(mut self, version: ProtocolVersion) -> Self {
        self.version = version;
        self
    }

    /// Whether the broker discards a stored Session at the first connection; default true.
    ///
    /// In 3.1.1 this is Clean Session: it applies to every connection, and the Session ends with each of them.
    #[must_use]
    pub fn clean_start(mut self, clean_start: bool) -> Self {
        self.clean_start = clean_start;
        self
    }

    /// Silence after which the client sends a ping, and longest wait for the answer. Default 60 s; zero turns it off.
    ///
    /// Rounded down to whole seconds and clamped to 1 to 65,535. The broker can override it.
    #[must_use]
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// How long the broker keeps the Session after a connection. Default zero; v5 only.
    ///
    /// Whole seconds; 2^32 − 1 and more mean for ever. Above zero, a reconnect resumes the Session.
    #[must_use]
    pub fn session_expiry(mut self, session_expiry: Duration) -> Self {
        self.session_expiry = session_expiry;
        self
    }

    /// Most unacknowledged QoS 1 and 2 messages from the broker, 1 to 65,535. Default 65,535; v5 only.
    #[must_use]
    pub fn receive_maximum(mut self, messages: u16) -> Self {
        self.receive_maximum = messages;
        self
    }

    /// User name and password; default none. The password has at most 65,535 bytes.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<Secret>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Will Message, published by the broker when the connection ends abnormally; default none.
    ///
    /// Its payload has at most 65,535 bytes.
    #[must_use]
    pub fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    /// Sends load reports every [`LoadReporter::interval`] after CONNACK, and earlier if the load has changed much
    /// ([`LoadReporter::eager`]). Default none.
    ///
    /// The broker announces supported carriers in CONNACK. The client prefers extended PINGREQs; then a shorter Keep
    /// Alive replaces the interval. Next come messages to [`ReportCarrier::TOPIC`], then acknowledgements. Without an
    /// announcement it sends no reports: most brokers would close the connection on an extended PINGREQ.
    #[must_use]
    pub fn load_reporter(mut self, reporter: LoadReporter) -> Self {
        self.load_reporter = Some(reporter);
        self
    }

    /// Tells the broker how many messages the client works on at a time. Default: nothing is told. Not with MQTT 3.1.1.
    ///
    /// Tenbin then lets messages of QoS 1 and 2 wait with their share group until a member can begin with them. Needs
    /// [`AcknowledgeMode::Manual`] and acknowledgements after the work.
    #[must_use]
    pub fn concurrency(mut self, messages: NonZeroU16) -> Self {
        self.concurrency = Some(messages);
        self
    }

    /// Sets the carrier of the reports, independent of the broker's announcement. Default: the broker's announcement.
    ///
    /// MQTT 3.1.1 has no announcement and supports [`ReportCarrier::Publish`] only: with another carrier messages are
    /// counted but not reported. [`ReportCarrier::Ack`] reports with the first acknowledgement after the report is due,
    /// so never without messages. It works best with [`AcknowledgeMode::Manual`].
    #[must_use]
    pub fn report_carrier(mut self, carrier: ReportCarrier) -> Self {
        self.report_carrier = Some(carrier);
        self
    }

    /// Side that acknowledges received messages; default [`AcknowledgeMode::OnReceipt`].
    #[must_use]
    pub fn acknowledge(mut self, mode: AcknowledgeMode) -> Self {
        self.acknowledge = mode;
        self
    }

    /// Behaviour after a lost connection; default: reconnect after pauses of 100 ms up to 10 s.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Capacity of the request queue and of the event queue, at least 1 each. Default 1024.
    ///
    /// While the request queue is full, [`Client::publish`](crate::Client::publish) waits. While the event queue is
    /// full, the client does not read the socket. QoS 1 and 2 messages in flight come on top, up to the broker's
    /// Receive Maximum.
    #[must_use]
    pub fn queue(mut self, messages: usize) -> Self {
        self.queue = messages.max(1);
        self
    }

    /// Bytes by which the read buffer grows, at least 512. Default 65,536.
    ///
    /// Programs with many clients that receive little save memory with less.
    #[must_use]
    pub fn read_buffer(mut self, bytes: usize) -> Self {
        self.read_buffer = bytes.max(512);
        self
    }

    /// Returns the CONNECT packet of the first connection.
    ///
    /// # Errors
    /// A description of the option that MQTT does not allow.
    pub(crate) fn connect_packet(&self) -> Result<Connect, String> {
        let is_v5 = self.version.is_v5();
        let mut connect = Connect::new(self.version, text("client id", &self.client_id)?);
        connect.clean_start = self.clean_start;
        connect.keep_alive = keep_alive_seconds(self.keep_alive);
        if let Some((user, password)) = &self.credentials {
            connect.user_name = Some(text("user name", user)?);
            if password.expose().len() > BINARY_MAX {
                return Err("password of more than 65,535 bytes".into());
            }
            connect.password = Some(password.clone());
        }
        if let Some(will) = &self.will {
            if will.topic.is_empty() {
                return Err("the will has no topic [MQTT-4.7.3-1]".into());
            }
            if will.payload.len() > BINARY_MAX {
                return Err("will payload of more than 65,535 bytes".into());
            }
            connect.will = Some(will.clone());
        }
        if is_v5 {
            let receive_maximum =
                NonZeroU16::new(self.receive_maximum).ok_or("receive maximum 0 [MQTT 5.0 §3.1.2.11.3]")?;
            let seconds = u32::try_from(self.session_expiry.as_secs()).unwrap_or(u32::MAX);
            connect.properties.receive_maximum = (receive_maximum != NonZeroU16::MAX).then_some(receive_maximum);
            connect.properties.session_expiry_interval = (seconds > 0).then_some(seconds);
            let concurrency = |messages: NonZeroU16| {
                let number = Text::try_from(messages.to_string()).expect("digits are a legal text");
                UserProperty::new(Text::from_static("concurrency"), number)
            };
            let told = self.load_reporter.as_ref().map(|_| ReportCarriers::question());
            connect.properties.user_properties.extend(told.into_iter().chain(self.concurrency.map(concurrency)));
        } else if self.client_id.is_empty() && !self.clean_start {
            return Err("an empty client id has no session to go on with, 3.1.1 [MQTT-3.1.3-7]".into());
        }
        Ok(connect)
    }

    /// Chooses the carrier of load reports, given the broker's announcement.
    pub(crate) fn report_carrier_for(&self, told: ReportCarriers) -> Option<ReportCarrier> {
        let best = [ReportCarrier::PingReq, ReportCarrier::Publish, ReportCarrier::Ack];
        let chosen = self.report_carrier.or_else(|| best.into_iter().find(|&carrier| told.contains(carrier)));
        chosen.filter(|&carrier| self.version.is_v5() || carrier == ReportCarrier::Publish)
    }

    /// Returns Clean Start for every connection after the first.
    pub(crate) fn clean_start_again(&self) -> bool {
        let session_outlives = self.version.is_v5() && self.session_expiry >= Duration::from_secs(1);
        self.clean_start && !session_outlives
    }
}

/// Longest binary data of MQTT, in bytes.
pub(crate) const BINARY_MAX: usize = u16::MAX as usize;

fn text(what: &str, value: &str) -> Result<Text, String> {
    Text::try_from(value).map_err(|error| format!("{what}: {error}"))
}

fn keep_alive_seconds(keep_alive: Duration) -> u16 {
    if keep_alive.is_zero() { 0 } else { u16::try_from(keep_alive.as_secs()).unwrap_or(u16::MAX).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ClientOptions {
        ClientOptions::new("broker:1883", "c")
    }

    #[test]
    fn keep_alive_is_whole_seconds_and_never_off_by_rounding() {
        for (millis, seconds) in [(0, 0), (1, 1), (999, 1), (2900, 2), (90_000_000, u16::MAX)] {
            let connect = options().keep_alive(Duration::from_millis(millis)).connect_packet().unwrap();
            assert_eq!(connect.keep_alive, seconds);
        }
    }

    #[test]
    fn lasting_session_is_resumed_without_clean_start() {
        let lasting = options().session_expiry(Duration::from_secs(9));
        assert!(lasting.connect_packet().unwrap().clean_start);
        assert!(!lasting.clean_start_again());
        assert!(lasting.version(ProtocolVersion::V311).clean_start_again(), "3.1.1: Clean Session ends each");
        assert!(options().clean_start_again());
        assert!(!options().clean_start(false).clean_start_again());
    }

    #[test]
    fn concurrency_is_a_property_of_connect() {
        let two = || options().concurrency(NonZeroU16::new(2).unwrap());
        let told = two().connect_packet().unwrap().properties.user_properties;
        assert_eq!(told, [UserProperty::new(Text::from_static("concurrency"), Text::from_static("2"))]);
        assert_eq!(two().version(ProtocolVersion::V311).connect_packet().unwrap().properties.user_properties, []);
    }

    #[test]
    fn invalid_options_are_refused_before_sending() {
        for options in [
            ClientOptions::new("b", "nul\0"),
            options().receive_maximum(0),
            options().credentials("u", vec![0; 65_536]),
            ClientOptions::new("b", "").version(ProtocolVersion::V311).clean_start(false),
        ] {
            assert!(options.connect_packet().is_err(), "{options:?}");
        }
    }

    #[test]
    fn carrier_is_the_brokers_choice_unless_overridden() {
        use ReportCarrier::{Ack, PingReq, Publish};
        for (told, chosen) in [
            (&[][..], None),
            (&[Ack], Some(Ack)),
            (&[Ack, Publish], Some(Publish)),
            (&[Ack, Publish, PingReq], Some(PingReq)),
        ] {
            let told = told.iter().copied().collect();
            assert_eq!(options().report_carrier_for(told), chosen);
            for insisted in ReportCarrier::ALL {
                let options = options().report_carrier(insisted);
                assert_eq!(options.report_carrier_for(told), Some(insisted));
                let v311 = options.version(ProtocolVersion::V311).report_carrier_for(told);
                assert_eq!(v311, Some(Publish).filter(|_| insisted == Publish));
            }
        }
    }

    #[test]
    fn debug_output_omits_the_password() {
        assert!(!format!("{:?}", options().credentials("user", "secret")).contains("secret"));
    }
}
