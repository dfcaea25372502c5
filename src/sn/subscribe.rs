use std::io::{self, IsTerminal as _, Write};
use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use tenbin_kit::cli;
use tenbin_sn_client::{Client, ClientError, ClientErrorKind, ClientEvent, Events, Message, QoS};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::{ConnectionArgs, SnError, TopicArgs, positive_time, qos};

#[derive(Debug, Args)]
pub(crate) struct SubscribeArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// Greatest QoS of deliveries.
    #[arg(short, long, value_name = "QOS", default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Time to sleep between wakes, at most 65535s. The gateway keeps the messages of a sleeping client.
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    sleep: Option<Duration>,
    /// Ends after this number of messages [default: never]
    #[arg(short = 'C', long, value_name = "COUNT")]
    count: Option<NonZeroU64>,
    /// Prints the topic before each payload.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Time for the gateway's answer to DISCONNECT.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(65_535);

pub(super) async fn run(arguments: &SubscribeArgs) -> Result<(), SnError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(stop);
    let (client, events) = tokio::select! {
        connected = Client::connect(arguments.connection.options()?) => connected?,
        () = &mut stop => return Ok(()),
    };
    // From here on the gateway knows the client, and a stop says goodbye.
    let result = tokio::select! {
        result = receive(arguments, &client, events) => result,
        () = &mut stop => Ok(()),
    };
    let _ = timeout(FAREWELL, client.disconnect()).await;
    result
}

/// Subscribes, and prints messages until there were enough of them.
async fn receive(arguments: &SubscribeArgs, client: &Client, events: Events) -> Result<(), SnError> {
    let topic = arguments.topic.topic();
    client.subscribe(topic.clone(), arguments.qos).await.map_err(|error| SnError::Topic(topic, error))?;
    tokio::select! {
        result = print(arguments, events) => result,
        error = sleep_and_wake(client, arguments) => Err(error.into()),
    }
}

/// Prints messages until there were enough of them.
async fn print(arguments: &SubscribeArgs, mut events: Events) -> Result<(), SnError> {
    let mut left = arguments.count.map(NonZeroU64::get);
    while left != Some(0) {
        match events.recv().await {
            Some(ClientEvent::Message(message)) => {
                write(&message, arguments.verbose)?;
                left = left.map(|left| left - 1);
            }
            Some(ClientEvent::Disconnected(failure)) => cli::say("tenbin", &format_args!("connection lost: {failure}")),
            Some(ClientEvent::Connected { .. }) => {}
            Some(ClientEvent::SubscriptionLost { filter, code }) => {
                return Err(SnError::SubscriptionLost(filter, code));
            }
            Some(_) => {}
            None => break,
        }
    }
    Ok(())
}

/// Prints a message. A program or a file gets the payload as it is.
fn write(message: &Message, is_verbose: bool) -> io::Result<()> {
    if io::stdout().is_terminal() {
        write_to(&mut cli::out(), message, is_verbose)
    } else {
        write_to(&mut io::stdout().lock(), message, is_verbose)
    }
}

fn write_to(out: &mut dyn Write, message: &Message, is_verbose: bool) -> io::Result<()> {
    if is_verbose {
        write!(out, "{} ", message.topic)?;
    }
    out.write_all(&message.payload)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Sleeps between wakes for ever, on each new connection again. Does nothing without a time.
async fn sleep_and_wake(client: &Client, arguments: &SubscribeArgs) -> ClientError {
    let Some(time) = arguments.sleep else { return std::future::pending().await };
    // A lost PINGREQ is repeated in time.
    let connection = &arguments.connection;
    let announced = (time + connection.retry * (u32::from(connection.retries) + 1)).min(SLEEP_MAX);
    let mut is_asleep = false;
    loop {
        let result = if is_asleep {
            sleep(time).await;
            client.wake().await
        } else {
            client.sleep(announced).await
        };
        match result.map_err(|error| (error.kind().clone(), error)) {
            Ok(()) => is_asleep = true,
            Err((ClientErrorKind::Lost(_) | ClientErrorKind::NotAsleep, _)) => is_asleep = false,
            Err((_, error)) => return error,
        }
    }
}
