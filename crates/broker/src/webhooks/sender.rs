use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{StatusCode, Uri};
use ring::hmac::{self, Context, Key};

use super::queue::Queue;
use crate::auth::WebClient;
use crate::config::{ServiceUrl, Webhook};

/// Sends the events of one webhook.
pub(super) struct Sender {
    queue: Arc<Queue>,
    url: ServiceUrl,
    client: WebClient,
    /// Key of the signatures.
    secret: Option<Key>,
    /// The last attempt has failed.
    is_failing: bool,
}

/// Why a request has failed.
struct Failure {
    cause: String,
    /// Another attempt may succeed.
    is_passing: bool,
}

impl Sender {
    /// # Errors
    /// The URL or the file of the key is unusable; the text names the configuration's key.
    pub(super) fn new(webhook: &Webhook, queue: Arc<Queue>) -> Result<Self, String> {
        let Webhook { url, secret_file, .. } = webhook;
        url.expose().parse::<Uri>().map_err(|error| format!("url: {error}"))?;
        let secret = secret_file.as_ref().map(|path| {
            let wrong = |reason: String| format!("secret_file: {}: {reason}", path.display());
            let text = tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX)
                .map_err(|error| wrong(error.to_string()))?;
            let key = text.trim_ascii_end();
            if key.is_empty() { Err(wrong("is empty".to_owned())) } else { Ok(Key::new(hmac::HMAC_SHA256, key)) }
        });
        let client = WebClient::new(url, None)?;
        Ok(Self { queue, url: url.clone(), client, secret: secret.transpose()?, is_failing: false })
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Sends events until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        while let Some(events) = self.queue.next().await {
            let body = Bytes::from(format!("[{}]", events.join(",")));
            self.deliver(body, events.len()).await;
        }
    }

    /// Makes attempts until one succeeds, or no further one makes sense.
    async fn deliver(&mut self, body: Bytes, events: usize) {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let Err(Failure { cause, is_passing }) = self.post(body.clone()).await else {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(service = %self.url, "the webhook takes events again");
                }
                return;
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::warn!(service = %self.url, %cause, "the webhook takes no events");
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

    /// Makes one attempt. Each has a signature with its own time.
    async fn post(&self, body: Bytes) -> Result<(), Failure> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = self.secret.as_ref().map(|secret| signature(secret, time, &body));
        match self.client.post(self.url.expose(), body, signature.as_deref()).await {
            Ok((status, _)) if status.is_success() => Ok(()),
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
