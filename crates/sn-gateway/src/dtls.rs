//! DTLS of a gateway: sessions by address.
//!
//! ```text
//!   datagram ─► Slot { current, handshake } ─► messages       a ClientHello begins `handshake`, which takes the
//!            ◄─                             ◄─ messages       place of `current` once it is done
//! ```
//!
//! A handshake costs 5 KiB before its address is proven by the cookie. Such handshakes end soon, and make room for others.
//! Without a client, a session ends soon too.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
pub use tenbin_sn_dtls::Identity;
use tenbin_sn_dtls::{Hello, Output, Server, ServerFiles, Session, has_plain_alert};

use crate::config::{ConfigError, Listener};
use crate::counters::{Counters, count};
use crate::limits::Limits;
use crate::route::Route;

/// DTLS of one gateway.
pub(crate) struct Dtls {
    server: Server,
    slots: HashMap<SocketAddr, Slot, FxBuildHasher>,
    slots_maximum: usize,
    /// Handshakes whose address is unproven, and the others, in the order of their begin or of their proof. Some have
    /// ended.
    unproven: VecDeque<(SocketAddr, u64)>,
    proven: VecDeque<(SocketAddr, u64)>,
    handshakes_maximum: usize,
    /// Handshakes that have not ended.
    handshakes_open: usize,
    handshakes_begun: u64,
    /// Deadlines of slots. Those that differ from the slot's own are void.
    deadlines: BinaryHeap<Reverse<(Instant, SocketAddr)>>,
    swept_at: Instant,
    buffer: Vec<u8>,
    counters: Arc<Counters>,
}

/// Sessions of one address.
struct Slot {
    current: Option<Box<Session>>,
    handshake: Option<Handshake>,
    route: Route,
    /// When the session was opened, or its client was last there.
    used_at: Instant,
    /// Its next deadline.
    deadline: Option<Instant>,
}

struct Handshake {
    session: Box<Session>,
    number: u64,
    /// Random of the ClientHello.
    random: [u8; 32],
    ends_at: Instant,
}

/// Sends a datagram to a client.
type Send<'a> = &'a mut dyn FnMut(&[u8], Route);

/// Time for the cookie to come back, and for the rest of a handshake. Clients wait up to 9 s for an answer (RFC 7925).
const HANDSHAKE_TIME: Duration = Duration::from_secs(20);
/// Time for the end of a handshake after an alert, which may be forged.
const ALERT_TIME: Duration = Duration::from_secs(2);
/// A session without a client lives this long, so that a lost CONNECT can be repeated.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Time between two looks for such sessions.
const SWEEP_PAUSE: Duration = Duration::from_secs(2);

