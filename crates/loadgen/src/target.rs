//! Brokers as command-line arguments.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::LoadgenError;
use crate::child_broker::ChildBroker;

/// Address of a broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker {
    /// Name in reports.
    pub name: String,
    /// Host name or address. Connections rotate over the addresses of a name.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Broker {
    /// The broker at `host`, with `name` in reports.
    pub fn new(name: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), host: host.into(), port }
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub(crate) fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// A running broker, or one to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetArg {
    /// `[NAME=]HOST[:PORT][,pid=PID]`: a running broker; with a process id its processor time is known.
    Given {
        /// Name in reports; its address if no name is given.
        name: String,
        /// Host name or address, without brackets.
        host: String,
        /// `None` for the default port.
        port: Option<u16>,
        /// Process id.
        pid: Option<u32>,
    },
    /// `tenbin`: this project's broker.
    Tenbin,
    /// This project's broker with this policy, named after the policy.
    Policy(String),
    /// `mosquitto`: the installed one.
    Mosquitto,
}

/// A running broker.
#[derive(Debug)]
pub(crate) struct RunningBroker {
    pub(crate) name: String,
    /// Host name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) pid: Option<u32>,
    child: Option<ChildBroker>,
}

impl TargetArg {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Given { name, .. } | Self::Policy(name) => name,
            Self::Tenbin => "tenbin",
            Self::Mosquitto => "mosquitto",
        }
    }

    /// Whether the broker is started for each run.
    pub(crate) fn is_started(&self) -> bool {
        !matches!(self, Self::Given { .. })
    }

    /// Starts the broker, unless it is running; then `default_port` applies if it has no port.
    pub(crate) async fn start(&self, default_port: u16) -> Result<RunningBroker, LoadgenError> {
        let child = match self {
            Self::Given { name, host, port, pid } => {
                let (name, host, port) = (name.clone(), host.clone(), port.unwrap_or(default_port));
                return Ok(RunningBroker { name, host, port, pid: *pid, child: None });
            }
            Self::Tenbin => ChildBroker::tenbin_with_long_queues(None).await?,
            Self::Policy(policy) => ChildBroker::tenbin_with_long_queues(Some(policy)).await?,
            Self::Mosquitto => ChildBroker::mosquitto().await?,
        };
        Ok(RunningBroker::started(self.name(), child))
    }
}

impl FromStr for TargetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tenbin" => return Ok(Self::Tenbin),
            "mosquitto" => return Ok(Self::Mosquitto),
            _ => {}
        }
        let wanted = || format!("{text:?}: want [NAME=]HOST[:PORT][,pid=PID], tenbin or mosquitto");
        let (place, pid) = match text.split_once(",pid=") {
            Some((place, pid)) => (place, Some(pid.parse().map_err(|_| format!("{pid:?} is no process id"))?)),
            None => (text, None),
        };
        let (name, address) = place.split_once('=').unwrap_or((place, place));
        let (host, port) = split_address(address).ok_or_else(wanted)?;
        if matches!(name, "" | "pid") || host.is_empty() || host.contains([',', '=', '/']) {
            return Err(wanted());
        }
        Ok(Self::Given { name: name.to_owned(), host, port, pid })
    }
}

/// Several brokers, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetList(pub(crate) Vec<TargetArg>);

impl FromStr for TargetList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut targets = Vec::<String>::new();
        for part in text.split(',') {
            match targets.last_mut() {
                // A part after a comma may still belong to the broker before it.
                Some(last) if part.starts_with("pid=") => *last += &format!(",{part}"),
                _ => targets.push(part.to_owned()),
            }
        }
        targets.iter().map(|target| target.parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// Splits `HOST`, `HOST:PORT`, `[IPv6]`, `[IPv6]:PORT` or `IPv6`; `None` if the port is invalid.
fn split_address(address: &str) -> Option<(String, Option<u16>)> {
    if let Some(after) = address.strip_prefix('[') {
        let (host, rest) = after.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port.parse().ok()?),
            None if rest.is_empty() => None,
            None => return None,
        };
        return Some((host.to_owned(), port));
    }
    match address.split_once(':') {
        // An IPv6 address has more than one colon.
        Some((_, port)) if port.contains(':') => Some((address.to_owned(), None)),
        Some((host, port)) => Some((host.to_owned(), Some(port.parse().ok()?))),
        None => Some((address.to_owned(), None)),
    }
}

