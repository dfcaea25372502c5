use std::collections::VecDeque;
use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{ArgGroup, Args};
use tenbin_client::{Client, MessageProperties, OutgoingMessage, PublishTicket, QoS, Reconnect, TopicName};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{ConnectionArgs, MqttError, leave, qos, seconds};

/// Publishes a message, or a message for each line of standard input.
///
/// At QoS 1 and 2 it waits for the acknowledgements. Exit code 1 if the broker cannot be reached, or refuses a message.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, group(ArgGroup::new("payload").required(true)))]
pub(crate) struct PublishArgs {
    /// Topic Name
    #[arg(short, long, value_name = "TOPIC", value_parser = topic)]
    topic: TopicName,
    /// Payload
    #[arg(short, long, value_name = "TEXT", group = "payload")]
    message: Option<String>,
    /// Payload is the content of a file
    #[arg(short, long, value_name = "FILE", group = "payload")]
    file: Option<PathBuf>,
    /// Payload is all of standard input
    #[arg(short = 's', long, group = "payload")]
    stdin_file: bool,
    /// A message for each line of standard input
    #[arg(short = 'l', long, group = "payload", conflicts_with = "repeat")]
    stdin_line: bool,
    /// Empty payload, which removes a retained message
    #[arg(short, long, group = "payload")]
    null_message: bool,
    /// QoS: 0, 1 or 2
    #[arg(short, long, value_name = "QOS", default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Has the message retained
    #[arg(short, long)]
    retain: bool,
    /// Message Expiry Interval in seconds
    #[arg(long, value_name = "SECONDS")]
    expiry: Option<u32>,
    /// Number of times that the message is published; %n in --message is its number, from 1
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Seconds between two of them
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    repeat_delay: Duration,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(super) async fn run(arguments: &PublishArgs) -> Result<(), MqttError> {
    let options = arguments.connection.options()?.reconnect(Reconnect::Never);
    if arguments.expiry.is_some() && !arguments.connection.protocol_version.is_v5() {
        return Err(MqttError::Option("--expiry", "needs MQTT 5.0".to_owned()));
    }
    let payload = whole(arguments)?;
    let (client, _events) = Client::connect(options).await?;
    let done = match payload {
        Some(payload) => repeat(arguments, &client, &payload).await,
        None => lines(arguments, &client).await,
    };
    leave(client).await;
    done
}

/// The payload; `None`: each line of standard input is one.
fn whole(arguments: &PublishArgs) -> Result<Option<Bytes>, MqttError> {
    if let Some(text) = &arguments.message {
        return Ok(Some(Bytes::from(text.clone())));
    }
    if let Some(path) = &arguments.file {
        let bytes = std::fs::read(path).map_err(|error| MqttError::File(path.clone(), error))?;
        return Ok(Some(bytes.into()));
    }
    if arguments.stdin_file {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes)?;
        return Ok(Some(bytes.into()));
    }
    Ok(arguments.null_message.then(Bytes::new))
}

/// Publishes the payload as often as wanted, each at its time.
async fn repeat(arguments: &PublishArgs, client: &Client, payload: &Bytes) -> Result<(), MqttError> {
    let mut due = Instant::now();
    let mut tickets = Tickets::begin(arguments);
    for number in 1..=arguments.repeat {
        sleep_until(due).await;
        due += arguments.repeat_delay;
        let numbered = arguments.message.as_ref().filter(|text| arguments.repeat > 1 && text.contains("%n"));
        let payload = numbered.map_or_else(|| payload.clone(), |text| text.replace("%n", &number.to_string()).into());
        tickets.publish(client, payload).await?;
    }
    tickets.end().await
}

/// Publishes the lines of standard input.
async fn lines(arguments: &PublishArgs, client: &Client) -> Result<(), MqttError> {
    let (sender, mut lines) = mpsc::channel(64);
    // A thread, since a read of standard input cannot be cancelled. The end of the program ends it.
    std::thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n') {
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                break;
            }
        }
    });
    let mut tickets = Tickets::begin(arguments);
    while let Some(line) = lines.recv().await {
        let mut line = line?;
        line.pop_if(|byte| *byte == b'\r');
        tickets.publish(client, line.into()).await?;
    }
    tickets.end().await
}

/// Published messages whose outcome is awaited beside the next ones.
struct Tickets<'a> {
    arguments: &'a PublishArgs,
    properties: Option<Box<MessageProperties>>,
    waiting: VecDeque<PublishTicket>,
}

impl<'a> Tickets<'a> {
    fn begin(arguments: &'a PublishArgs) -> Self {
        let properties = arguments.expiry.map(|seconds| {
            Box::new(MessageProperties { message_expiry_interval: Some(seconds), ..MessageProperties::default() })
        });
        Self { arguments, properties, waiting: VecDeque::new() }
    }

    async fn publish(&mut self, client: &Client, payload: Bytes) -> Result<(), MqttError> {
        let PublishArgs { topic, qos, retain, .. } = self.arguments;
        let message = OutgoingMessage {
            retain: *retain,
            properties: self.properties.clone(),
            ..OutgoingMessage::new(topic.clone(), payload).at(*qos)
        };
        self.waiting.push_back(client.publish(message).await?);
        if self.waiting.len() < WAITING_MOST { Ok(()) } else { self.wait_for_first().await }
    }

    async fn end(mut self) -> Result<(), MqttError> {
        while !self.waiting.is_empty() {
            self.wait_for_first().await?;
        }
        Ok(())
    }

    async fn wait_for_first(&mut self) -> Result<(), MqttError> {
        let Some(ticket) = self.waiting.pop_front() else { return Ok(()) };
        let reason = ticket.await?;
        match reason.is_error() {
            true => Err(MqttError::Refused(format!("topic {}", self.arguments.topic), reason)),
            false => Ok(()),
        }
    }
}

/// Messages of one command whose outcome may be unknown.
const WAITING_MOST: usize = 1000;

fn topic(text: &str) -> Result<TopicName, String> {
    TopicName::try_from(text).map_err(|error| error.to_string())
}