impl Dtls {
    /// DTLS of a listener, if it has it.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn of(listener: &Listener, counters: &Arc<Counters>) -> Result<Option<Box<Self>>, ConfigError> {
        let Some(server) = server_of(listener)? else { return Ok(None) };
        let handshakes_maximum = listener.dtls.as_ref().map_or(0, |dtls| dtls.handshakes_maximum);
        Ok(Some(Box::new(Self {
            server,
            slots: HashMap::default(),
            slots_maximum: listener.clients_maximum.saturating_add(handshakes_maximum),
            unproven: VecDeque::new(),
            proven: VecDeque::new(),
            handshakes_maximum,
            handshakes_open: 0,
            handshakes_begun: 0,
            deadlines: BinaryHeap::new(),
            swept_at: Instant::now(),
            buffer: Vec::new(),
            counters: Arc::clone(counters),
        })))
    }

    /// Uses the listener's files for later handshakes.
    pub(crate) fn reload(&mut self, listener: &Listener) {
        match server_of(listener) {
            Ok(Some(server)) => self.server = server,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the last keys and certificates stay"),
        }
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
        let hello = Hello::of(datagram);
        if let Some(Hello { random, is_first: true }) = hello {
            self.begin(route, random, now, limits);
        }
        let Some(slot) = self.slots.get_mut(&address) else {
            count(&self.counters.dtls_dropped, 1);
            return false;
        };
        if has_plain_alert(datagram) {
            if let Some(handshake) = &mut slot.handshake {
                handshake.ends_at = handshake.ends_at.min(now + ALERT_TIME);
            }
            self.settle(address);
            return false;
        }
        // The address is charged once the cookie is back, but the work is not begun if that is too much.
        let ip = address.ip().to_canonical();
        if hello.is_some_and(|hello| !hello.is_first) && !limits.has_room_for_handshake(ip, now) {
            count(&self.counters.dtls_refused, 1);
            return false;
        }
        slot.route = route;
        let mut take = |output: Output<'_>| match output {
            Output::Datagram(datagram) => send(datagram, route),
            Output::Message(message) => messages.push(message.into()),
        };
        let mut has_opened = false;
        if let Some(handshake) = &mut slot.handshake {
            let was_proven = handshake.session.is_proven();
            let received = handshake.session.receive(datagram, now, &mut self.buffer, &mut take);
            let is_proven = handshake.session.is_proven();
            if let Err(error) = received {
                tracing::debug!(peer = %address, %error, "DTLS handshake failed");
                self.fail(address);
            } else {
                if is_proven && !was_proven {
                    limits.count_handshake(ip, now);
                    handshake.ends_at = now + HANDSHAKE_TIME;
                    self.proven.push_back((address, handshake.number));
                }
                if handshake.session.is_open() {
                    slot.current = slot.handshake.take().map(|handshake| handshake.session);
                    slot.used_at = now;
                    self.handshakes_open -= 1;
                    has_opened = true;
                    count(&self.counters.dtls_opened, 1);
                }
            }
        }
        // A datagram of the session before, or one that it ignores.
        if hello.is_none()
            && !has_opened
            && let Some(slot) = self.slots.get_mut(&address)
            && let Some(session) = &mut slot.current
            && session.receive(datagram, now, &mut self.buffer, &mut take).is_err()
        {
            slot.current = None;
        }
        self.settle(address);
        has_opened
    }

    /// Encrypts a message for an address. Without a session it is dropped.
    pub(crate) fn seal(&mut self, message: &[u8], route: Route, send: Send<'_>) {
        let session = self.slots.get_mut(&route.to).and_then(|slot| slot.current.as_mut());
        let Some(session) = session else { return count(&self.counters.dtls_dropped, 1) };
        if session.send(message, Instant::now(), &mut self.buffer, &mut passing_on(send, route)).is_err()
            && let Some(slot) = self.slots.get_mut(&route.to)
        {
            slot.current = None;
        }
        self.settle(route.to);
    }

    /// Identity of the client at an address, if it has proven one.
    pub(crate) fn identity(&self, address: SocketAddr) -> Option<&Identity> {
        self.slots.get(&address)?.current.as_ref()?.identity()
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let sweep = (!self.slots.is_empty()).then(|| self.swept_at + SWEEP_PAUSE);
        self.deadlines.peek().map(|Reverse((at, _))| *at).into_iter().chain(sweep).min()
    }

    /// Repeats datagrams of handshakes, and ends sessions whose address has no client.
    pub(crate) fn handle_timeouts(&mut self, now: Instant, has_client: impl Fn(SocketAddr) -> bool, send: Send<'_>) {
        while let Some(Reverse((at, address))) = self.deadlines.peek().copied()
            && at <= now
        {
            self.deadlines.pop();
            let Some(slot) = self.slots.get_mut(&address).filter(|slot| slot.deadline == Some(at)) else { continue };
            slot.deadline = None;
            let route = slot.route;
            let mut take = passing_on(send, route);
            let buffer = &mut self.buffer;
            let is_due = |session: &Session| session.deadline().is_some_and(|at| at <= now);
            let mut has_failed = false;
            if let Some(Handshake { session, ends_at, .. }) = &mut slot.handshake {
                // A cookie is not repeated: its receiver may not have asked for it.
                let is_repeated = session.is_proven() && is_due(session);
                has_failed =
                    *ends_at <= now || (is_repeated && session.handle_timeout(now, buffer, &mut take).is_err());
            }
            if let Some(session) = slot.current.as_mut().filter(|session| is_due(session))
                && session.handle_timeout(now, buffer, &mut take).is_err()
            {
                slot.current = None;
            }
            if has_failed {
                self.fail(address);
            }
            self.settle(address);
        }
        if now >= self.swept_at + SWEEP_PAUSE {
            self.swept_at = now;
            self.sweep(now, has_client, send);
        }
    }

    /// Tells all clients that their sessions end.
    pub(crate) fn close(&mut self, send: Send<'_>) {
        let now = Instant::now();
        for (_, Slot { current, route, .. }) in self.slots.drain() {
            let Some(session) = current else { continue };
            session.close(now, &mut self.buffer, &mut passing_on(send, route));
        }
    }

    /// Ends sessions without a client: those of long ago, and the oldest ones if they are more than the handshakes may be.
    fn sweep(&mut self, now: Instant, has_client: impl Fn(SocketAddr) -> bool, send: Send<'_>) {
        let mut idle = Vec::new();
        let mut sessions = 0;
        for (&address, slot) in &mut self.slots {
            if has_client(address) {
                slot.used_at = now;
            } else if slot.current.is_some() {
                idle.push((slot.used_at, address));
            }
            sessions += u64::from(slot.current.is_some());
        }
        idle.sort_unstable();
        let surplus = idle.len().saturating_sub(self.handshakes_maximum);
        let ended =
            idle.iter().zip(0..).filter(|((used_at, _), number)| *number < surplus || now >= *used_at + IDLE_TIME);
        for ((_, address), _) in ended {
            let Some(slot) = self.slots.get_mut(address) else { continue };
            let route = slot.route;
            if let Some(session) = slot.current.take() {
                sessions -= 1;
                session.close(now, &mut self.buffer, &mut passing_on(send, route));
            }
            self.settle(*address);
        }
        self.counters.dtls_sessions.store(sessions, Relaxed);
    }

    /// Begins a handshake for a ClientHello that is none of the handshake under way, if it is within the bounds.
    fn begin(&mut self, route: Route, random: [u8; 32], now: Instant, limits: &Limits) {
        let address = route.to;
        let under_way = self.slots.get(&address).and_then(|slot| slot.handshake.as_ref());
        // Before the address is proven, the other one may be forged.
        if under_way.is_some_and(|handshake| handshake.session.is_proven() || handshake.random == random) {
            return;
        }
        let has_place = under_way.is_some();
        let is_full = !self.slots.contains_key(&address) && self.slots.len() >= self.slots_maximum;
        if is_full || !limits.allows_cookie(now) {
            return count(&self.counters.dtls_refused, 1);
        }
        if !has_place {
            if self.handshakes_open >= self.handshakes_maximum {
                self.evict();
            }
            self.handshakes_open += 1;
        }
        self.handshakes_begun += 1;
        let (number, ends_at) = (self.handshakes_begun, now + HANDSHAKE_TIME);
        let session = Box::new(Session::accept(&self.server, now));
        let slot = self.slots.entry(address);
        let slot = slot.or_insert(Slot { current: None, handshake: None, route, used_at: now, deadline: None });
        slot.handshake = Some(Handshake { session, number, random, ends_at });
        self.unproven.push_back((address, number));
        let slots = &self.slots;
        for queue in [&mut self.unproven, &mut self.proven] {
            if queue.len() > 2 * self.handshakes_maximum + 1000 {
                queue.retain(|&(address, number)| is_under_way(slots, address, number));
            }
        }
    }

    /// Drops the oldest handshake, preferably one whose address is unproven.
    fn evict(&mut self) {
        let slots = &self.slots;
        let take = |queue: &mut VecDeque<(SocketAddr, u64)>, is_proven: bool| {
            while let Some((address, number)) = queue.pop_front() {
                let handshake = slots.get(&address).and_then(|slot| slot.handshake.as_ref());
                // A handshake that was proven since is in the other queue too.
                if handshake.is_some_and(|found| found.number == number && found.session.is_proven() == is_proven) {
                    return Some(address);
                }
            }
            None
        };
        let oldest = take(&mut self.unproven, false).or_else(|| take(&mut self.proven, true));
        if let Some(address) = oldest {
            self.fail(address);
            self.settle(address);
        }
    }

    fn fail(&mut self, address: SocketAddr) {
        if let Some(slot) = self.slots.get_mut(&address)
            && slot.handshake.take().is_some()
        {
            self.handshakes_open -= 1;
            count(&self.counters.dtls_failed, 1);
        }
    }

    /// Removes an empty slot, or notes when it is due.
    fn settle(&mut self, address: SocketAddr) {
        let Some(slot) = self.slots.get_mut(&address) else { return };
        if slot.current.is_none() && slot.handshake.is_none() {
            self.slots.remove(&address);
            if self.slots.is_empty() {
                self.counters.dtls_sessions.store(0, Relaxed);
            }
            return;
        }
        let of_handshake = slot.handshake.as_ref().map(|Handshake { session, ends_at, .. }| {
            let repetition = session.deadline().filter(|_| session.is_proven());
            repetition.map_or(*ends_at, |at| at.min(*ends_at))
        });
        let of_current = slot.current.as_ref().and_then(|session| session.deadline());
        if let Some(at) = of_handshake.into_iter().chain(of_current).min()
            && slot.deadline.is_none_or(|earlier| at < earlier)
        {
            slot.deadline = Some(at);
            self.deadlines.push(Reverse((at, address)));
        }
    }
}

/// Sends the datagrams of a session. It has no messages now.
fn passing_on<'a>(send: &'a mut dyn FnMut(&[u8], Route), route: Route) -> impl FnMut(Output<'_>) + 'a {
    move |output| {
        if let Output::Datagram(datagram) = output {
            send(datagram, route);
        }
    }
}

/// Server of a listener with DTLS.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn server_of(listener: &Listener) -> Result<Option<Server>, ConfigError> {
    let Some(dtls) = &listener.dtls else { return Ok(None) };
    let files = ServerFiles {
        psk_file: dtls.psk_file.clone(),
        certificate: dtls.certificate.clone(),
        key: dtls.key.clone(),
        client_ca: dtls.client_ca.clone(),
    };
    Server::new(&files).map(Some).map_err(|error| ConfigError::of_key("dtls", error))
}

/// Whether a handshake with this number is under way at an address.
fn is_under_way(slots: &HashMap<SocketAddr, Slot, FxBuildHasher>, address: SocketAddr, number: u64) -> bool {
    slots.get(&address).and_then(|slot| slot.handshake.as_ref()).is_some_and(|handshake| handshake.number == number)
}
