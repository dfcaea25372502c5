use std::io::{self, IsTerminal as _, Write};
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use clap::Args;
use tenbin_client::{
    AcknowledgeMode, Client, ClientEvent, Events, LoadReporter, Message, QoS, Reconnect, Rejection, RetainHandling,
    Subscription, SubscriptionOptions, TopicFilter,
};
use tenbin_kit::cli;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use super::{ConnectionArgs, MqttError, leave, qos, time};

/// Prints the messages of subscriptions, until SIGINT or SIGTERM.
///
/// With --group it is a member of a share group. With --service it is a worker: it takes so long for each message, one after
/// the other, reports its load, and acknowledges a message when it is done with it. SIGTERM then lets it finish its messages first.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct SubscribeArgs {
    /// Topic Filter; repeat the option for more
    #[arg(short, long, value_name = "FILTER", required = true, value_parser = filter)]
    topic: Vec<TopicFilter>,
    /// Share name: subscribes to $share/NAME/FILTER
    #[arg(short, long, value_name = "NAME", value_parser = group)]
    group: Option<String>,
    /// Greatest QoS of deliveries [default: 0, or 1 with --service]
    #[arg(short, long, value_name = "QOS", value_parser = qos)]
    qos: Option<QoS>,
    /// Time that it works on each message, such as 20ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    service: Option<Duration>,
    /// Part of the messages that it rejects, such as 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "service")]
    reject: Option<f64>,
    /// Ends after this number of messages [default: never]
    #[arg(short = 'C', long, value_name = "COUNT")]
    count: Option<NonZeroU64>,
    /// Seconds without a message after which it ends with exit code 1
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = super::seconds)]
    timeout: Option<Duration>,
    /// Prints the topic before each payload
    #[arg(short, long)]
    verbose: bool,
    /// Prints no line break behind a payload
    #[arg(short = 'N')]
    no_line_break: bool,
    /// Prints no retained messages that were there before the subscription
    #[arg(short = 'R')]
    no_retained: bool,
    /// Goes on with the session of this Client Identifier, and leaves it at the broker
    #[arg(short = 'c', long, requires = "id")]
    disable_clean_session: bool,
    /// Seconds for which the broker keeps the session without a connection [default: with -c for ever]
    #[arg(short = 'x', long, value_name = "SECONDS")]
    session_expiry_interval: Option<u32>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(super) async fn run(arguments: &SubscribeArgs) -> Result<(), MqttError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(stop);
    let expiry = if arguments.disable_clean_session { u32::MAX } else { 0 };
    let expiry = arguments.session_expiry_interval.unwrap_or(expiry);
    let mut options = arguments.connection.options()?;
    options = options
        .clean_start(!arguments.disable_clean_session)
        .session_expiry(Duration::from_secs(expiry.into()))
        .reconnect(Reconnect::default());
    let reporter = LoadReporter::new(REPORT_EVERY);
    if arguments.service.is_some() {
        options =
            options.acknowledge(AcknowledgeMode::Manual).load_reporter(reporter.clone()).concurrency(NonZeroU16::MIN);
    }
    let (client, events) = tokio::select! {
        connected = Client::connect(options) => connected?,
        () = &mut stop => return Ok(()),
    };
    let mut member = Member { arguments, client, reporter, left: arguments.count.map(NonZeroU64::get), rejected: 0.0 };
    let done = tokio::select! {
        done = member.receive(events) => done,
        () = &mut stop => Ok(()),
    };
    let Member { client, reporter, .. } = member;
    if arguments.service.is_some() {
        reporter.drain();
    }
    leave(client).await;
    done
}

/// A client that prints messages, or works on them.
struct Member<'a> {
    arguments: &'a SubscribeArgs,
    client: Client,
    reporter: LoadReporter,
    /// Messages before the end.
    left: Option<u64>,
    /// Part of a message that is to be rejected, so far.
    rejected: f64,
}

