//! Streams to the broker: opening, reading, writing, and the end of a peer.

use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tenbin_codec::{Decoded, Decoder, Text, WriteBuffer};
use tenbin_sn::{Action, DropCause, End, Io};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::{BUFFERS_MAXIMUM, READ_BYTES, SPARE_BYTES_MAXIMUM, Thread};
use crate::counters::count;
use crate::peers::{Connection, Key, Link, Peer};
use crate::upstream::{Stream, close};

/// Reads of one peer in a lap.
const READS_PER_LAP: usize = 2;
/// Bytes of the broker's packets without the payload of a PUBLISH. Longer ones end the connection.
const PACKET_BYTES_MAXIMUM: u32 = 1 << 20;

/// Entries of closed streams before they are removed, and one more for each stream that closes.
const SPARE_LEAVING: usize = 64;

/// Result of one look at a stream.
enum Progress {
    /// Bytes were read, or may wait.
    Read,
    /// The broker has sent nothing further.
    Nothing,
    /// The stream has ended.
    Ended,
}

impl Thread {
    /// Serves a peer whose stream is open, can be read, or can be written.
    pub(super) fn serve(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.ready.unlist();
        match &mut peer.link {
            Link::Closed => {}
            Link::Opening(_) => self.finish_opening(key),
            Link::Open(_) => self.read(key),
        }
        self.touch(key);
    }

    fn finish_opening(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let Link::Opening(opening) = &mut peer.link else { return };
        let waker = peer.waker.clone();
        let Poll::Ready(opened) = opening.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        let broker = &self.shared.config.broker;
        let action = match opened {
            Ok(stream) => {
                self.shared.health.reached(broker);
                let decoder = Decoder::client(self.shared.config.mqtt, PACKET_BYTES_MAXIMUM);
                peer.link = Link::Open(Connection { stream, decoder, undecoded: Vec::new() });
                peer.machine.upstream_opened(&mut io);
                // The stream must be polled once, so that it wakes the peer.
                waker.wake();
                Action::Continue
            }
            Err(error) => {
                self.shared.health.unreachable(broker, &error);
                peer.link = Link::Closed;
                peer.machine.upstream_closed(&mut io)
            }
        };
        self.after(key, action);
    }

    fn read(&mut self, key: Key) {
        for _ in 0..READS_PER_LAP {
            let Some(peer) = self.peers.get_mut(key) else { return };
            self.read.clear();
            self.read.reserve(READ_BYTES);
            let Link::Open(connection) = &mut peer.link else { return };
            // Without its memory: many peers have had a large packet once.
            self.read.extend_from_slice(&std::mem::take(&mut connection.undecoded));
            let held = std::mem::take(&mut peer.is_held);
            // Packets that were held back come first.
            let progress = if held && !self.read.is_empty() {
                Progress::Read
            } else {
                let mut context = Context::from_waker(&peer.waker);
                match pin!(connection.stream.read_buf(&mut self.read)).poll(&mut context) {
                    Poll::Pending => Progress::Nothing,
                    Poll::Ready(Ok(0) | Err(_)) => Progress::Ended,
                    Poll::Ready(Ok(_)) => Progress::Read,
                }
            };
            let action = match progress {
                Progress::Read => self.handle_packets(key),
                Progress::Nothing => return self.keep_undecoded(key),
                Progress::Ended => self.end_stream(key),
            };
            let is_over = action != Action::Continue;
            self.after(key, action);
            if is_over {
                return;
            }
            self.keep_undecoded(key);
            let Some(peer) = self.peers.get_mut(key) else { return };
            if peer.is_held {
                return;
            }
        }
        // There may be more.
        if let Some(peer) = self.peers.get_mut(key) {
            peer.waker.wake_by_ref();
        }
    }

    /// Passes the packets that were read to the peer, as far as it has room.
    fn handle_packets(&mut self, key: Key) -> Action {
        let Some(peer) = self.peers.get_mut(key) else { return Action::Continue };
        let Link::Open(connection) = &mut peer.link else { return Action::Continue };
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        loop {
            if !peer.machine.accepts_packets() {
                peer.is_held = true;
                return Action::Continue;
            }
            let packet = match connection.decoder.decode(&mut self.read) {
                Ok(Decoded::Packet(packet)) => packet,
                Ok(Decoded::NeedMore(_)) => return Action::Continue,
                Err(error) => {
                    tracing::warn!(client_id = %peer.machine.client_id(), %error, "broker sent an illegal packet");
                    break;
                }
            };
            let action = peer.machine.handle_packet(packet, &mut io);
            if action != Action::Continue {
                return action;
            }
        }
        self.end_stream(key)
    }

    fn end_stream(&mut self, key: Key) -> Action {
        let Some(peer) = self.peers.get_mut(key) else { return Action::Continue };
        peer.link = Link::Closed;
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        peer.machine.upstream_closed(&mut io)
    }

    fn keep_undecoded(&mut self, key: Key) {
        if self.read.is_empty() {
            return;
        }
        if let Some(peer) = self.peers.get_mut(key)
            && let Link::Open(connection) = &mut peer.link
        {
            connection.undecoded.extend_from_slice(&self.read);
        }
    }

