//! The broker of a node that leads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenbin_broker::{Broker, BrokerBuilder, Lease, NodeAdmin, OpenSockets};
use tenbin_sn_gateway::StateCopy;
use tenbin_store::mirror::Mirror;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{Event, Events};

/// Makes builders of this node's brokers.
pub(crate) trait MakeBroker: Send + Sync {
    /// A builder with the newest configuration that can be used. The node adds mirror, lease and sockets.
    fn builder(&self, mirror: &Arc<Mirror>) -> BrokerBuilder;

    /// Why the configuration file cannot be used, as of the last look.
    fn fault(&self) -> Option<String>;
}

pub(super) type MakeBuilder = Arc<dyn MakeBroker>;

/// Passes on to the mirror what gateways of MQTT-SN write below the data directory.
pub(crate) fn state_copy(mirror: &Arc<Mirror>, directory: &Path) -> Arc<dyn StateCopy> {
    Arc::new(StatesInMirror { mirror: Arc::clone(mirror), directory: directory.to_owned() })
}

struct StatesInMirror {
    mirror: Arc<Mirror>,
    directory: PathBuf,
}

impl StatesInMirror {
    fn below<'a>(&self, path: &'a Path) -> Option<&'a str> {
        path.strip_prefix(&self.directory).ok()?.to_str()
    }
}

impl StateCopy for StatesInMirror {
    fn replaced(&self, path: &Path, content: &[u8]) {
        if let Some(path) = self.below(path) {
            self.mirror.replaced_soon(path, content);
        }
    }

    fn wrote(&self, path: &Path, offset: u64, bytes: &[u8]) {
        if let Some(path) = self.below(path) {
            self.mirror.wrote(path, offset, bytes);
        }
    }
}

/// A broker that was opened, or is being opened.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) mirror: Arc<Mirror>,
    lease: Lease,
    /// The last lease that the machine has set.
    until: Option<Duration>,
    is_serving: bool,
    state: ServingState,
}

#[derive(Debug)]
enum ServingState {
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
        admin: Option<Arc<NodeAdmin>>,
        runtime: &Handle,
        events: &Events,
    ) -> Self {
        let lease = Lease::not_begun();
        let (make, of_broker, its_lease) = (Arc::clone(make), Arc::clone(&mirror), lease.clone());
        let events = events.clone();
        runtime.spawn(async move {
            // It reads files.
            let started = match tokio::task::spawn_blocking(move || (make.builder(&of_broker), of_broker)).await {
                Ok((builder, mirror)) => {
                    let builder = builder.mirror(mirror).lease(its_lease).sockets(sockets);
                    match admin {
                        Some(admin) => builder.node_admin(admin),
                        None => builder,
                    }
                    .start()
                    .await
                }
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            events.send(Event::BrokerStarted(started.map(Arc::new).map_err(|error| error.to_string())));
        });
        Self {
            mirror,
            lease,
            until: Some(Duration::ZERO),
            is_serving: false,
            state: ServingState::Starting { is_closing: false },
        }
    }

    /// Takes the started broker. False: it is to be closed.
    pub(super) fn started(&mut self, broker: Arc<Broker>) -> bool {
        let is_closing = matches!(self.state, ServingState::Starting { is_closing: true });
        self.state = ServingState::Open(broker);
        !is_closing
    }

    pub(super) fn is_closing(&self) -> bool {
        !matches!(self.state, ServingState::Open(_) | ServingState::Starting { is_closing: false })
    }

    pub(super) fn broker(&self) -> Option<&Arc<Broker>> {
        match &self.state {
            ServingState::Open(broker) => Some(broker),
            ServingState::Starting { .. } | ServingState::Closing => None,
        }
    }

    pub(super) fn serve(&mut self) {
        self.is_serving = true;
        if let Some(broker) = self.broker() {
            broker.unfence();
            broker.show_in_admin();
        }
        self.apply();
    }

    /// Ends the clients of a broker that may not act. `servers`: another node for them, by the names of listeners.
    pub(super) fn fence(&self, servers: BTreeMap<String, String>) {
        if let Some(broker) = self.broker() {
            broker.fence(servers);
        }
    }

    /// Sets until when the broker may act. Returns for how long it might not, if the lease had ended.
    pub(super) fn set_lease(&mut self, until: Option<Duration>) -> Option<Duration> {
        let before = std::mem::replace(&mut self.until, until);
        if !self.is_serving {
            return None;
        }
        self.apply();
        let now = Lease::now();
        let goes_on = until.is_none_or(|until| until > now);
        // A broker that has just begun to serve had none before.
        let ended = before.filter(|before| goes_on && !before.is_zero());
        ended.and_then(|ended| now.checked_sub(ended)).filter(|time| !time.is_zero())
    }

    fn apply(&self) {
        match self.until {
            Some(until) => self.lease.extend(until),
            None => self.lease.extend_without_end(),
        }
    }

    /// Closes the broker. Its end is [`Event::BrokerClosed`]. `servers`: as of [`Self::fence`].
    pub(super) fn close(&mut self, servers: BTreeMap<String, String>, runtime: &Handle, events: &Events) {
        let broker = match std::mem::replace(&mut self.state, ServingState::Closing) {
            ServingState::Starting { .. } => {
                runtime.spawn(end(Arc::clone(&self.mirror)));
                self.state = ServingState::Starting { is_closing: true };
                return;
            }
            ServingState::Closing => return,
            ServingState::Open(broker) => broker,
        };
        self.lease.end();
        broker.hide_from_admin();
        let (mirror, events) = (Arc::clone(&self.mirror), events.clone());
        runtime.spawn(async move {
            // First: commits that wait for the copy fail.
            end(mirror).await;
            let broker = alone(broker).await;
            if broker.depose(servers).await {
                events.send(Event::BrokerClosed);
            } else {
                // Nothing may write to the directory any more, and something does.
                tracing::error!("ending the process: its broker does not end");
                std::process::abort();
            }
        });
    }
}

/// Ends the mirror. Its operation at the disk ends first: if it hangs, the process ends.
async fn end(mirror: Arc<Mirror>) {
    match timeout(END_WITHIN, tokio::task::spawn_blocking(move || mirror.end())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        Err(_) => {
            tracing::error!("ending the process: its disk does not answer");
            std::process::abort();
        }
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

/// How long a broker's last operation at the disk may take.
const END_WITHIN: Duration = Duration::from_secs(5);
