//! Exchange of MQTT packets with the broker.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use tenbin_client::{
    Client, ClientEvent, ClientOptions, DisconnectReason, Events, Message, QoS, ReasonCode, Reconnect, Subscription,
    SubscriptionOptions, TopicFilter, Transport,
};
use tokio::time::{Instant, timeout_at};

use crate::args::ExplainArgs;
use crate::error::ExplainError;
use crate::reports::Reports;

/// Subscription to the broker's reports on a group.
pub(crate) struct Listener {
    client: Client,
    events: Events,
    /// Topic prefix of the reports on the group, or on all groups of its name.
    prefix: String,
    group: String,
    has_filter: bool,
    seconds: u32,
    /// Reports received so far, by the filter as encoded in the topic.
    reports: BTreeMap<String, Reports>,
    /// Version that the broker reports.
    version: Option<String>,
}

impl Listener {
    pub(crate) async fn connect(args: &ExplainArgs, transport: Transport) -> Result<Self, ExplainError> {
        let mut options = ClientOptions::new(args.address(), "").transport(transport).reconnect(Reconnect::Never);
        if let (Some(user), Some(path)) = (&args.user, &args.password_file) {
            let content = fs::read_to_string(path).map_err(|error| ExplainError::PasswordFile(path.clone(), error))?;
            options = options.credentials(user.as_str(), content.lines().next().unwrap_or_default());
        }
        let (client, events) = Client::connect(options).await?;
        let level = args.filter.as_ref().map_or_else(|| "+".to_owned(), TopicFilter::to_level);
        let filter = format!("$SYS/share/{}/{level}/+", args.group);
        let listener = Self {
            client,
            events,
            prefix: format!("$SYS/share/{}/", args.group),
            group: format!(
                "$share/{}/{}",
                args.group,
                args.filter.as_ref().map_or("…", |filter| filter.text().as_str())
            ),
            has_filter: args.filter.is_some(),
            seconds: args.wait.get(),
            reports: BTreeMap::new(),
            version: None,
        };
        // Distinguishes another broker from a missing group. The subscription may be refused.
        listener.subscribe(VERSION).await?;
        match listener.subscribe(&filter).await? {
            reason if !reason.is_error() => Ok(listener),
            ReasonCode::NotAuthorized => Err(ExplainError::NotAuthorized { filter }),
            reason => Err(ExplainError::Refused(reason)),
        }
    }

    async fn subscribe(&self, filter: &str) -> Result<ReasonCode, ExplainError> {
        let filter =
            TopicFilter::try_from(filter).map_err(|_| ExplainError::Refused(ReasonCode::TopicFilterInvalid))?;
        let options = SubscriptionOptions::at(QoS::AtMostOnce);
        let reasons = self.client.subscribe(vec![Subscription { filter, options }]).await?;
        Ok(reasons.first().copied().unwrap_or(ReasonCode::UnspecifiedError))
    }

    /// Waits for the first reports: on the requested filter, or on all filters of the group's name.
    pub(crate) async fn first(&mut self) -> Result<Vec<Reports>, ExplainError> {
        let mut until = Instant::now() + Duration::from_secs(self.seconds.into());
        let mut all = BTreeMap::new();
        while let Ok(event) = timeout_at(until, self.events.recv()).await {
            if let Some((level, reports)) = self.take(event)? {
                if all.insert(level, reports).is_none() && self.has_filter {
                    break;
                }
                // The broker reports on the filters one after the other.
                until = until.min(Instant::now() + OTHERS);
            }
        }
        if !all.is_empty() {
            return Ok(all.into_values().collect());
        }
        Err(match self.version.take() {
            Some(version) if version.starts_with("tenbin") => ExplainError::NoSuchGroup { group: self.group.clone() },
            Some(version) => ExplainError::NotTenbin { version },
            None => ExplainError::Nothing { seconds: self.seconds },
        })
    }

    /// Waits for the next complete report on one filter.
    pub(crate) async fn next(&mut self) -> Result<Reports, ExplainError> {
        loop {
            let event = self.events.recv().await;
            if let Some((_, reports)) = self.take(event)? {
                return Ok(reports);
            }
        }
    }

    pub(crate) async fn disconnect(self) {
        // All reports were read, so an error does not matter.
        let _ = self.client.disconnect().await;
    }

    /// Handles an event. Returns `Some` when it completes the reports on one filter.
    fn take(&mut self, event: Option<ClientEvent>) -> Result<Option<(String, Reports)>, ExplainError> {
        match event {
            Some(ClientEvent::Message(message)) => self.take_message(&message),
            Some(ClientEvent::Disconnected { reason }) => Err(ended(Some(reason))),
            None => Err(ended(None)),
            Some(_) => Ok(None),
        }
    }

    fn take_message(&mut self, message: &Message) -> Result<Option<(String, Reports)>, ExplainError> {
        let topic = String::from_utf8_lossy(message.topic.as_bytes());
        if topic == VERSION {
            self.version = Some(String::from_utf8_lossy(&message.payload).into_owned());
            return Ok(None);
        }
        let Some((level, report)) = topic.strip_prefix(&self.prefix).and_then(|rest| rest.split_once('/')) else {
            return Ok(None);
        };
        let reports = self.reports.entry(level.to_owned()).or_default();
        let is_complete = reports.take(report, &message.payload).map_err(ExplainError::NotUnderstood)?;
        Ok(if is_complete { self.reports.remove_entry(level) } else { None })
    }
}

fn ended(reason: Option<DisconnectReason>) -> ExplainError {
    ExplainError::Disconnected(reason)
}

const VERSION: &str = "$SYS/broker/version";
/// Longest wait for other filters of the same name after the first one.
const OTHERS: Duration = Duration::from_millis(300);