/// `address` with `port`, unless it has one.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    let found = split_address(address).map(|(host, own)| Broker::new("", host, own.unwrap_or(port)).address());
    found.unwrap_or_else(|| address.to_owned())
}

impl RunningBroker {
    /// The broker at `address`, HOST[:PORT].
    ///
    /// # Errors
    /// It is not an address.
    pub(crate) fn at(address: &str) -> Result<Self, LoadgenError> {
        let wrong = || LoadgenError::Arguments(format!("--broker {address:?}: want HOST:PORT"));
        let (host, port) = split_address(address).filter(|(host, _)| !host.is_empty()).ok_or_else(wrong)?;
        Ok(Self { name: address.to_owned(), host, port: port.unwrap_or(PORT), pid: None, child: None })
    }

    /// A broker that this program has started.
    pub(crate) fn started(name: &str, child: ChildBroker) -> Self {
        let (host, port) = split_address(child.address()).expect("a child's address has a port");
        let port = port.expect("a child's address has a port");
        Self { name: name.to_owned(), host, port, pid: Some(child.pid()), child: Some(child) }
    }

    /// The node of a pair at `address`; the pair ends with the node that has `child`.
    pub(crate) fn node(name: &str, address: std::net::SocketAddr, child: Option<ChildBroker>) -> Self {
        let (host, port) = (address.ip().to_string(), address.port());
        Self { name: name.to_owned(), host, port, pid: None, child }
    }

    /// The broker's entry in a plan.
    pub(crate) fn place(&self) -> Broker {
        Broker::new(&self.name, &self.host, self.port)
    }

    /// Replaces the error of a lost or failed connection by the broker's end, if it has ended.
    pub(crate) fn blame(&mut self, error: LoadgenError) -> LoadgenError {
        self.child.as_mut().and_then(|child| child.check_alive().err()).unwrap_or(error)
    }
}

/// MQTT's default port.
pub(crate) const PORT: u16 = 1883;

/// Default port of MQTT-SN.
pub(crate) const SN_PORT: u16 = 10_000;

/// Default port of HTTP.
pub(crate) const HTTP_PORT: u16 = 8080;

/// Default port of MQTT over TLS.
pub(crate) const TLS_PORT: u16 = 8883;

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &str, host: &str, port: Option<u16>, pid: Option<u32>) -> TargetArg {
        TargetArg::Given { name: name.into(), host: host.into(), port, pid }
    }

    #[test]
    fn target_is_an_address_or_a_broker_to_start() {
        for (text, expected) in [
            ("tenbin", TargetArg::Tenbin),
            ("mosquitto", TargetArg::Mosquitto),
            ("a=localhost:1883", given("a", "localhost", Some(1883), None)),
            ("b=[::1]:1883,pid=42", given("b", "::1", Some(1883), Some(42))),
            ("[::1]", given("[::1]", "::1", None, None)),
            ("::1", given("::1", "::1", None, None)),
            ("broker.example", given("broker.example", "broker.example", None, None)),
            ("127.0.0.1:1,pid=7", given("127.0.0.1:1", "127.0.0.1", Some(1), Some(7))),
            ("tenbin:1883", given("tenbin:1883", "tenbin", Some(1883), None)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in
            ["", "=b:1", "a=:1", "a=", "a=b:99999", "a=b:1,pid=x", "a=b:1,pid=-1", "[::1", "[::1]1", "a,b", "tcp://a"]
        {
            assert!(text.parse::<TargetArg>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_is_added_where_there_is_none() {
        for (text, expected) in [
            ("lab", "lab:4500"),
            ("lab:1", "lab:1"),
            ("10.0.0.1", "10.0.0.1:4500"),
            ("::1", "[::1]:4500"),
            ("[::1]", "[::1]:4500"),
            ("[::1]:7", "[::1]:7"),
            ("lab:x", "lab:x"),
        ] {
            assert_eq!(with_port(text, 4500), expected);
        }
    }

    #[test]
    fn a_list_keeps_process_ids_with_their_brokers() {
        let TargetList(targets) = "a=h:1,pid=3,b=h:2,tenbin".parse().unwrap();
        assert_eq!(targets, [given("a", "h", Some(1), Some(3)), given("b", "h", Some(2), None), TargetArg::Tenbin]);
        for text in ["", "a,,b", "pid=3"] {
            assert!(text.parse::<TargetList>().is_err(), "{text}");
        }
    }
}
