//! State that every part of a connection works with.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::{Packet, ReasonCode};
use tenbin_pending::PendingPeer;
use tenbin_session::{Connection, Delivery, PendingAck};

use super::door::Passage;
use super::end::End;
use super::hooked::{Hooked, client_of};
use super::output::Output;
use super::reason_strings::reason_string;
use super::references::References;
use super::stream::Stream;
use super::tcp_state::Ends;
use crate::auth::{Principal, Suspect};
use crate::config::Bridge;
use crate::hooks::HookSet;
use crate::lifecycle::BrokerState;
use crate::memory::ConnectedClient;
use crate::registry::{Lease, Place};
use crate::router::HeldKey;
use crate::values::{Bound, Origin, Peer};

/// Broker, client, protocol state and output of one connection.
///
/// The parts' methods take it as an argument. So each part has its own fields to itself, and the compiler checks that.
pub(super) struct Core {
    /// With the broker.
    pub(super) open: OpenConnection,
    pub(super) lease: Lease,
    /// Protocol state.
    pub(super) connection: Connection,
    pub(super) out: Output,
    /// Hooks, if they want any event; boxed, since mostly there are none.
    pub(super) hooks: Option<Box<Hooked>>,
    /// The client counts for its account.
    pub(super) _counted: ConnectedClient,
}

/// Why a connection ends before its client has logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MustEnd {
    /// It makes room for a newer one.
    Evicted,
    Stopping,
}

/// An open connection of this broker. Dropping it updates the counts, however its task ends.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) shared: Arc<BrokerState>,
    pub(super) peer: Peer,
    /// Whether it counts in the bounds of its peer's address.
    is_counted: bool,
    /// Whether it has a socket, which is a file descriptor.
    has_socket: bool,
    /// Whether the socket leads to a relay, which reads ahead of its client.
    is_relayed: bool,
    /// Its place among the clients that have not logged in; `None` once it has, or without a socket.
    pending: Option<Box<PendingPeer>>,
    /// How the connection came through its door; `None` without one.
    passage: Option<Box<Passage>>,
}

impl OpenConnection {
    /// Counts a new connection; `None` if there is no room for it. `is_counted`: the bounds of its address hold; they
    /// do not hold for a proxy. `has_socket`: it needs a file descriptor.
    pub(super) fn admitted(shared: &Arc<BrokerState>, peer: Peer, is_counted: bool, has_socket: bool) -> Option<Self> {
        let (now, address) = (Instant::now(), peer.address());
        let open = shared.admission.connections.fetch_add(1, Ordering::Relaxed);
        let sockets = open.saturating_sub(shared.admission.connections_in_memory.load(Ordering::Relaxed));
        // Gateways bound their clients themselves, which take no room of others.
        let is_full = |ending| has_socket && sockets >= shared.admission.connections_maximum.saturating_add(ending);
        let room = if is_full(ENDING_MAX) || shared.operations.is_stopping() {
            Err(Bound::Connections)
        } else {
            take_room(shared, address, is_counted, is_full(0), now)
        };
        let Err(bound) = room else {
            shared.operations.metrics.connections_opened.add(1);
            if !has_socket {
                shared.admission.connections_in_memory.fetch_add(1, Ordering::Relaxed);
            }
            // A peer without a socket would free none.
            let pending = has_socket.then(|| Box::new(shared.admission.pending.enter(address, now)));
            let shared = Arc::clone(shared);
            return Some(Self { shared, peer, is_counted, has_socket, is_relayed: false, pending, passage: None });
        };
        shared.admission.connections.fetch_sub(1, Ordering::Relaxed);
        shared.operations.metrics.connections_refused.add(1);
        if !shared.operations.is_stopping() {
            shared.operations.metrics.bounds.hit(bound, 1, now);
            tracing::info!(%peer, limit = bound.key(), "connection refused: limit reached");
        }
        None
    }