impl Member<'_> {
    /// Subscribes, and takes messages until there were enough of them.
    async fn receive(&mut self, mut events: Events) -> Result<(), MqttError> {
        self.subscribe().await?;
        let mut until = self.arguments.timeout.map(|timeout| Instant::now() + timeout);
        while self.left != Some(0) {
            let timed_out = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = events.recv() => event,
                () = timed_out => return Err(MqttError::TimedOut(self.arguments.timeout.unwrap_or_default())),
            };
            match event {
                Some(ClientEvent::Message(message)) => {
                    self.take(&message).await?;
                    until = self.arguments.timeout.map(|timeout| Instant::now() + timeout);
                }
                Some(ClientEvent::Disconnected { reason }) => {
                    cli::say("tenbin", &format_args!("connection lost: {reason}"));
                }
                Some(ClientEvent::SubscriptionLost { filter, reason }) => {
                    return Err(MqttError::Refused(format!("filter {}", filter.text()), reason));
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    async fn subscribe(&self) -> Result<(), MqttError> {
        let arguments = self.arguments;
        let default = if arguments.service.is_some() { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        let mut subscriptions = Vec::new();
        for filter in &arguments.topic {
            let shared = arguments.group.as_ref().map(|group| format!("$share/{group}/{}", filter.text()));
            let filter = match shared {
                Some(text) => {
                    TopicFilter::try_from(&text[..]).map_err(|error| MqttError::Option("--topic", error.to_string()))?
                }
                None => filter.clone(),
            };
            let retain = if arguments.no_retained { RetainHandling::Never } else { RetainHandling::Always };
            let options = SubscriptionOptions {
                qos: arguments.qos.unwrap_or(default),
                retain_handling: retain,
                ..SubscriptionOptions::default()
            };
            subscriptions.push(Subscription { filter, options });
        }
        let names: Vec<_> = subscriptions.iter().map(|subscription| subscription.filter.text().to_string()).collect();
        let reasons = self.client.subscribe(subscriptions).await?;
        match reasons.iter().zip(names).find(|(reason, _)| reason.is_error()) {
            Some((reason, name)) => Err(MqttError::Refused(format!("filter {name}"), *reason)),
            None => Ok(()),
        }
    }

    async fn take(&mut self, message: &Message) -> Result<(), MqttError> {
        let arguments = self.arguments;
        if arguments.no_retained && message.retain {
            return Ok(()); // MQTT 3.1.1 cannot ask for none
        }
        let Some(service) = arguments.service else {
            self.print(message)?;
            return Ok(self.count());
        };
        let processing = self.reporter.start();
        sleep(service).await;
        self.rejected += arguments.reject.unwrap_or(0.0);
        if self.rejected >= 1.0 {
            self.rejected -= 1.0;
            self.client.reject(message, Rejection::default());
            cli::say("tenbin", &format_args!("rejected: {}", message.topic));
        } else {
            self.print(message)?;
            self.client.acknowledge(message);
        }
        processing.finish();
        Ok(self.count())
    }

    fn count(&mut self) {
        self.left = self.left.map(|left| left.saturating_sub(1));
    }

    /// Prints a message. A program or a file gets the payload as it is.
    fn print(&self, message: &Message) -> io::Result<()> {
        match io::stdout().is_terminal() {
            true => self.print_to(&mut cli::out(), message),
            false => self.print_to(&mut io::stdout().lock(), message),
        }
    }

    fn print_to(&self, out: &mut dyn Write, message: &Message) -> io::Result<()> {
        if self.arguments.verbose {
            write!(out, "{} ", message.topic)?;
        }
        out.write_all(&message.payload)?;
        if !self.arguments.no_line_break {
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}

/// Interval of load reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);

fn filter(text: &str) -> Result<TopicFilter, String> {
    TopicFilter::try_from(text).map_err(|error| error.to_string())
}

fn group(name: &str) -> Result<String, String> {
    match name.is_empty() || name.contains(['/', '+', '#']) {
        true => Err("is no share name: it is not empty and without /, + and #".to_owned()),
        false => Ok(name.to_owned()),
    }
}

/// A part of 1.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|number| (0.0..=100.0).contains(number))
        .map(|number| number / 100.0)
        .ok_or_else(|| "want 0% to 100%".to_owned())
}
