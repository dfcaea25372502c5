//! A broker with admin HTTP at a free port.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tenbin_codec::{Connect, Disconnect, Packet, PacketType, ProtocolVersion};

use crate::support::{BrokerProcess, HttpAnswer, PATIENCE, RawClient, exchange, lasting};

/// A broker, and its admin HTTP.
pub(crate) struct Stage {
    pub(crate) broker: BrokerProcess,
    pub(crate) admin: SocketAddr,
    /// Token of the local operator.
    pub(crate) token: String,
    /// Directory of the token, unless the broker has a data directory.
    _runtime: TempDir,
}

impl Stage {
    /// Starts `tenbin broker` with additional arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments)
    }

    /// As [`Stage::start`], with additional environment variables.
    pub(crate) fn start_in(environment: &[(&str, PathBuf)], arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", environment, arguments)
    }

    /// As [`Stage::start_in`], with its admin HTTP at this address.
    pub(crate) fn start_at(address: &str, environment: &[(&str, PathBuf)], arguments: &[&str]) -> Self {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut environment = environment.to_vec();
        environment.push(("TENBIN_ADMIN__ADDRESS", address.into()));
        environment.push(("XDG_RUNTIME_DIR", runtime.path().into()));
        let broker = BrokerProcess::start_in(&environment, &[&["--listen", "127.0.0.1:0"], arguments].concat());
        let mut admin = admin_of(&broker);
        let data =
            arguments.iter().position(|&argument| argument == "--data").map(|at| PathBuf::from(arguments[at + 1]));
        let file = match data.or_else(|| broker.data().map(Into::into)) {
            Some(data) => data.join("admin.token"),
            None => runtime.path().join(format!("tenbin-{}.token", admin.port())),
        };
        let token = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        admin.set_ip(Ipv4Addr::LOCALHOST.into());
        Self { broker, admin, token: token.trim().to_owned(), _runtime: runtime }
    }

    /// `tenbin` with these arguments, which talks to this broker.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.args(arguments).env("TENBIN_URL", format!("http://{}", self.admin)).env("TENBIN_TOKEN", &self.token);
        command
    }

    /// Sends a request without a body.
    pub(crate) fn ask(&self, method: &str, path: &str) -> HttpAnswer {
        self.send(method, path, &[], "")
    }

    /// Sends a request with a body in JSON.
    pub(crate) fn tell(&self, method: &str, path: &str, body: &Value) -> HttpAnswer {
        self.send(method, path, &[("content-type", "application/json")], &body.to_string())
    }

    /// Asks for JSON.
    ///
    /// # Panics
    /// If the status is not 200.
    pub(crate) fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        json(&answer)
    }

    pub(crate) fn get(&self, path: &str) -> HttpAnswer {
        self.ask("GET", path)
    }

    /// Sends a request of the local operator with further header fields, and a body.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let token = format!("Bearer {}", self.token);
        self.send_bare(method, path, &[&[("authorization", &token[..])], headers].concat(), body)
    }

    /// Sends a request without a token.
    pub(crate) fn send_bare(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += &format!("host: {}\r\n", self.admin);
        }
        headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
        exchange(self.admin, format!("{request}\r\n{body}").as_bytes()).expect("an answer")
    }
}

/// CONNECT of a session that ends a minute after its connection.
pub(crate) fn for_a_minute(client_id: &str) -> Connect {
    let mut connect = lasting(ProtocolVersion::V5, client_id);
    connect.properties.session_expiry_interval = Some(60);
    connect
}

/// Waits for the client's DISCONNECT.
pub(crate) fn disconnect_of(client: &mut RawClient) -> Disconnect {
    match client.wait_for(PacketType::Disconnect) {
        Packet::Disconnect(disconnect) => disconnect,
        other => unreachable!("{other:?}"),
    }
}

/// Waits until `holds` does, which asks the broker each time.
#[track_caller]
pub(crate) fn wait_until(holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never holds");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The body of an answer as JSON.
pub(crate) fn json(answer: &HttpAnswer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error} in {:?}", answer.body))
}

/// Address of a broker's admin HTTP, from its output.
fn admin_of(broker: &BrokerProcess) -> SocketAddr {
    let line = broker.wait_for_start_line("admin HTTP at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.trim().parse().ok());
    address.expect("an address")
}
