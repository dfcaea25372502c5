//! Reader of MQTTLoader's configuration file.

mod properties;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use properties::Property;
use tenbin_codec::Secret;

use super::{Version, values};
use crate::LoadgenError;
use crate::values::{duration, positive_duration, whole_seconds};

/// Values of the file; `None` for keys that it does not have.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Conf {
    /// Whether there is a file.
    pub(crate) is_given: bool,
    /// Host without `tcp://` or `ssl://`.
    pub(crate) broker: Option<String>,
    /// TLS by the scheme of `broker`, which overrides the key `tls`; `None` without a scheme.
    pub(crate) scheme_tls: Option<bool>,
    pub(crate) broker_port: Option<u16>,
    pub(crate) mqtt_version: Option<Version>,
    pub(crate) num_publishers: Option<u32>,
    pub(crate) num_subscribers: Option<u32>,
    pub(crate) qos_publisher: Option<u8>,
    pub(crate) qos_subscriber: Option<u8>,
    pub(crate) shared_subscription: Option<bool>,
    pub(crate) retain: Option<bool>,
    pub(crate) topic: Option<String>,
    pub(crate) payload: Option<u32>,
    pub(crate) num_messages: Option<u64>,
    pub(crate) ramp_up: Option<u32>,
    pub(crate) ramp_down: Option<u32>,
    pub(crate) interval: Option<Duration>,
    pub(crate) subscriber_timeout: Option<Duration>,
    pub(crate) exec_time: Option<Duration>,
    pub(crate) ntp: Option<String>,
    pub(crate) output: Option<PathBuf>,
    pub(crate) user_name: Option<String>,
    pub(crate) password: Option<Secret<String>>,
    pub(crate) tls: Option<bool>,
    pub(crate) tls_rootca_cert: Option<PathBuf>,
    pub(crate) tls_client_key: Option<PathBuf>,
    pub(crate) tls_client_cert_chain: Vec<PathBuf>,
}

impl Conf {
    /// Reads `path`; without a path, no key has a value.
    ///
    /// # Errors
    /// The file cannot be read. It has a key or a value that MQTTLoader does not accept; the error names the line.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, LoadgenError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let unread = |error: io::Error| LoadgenError::Unusable { path: path.to_owned(), reason: error.to_string() };
        let bytes = std::fs::read(path).map_err(unread)?;
        Self::parse(&bytes).map_err(|wrong| LoadgenError::Arguments(format!("{}, {wrong}", path.display())))
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut conf = Self { is_given: true, ..Self::default() };
        for property in properties::parse(bytes)? {
            let Property { line, key, value } = property;
            conf.set(&key, &value).map_err(|wrong| format!("line {line}: {key}: {wrong}"))?;
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "broker" => self.set_broker(value),
            "broker_port" => self.broker_port = Some(number(value, 1..=u16::MAX.into())? as u16),
            "mqtt_version" => self.mqtt_version = Some(version(value)?),
            "num_publishers" => self.num_publishers = Some(number(value, 0..=u32::MAX.into())? as u32),
            "num_subscribers" => self.num_subscribers = Some(number(value, 0..=u32::MAX.into())? as u32),
            "qos_publisher" => self.qos_publisher = Some(values::qos(value.trim_end())?),
            "qos_subscriber" => self.qos_subscriber = Some(values::qos(value.trim_end())?),
            "shared_subscription" => self.shared_subscription = Some(flag(value)?),
            "retain" => self.retain = Some(flag(value)?),
            "topic" => self.topic = text(value),
            "payload" => self.payload = Some(number(value, 8..=u32::MAX.into())? as u32),
            "num_messages" => self.num_messages = Some(number(value, 0..=u64::MAX)?),
            "ramp_up" => self.ramp_up = Some(whole_seconds(value.trim_end())?),
            "ramp_down" => self.ramp_down = Some(whole_seconds(value.trim_end())?),
            // MQTTLoader counts microseconds here, and seconds elsewhere.
            "interval" if value.trim_end().parse::<f64>().is_ok() => {
                self.interval = Some(duration(&format!("{}us", value.trim_end()))?);
            }
            "interval" => self.interval = Some(duration(value.trim_end())?),
            "subscriber_timeout" => self.subscriber_timeout = Some(duration(value.trim_end())?),
            "exec_time" => self.exec_time = Some(positive_duration(value.trim_end())?),
            // Has no effect: this program writes messages to standard error, and its results are not a log.
            "log_level" => level(value)?,
            "ntp" => self.ntp = text(value),
            "output" => self.output = text(value).map(PathBuf::from),
            // Java keeps spaces at the end of a line, which may belong to a name or password.
            "user_name" => self.user_name = Some(value.to_owned()),
            "password" => self.password = Some(Secret::new(value.to_owned())),
            "tls" => self.tls = Some(flag(value)?),
            "tls_rootca_cert" => self.tls_rootca_cert = text(value).map(PathBuf::from),
            "tls_client_key" => self.tls_client_key = text(value).map(PathBuf::from),
            "tls_client_cert_chain" => self.tls_client_cert_chain = paths(value),
            _ => return Err("MQTTLoader has no such key".to_owned()),
        }
        Ok(())
    }

    fn set_broker(&mut self, value: &str) {
        let value = value.trim_end();
        let (host, tls) = match (value.strip_prefix("tcp://"), value.strip_prefix("ssl://")) {
            (Some(host), _) => (host, Some(false)),
            (_, Some(host)) => (host, Some(true)),
            _ => (value, None),
        };
        self.broker = text(host);
        self.scheme_tls = tls;
    }

    /// Whether the file asks for TLS. As in MQTTLoader, the key `tls` counts if the broker has no scheme.
    pub(crate) fn asks_for_tls(&self) -> Option<bool> {
        self.scheme_tls.or(self.tls)
    }
}

