//! DTLS sessions of a gateway, by address.
//!
//! ```text
//!   datagram ─► Slot { open, new } ─► messages       a ClientHello begins `new`; once its handshake is done
//!            ◄─                    ◄─ messages       it takes the place of `open`
//! ```
//!
//! An address is proven before a session has keys: the server's first answer is a cookie, which is smaller than the
//! client's datagram.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
pub use tenbin_sn_dtls::Identity;
use tenbin_sn_dtls::{Output, Server, ServerFiles, Session, begins_session};

use crate::config::{ConfigError, Listener};
use crate::counters::{Counters, count};
use crate::limits::Limits;
use crate::udp::Route;

/// DTLS sessions of one gateway.
pub(crate) struct Sessions {
    server: Server,
    slots: HashMap<SocketAddr, Slot, FxBuildHasher>,
    /// Handshakes in the order of their begin. Some are over.
    handshakes: VecDeque<(SocketAddr, u64)>,
    handshakes_maximum: usize,
    /// Handshakes that are not over.
    handshakes_open: usize,
    handshakes_begun: u64,
    /// Deadlines of slots. Some do not count any more.
    deadlines: BinaryHeap<Reverse<(Instant, SocketAddr)>>,
    swept_at: Instant,
    buffer: Vec<u8>,
    counters: Arc<Counters>,
}

/// Sessions of one address.
struct Slot {
    open: Option<Box<Session>>,
    new: Option<Handshake>,
    route: Route,
    heard_at: Instant,
    /// The one of [`Sessions::deadlines`] that counts.
    deadline: Option<Instant>,
}

struct Handshake {
    session: Box<Session>,
    number: u64,
    datagrams: u32,
}

/// Datagrams for clients.
type Send<'a> = &'a mut dyn FnMut(&[u8], Route);

/// A session without a client lives this long after its last datagram.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Time between two looks for idle sessions.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

