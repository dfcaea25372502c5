//! Transports, and a broker that serves one of them.

use crate::support::{BrokerProcess, Certificates, ConfigFile};

/// URL schemes of all transports that the broker serves: `tcp`, `tls`, `ws`, `wss`, `unix`.
const SERVED: &[&str] = &["tcp", "tls", "ws", "wss", "unix"];

/// A broker with one listener of a transport, and a plain one for the test's own clients.
pub(crate) struct Served {
    pub(crate) broker: BrokerProcess,
    pub(crate) scheme: &'static str,
    /// Where a client connects to.
    pub(crate) url: String,
    certificates: Certificates,
    _config: ConfigFile,
}

impl Served {
    /// Starts a broker for each transport that the client speaks and the broker serves.
    pub(crate) fn over<'a>(spoken: &'a [&str], arguments: &'a [&str]) -> impl Iterator<Item = Self> + 'a {
        let both = SERVED.iter().filter(|scheme| spoken.contains(scheme));
        both.map(|scheme| Self::start(scheme, arguments))
    }

    fn start(scheme: &'static str, arguments: &[&str]) -> Self {
        let certificates = Certificates::new();
        let socket = format!("unix:{}", certificates.path("socket"));
        let address = if scheme == "unix" { &socket } else { "127.0.0.1:0" };
        let mut listener = format!("[[listeners]]\nname = \"{scheme}\"\naddress = \"{address}\"\nanonymous = true\n");
        let is_websocket = scheme.starts_with("ws");
        if is_websocket {
            listener += "transport = \"websocket\"\n";
        }
        if ["tls", "wss"].contains(&scheme) {
            let (certificate, key) = (certificates.path("broker.pem"), certificates.path("broker.key"));
            listener += &format!("[listeners.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n");
        }
        let config = ConfigFile::new(&listener);
        let all = [&["--listen", "127.0.0.1:0", "--config", config.path()], arguments].concat();
        let broker = BrokerProcess::start_listening(&all, if scheme == "unix" { 1 } else { 2 });
        let url = match broker.addresses() {
            [_, at] => format!("{scheme}://localhost:{}{}", at.port(), if is_websocket { "/mqtt" } else { "" }),
            _ => socket,
        };
        Self { broker, scheme, url, certificates, _config: config }
    }

    /// File with the certificate of the authority that vouches for the broker.
    pub(crate) fn authority(&self) -> String {
        self.certificates.path("root.pem")
    }

    /// Port of the listener.
    pub(crate) fn port(&self) -> u16 {
        self.broker.addresses()[1].port()
    }
}
