//! `tenbin pub` and `tenbin sub`.

mod publish;
mod subscribe;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::Args;
use tenbin_client::{Client, ClientError, ClientOptions, ProtocolVersion, QoS, ReasonCode, Secret, Transport};
use tenbin_kit::{Span, tls::ClientFiles};

use crate::mqtt_tls;

pub(crate) use publish::PublishArgs;
pub(crate) use subscribe::SubscribeArgs;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MqttError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}: {1}")]
    Refused(String, ReasonCode),
    #[error("{0}: {1}")]
    Option(&'static str, String),
    #[error("{0}")]
    Tls(String),
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the time of {} s is over", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("the client has ended, and does not connect again")]
    Ended,
}

/// Publishes messages.
pub(crate) fn publish(arguments: &PublishArgs) -> Result<(), MqttError> {
    runtime()?.block_on(publish::run(arguments))
}

/// Prints messages of subscriptions, or works on them.
pub(crate) fn subscribe(arguments: &SubscribeArgs) -> Result<(), MqttError> {
    match runtime()?.block_on(subscribe::run(arguments)) {
        // The reader has closed the pipe.
        Err(MqttError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The broker, and how to log in. Short options are those of Mosquitto's clients.
#[derive(Debug, Args)]
struct ConnectionArgs {
    /// Host name or address of the broker
    #[arg(short = 'h', long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port [default: 1883, or 8883 with TLS]
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// Client Identifier [default: tenbin-, the process id, and a random number]
    #[arg(short, long, value_name = "ID")]
    id: Option<String>,
    /// User Name
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,
    /// Password. Other users of this machine see arguments
    #[arg(short = 'P', long = "pw", value_name = "PASSWORD", requires = "username", conflicts_with = "password_file", value_parser = secret)]
    password: Option<Secret>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// MQTT version
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version)]
    protocol_version: ProtocolVersion,
    /// Keep Alive in seconds; 0 = none
    #[arg(short, long, value_name = "SECONDS", default_value = "60")]
    keepalive: u16,
    /// TLS, with the system's authorities unless --cafile names others
    #[arg(long)]
    tls: bool,
    /// PEM file with the authorities of the broker's certificate; implies --tls
    #[arg(long, value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// PEM file with a client certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl ConnectionArgs {
    fn options(&self) -> Result<ClientOptions, MqttError> {
        let is_tls = self.tls || self.cafile.is_some() || self.cert.is_some();
        let port = self.port.unwrap_or(if is_tls { 8883 } else { 1883 });
        let host = self.host.trim_matches(['[', ']']);
        let broker = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        // In containers all processes have the same id.
        let id = || format!("tenbin-{}-{:08x}", process::id(), RandomState::new().hash_one(()) as u32);
        let id = self.id.clone().unwrap_or_else(id);
        let options = ClientOptions::new(broker, id)
            .transport(if is_tls { self.transport(host)? } else { Transport::tcp() })
            .version(self.protocol_version)
            .keep_alive(Duration::from_secs(self.keepalive.into()));
        let Some(user) = &self.username else { return Ok(options) };
        let password = match &self.password_file {
            Some(path) => {
                let text = tenbin_kit::files::read_text_or_pipe(path);
                let text = text.map_err(|error| MqttError::File(path.clone(), error))?;
                Secret::from(text.lines().next().unwrap_or_default().to_owned())
            }
            None => self.password.clone().unwrap_or_else(|| Secret::from(String::new())),
        };
        Ok(options.credentials(user.clone(), password))
    }

    fn transport(&self, host: &str) -> Result<Transport, MqttError> {
        let files = ClientFiles { ca: self.cafile.clone(), certificate: self.cert.clone(), key: self.key.clone() };
        mqtt_tls::transport(host, &files, "TLS: ", &format!("--host: {host:?}")).map_err(MqttError::Tls)
    }
}

/// Says goodbye.
async fn leave(client: Client) {
    let _ = tokio::time::timeout(FAREWELL, client.disconnect()).await;
}

/// Time for the broker's answers at the end.
const FAREWELL: Duration = Duration::from_secs(2);

fn version(text: &str) -> Result<ProtocolVersion, String> {
    match text {
        "5" | "mqttv5" => Ok(ProtocolVersion::V5),
        "311" | "3.1.1" | "mqttv311" => Ok(ProtocolVersion::V311),
        _ => Err("want 5 or 311".to_owned()),
    }
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text.to_owned()))
}

fn qos(text: &str) -> Result<QoS, String> {
    text.parse().ok().and_then(QoS::from_bits).ok_or_else(|| "want 0, 1 or 2".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    Ok(text.parse::<Span>()?.duration())
}

/// Seconds with a fraction, as Mosquitto's clients have them.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("want 0 to {SECONDS_MAX}"))
}

/// A year.
const SECONDS_MAX: f64 = 365.0 * 86_400.0;