    /// Sends the datagrams of the last call of a peer, and follows its action.
    pub(super) fn after(&mut self, key: Key, action: Action) {
        if self.output.drops.get(DropCause::TopicTableFull) != self.logged_topics {
            self.log_full_table(key);
        }
        if !self.output.datagrams.is_empty() {
            let Some(peer) = self.peers.get_mut(key) else { return self.output.datagrams.clear() };
            if peer.address.node.is_none() && peer.address.socket.port() != 0 {
                let route = peer.address.route();
                for datagram in self.output.datagrams.iter() {
                    self.socket.send(datagram, route);
                }
                self.output.datagrams.clear();
            } else {
                let address = peer.address.clone();
                self.send_output(address.origin());
            }
        }
        match action {
            Action::Continue => {}
            Action::OpenUpstream => self.open(key, |thread, peer| thread.upstream.open(peer.client())),
            Action::ReopenUpstream => self.open(key, |shared, peer| {
                let rest = std::mem::take(&mut peer.out);
                let last = peer.take_stream().map(|stream| (stream, rest));
                shared.upstream.reopen(peer.client(), last)
            }),
            Action::End(End::SessionExists) => self.ask_for_session(key),
            Action::End(end) => {
                let Some(peer) = self.peers.get_mut(key) else { return };
                let (client_id, address) = (peer.machine.client_id(), peer.address.socket);
                match end {
                    End::Upstream(_) => {
                        count(&self.counters.upstream_ended, 1);
                        self.shared.health.lost(&self.shared.config.broker, client_id.as_str(), address);
                    }
                    End::KeepAlive | End::Overslept | End::NoAnswer => {
                        count(&self.counters.clients_lost, 1);
                        tracing::debug!(%client_id, peer = %address, reason = ?end, "client is lost");
                    }
                    _ => {}
                }
                self.remove(key);
            }
        }
    }

    /// Logs that a topic of a client found no room. The log bounds lines by `peer`.
    fn log_full_table(&mut self, key: Key) {
        self.logged_topics = self.output.drops.get(DropCause::TopicTableFull);
        if let Some(peer) = self.peers.get_mut(key) {
            let (client_id, address) = (peer.machine.client_id(), peer.address.socket);
            tracing::warn!(
                %client_id, peer = %address,
                "no room for a topic of a client: raise topics_maximum, topic_bytes_maximum or name_bytes_maximum"
            );
        }
    }

    fn open(&mut self, key: Key, open: impl FnOnce(&crate::shared::Shared, &mut Peer) -> crate::upstream::Opening) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.is_held = false;
            let opening = open(&self.shared, peer);
            // A client that comes back finds its last session ended, and not in the way of its new one.
            let last = match peer.machine.may_resume() {
                true => None,
                false => self.leaving.remove(peer.machine.client_id()),
            };
            peer.link = Link::Opening(match last {
                None => opening,
                Some(last) => Box::pin(async move {
                    let _ = last.await;
                    opening.await
                }),
            });
            peer.waker.wake_by_ref();
        }
    }

    /// Removes a peer: sends the rest to the broker, and keeps the state for the client's next connection.
    pub(super) fn remove(&mut self, key: Key) {
        self.save(key);
        let Some(peer) = self.close(key) else { return };
        let client_id = peer.machine.client_id().clone();
        if peer.machine.owns_state()
            && let Some(name) = self.shared.state_name(&client_id, peer.identity.as_deref())
        {
            let address = peer.address.node.is_none().then_some(peer.address.socket);
            self.shared.states.keep(&name, peer.machine.into_state(), address, self.now);
        }
        // The next owner takes the state.
        self.shared.owners.release(client_id.as_str(), self.number);
    }

    /// Removes a peer without a session, whose state is not kept.
    pub(super) fn forget(&mut self, key: Key) {
        if let Some(peer) = self.close(key) {
            self.shared.owners.release(peer.machine.client_id().as_str(), self.number);
        }
    }

    /// Takes a peer out, and sends the rest to the broker.
    fn close(&mut self, key: Key) -> Option<Peer> {
        let mut peer = self.peers.remove(key)?;
        self.wheel.cancel(&mut peer.alarm, key);
        self.shared.clients.fetch_sub(1, Relaxed);
        // Most streams have room, and the runtime may be about to stop.
        let is_open = write(&mut peer).is_ok();
        if let Some(stream) = peer.take_stream().filter(|_| is_open) {
            while self.closing.try_join_next().is_some() {}
            self.leave(peer.machine.client_id().clone(), stream, std::mem::take(&mut peer.out));
        }
        self.elsewhere.vacate(&peer.address);
        Some(peer)
    }

    /// Closes the stream of a client that has gone.
    fn leave(&mut self, client_id: Text, stream: Stream, rest: WriteBuffer) {
        let (done, closed) = oneshot::channel::<()>();
        self.closing.spawn(async move {
            close(stream, rest).await;
            drop(done);
        });
        self.leaving.insert(client_id, closed);
        if self.leaving.len() > 2 * self.closing.len() + SPARE_LEAVING {
            self.leaving.retain(|_, closed| matches!(closed.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        }
    }

    /// Writes a peer's bytes to its stream.
    pub(super) fn flush(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if write(peer).is_err() {
            peer.out.clear();
            let action = self.end_stream(key);
            return self.after(key, action);
        }
        if peer.out.is_empty() && peer.out.capacity() > 0 {
            let mut spare = Vec::new();
            peer.out.swap_memory(&mut spare);
            if self.buffers.len() < BUFFERS_MAXIMUM && spare.capacity() <= SPARE_BYTES_MAXIMUM {
                self.buffers.push(spare);
            }
        }
    }
}

/// Writes a peer's bytes as far as its stream has room.
fn write(peer: &mut Peer) -> io::Result<()> {
    let Link::Open(connection) = &mut peer.link else { return Ok(()) };
    let mut context = Context::from_waker(&peer.waker);
    while !peer.out.is_empty() {
        match pin!(connection.stream.write_buf(&mut peer.out)).poll(&mut context) {
            Poll::Pending => break,
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(written) => drop(written?),
        }
    }
    Ok(())
}
