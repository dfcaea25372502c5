//! `tenbin sn`.

mod publish;
mod search;
mod subscribe;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenbin_kit::Span;
use tenbin_sn_client::{
    ClientError, ClientErrorKind, ClientOptions, DtlsKeys, QoS, ReturnCode, SearchError, ShortName, Topic, Will,
};

#[derive(Debug, Subcommand)]
pub(crate) enum SnCommand {
    /// Publishes a message through an MQTT-SN gateway.
    ///
    /// A topic by name is registered first. At QoS 1 and 2 the command waits for the acknowledgement. Exit code 1 if no
    /// gateway accepts the client, or if the message is rejected.
    Pub(publish::PublishArgs),
    /// Prints the messages of a subscription through an MQTT-SN gateway, until SIGINT or SIGTERM.
    ///
    /// Each payload is a line on standard output. Lines on standard error tell of lost gateways; the client connects and
    /// subscribes again.
    Sub(subscribe::SubscribeArgs),
    /// Finds MQTT-SN gateways: sends SEARCHGW, and prints address and id of each gateway that answers or advertises.
    ///
    /// Exit code 1 if there is none.
    Search(search::SearchArgs),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("topic {0}: {1}")]
    Topic(Topic, ClientError),
    #[error("{0}")]
    Unconnected(ClientErrorKind),
    #[error("{0}")]
    Search(#[from] SearchError),
    #[error("no gateway answered at {0} within {1:?}")]
    NotFound(std::net::SocketAddr, Duration),
    #[error("{0}: {1}")]
    Named(String, io::Error),
    #[error("-q -1 makes no connection, and so takes no {0}")]
    NoConnection(&'static str),
    #[error("topic {0}: the gateway rejected the subscription after a loss: {1}")]
    SubscriptionLost(Topic, ReturnCode),
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub(crate) fn run(command: &SnCommand) -> Result<(), SnError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = match command {
        SnCommand::Pub(arguments) => runtime.block_on(publish::run(arguments)),
        SnCommand::Sub(arguments) => runtime.block_on(subscribe::run(arguments)),
        SnCommand::Search(arguments) => runtime.block_on(search::run(arguments)),
    };
    match done {
        // The reader has closed the pipe.
        Err(SnError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Topic in one of its three forms.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TopicArgs {
    /// Topic name, or topic filter of a subscription.
    #[arg(short = 't', long = "topic", value_name = "TOPIC")]
    name: Option<String>,
    /// Predefined topic id, which the gateway knows from its configuration.
    #[arg(short = 'T', long = "topic-id", value_name = "ID")]
    predefined: Option<u16>,
    /// Short topic name of two bytes, which is sent without registration.
    #[arg(short = 's', long = "short", value_name = "XY", value_parser = short_name)]
    short: Option<ShortName>,
}

impl TopicArgs {
    fn topic(&self) -> Topic {
        match (self.predefined, self.short) {
            (Some(id), _) => Topic::Predefined(id),
            (None, Some(name)) => Topic::Short(name),
            (None, None) => self.name.as_deref().unwrap_or_default().into(),
        }
    }
}

#[derive(Debug, Args)]
struct ConnectionArgs {
    /// Gateway. Repeat the option for further gateways, used in this order when one is lost.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10000")]
    gateway: Vec<String>,
    /// Client id, at most 23 bytes for most gateways [default: tenbin- and the process id]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Topic of the Will, which the broker publishes if the gateway loses this client.
    #[arg(long, value_name = "TOPIC", requires = "will_message")]
    will_topic: Option<String>,
    /// Payload of the Will.
    #[arg(long, value_name = "TEXT", requires = "will_topic")]
    will_message: Option<String>,
    /// QoS of the Will.
    #[arg(long, value_name = "QOS", default_value = "0", value_parser = qos)]
    will_qos: QoS,
    /// Has the Will retained.
    #[arg(long, requires = "will_topic")]
    will_retain: bool,
    /// Time until an unanswered message is sent again.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_time)]
    retry: Duration,
    /// Repetitions of an unanswered message, after which the gateway counts as lost.
    #[arg(long, value_name = "COUNT", default_value = "4")]
    retries: u8,
    #[command(flatten)]
    access: AccessArgs,
}

/// Credentials and keys.
#[derive(Debug, Args)]
struct AccessArgs {
    /// User name for gateways that ask for credentials.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File with the password; its first line counts [default: no password]
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Uses DTLS with the pre-shared key of this identity. DTLS needs the cargo feature `dtls`.
    #[arg(long, value_name = "IDENTITY", requires = "psk_file", conflicts_with = "ca")]
    psk_identity: Option<String>,
    /// File with lines of IDENTITY:KEY, the key in hexadecimal digits.
    #[arg(long, value_name = "FILE", requires = "psk_identity")]
    psk_file: Option<PathBuf>,
    /// Uses DTLS with certificates: PEM file with the authorities of the gateway's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the client's certificate, of ECDSA.
    #[arg(long, value_name = "FILE", requires = "ca", requires = "key")]
    certificate: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

impl AccessArgs {
    /// Whether there are credentials or keys.
    fn is_given(&self) -> bool {
        self.psk_identity.is_some() || self.ca.is_some() || self.user.is_some()
    }

    fn add_to(&self, mut options: ClientOptions) -> Result<ClientOptions, SnError> {
        if let Some(user) = &self.user {
            let password = match &self.password_file {
                Some(path) => {
                    fs::read_to_string(path).map_err(|error| SnError::Named(path.display().to_string(), error))?
                }
                None => String::new(),
            };
            options = options.credentials(user, password.lines().next().unwrap_or_default().to_owned());
        }
        if let (Some(identity), Some(file)) = (&self.psk_identity, &self.psk_file) {
            options = options.dtls(DtlsKeys::PreShared { identity: identity.clone(), file: file.clone() });
        } else if let Some(authorities) = &self.ca {
            let own = self.certificate.clone().zip(self.key.clone());
            options = options.dtls(DtlsKeys::Certificates { authorities: authorities.clone(), own });
        }
        Ok(options)
    }
}

impl ConnectionArgs {
    fn options(&self) -> Result<ClientOptions, SnError> {
        let id = self.id.clone().unwrap_or_else(|| format!("tenbin-{}", process::id()));
        let (first, others) = self.gateway.split_first().expect("clap has a default");
        let mut options = ClientOptions::new(first, id).retry(self.retry, self.retries);
        for gateway in others {
            options = options.gateway(gateway);
        }
        if let (Some(topic), Some(message)) = (&self.will_topic, &self.will_message) {
            let (topic, message) = (topic.clone(), message.clone().into());
            options = options.will(Will { topic, message, qos: self.will_qos, retain: self.will_retain });
        }
        self.access.add_to(options)
    }
}

fn short_name(text: &str) -> Result<ShortName, String> {
    ShortName::new(text).ok_or_else(|| format!("want two bytes, not {}", text.len()))
}

fn qos(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err("want 0, 1 or 2".to_owned()),
    }
}

/// Parses `250ms`, `15s` or `2m`; a number without a unit is in seconds.
fn positive_time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<Span>()?.duration();
    if time.is_zero() { Err("want more than 0".to_owned()) } else { Ok(time) }
}
