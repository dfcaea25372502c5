use std::io::{self, IsTerminal as _, Write};
use std::num::{NonZeroU16, NonZeroU64};
use std::pin::{Pin, pin};
use std::time::Duration;

use clap::Args;
use tenbin_client::{
    AcknowledgeMode, Client, ClientEvent, Events, LoadReporter, Message, QoS, Reconnect, Rejection, RetainHandling,
    Subscription, SubscriptionOptions, TopicFilter,
};
use tenbin_kit::cli;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{ConnectionArgs, FAREWELL, MqttError, leave, qos, time};

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
    /// Seconds after which it ends with exit code 1
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
    let refused = |option, reason: &str| Err(MqttError::Option(option, reason.to_owned()));
    if arguments.reject.is_some() && !arguments.connection.protocol_version.is_v5() {
        return refused("--reject", "needs MQTT 5.0, which has Reason Codes");
    }
    if arguments.reject.is_some() && arguments.qos == Some(QoS::AtMostOnce) {
        return refused("--reject", "needs QoS 1 or 2");
    }
    if arguments.group.is_some() && arguments.topic.iter().any(|filter| filter.is_shared()) {
        return refused("--topic", "has $share/ already, so --group is one too many");
    }
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
    let done = member.receive(events, stop).await;
    leave(member.client).await;
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
    /// Subscribes, and takes messages until there were enough of them, or until `stop`.
    async fn receive(
        &mut self,
        mut events: Events,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), MqttError> {
        let filters = self.subscribe().await?;
        let until = self.arguments.timeout.map(|timeout| Instant::now() + timeout);
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
                () = &mut stop => return self.finish(events, filters).await,
            };
            match event {
                Some(ClientEvent::Message(message)) => {
                    if self.take_until(&message, &mut stop).await? {
                        return self.finish(events, filters).await;
                    }
                }
                Some(ClientEvent::Disconnected { reason }) => {
                    cli::say("tenbin", &format_args!("connection lost: {reason}"));
                }
                Some(ClientEvent::SubscriptionLost { filter, reason }) => {
                    return Err(MqttError::Refused(format!("filter {}", filter.text()), reason));
                }
                Some(_) => {}
                None => return Err(MqttError::Ended),
            }
        }
        Ok(())
    }

    /// Takes a message, also while `stop` comes. Returns whether it came.
    async fn take_until(
        &mut self,
        message: &Message,
        stop: &mut Pin<&mut impl Future<Output = ()>>,
    ) -> Result<bool, MqttError> {
        let reporter = self.reporter.clone();
        let mut taken = pin!(self.take(message));
        tokio::select! {
            done = &mut taken => done.map(|()| false),
            () = stop => {
                reporter.drain();
                taken.await.map(|()| true)
            }
        }
    }

    /// Asks for no more messages, and works on those that are here.
    async fn finish(&mut self, mut events: Events, filters: Vec<TopicFilter>) -> Result<(), MqttError> {
        if self.arguments.service.is_none() {
            return Ok(());
        }
        self.reporter.drain();
        let _ = timeout(FAREWELL, self.client.unsubscribe(filters)).await; // the connection may be lost
        while self.left != Some(0)
            && let Ok(event) = events.try_recv()
        {
            if let ClientEvent::Message(message) = event {
                self.take(&message).await?;
            }
        }
        Ok(())
    }

    /// Subscribes, and returns the filters.
    async fn subscribe(&self) -> Result<Vec<TopicFilter>, MqttError> {
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
        let filters: Vec<_> = subscriptions.iter().map(|subscription| subscription.filter.clone()).collect();
        let reasons = self.client.subscribe(subscriptions).await?;
        match reasons.iter().zip(&filters).find(|(reason, _)| reason.is_error()) {
            Some((reason, filter)) => Err(MqttError::Refused(format!("filter {}", filter.text()), *reason)),
            None => Ok(filters),
        }
    }

    async fn take(&mut self, message: &Message) -> Result<(), MqttError> {
        let arguments = self.arguments;
        if arguments.no_retained && message.retain {
            // MQTT 3.1.1 cannot ask for none.
            self.reporter.started();
            self.client.acknowledge(message);
            return Ok(());
        }
        let Some(service) = arguments.service else {
            self.print(message)?;
            self.count();
            return Ok(());
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
        self.count();
        Ok(())
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