    /// Waits until the connection has to end before its client has logged in: for a newer one, or with the broker.
    pub(super) fn must_end(&self) -> impl Future<Output = MustEnd> + Send + use<> {
        let (stopped, evicted) =
            (self.shared.operations.stopped(), self.pending.as_ref().map(|pending| pending.evicted()));
        async move {
            let evicted = async {
                match evicted {
                    Some(evicted) => evicted.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stopped => MustEnd::Stopping,
                () = evicted => MustEnd::Evicted,
            }
        }
    }

    /// Counts and logs that the connection makes room for a newer one.
    pub(super) fn makes_room(&self) {
        self.shared.operations.metrics.connections_refused.add(1);
        tracing::info!(
            peer = %self.peer,
            "connection closed before its login, for another one: connections.maximum or the bound of its address is reached"
        );
    }

    /// Notes that the client has logged in.
    pub(super) fn is_logged_in(&mut self) {
        self.pending = None;
    }

    /// Counts the connection for the client that a proxy has told.
    ///
    /// # Errors
    /// The client's address has too many connections.
    pub(super) fn belongs_to(&mut self, peer: Peer) -> io::Result<()> {
        let now = Instant::now();
        if self.is_counted && self.peer == peer {
            return Ok(());
        }
        if enter_address(&self.shared, peer.address(), now) == Entered::Refused {
            self.shared.operations.metrics.connections_refused.add(1);
            let bound = bound_of_address(peer.address());
            self.shared.operations.metrics.bounds.hit(bound, 1, now);
            let error = format!("too many connections of {peer}: {}", bound.key());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, error));
        }
        self.leave(now);
        (self.peer, self.is_counted) = (peer, true);
        if let Some(pending) = &mut self.pending {
            pending.belongs_to(peer.address());
        }
        Ok(())
    }

    /// Notes that a relay passes the connection of `peer` on. `is_counted`: as in [`OpenConnection::admitted`].
    ///
    /// # Errors
    /// The client's address has too many connections.
    pub(super) fn relayed_from(&mut self, peer: Peer, is_counted: bool) -> io::Result<()> {
        self.is_relayed = true;
        if is_counted {
            return self.belongs_to(peer);
        }
        self.peer = peer;
        if let Some(pending) = &mut self.pending {
            pending.belongs_to(peer.address());
        }
        Ok(())
    }

    /// Notes that the relay takes messages by reference. The relay has passed its connection on already.
    pub(super) fn take_references(&mut self) {
        if let Some(passage) = &mut self.passage {
            passage.references = Some(References::default());
        }
    }

    /// Where the connection of a client is that may be sent to another node.
    pub(super) fn place(&self) -> Place {
        let has_door = self.passage.as_ref().is_some_and(|passage| passage.has_door());
        match self.references() {
            Some(_) => Place::AtFollower,
            None if has_door || !self.has_socket => Place::Stays,
            None => Place::MayMove,
        }
    }

    /// Present if the relay takes messages by reference.
    #[inline]
    pub(super) fn references(&self) -> Option<&References> {
        self.passage.as_ref()?.references.as_ref()
    }

    fn leave(&self, now: Instant) {
        if self.is_counted {
            self.shared.admission.addresses.leave(self.peer.address(), now);
        }
    }

    /// Keeps how the connection came through its door.
    pub(super) fn come_through(&mut self, passage: Passage) {
        self.passage = Some(Box::new(passage));
    }

    /// Whether the client's certificate still counts, if it has one.
    pub(super) fn is_trusted(&mut self) -> bool {
        self.passage.as_mut().is_none_or(|passage| passage.is_trusted())
    }

    /// Where the connection comes from, of which `stream` is the stream.
    pub(super) fn origin(&self, stream: &impl Stream) -> Origin {
        let direct = || Origin::direct(self.peer, stream.local_address(), stream.protocol());
        self.passage.as_ref().map_or_else(direct, |passage| passage.origin.clone())
    }

    /// The client for bans.
    pub(super) fn suspect<'a>(&self, principal: &'a Principal) -> Suspect<'a> {
        let origin = self.passage.as_ref().map(|passage| &passage.origin);
        let address = origin.map_or(self.peer, |origin| origin.peer).address();
        let certificate = origin.and_then(|origin| origin.certificate.as_ref()).map(|found| found.fingerprint);
        // A bridge of the broker has no address.
        let address = (!Bridge::is_listener(&principal.listener)).then_some(address);
        Suspect { address, certificate, ..Suspect::from(principal) }
    }

    /// Identity of the connection of `stream` in the kernel. A proxy's is its own, not the client's. None for a relayed
    /// client: the state of the relay's socket tells nothing about it.
    pub(super) fn ends(&self, stream: &impl Stream) -> Ends {
        if self.is_relayed {
            return Ends { peer: None, local: None, inode: None };
        }
        let peer = self.passage.as_ref().map_or(self.peer, |passage| passage.origin.socket_peer);
        Ends { peer: peer.socket_address(), local: stream.local_address(), inode: stream.inode() }
    }
}

