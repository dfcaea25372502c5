use std::time::Duration;

use tenbin_codec::{Secret, TopicName};
use tenbin_sn::Credentials;

use crate::Will;
use crate::message::check_payload;
use crate::secured::{self, DtlsKeys};

/// Settings of a client. Each method sets one option and returns the options.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// At least one.
    pub(crate) gateways: Vec<String>,
    pub(crate) client_id: String,
    pub(crate) clean_session: bool,
    pub(crate) keep_alive: Duration,
    pub(crate) will: Option<Will>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) dtls: Option<DtlsKeys>,
    pub(crate) retry: Duration,
    pub(crate) retries: u8,
    pub(crate) reconnect: Option<Duration>,
    pub(crate) queue: usize,
}

/// Longest client id. The specification allows 23 bytes, and gateways often more.
const CLIENT_ID_BYTES_MAX: usize = 255;

impl ClientOptions {
    /// Options of client `client_id` at `gateway` ("host:port"): Clean Session, keep alive 60 s.
    ///
    /// The client id has 1 to 255 bytes. Gateways other than Tenbin's may refuse more than 23.
    pub fn new(gateway: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            gateways: vec![gateway.into()],
            client_id: client_id.into(),
            clean_session: true,
            keep_alive: Duration::from_secs(60),
            will: None,
            credentials: None,
            dtls: None,
            retry: Duration::from_secs(10),
            retries: 4,
            reconnect: Some(Duration::from_secs(5)),
            queue: 1024,
        }
    }

    /// Adds a gateway ("host:port"), for use when the others are lost.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<String>) -> Self {
        self.gateways.push(gateway.into());
        self
    }

    /// Whether each connection discards subscriptions, messages and Will of the one before; default true.
    ///
    /// The client subscribes again after each reconnect: MQTT-SN does not tell whether the session is still there.
    #[must_use]
    pub fn clean_session(mut self, clean_session: bool) -> Self {
        self.clean_session = clean_session;
        self
    }

    /// Time in which the gateway expects a message; the client pings a bit earlier. Default 60 s, zero turns it off. In whole
    /// seconds, at most 65,535.
    #[must_use]
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Message that the broker publishes when the client is lost; default none.
    #[must_use]
    pub fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    /// User name and password, which follow CONNECT in AUTH; default none. Few gateways take them: Tenbin's with
    /// `credentials = true`, and Bisquitt's.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<Secret>) -> Self {
        self.credentials = Some(Credentials { user: user.into(), password: password.into() });
        self
    }

    /// Keys for DTLS; default none: datagrams are not encrypted. Needs the cargo feature `dtls`.
    #[must_use]
    pub fn dtls(mut self, keys: DtlsKeys) -> Self {
        self.dtls = Some(keys);
        self
    }

    /// Time until an unanswered message is sent again, and number of its repetitions. Default 10 s, and 4.
    ///
    /// After the last repetition and the same time again the gateway counts as lost.
    #[must_use]
    pub fn retry(mut self, time: Duration, repetitions: u8) -> Self {
        (self.retry, self.retries) = (time, repetitions);
        self
    }

    /// Pause after all gateways refused or were silent, or after a connection that ended sooner than this; default 5 s. `None`:
    /// the client ends instead.
    #[must_use]
    pub fn reconnect(mut self, pause: Option<Duration>) -> Self {
        self.reconnect = pause;
        self
    }

    /// Capacity of the request queue and of the event queue, at least 1 each. Default 1024.
    #[must_use]
    pub fn queue(mut self, messages: usize) -> Self {
        self.queue = messages.max(1);
        self
    }

    /// Options of the state machine.
    ///
    /// # Errors
    /// A description of the option that MQTT-SN does not allow.
    pub(crate) fn for_peer(&self) -> Result<tenbin_sn::ClientOptions, String> {
        let client_id = &self.client_id[..];
        if client_id.is_empty() || client_id.len() > CLIENT_ID_BYTES_MAX || client_id.contains('\0') {
            return Err(format!("client id {client_id:?}: want 1 to {CLIENT_ID_BYTES_MAX} bytes without NUL"));
        }
        if self.retry.is_zero() {
            return Err("retry time 0".to_owned());
        }
        if let Some(Credentials { user, .. }) = &self.credentials
            && user.contains('\0')
        {
            return Err(format!("user {user:?}: want no NUL"));
        }
        if let Some(will) = &self.will {
            check_will(will)?;
        }
        if let Some(keys) = &self.dtls {
            secured::check_build(keys)?;
        }
        Ok(tenbin_sn::ClientOptions {
            clean_session: self.clean_session,
            // Rounded up, so that a short time does not turn it off.
            keep_alive: Duration::from_secs(self.keep_alive.as_millis().div_ceil(1000).min(u16::MAX.into()) as u64),
            will: self.will.clone(),
            credentials: self.credentials.clone(),
            retry: self.retry,
            retries: self.retries,
            ..tenbin_sn::ClientOptions::new(client_id)
        })
    }
}

/// Checks a Will.
///
/// # Errors
/// A description of the fault.
pub(crate) fn check_will(will: &Will) -> Result<(), String> {
    check_payload(&will.message).map_err(|fault| format!("will: {fault}"))?;
    let topic = &will.topic[..];
    match TopicName::try_from(topic) {
        Ok(_) if topic.is_empty() => Err("will: the topic is empty".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("will: topic name {topic:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenbin_sn_codec::v1_2::QoS;

    use super::*;

    #[test]
    fn invalid_options_are_named() {
        let options = |id: &str| ClientOptions::new("127.0.0.1:1", id);
        let will =
            |topic: &str| Will { topic: topic.into(), message: Bytes::new(), qos: QoS::AtMostOnce, retain: false };
        for (options, named) in [
            (options(""), "client id"),
            (options(&"c".repeat(256)), "client id"),
            (options("c").retry(Duration::ZERO, 4), "retry"),
            (options("c").will(will("a/+")), "a/+"),
            (options("c").will(will("")), "will"),
        ] {
            assert!(options.for_peer().unwrap_err().contains(named), "{named}");
        }
        #[cfg(not(feature = "dtls"))]
        {
            let keys = DtlsKeys::PreShared { identity: "i".to_owned(), file: "f".into() };
            let refused = options("c").dtls(keys).for_peer().unwrap_err();
            assert!(refused.contains("cargo build --release --features dtls"), "{refused}");
        }
        let of = |millis| options("c").keep_alive(Duration::from_millis(millis)).for_peer().expect("legal").keep_alive;
        assert_eq!([of(0), of(1), of(2000)].map(|time| time.as_secs()), [0, 1, 2]);
    }
}
