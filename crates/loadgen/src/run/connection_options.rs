//! Connection options of a run: the part of a [`Plan`](super::Plan) that every client has.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use tenbin_codec::Secret;

/// Common options of all connections and their CONNECT packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionOptions {
    /// Protocol version: 5.0 or 3.1.1.
    pub version: Version,
    /// User Name, if any.
    pub user_name: Option<String>,
    /// Password, if any. Files of results are passed on, so it is not written.
    #[serde(serialize_with = "not_written")]
    pub password: Option<Secret<String>>,
    /// TLS options; `None` for plain TCP.
    pub tls: Option<TlsOptions>,
    /// Path of WebSocket connections; `None` for MQTT without WebSocket.
    #[serde(default)]
    pub websocket: Option<String>,
    /// Path of the broker's unix socket; `None` for its address.
    #[serde(default)]
    pub unix: Option<String>,
    /// Keep Alive in seconds; 0 for none.
    pub keep_alive: u16,
    /// How long the broker keeps sessions after their connections; `None` ends them with the connections.
    ///
    /// At 3.1.1 any other value than `None` sets Clean Session to 0.
    pub session_expiry: Option<Duration>,
    /// Prefix of all Client Identifiers: `PREFIX-pub-N`, `PREFIX-sub-N`, `PREFIX-idle-N`.
    pub client_id_prefix: String,
    /// Will of every publisher and idle connection. A cut connection makes the broker publish it.
    pub will: Option<WillOptions>,
}

impl ConnectionOptions {
    /// MQTT 5.0 on plain TCP, without user name, Keep Alive and Will; sessions end with their connections.
    pub fn new(client_id_prefix: impl Into<String>) -> Self {
        Self {
            version: Version::V5,
            user_name: None,
            password: None,
            tls: None,
            websocket: None,
            unix: None,
            keep_alive: 0,
            session_expiry: None,
            client_id_prefix: client_id_prefix.into(),
            will: None,
        }
    }
}

fn not_written<S: Serializer>(password: &Option<Secret<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    password.as_ref().map(|_| "(not written)").serialize(serializer)
}

/// Protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.0.
    V5,
}

/// TLS files, in PEM format. Each machine that opens connections reads its own files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsOptions {
    /// Certificates of trusted authorities; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The clients' private key, for a broker that requires client certificates.
    pub client_key: Option<PathBuf>,
    /// The clients' certificates, their own first.
    pub client_chain: Vec<PathBuf>,
    /// Whether to accept any certificate.
    pub insecure: bool,
}

/// The Will of each publisher and idle connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillOptions {
    /// Its topic.
    pub topic: String,
    /// Its QoS, 0 to 2.
    pub qos: u8,
}