/// Takes room for a connection from `address`. `is_counted`: in the bound of the address; `is_full`: another connection
/// has to make room for it.
///
/// # Errors
/// The bound that refuses the connection. It has evicted no other then.
fn take_room(
    shared: &BrokerState,
    address: IpAddr,
    is_counted: bool,
    is_full: bool,
    now: Instant,
) -> Result<(), Bound> {
    let entered = if is_counted { enter_address(shared, address, now) } else { Entered::WithinBound };
    match entered {
        Entered::Refused => Err(bound_of_address(address)),
        Entered::WithinBound if is_full && !shared.admission.pending.evict_for(address, now) => {
            if is_counted {
                shared.admission.addresses.leave(address, now);
            }
            Err(Bound::Connections)
        }
        Entered::WithinBound | Entered::InPlaceOfAnother => {
            if entered == Entered::WithinBound && is_full {
                shared.operations.metrics.bounds.hit(Bound::Connections, 1, now);
            }
            Ok(())
        }
    }
}

/// How a connection was counted for its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entered {
    WithinBound,
    /// A pending peer of the address makes room for it. That place is free in the bound of all connections, too.
    InPlaceOfAnother,
    /// It is not counted: the address has too many connections. All have logged in, or have time left for it.
    Refused,
}

/// Counts a connection for its address. Evicts a peer only for a connection that is counted.
fn enter_address(shared: &BrokerState, address: IpAddr, now: Instant) -> Entered {
    let admission = &shared.admission.addresses;
    if admission.enter(address, now) {
        Entered::WithinBound
    } else if !admission.enter_beyond(ENDING_MAX as u32, address, now) {
        Entered::Refused
    } else if shared.admission.pending.evict_of(address, now) {
        shared.operations.metrics.bounds.hit(bound_of_address(address), 1, now);
        Entered::InPlaceOfAnother
    } else {
        admission.leave(address, now);
        Entered::Refused
    }
}

/// The bound on connections of one address.
fn bound_of_address(address: IpAddr) -> Bound {
    if address.to_canonical().is_loopback() { Bound::ConnectionsOfLoopback } else { Bound::ConnectionsOfAddress }
}

/// Connections beyond a bound, in whose favour others are about to end.
const ENDING_MAX: usize = 64;

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.shared.admission.connections.fetch_sub(1, Ordering::Relaxed);
        if !self.has_socket {
            self.shared.admission.connections_in_memory.fetch_sub(1, Ordering::Relaxed);
        }
        self.leave(Instant::now());
        self.shared.operations.metrics.connections_closed.add(1);
    }
}

impl Core {
    /// Number of QoS 1 and 2 messages that may be sent now.
    ///
    /// In-flight messages are bounded by the same number of bytes as the queue. Those that wait for the right to receive
    /// them must not stop others, so that they do not count.
    pub(super) fn quota(&self) -> usize {
        let maximum = self.open.shared.config.queue_bytes_maximum();
        let in_flight_full = self.connection.session().in_flight_bytes() >= maximum;
        if in_flight_full && !self.has_room_beside_held(maximum) { 0 } else { self.connection.send_quota().into() }
    }

    #[cold]
    fn has_room_beside_held(&self, maximum: usize) -> bool {
        self.connection.session().in_flight_bytes().saturating_sub(self.connection.held_bytes()) < maximum
    }

    /// Whether rights have changed, and the connection has not taken them over.
    #[inline]
    pub(super) fn has_stale_rights(&self) -> bool {
        self.lease.state.rights_epoch != self.open.shared.admission.access.epoch()
    }