impl Sessions {
    /// Sessions of a listener with DTLS.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn of(listener: &Listener, counters: &Arc<Counters>) -> Result<Option<Box<Self>>, ConfigError> {
        let Some(dtls) = &listener.dtls else { return Ok(None) };
        let files = ServerFiles {
            psk_file: dtls.psk_file.clone(),
            certificate: dtls.certificate.clone(),
            key: dtls.key.clone(),
            client_ca: dtls.client_ca.clone(),
        };
        let server = Server::new(&files).map_err(|error| ConfigError::of_key("listener.dtls", error))?;
        Ok(Some(Box::new(Self {
            server,
            slots: HashMap::default(),
            handshakes: VecDeque::new(),
            handshakes_maximum: dtls.handshakes_maximum,
            handshakes_open: 0,
            handshakes_begun: 0,
            deadlines: BinaryHeap::new(),
            swept_at: Instant::now(),
            buffer: Vec::new(),
            counters: Arc::clone(counters),
        })))
    }

    /// Handles a datagram: adds its messages to `messages`. True if a session was opened, so that the client at the
    /// address may be another one.
    pub(crate) fn receive(
        &mut self,
        datagram: &[u8],
        route: Route,
        now: Instant,
        limits: &Limits,
        messages: &mut Vec<Box<[u8]>>,
        send: Send<'_>,
    ) -> bool {
        let address = route.to;
        let is_first = begins_session(datagram);
        if is_first && self.slots.get(&address).is_none_or(|slot| slot.new.is_none()) {
            self.begin(route, now, limits);
        }
        let Some(slot) = self.slots.get_mut(&address) else {
            count(&self.counters.dtls_dropped, 1);
            return false;
        };
        (slot.heard_at, slot.route) = (now, route);
        let mut take = |output: Output<'_>| match output {
            Output::Datagram(datagram) => send(datagram, route),
            Output::Message(message) => messages.push(message.into()),
        };
        let mut has_opened = false;
        if let Some(handshake) = &mut slot.new {
            handshake.datagrams += 1;
            let received = handshake.session.receive(datagram, now, &mut self.buffer, &mut take);
            if received.is_err() {
                slot.new = None;
                self.handshakes_open -= 1;
                count(&self.counters.dtls_failed, 1);
            } else if handshake.session.is_open() {
                slot.open = slot.new.take().map(|handshake| handshake.session);
                self.handshakes_open -= 1;
                has_opened = true;
                count(&self.counters.dtls_opened, 1);
            }
        }
        // A datagram of the open session, or one that it ignores.
        if !is_first
            && !has_opened
            && let Some(session) = &mut slot.open
            && session.receive(datagram, now, &mut self.buffer, &mut take).is_err()
        {
            slot.open = None;
        }
        self.settle(address);
        has_opened
    }

    /// Encrypts a message for an address. Without a session it is dropped.
    pub(crate) fn seal(&mut self, message: &[u8], route: Route, send: Send<'_>) {
        let session = self.slots.get_mut(&route.to).and_then(|slot| slot.open.as_mut());
        let Some(session) = session else { return count(&self.counters.dtls_dropped, 1) };
        let mut take = |output: Output<'_>| {
            if let Output::Datagram(datagram) = output {
                send(datagram, route);
            }
        };
        if session.send(message, Instant::now(), &mut self.buffer, &mut take).is_err()
            && let Some(slot) = self.slots.get_mut(&route.to)
        {
            slot.open = None;
        }
        self.settle(route.to);
    }

    /// Identity of the client at an address, if it has proven one.
    pub(crate) fn identity(&self, address: SocketAddr) -> Option<&Identity> {
        self.slots.get(&address)?.open.as_ref()?.identity()
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// Repeats datagrams of handshakes, and ends idle sessions whose address has no client.
    pub(crate) fn handle_timeouts(&mut self, now: Instant, has_client: impl Fn(SocketAddr) -> bool, send: Send<'_>) {
        while let Some(Reverse((at, address))) = self.deadlines.peek().copied()
            && at <= now
        {
            self.deadlines.pop();
            let Some(slot) = self.slots.get_mut(&address) else { continue };
            if slot.deadline != Some(at) {
                continue;
            }
            slot.deadline = None;
            let route = slot.route;
            let mut take = |output: Output<'_>| {
                if let Output::Datagram(datagram) = output {
                    send(datagram, route);
                }
            };
            let buffer = &mut self.buffer;
            let is_due = |session: &Session| session.deadline().is_some_and(|at| at <= now);
            if let Some(handshake) = slot.new.as_mut().filter(|handshake| is_due(&handshake.session))
                && handshake.session.handle_timeout(now, buffer, &mut take).is_err()
            {
                slot.new = None;
                self.handshakes_open -= 1;
                count(&self.counters.dtls_failed, 1);
            }
            if let Some(session) = slot.open.as_mut().filter(|session| is_due(session))
                && session.handle_timeout(now, buffer, &mut take).is_err()
            {
                slot.open = None;
            }
            self.settle(address);
        }
        if now >= self.swept_at + SWEEP_PAUSE {
            self.swept_at = now;
            let mut ended = 0;
            self.slots.retain(|&address, slot| {
                let stays = now < slot.heard_at + IDLE_TIME || has_client(address);
                ended += usize::from(!stays && slot.new.is_some());
                stays
            });
            self.handshakes_open -= ended;
            self.counters.dtls_sessions.store(self.slots.len() as u64, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Tells all clients that their sessions end.
    pub(crate) fn close(&mut self, send: Send<'_>) {
        let now = Instant::now();
        for (_, Slot { open, route, .. }) in self.slots.drain() {
            let Some(session) = open else { continue };
            session.close(now, &mut self.buffer, &mut |output| {
                if let Output::Datagram(datagram) = output {
                    send(datagram, route);
                }
            });
        }
    }

    /// Begins a handshake, if it is within its bounds.
    fn begin(&mut self, route: Route, now: Instant, limits: &Limits) {
        if !limits.allows_handshake(route.to.ip().to_canonical(), now)
            || (self.handshakes_open >= self.handshakes_maximum && !self.evict())
        {
            return count(&self.counters.dtls_refused, 1);
        }
        self.handshakes_begun += 1;
        self.handshakes_open += 1;
        let number = self.handshakes_begun;
        let handshake = Handshake { session: Box::new(Session::accept(&self.server, now)), number, datagrams: 0 };
        let slot = self.slots.entry(route.to);
        slot.or_insert(Slot { open: None, new: None, route, heard_at: now, deadline: None }).new = Some(handshake);
        self.handshakes.push_back((route.to, number));
        if self.handshakes.len() > 2 * self.handshakes_open + 1000 {
            let slots = &self.slots;
            self.handshakes.retain(|&(address, number)| {
                slots.get(&address).and_then(|slot| slot.new.as_ref()).is_some_and(|new| new.number == number)
            });
        }
    }

    /// Drops the oldest handshake of which only one datagram has come: its address may be forged. False if there is none.
    fn evict(&mut self) -> bool {
        while let Some((address, number)) = self.handshakes.pop_front() {
            if let Some(slot) = self.slots.get_mut(&address)
                && slot.new.as_ref().is_some_and(|new| new.number == number && new.datagrams < 2)
            {
                slot.new = None;
                self.handshakes_open -= 1;
                self.settle(address);
                return true;
            }
        }
        false
    }

    /// Removes an empty slot, or notes when it is due.
    fn settle(&mut self, address: SocketAddr) {
        let Some(slot) = self.slots.get_mut(&address) else { return };
        if slot.open.is_none() && slot.new.is_none() {
            self.slots.remove(&address);
            return;
        }
        let of_new = slot.new.as_ref().and_then(|new| new.session.deadline());
        let of_open = slot.open.as_ref().and_then(|session| session.deadline());
        if let Some(at) = of_new.into_iter().chain(of_open).min()
            && slot.deadline.is_none_or(|earlier| at < earlier)
        {
            slot.deadline = Some(at);
            self.deadlines.push(Reverse((at, address)));
        }
    }
}
