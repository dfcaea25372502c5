use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{StatusCode, Uri};
use ring::hmac::{self, Context, Key};

use crate::auth::WebClient;
use crate::config::{ServiceUrl, Webhook};
use crate::event_queue::EventQueue;

/// Sends the events of one service.
pub(super) struct Sender {
    queue: Arc<EventQueue>,
    /// URL of the service, for the log.
    service: ServiceUrl,
    /// URL of the requests.
    url: String,
    client: WebClient,
    /// Key of the signatures.
    secret: Option<Key>,
    content: Content,
    /// The last attempt has failed.
    is_failing: bool,
}

/// Form of the requests to a service, and of its answers.
pub(super) struct Content {
    /// Names of service and events, for the log.
    pub(super) names: [&'static str; 2],
    /// Makes the content of a request.
    pub(super) body: fn(&[String]) -> String,
    /// Number of events that the service has not taken, by its answer to a request that has succeeded.
    pub(super) rejected: fn(&[u8]) -> usize,
}

/// Events of a webhook.
const EVENTS: Content =
    Content { names: ["webhook", "events"], body: |events| format!("[{}]", events.join(",")), rejected: |_| 0 };

/// Why a request has failed.
struct Failure {
    cause: String,
    /// Another attempt may succeed.
    is_passing: bool,
}

impl Sender {
    /// # Errors
    /// The URL or the file of the key is unusable; the text names the configuration's key.
    pub(super) fn of_webhook(webhook: &Webhook, queue: Arc<EventQueue>) -> Result<Self, String> {
        let Webhook { url, secret_file, .. } = webhook;
        let secret = secret_file.as_ref().map(|path| {
            let wrong = |reason: String| format!("secret_file: {}: {reason}", path.display());
            let text = tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX)
                .map_err(|error| wrong(error.to_string()))?;
            let key = text.trim_ascii_end();
            if key.is_empty() { Err(wrong("is empty".to_owned())) } else { Ok(Key::new(hmac::HMAC_SHA256, key)) }
        });
        let sender = Self::new(url, url.expose().to_owned(), queue, EVENTS).map_err(|error| format!("url: {error}"))?;
        Ok(Self { secret: secret.transpose()?, ..sender })
    }

    /// A sender without signatures.
    ///
    /// # Errors
    /// The URL is unusable.
    pub(super) fn new(
        service: &ServiceUrl,
        url: String,
        queue: Arc<EventQueue>,
        content: Content,
    ) -> Result<Self, String> {
        url.parse::<Uri>().map_err(|error| error.to_string())?;
        let (client, service) = (WebClient::new(service, None)?, service.clone());
        Ok(Self { queue, service, url, client, secret: None, content, is_failing: false })
    }

    pub(super) fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

    /// Sends events until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        while let Some(events) = self.queue.next().await {
            let body = Bytes::from((self.content.body)(&events));
            self.deliver(body, events.len()).await;
        }
    }

    /// Makes attempts until one succeeds, or no further one makes sense.
    async fn deliver(&mut self, body: Bytes, events: usize) {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let [service, name] = self.content.names;
            let Failure { cause, is_passing } = match self.post(body.clone()).await {
                Err(failure) => failure,
                Ok(answer) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(service = %self.service, "the {service} takes {name} again");
                    }
                    let rejected = (self.content.rejected)(&answer).min(events);
                    self.queue.drop_events(rejected);
                    self.queue.count_taken(events - rejected);
                    return;
                }
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::warn!(service = %self.service, %cause, "the {service} takes no {name}");
            }
            if !is_passing || attempt == ATTEMPTS || self.queue.is_closed() {
                self.queue.drop_events(events);
                return;
            }
            // A broker that stops makes one more attempt at once.
            let _ = tokio::time::timeout(pause, self.queue.closed()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Makes one attempt, and returns the answer. Each has a signature with its own time.
    async fn post(&self, body: Bytes) -> Result<Bytes, Failure> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = self.secret.as_ref().map(|secret| signature(secret, time, &body));
        match self.client.post(&self.url, body, signature.as_deref()).await {
            Ok((status, answer)) if status.is_success() => Ok(answer),
            Ok((status, _)) => {
                let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
                let is_passing = status.is_server_error() || passing.contains(&status);
                Err(Failure { cause: format!("the answer is {status}"), is_passing })
            }
            Err(cause) => Err(Failure { cause, is_passing: true }),
        }
    }
}

/// Value of the header `Tenbin-Signature`.
fn signature(secret: &Key, time: u64, body: &[u8]) -> String {
    let mut context = Context::with_key(secret);
    context.update(format!("{time}.").as_bytes());
    context.update(body);
    format!("t={time},v1={}", tenbin_kit::digits::hexadecimal(context.sign().as_ref()))
}

/// Attempts for one batch of events.
const ATTEMPTS: u32 = 10;
/// Pause after the first failed attempt; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