    /// Whether hooks look at messages from the client one by one. Asked for a run of plain messages, not for each.
    #[inline]
    pub(super) fn looks_at_each(&self) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.looks_at_each())
    }

    /// Whether hooks or traces look at packets from the client.
    #[inline]
    pub(super) fn looks_at_packets(&self) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.looks_at_packets())
    }

    /// Shows hooks the packets that have joined the output.
    #[inline]
    pub(super) fn show_output(&mut self) {
        if let Some(hooks) = &mut self.hooks {
            hooks.show(&mut self.out, &self.connection);
            if hooks.is_needless() {
                self.hooks = None;
            }
        }
    }

    /// Takes over the traces of operators that concern the client. They show packets behind the `shown` first bytes of
    /// the output.
    pub(super) fn take_traces(&mut self, shown: u64) {
        let traced = self.open.shared.operations.traces.of(&self.lease.client.id);
        if traced.is_none() && self.hooks.is_none() {
            return;
        }
        let client = || client_of(&self.lease, self.open.peer, self.connection.version());
        let hooks = self.hooks.get_or_insert_with(|| {
            // A hook of another broker may have panicked on this thread.
            HookSet::forget_panic();
            Hooked::for_traces(&self.open.shared.operations.hooks, client())
        });
        hooks.trace(traced, shown);
    }

    /// Whether messages for the client are on disk.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.lease.client.outbox.has_tail()
    }

    /// Writes the acknowledgement of a message from the client.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack: PendingAck, reason: ReasonCode, now: Instant) {
        match reason_string(reason) {
            Some(reason_string) => self.connection.refuse(ack, reason, reason_string, now, &mut self.out),
            None => self.connection.acknowledge(ack, reason, now, &mut self.out),
        }
    }

    /// Sends an answer to the client. Ends the connection if the packet is too large for it `[MQTT-3.1.2-24]`, since
    /// the client would wait for the answer forever.
    pub(super) fn answer(&mut self, packet: Packet, now: Instant) -> Result<(), End> {
        let packet_type = packet.packet_type();
        let is_written = self.connection.write_in_words(packet, now, &mut self.out);
        if is_written { Ok(()) } else { Err(End::AnswerTooLarge(packet_type)) }
    }

    /// Serves the backlogs of the client's share groups, where messages wait until it can begin with them. Call it when
    /// the client has fewer messages outstanding, for whatever reason.
    #[inline]
    pub(super) fn may_begin(&self, now: Instant) {
        if self.lease.client.outbox.may_have_backlogs() {
            self.serve_backlogs(now);
        }
    }

    #[cold]
    fn serve_backlogs(&self, now: Instant) {
        let client = &self.lease.client;
        self.open.shared.routing.router.serve(&client.outbox, true, now, &mut Rng::new(client.number));
    }

    /// Ends a message that expired before it was sent. Returns whether it is dropped, and does not become a dead letter of its
    /// share group.
    #[cold]
    pub(super) fn expires(&self, delivery: Delivery) -> bool {
        let Some(share) = delivery.share.filter(|_| delivery.published_qos.is_acknowledged()) else { return true };
        let found = self.open.shared.routing.router.work_queue(share);
        found.is_none_or(|(group, _)| group.doom_expired(delivery).is_some())
    }

    /// Releases the ordering key of a message that will not be acknowledged any more.
    pub(super) fn keys_done(&self, held_key: Option<HeldKey>) {
        self.open.shared.routing.router.keys_done(held_key, self.lease.client.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::Config;
    use crate::auth::Access;

    /// A broker with these bounds of connections.
    fn broker(maximum: usize, per_address: u32) -> Arc<BrokerState> {
        let text = format!("[connections]\nmaximum = {maximum}\nper_address_maximum = {per_address}\n");
        let config = Config::parse(&text).unwrap();
        Arc::new(BrokerState::new(config, Access::unlimited(), true, None, None, Arc::default()))
    }

    fn peer(number: u8) -> Peer {
        SocketAddr::from(([10, 0, 0, number], 1)).into()
    }

    /// A connection with a socket from address `number`.
    fn open(shared: &Arc<BrokerState>, number: u8) -> Option<OpenConnection> {
        OpenConnection::admitted(shared, peer(number), true, true)
    }

    fn logged_in(shared: &Arc<BrokerState>, number: u8) -> OpenConnection {
        let mut open = open(shared, number).unwrap();
        open.is_logged_in();
        open
    }

    fn must_end(open: &OpenConnection) -> bool {
        pin!(open.must_end()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn refused_connection_evicts_no_other() {
        let shared = broker(4, 2);
        let pending = [(); 2].map(|()| open(&shared, 2).unwrap());
        let clients = [(); 2].map(|()| logged_in(&shared, 1));
        assert!(open(&shared, 1).is_none(), "its address is full");
        assert_eq!(pending.each_ref().map(must_end), [false; 2]);
        let _other = open(&shared, 3).unwrap();
        assert_eq!(pending.each_ref().map(must_end), [true, false]);
        assert!(open(&shared, 3).is_none(), "no address has more peers");
        drop((pending, clients));
        // Refused connections count for no address.
        assert!([1, 1, 3].into_iter().map(|number| open(&shared, number)).collect::<Option<Vec<_>>>().is_some());
    }

    #[test]
    fn connection_evicts_one_for_both_bounds() {
        let shared = broker(3, 2);
        let other = open(&shared, 2).unwrap();
        let (own, _client) = (open(&shared, 1).unwrap(), logged_in(&shared, 1));
        std::thread::sleep(Duration::from_secs(1));
        let newcomer = open(&shared, 1).unwrap();
        assert_eq!([&other, &own, &newcomer].map(must_end), [false, true, false]);
        assert!(open(&shared, 1).is_none(), "the newcomer is new");
        assert!(!must_end(&other));
    }

    #[test]
    fn connection_evicts_no_client_without_a_socket() {
        let shared = broker(1, 0);
        let embedded = [(); 3].map(|()| OpenConnection::admitted(&shared, peer(2), false, false).unwrap());
        let client = logged_in(&shared, 1);
        assert!(open(&shared, 1).is_none());
        assert_eq!(embedded.each_ref().map(must_end), [false; 3]);
        drop(client);
        open(&shared, 1).unwrap();
    }
}
