use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenbin_client::{Client, ClientEvent, ClientOptions, Reconnect};
use tenbin_codec::{QoS, Subscription, SubscriptionOptions, TopicFilter};

use crate::LoadgenError;
use crate::run::clock::RunClock;

/// Subscriber to the broker's number of spooled receivers.
pub(super) struct SpoolingWatch {
    client: Client,
    heard: Arc<Mutex<Vec<Said>>>,
}

/// Time by the run's clock, and number of receivers.
pub(super) type Said = (u64, u64);

impl SpoolingWatch {
    pub(super) async fn begin(address: &str, id: String, filter: TopicFilter) -> Result<Self, LoadgenError> {
        let clock = RunClock::new(0);
        let failed = |error| LoadgenError::connect(address, error);
        let options = ClientOptions::new(address, id).reconnect(Reconnect::Never);
        let (client, mut events) = Client::connect(options).await.map_err(failed)?;
        let options = SubscriptionOptions::at(QoS::AtMostOnce);
        // A broker may refuse the subscription; then no numbers arrive.
        let _ = client.subscribe(vec![Subscription { filter, options }]).await.map_err(failed)?;
        let heard = Arc::default();
        let hearing: Arc<Mutex<Vec<Said>>> = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let ClientEvent::Message(message) = event else { continue };
                let number = std::str::from_utf8(&message.payload).ok().and_then(|text| text.trim().parse().ok());
                if let Some(number) = number {
                    let said = (clock.at_ns(message.received_at), number);
                    hearing.lock().unwrap_or_else(PoisonError::into_inner).push(said);
                }
            }
        });
        Ok(Self { client, heard })
    }

    /// All received numbers.
    pub(super) async fn end(self) -> Vec<Said> {
        let _ = self.client.disconnect().await;
        std::mem::take(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Time from the switch until the broker first reported at least this number of spooled receivers.
pub(super) fn time_until(said: &[Said], slow_from_ns: u64, receivers: u64) -> Option<Duration> {
    let reached = said.iter().find(|(at_ns, count)| *at_ns >= slow_from_ns && *count >= receivers);
    reached.map(|(at_ns, _)| Duration::from_nanos(at_ns - slow_from_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spooling_reports_before_the_switch_are_ignored() {
        let said = [(5, 9), (10, 0), (12, 1), (15, 3)];
        let until = |receivers| time_until(&said, 10, receivers).map(|time| time.as_nanos());
        assert_eq!((until(1), until(3), until(4)), (Some(2), Some(5), None));
    }
}
