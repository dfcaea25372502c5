//! The UDP socket of one thread.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use tokio::net::UdpSocket;

use crate::counters::{Counters, count};

/// A UDP socket, and the datagrams that it has not taken.
pub(crate) struct Socket {
    inner: Arc<UdpSocket>,
    counters: Arc<Counters>,
    /// Datagrams that the kernel had no room for.
    unsent: VecDeque<(SocketAddr, Box<[u8]>)>,
    sent: usize,
}

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
    pub(crate) fn new(socket: std::net::UdpSocket, counters: Arc<Counters>) -> io::Result<Self> {
        Ok(Self { inner: Arc::new(UdpSocket::from_std(socket)?), counters, unsent: VecDeque::new(), sent: 0 })
    }

    /// The socket, for other senders.
    pub(crate) fn shared(&self) -> Arc<UdpSocket> {
        Arc::clone(&self.inner)
    }

    /// Ready once a datagram can be received.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_recv_ready(cx)
    }

    /// Receives a datagram, if there is one. Errors concern earlier datagrams, such as an unreachable client: the
    /// caller goes on.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.inner.try_recv_from(buffer)
    }

    /// Sends a datagram, or keeps it until there is room.
    pub(crate) fn send(&mut self, datagram: &[u8], to: SocketAddr) {
        if self.unsent.is_empty() {
            match self.inner.try_send_to(datagram, to) {
                Ok(_) => return self.sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return count(&self.counters.datagrams_unsent, 1),
            }
        }
        if self.unsent.len() < UNSENT_MAXIMUM {
            self.unsent.push_back((to, datagram.into()));
        } else {
            count(&self.counters.datagrams_unsent, 1);
        }
    }

    /// Sends kept datagrams as far as there is room. Ready once all are sent.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((to, datagram)) = self.unsent.front() {
            match self.inner.poll_send_to(cx, datagram, *to) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(_)) => self.sent += 1,
                Poll::Ready(Err(_)) => count(&self.counters.datagrams_unsent, 1),
            }
            self.unsent.pop_front();
        }
        Poll::Ready(())
    }

    /// Publishes the number of sent datagrams.
    pub(crate) fn publish_sent(&mut self) {
        if self.sent > 0 {
            count(&self.counters.datagrams_sent, std::mem::take(&mut self.sent));
        }
    }
}
