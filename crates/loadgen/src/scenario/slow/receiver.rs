use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenbin_client::{Client, ClientEvent, ClientOptions, Events, Reconnect};
use tenbin_codec::{QoS, Subscription, SubscriptionOptions, TopicFilter};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::payload::Stamp;
use crate::{Clock, Ledger, LoadgenError, Receipt};

/// A connected and subscribed receiver.
pub(super) struct Receiver {
    id: String,
    address: String,
    client: Client,
    /// Taken by the task.
    events: Option<Events>,
    task: Option<JoinHandle<Received>>,
}

/// Record of one receiver.
pub(super) struct Received {
    /// First copies in the order of arrival: sequence number, and time by the run's clock.
    pub(super) arrivals: Vec<(u64, u64)>,
    pub(super) ledger: Ledger,
    /// First copies that arrived behind a later message.
    pub(super) out_of_order: u64,
    /// One more than the highest sequence number that arrived.
    next: u64,
}

/// Limit on a receiver's reading rate.
#[derive(Debug, Clone)]
pub(super) struct Throttle {
    /// Beginning of the limit, by the run's clock.
    pub(super) from_ns: u64,
    /// Time per message; `None` to read nothing.
    pub(super) each: Option<Duration>,
    /// Whether the limit is lifted.
    pub(super) is_over: watch::Receiver<bool>,
}

impl Receiver {
    /// Connects with a session that outlives the connection, and subscribes.
    ///
    /// A receiver that will become slow has a client queue of one message, so that its backlog stays in the socket.
    pub(super) async fn join(
        address: &str,
        id: String,
        filter: &TopicFilter,
        is_slow: bool,
    ) -> Result<Self, LoadgenError> {
        // No Keep Alive: a PINGRESP would wait behind all messages that a slow receiver has not read.
        let options = ClientOptions::new(address, &id)
            .session_expiry(SESSION_EXPIRY)
            .keep_alive(Duration::ZERO)
            .reconnect(Reconnect::Never)
            .queue(if is_slow { 1 } else { QUEUE });
        let failed = |reason: String| LoadgenError::connect(address, format!("{id}: {reason}"));
        let (client, events) = Client::connect(options).await.map_err(|error| failed(error.to_string()))?;
        let options = SubscriptionOptions::at(QoS::AtLeastOnce);
        let granted = client.subscribe(vec![Subscription { filter: filter.clone(), options }]).await;
        match granted.map_err(|error| failed(error.to_string()))?.first() {
            Some(granted) if granted.byte() == QoS::AtLeastOnce.bits() => {}
            granted => return Err(failed(format!("the subscription at QoS 1 was answered with {granted:?}"))),
        }
        Ok(Self { id, address: address.to_owned(), client, events: Some(events), task: None })
    }

    /// Starts to receive the `messages` messages of this run; `count` sums over all receivers of this kind.
    pub(super) fn receive(
        &mut self,
        clock: Clock,
        run: u64,
        messages: u64,
        throttle: Option<Throttle>,
        count: Arc<AtomicU64>,
    ) {
        let events = self.events.take().expect("it begins once");
        let received = Received::new(messages);
        self.task = Some(tokio::spawn(received.take(events, clock, run, throttle, count)));
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether the receiver ended unexpectedly, as after a lost connection.
    pub(super) fn has_ended(&self) -> bool {
        self.task.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Disconnects and ends the session, so that the broker drops its remaining messages.
    pub(super) async fn end(self) -> Received {
        // Fails without a connection, which is fine.
        let _ = self.client.disconnect().await;
        if let Ok((client, _)) = Client::connect(ClientOptions::new(self.address, self.id)).await {
            let _ = client.disconnect().await;
        }
        self.task.expect("it has begun").await.expect("the task does not panic")
    }
}

impl Received {
    /// An empty record of a run with `messages` messages.
    pub(super) fn new(messages: u64) -> Self {
        let ledger = Ledger::new(usize::try_from(messages).expect("a million at most"));
        Self { arrivals: Vec::new(), ledger, out_of_order: 0, next: 0 }
    }

    async fn take(
        mut self,
        mut events: Events,
        clock: Clock,
        run: u64,
        mut throttle: Option<Throttle>,
        count: Arc<AtomicU64>,
    ) -> Self {
        while let Some(event) = events.recv().await {
            let ClientEvent::Message(message) = event else { continue };
            let Some(stamp) = Stamp::decode_any(&message.payload).filter(|stamp| stamp.run == run) else { continue };
            if self.add(stamp.sequence, clock.at_ns(message.received_at)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(throttle) = &mut throttle {
                throttle.wait(clock).await;
            }
        }
        self
    }

    /// Records an arrival; returns whether it is the first copy.
    fn add(&mut self, sequence: u64, received_ns: u64) -> bool {
        let is_first = self.ledger.receive(sequence) == Receipt::First;
        if is_first {
            self.out_of_order += u64::from(self.next > sequence);
            self.next = self.next.max(sequence + 1);
            self.arrivals.push((sequence, received_ns));
        }
        is_first
    }
}

impl Throttle {
    /// Waits, after a message, until the next one may be read.
    async fn wait(&mut self, clock: Clock) {
        if clock.now_ns() < self.from_ns || *self.is_over.borrow() {
            return;
        }
        let next = self.each.map(|each| Instant::now() + each);
        tokio::select! {
            () = async { sleep_until(next.expect("checked")).await }, if next.is_some() => {}
            // An error means that the run has ended.
            _ = self.is_over.wait_for(|is_over| *is_over) => {}
        }
    }
}

/// Session Expiry Interval after a lost connection.
const SESSION_EXPIRY: Duration = Duration::from_secs(600);

/// Length of a normal receiver's client queue.
const QUEUE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_out_of_order_messages_are_counted() {
        let mut received = Received::new(6);
        let first = [0, 3, 1, 3, 2, 4, 9].map(|sequence| received.add(sequence, 7));
        assert_eq!(first, [true, true, true, false, true, true, false]);
        assert_eq!((received.out_of_order, received.arrivals.len()), (2, 5));
        let totals = received.ledger.totals();
        assert_eq!((totals.lost, totals.duplicated, totals.unknown), (1, 1, 1));
    }

    #[tokio::test]
    async fn slow_receiver_waits_from_switch_until_lifted() {
        let (over, is_over) = watch::channel(false);
        let clock = Clock::start();
        let hour = Duration::from_secs(3600);
        let at = |from_ns, each| Throttle { from_ns, each, is_over: is_over.clone() };
        at(u64::MAX, Some(hour)).wait(clock).await;

        let begun = Instant::now();
        at(0, Some(Duration::from_millis(30))).wait(clock).await;
        assert!(begun.elapsed() >= Duration::from_millis(30));

        for each in [Some(hour), None] {
            over.send_replace(false);
            let mut throttle = at(0, each);
            let waiting = tokio::spawn(async move { throttle.wait(clock).await });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            over.send_replace(true);
            waiting.await.unwrap();
        }
    }
}