fn text(value: &str) -> Option<String> {
    let value = value.trim_end();
    (!value.is_empty()).then(|| value.to_owned())
}

fn number(value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let number = value.trim_end().parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| match *range.end() {
        u64::MAX => format!("{value:?} is no number from {} on", range.start()),
        end => format!("{value:?} is no number from {} to {end}", range.start()),
    })
}

fn flag(value: &str) -> Result<bool, String> {
    value.trim_end().parse().map_err(|_| format!("{value:?} is neither true nor false"))
}

fn version(value: &str) -> Result<Version, String> {
    match value.trim_end() {
        "3" => Ok(Version::V311),
        "5" => Ok(Version::V5),
        _ => Err(format!("{value:?} is neither 3 nor 5")),
    }
}

/// Levels of `java.util.logging`, of which MQTTLoader documents SEVERE, WARNING, INFO and ALL.
fn level(value: &str) -> Result<(), String> {
    let known = ["OFF", "SEVERE", "WARNING", "INFO", "CONFIG", "FINE", "FINER", "FINEST", "ALL"];
    if known.contains(&value.trim_end()) { Ok(()) } else { Err(format!("{value:?} is none of {}", known.join(", "))) }
}

fn paths(value: &str) -> Vec<PathBuf> {
    value.trim_end().split(';').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_mqttloader_is_read() {
        let conf = Conf::parse(
            b"broker = tcp://broker.example\nbroker_port=18883\nmqtt_version = 3\nnum_publishers = 8\n\
              num_subscribers : 4\nqos_publisher 1\nqos_subscriber = 2\nshared_subscription = true\nretain = false\n\
              topic = a/b\npayload = 600\nnum_messages = 1000000\nramp_up = 1\nramp_down = 2\ninterval = 250\n\
              subscriber_timeout = 20\nexec_time = 30\nlog_level = WARNING\nntp = ntp.example\n\
              output = C:\\\\records\nuser_name = john\npassword = pa ss \ntls = true\ntls_rootca_cert = ca.pem\n\
              tls_client_key = key.pem\ntls_client_cert_chain = own.pem;ica.pem\n",
        );
        let expected = Conf {
            is_given: true,
            broker: Some("broker.example".into()),
            scheme_tls: Some(false),
            broker_port: Some(18883),
            mqtt_version: Some(Version::V311),
            num_publishers: Some(8),
            num_subscribers: Some(4),
            qos_publisher: Some(1),
            qos_subscriber: Some(2),
            shared_subscription: Some(true),
            retain: Some(false),
            topic: Some("a/b".into()),
            payload: Some(600),
            num_messages: Some(1_000_000),
            ramp_up: Some(1),
            ramp_down: Some(2),
            interval: Some(Duration::from_micros(250)),
            subscriber_timeout: Some(Duration::from_secs(20)),
            exec_time: Some(Duration::from_secs(30)),
            ntp: Some("ntp.example".into()),
            output: Some("C:\\records".into()),
            user_name: Some("john".into()),
            password: Some(Secret::new("pa ss ".to_owned())),
            tls: Some(true),
            tls_rootca_cert: Some("ca.pem".into()),
            tls_client_key: Some("key.pem".into()),
            tls_client_cert_chain: vec!["own.pem".into(), "ica.pem".into()],
        };
        assert_eq!(conf, Ok(expected));
    }

    #[test]
    fn config_error_names_line_and_key() {
        for (text, line, key) in [
            ("\n# a comment\nbrokr = a\n", "line 3", "brokr"),
            ("broker = a\nqos_publisher = 3\n", "line 2", "qos_publisher"),
            ("payload = 7", "line 1", "payload"),
            ("mqtt_version = 4", "line 1", "mqtt_version"),
            ("retain = yes", "line 1", "retain"),
            ("num_messages = -1", "line 1", "num_messages"),
            ("interval = 25h", "line 1", "interval"),
            ("exec_time =", "line 1", "exec_time"),
            ("broker = \\\n   a\nlog_level = LOUD", "line 3", "log_level"),
            ("topic = \\u00zz", "line 1", "\\u"),
        ] {
            let wrong = Conf::parse(text.as_bytes()).unwrap_err();
            assert!(wrong.contains(line) && wrong.contains(key) && !wrong.contains('\n'), "{text:?}: {wrong}");
        }
    }

    #[test]
    fn times_may_have_units() {
        let conf = |text: &str| Conf::parse(text.as_bytes()).unwrap();
        assert_eq!(conf("interval = 250").interval, Some(Duration::from_micros(250)));
        assert_eq!(conf("interval = 2.5ms").interval, Some(Duration::from_micros(2_500)));
        assert_eq!(
            (conf("ramp_up = 2s").ramp_up, conf("exec_time = 1m").exec_time),
            (Some(2), Some(Duration::from_secs(60)))
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Conf::read(Some(Path::new("/nowhere/mqttloader.conf"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/mqttloader.conf"), "{error}");
        assert_eq!(Conf::read(None).unwrap(), Conf::default());
    }

    #[test]
    fn broker_scheme_overrides_tls_key_in_any_order() {
        for (text, tls) in [
            ("broker = tcp://b\ntls = true", Some(false)),
            ("tls = true\nbroker = tcp://b", Some(false)),
            ("broker = ssl://b\ntls = false", Some(true)),
            ("tls = false\nbroker = ssl://b", Some(true)),
            ("broker = b\ntls = true", Some(true)),
            ("broker = ssl://a\nbroker = b", None),
        ] {
            assert_eq!(Conf::parse(text.as_bytes()).unwrap().asks_for_tls(), tls, "{text}");
        }
    }

    #[test]
    fn a_broker_may_ask_for_tls_by_its_scheme() {
        let conf = Conf::parse(b"broker = ssl://b").unwrap();
        assert_eq!((conf.broker.as_deref(), conf.asks_for_tls()), (Some("b"), Some(true)));
        assert_eq!(Conf::parse(b"ntp =\nbroker=b").unwrap().ntp, None);
    }
}
