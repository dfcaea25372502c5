//! The broker of a node that leads.

use std::sync::Arc;
use std::time::Duration;

use tenbin_broker::{Broker, BrokerBuilder, Lease, OpenSockets};
use tenbin_store::mirror::Mirror;
use tokio::runtime::Handle;

use super::{Event, Events};

/// Makes a builder of this node's broker. The node adds mirror, lease and sockets.
pub(crate) type MakeBuilder = Arc<dyn Fn() -> BrokerBuilder + Send + Sync>;

/// A broker that was opened, or is being opened.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) mirror: Arc<Mirror>,
    lease: Lease,
    /// The last lease that the machine has set.
    until: Option<Duration>,
    is_serving: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Starting {
        /// It is to be closed as soon as it has started.
        is_closing: bool,
    },
    Open(Arc<Broker>),
    Closing,
}

impl Serving {
    /// Starts the broker with a lease that has not begun. Its end is [`Event::BrokerStarted`].
    pub(super) fn start(
        make: &MakeBuilder,
        mirror: Arc<Mirror>,
        sockets: OpenSockets,
        runtime: &Handle,
        events: &Events,
    ) -> Self {
        let lease = Lease::not_begun();
        let (make, of_broker, its_lease) = (Arc::clone(make), Arc::clone(&mirror), lease.clone());
        let events = events.clone();
        runtime.spawn(async move {
            // It reads files.
            let started = match tokio::task::spawn_blocking(move || make()).await {
                Ok(builder) => builder.mirror(of_broker).lease(its_lease).sockets(sockets).start().await,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            events.send(Event::BrokerStarted(started.map(Arc::new).map_err(|error| error.to_string())));
        });
        Self {
            mirror,
            lease,
            until: Some(Duration::ZERO),
            is_serving: false,
            state: State::Starting { is_closing: false },
        }
    }

    /// Takes the started broker. False: it is to be closed.
    pub(super) fn started(&mut self, broker: Arc<Broker>) -> bool {
        let is_closing = matches!(self.state, State::Starting { is_closing: true });
        self.state = State::Open(broker);
        !is_closing
    }

    pub(super) fn is_closing(&self) -> bool {
        !matches!(self.state, State::Open(_) | State::Starting { is_closing: false })
    }

    pub(super) fn broker(&self) -> Option<&Arc<Broker>> {
        match &self.state {
            State::Open(broker) => Some(broker),
            State::Starting { .. } | State::Closing => None,
        }
    }

    pub(super) fn serve(&mut self) {
        self.is_serving = true;
        if let Some(broker) = self.broker() {
            broker.unfence();
        }
        self.apply();
    }

    /// Ends the clients of a broker that may not act.
    pub(super) fn fence(&self, reference: Option<String>) {
        if let Some(broker) = self.broker() {
            broker.fence(reference);
        }
    }

    pub(super) fn set_lease(&mut self, until: Option<Duration>) {
        self.until = until;
        if self.is_serving {
            self.apply();
        }
    }

    fn apply(&self) {
        match self.until {
            Some(until) => self.lease.extend(until),
            None => self.lease.extend_without_end(),
        }
    }

    /// Closes the broker. Its end is [`Event::BrokerClosed`]. `reference`: another node, for its clients.
    pub(super) fn close(&mut self, reference: Option<String>, runtime: &Handle, events: &Events) {
        let broker = match std::mem::replace(&mut self.state, State::Closing) {
            State::Starting { .. } => {
                self.mirror.end();
                self.state = State::Starting { is_closing: true };
                return;
            }
            State::Closing => return,
            State::Open(broker) => broker,
        };
        self.lease.end();
        let (mirror, events) = (Arc::clone(&self.mirror), events.clone());
        runtime.spawn(async move {
            // First: commits that wait for the copy fail.
            if let Err(error) = tokio::task::spawn_blocking(move || mirror.end()).await {
                std::panic::resume_unwind(error.into_panic());
            }
            let broker = alone(broker).await;
            if broker.depose(reference).await {
                events.send(Event::BrokerClosed);
            } else {
                // Nothing may write to the directory any more, and something does.
                tracing::error!("ending the process: its broker does not end");
                std::process::abort();
            }
        });
    }
}

/// Waits until no other task uses the broker, such as a reload.
async fn alone(mut broker: Arc<Broker>) -> Broker {
    loop {
        match Arc::try_unwrap(broker) {
            Ok(broker) => return broker,
            Err(shared) => broker = shared,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
