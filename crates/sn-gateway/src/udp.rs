//! The UDP socket of one thread.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::config::Listener;
use crate::counters::{Counters, count};
use crate::dtls::{Dtls, Identity};
use crate::limits::Limits;
use crate::relay::Relays;
use crate::route::{Route, Via};

/// A UDP socket, and the datagrams that it has not taken.
pub(crate) struct Socket {
    inner: Arc<UdpSocket>,
    state: UdpSocketState,
    /// Several addresses of this host reach the socket: answers have to leave from the one that the client knows.
    is_at_any_address: bool,
    counters: Arc<Counters>,
    relays: Arc<Relays>,
    /// Datagrams that the kernel had no room for.
    unsent: VecDeque<(Route, Box<[u8]>)>,
    sent: usize,
    /// DTLS, if the listener has it.
    dtls: Option<Box<Dtls>>,
}

/// Datagrams of one call.
pub(crate) struct Batch {
    memory: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
    received: usize,
}

/// Memory for the datagrams that the kernel joins, and the longest single one.
const SLOT_BYTES: usize = u16::MAX as usize;

/// Datagrams kept while the kernel has no room; further ones are dropped.
const UNSENT_MAXIMUM: usize = 1024;

/// Opens a socket. With `shares_address`, others can be opened at the same address.
pub(crate) fn open(
    address: SocketAddr,
    shares_address: bool,
    receive_buffer: usize,
) -> io::Result<std::net::UdpSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if shares_address {
        socket.set_reuse_port(true)?;
    }
    if receive_buffer > 0 {
        // The system bounds it; a smaller buffer works too.
        let _ = socket.set_recv_buffer_size(receive_buffer);
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

impl Socket {
    pub(crate) fn new(
        socket: std::net::UdpSocket,
        dtls: Option<Box<Dtls>>,
        counters: Arc<Counters>,
        relays: Arc<Relays>,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // QUIC forbids fragments, and finds the size of packets itself. Here it is the kernel's work again.
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::WANT)?;
        let address = socket.local_addr()?;
        if address.is_ipv6() {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::WANT)?;
        }
        let is_at_any_address = address.ip().is_unspecified();
        let inner = Arc::new(UdpSocket::from_std(socket)?);
        Ok(Self { inner, state, is_at_any_address, counters, relays, unsent: VecDeque::new(), sent: 0, dtls })
    }

    /// The socket, for other senders.
    pub(crate) fn shared(&self) -> Arc<UdpSocket> {
        Arc::clone(&self.inner)
    }

    /// Ready once a datagram can be received.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_recv_ready(cx)
    }

    /// Receives the datagrams that are there, up to the size of a batch. Errors concern earlier datagrams, such as an
    /// unreachable client: the caller goes on.
    pub(crate) fn receive(&self, batch: &mut Batch) -> io::Result<()> {
        batch.received = 0;
        let mut slots = batch.memory.chunks_mut(SLOT_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        batch.received = self
            .inner
            .try_io(Interest::READABLE, || self.state.recv((&*self.inner).into(), &mut slices, &mut batch.metas))?;
        Ok(())
    }

    /// Sends a message, with DTLS if the listener has it.
    #[inline]
    pub(crate) fn send(&mut self, message: &[u8], route: Route) {
        if self.dtls.is_none() {
            return self.put(message, route);
        }
        self.with_dtls(|dtls, socket| {
            dtls.seal(message, route, &mut |datagram, route| socket.put(datagram, route));
        });
    }

    /// Whether messages come and go through DTLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.dtls.is_some()
    }

    /// Handles a datagram of DTLS: adds its messages to `messages`. True if the client at the address may be another one.
    pub(crate) fn open_datagram(
        &mut self,
        datagram: &[u8],
        route: Route,
        now: Instant,
        limits: &Limits,
        messages: &mut Vec<Box<[u8]>>,
    ) -> bool {
        let opened = self.with_dtls(|dtls, socket| {
            let mut put = |datagram: &[u8], route| socket.put(datagram, route);
            dtls.receive(datagram, route, now, limits, messages, &mut put)
        });
        opened.unwrap_or(false)
    }

    /// Identity of the client at an address, from DTLS.
    pub(crate) fn identity(&self, address: SocketAddr) -> Option<&Identity> {
        self.dtls.as_ref()?.identity(address)
    }

    /// Repeats handshakes of DTLS, and ends sessions without a client. Returns when that is due again.
    pub(crate) fn keep_dtls(&mut self, now: Instant, has_client: impl Fn(SocketAddr) -> bool) -> Option<Instant> {
        let deadline = self.with_dtls(|dtls, socket| {
            dtls.handle_timeouts(now, has_client, &mut |datagram, route| socket.put(datagram, route));
            dtls.next_deadline()
        });
        deadline.flatten()
    }

    /// Uses the listener's keys and certificates for later handshakes.
    pub(crate) fn reload_dtls(&mut self, listener: &Listener) {
        if let Some(dtls) = &mut self.dtls {
            dtls.reload(listener);
        }
    }

    /// Ends all sessions of DTLS.
    pub(crate) fn close_dtls(&mut self) {
        self.with_dtls(|dtls, socket| dtls.close(&mut |datagram, route| socket.put(datagram, route)));
    }

    fn with_dtls<T>(&mut self, call: impl FnOnce(&mut Dtls, &mut Self) -> T) -> Option<T> {
        let mut dtls = self.dtls.take()?;
        let result = call(&mut dtls, self);
        self.dtls = Some(dtls);
        Some(result)
    }

    /// Sends a datagram, or keeps it until there is room.
    fn put(&mut self, datagram: &[u8], route: Route) {
        if let Some(relay) = route.via.relay {
            match self.relays.send(relay, datagram, route) {
                true => self.sent += 1,
                false => count(&self.counters.datagrams_unsent, 1),
            }
            return;
        }
        if self.unsent.is_empty() {
            match self.try_send(datagram, route) {
                Ok(()) => return self.sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return count(&self.counters.datagrams_unsent, 1),
            }
        }
        if self.unsent.len() < UNSENT_MAXIMUM {
            self.unsent.push_back((route, datagram.into()));
        } else {
            count(&self.counters.datagrams_unsent, 1);
        }
    }

    /// Sends kept datagrams as far as there is room. Ready once all are sent.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((route, datagram)) = self.unsent.front() {
            match self.try_send(datagram, *route) {
                Ok(()) => self.sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.inner.poll_send_ready(cx) {
                    Poll::Ready(_) => continue,
                    Poll::Pending => return Poll::Pending,
                },
                Err(_) => count(&self.counters.datagrams_unsent, 1),
            }
            self.unsent.pop_front();
        }
        Poll::Ready(())
    }

    /// Sends a datagram once there is room. One that the system refuses is lost.
    pub(crate) async fn send_in_time(&self, datagram: &[u8], route: Route) {
        while let Err(error) = self.try_send(datagram, route)
            && error.kind() == io::ErrorKind::WouldBlock
            && self.inner.writable().await.is_ok()
        {}
    }

    fn try_send(&self, datagram: &[u8], route: Route) -> io::Result<()> {
        let Some(from) = route.via.local.filter(|_| self.is_at_any_address) else {
            return self.inner.try_send_to(datagram, route.to).map(drop);
        };
        let transmit =
            Transmit { destination: route.to, ecn: None, contents: datagram, segment_size: None, src_ip: Some(from) }; // [SN-ADDRESS-7]
        let sent = self.inner.try_io(Interest::WRITABLE, || self.state.try_send((&*self.inner).into(), &transmit));
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // An address that cannot be a source: of a broadcast, or one that the host has lost.
                self.inner.try_send_to(datagram, route.to).map(drop)
            }
            sent => sent,
        }
    }

    /// Publishes the number of sent datagrams.
    pub(crate) fn publish_sent(&mut self) {
        if self.sent > 0 {
            count(&self.counters.datagrams_sent, std::mem::take(&mut self.sent));
        }
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        let memory = vec![0; BATCH_SIZE * SLOT_BYTES].into();
        Self { memory, metas: [RecvMeta::default(); BATCH_SIZE], received: 0 }
    }

    /// The datagrams of the last call, and their senders.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Route)> {
        let slots = self.memory.chunks(SLOT_BYTES).zip(&self.metas).take(self.received);
        slots.flat_map(|(slot, meta)| {
            let route = Route { to: meta.addr, via: Via { local: meta.dst_ip, relay: None } };
            let joined = &slot[..meta.len.min(slot.len())];
            // An empty datagram is one, too.
            let empty = joined.is_empty().then_some(joined);
            joined.chunks(meta.stride.max(1)).chain(empty).map(move |datagram| (datagram, route))
        })
    }
}
