//! One thread of the gateway: a socket, the peers whose datagrams come there, and their streams to the broker.
//!
//! ```text
//!   socket ─► datagrams ─► Peer ─► out ─► stream          each lap: receive a batch, serve ready streams,
//!          ◄─ datagrams ◄──     ◄── packets ◄──┘          wake due peers; then settle every touched peer once
//! ```

mod candidates;
mod datagrams;
mod elsewhere;
mod shared_client;
mod streams;
mod takeovers;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustc_hash::FxBuildHasher;
use tenbin_codec::Text;
use tenbin_sn::{Io, Output, Wheel};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::counters::{Counters, count};
use crate::peers::{Handoff, Inbox, Key, Origin, Peers};
use crate::route::Via;
use crate::shared::Shared;
use crate::udp::{Batch, Socket};
use candidates::Candidates;
use elsewhere::Elsewhere;
use shared_client::SharedClient;
use takeovers::Takeover;

/// State of one thread.
pub(crate) struct Thread {
    shared: Arc<Shared>,
    /// Its place in [`Shared::inboxes`].
    number: usize,
    counters: Arc<Counters>,
    socket: Socket,
    peers: Peers,
    inbox: Arc<Inbox>,
    elsewhere: Elsewhere,
    wheel: Wheel<Key>,
    /// When the wheel has keys to wake.
    next_alarm: Option<Instant>,
    output: Output,
    /// Topics without room that are in the log.
    logged_topics: u64,
    /// Peers that were called in this lap.
    touched: Vec<Key>,
    takeovers: Vec<Takeover>,
    candidates: Candidates,
    shared_client: SharedClient,
    /// Streams of ended peers, until the broker has closed its side.
    closing: JoinSet<()>,
    /// Tell when the stream of a client that has gone is closed.
    leaving: HashMap<Text, oneshot::Receiver<()>, FxBuildHasher>,
    /// Memory for the output of peers, which need it only within a lap.
    buffers: Vec<Vec<u8>>,
    /// Version of the keys that DTLS uses.
    keys_version: usize,
    /// Messages of one datagram of DTLS.
    opened: Vec<Box<[u8]>>,
    /// Bytes read from a stream. Packets are slices of it.
    read: BytesMut,
    /// Time of the lap.
    now: Instant,
}

/// Calls of a lap that receive datagrams.
const BATCHES_PER_LAP: usize = 2;
/// Memory for bytes from a stream.
const READ_BYTES: usize = 64 * 1024;
/// Memory of a peer's output that is kept for others.
const SPARE_BYTES_MAXIMUM: usize = 64 * 1024;
const BUFFERS_MAXIMUM: usize = 64;
/// Mean time between two states of a client that are stored, so that it cannot crowd out those of others.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// States that are stored at once, such as while a client registers its topics.
const SAVES_AT_ONCE: u32 = 32;
/// Time for the last datagrams to clients, and packets to the broker, when the gateway stops.
const STOP_TIME: Duration = Duration::from_secs(3);

/// Events that begin a lap.
#[derive(Default)]
struct Events {
    is_readable: bool,
    ready: Vec<Key>,
    handoffs: Vec<Handoff>,
    is_alarm_due: bool,
    is_stopping: bool,
}

impl Thread {
    pub(crate) fn new(shared: Arc<Shared>, number: usize, counters: Arc<Counters>, socket: Socket) -> Self {
        let now = Instant::now();
        let inbox = shared.inboxes.get(number).cloned().unwrap_or_default();
        Self {
            shared,
            number,
            counters,
            socket,
            peers: Peers::default(),
            inbox,
            elsewhere: Elsewhere::default(),
            wheel: Wheel::new(now),
            next_alarm: None,
            output: Output::default(),
            logged_topics: 0,
            touched: Vec::new(),
            takeovers: Vec::new(),
            candidates: Candidates::default(),
            shared_client: SharedClient::new(now),
            closing: JoinSet::new(),
            leaving: HashMap::default(),
            buffers: Vec::new(),
            keys_version: 0,
            opened: Vec::new(),
            read: BytesMut::with_capacity(READ_BYTES),
            now,
        }
    }

    /// Serves clients until `stop` changes. Run it without tokio's budget: it bounds its laps itself, and gives way to
    /// the runtime after each.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Batch::new();
        let mut events = Events::default();
        self.keep_shared_client();
        self.settle();
        let mut alarm = Box::pin(tokio::time::sleep_until(Instant::now().into()));
        let stopping = stop.wait_for(|is_stopping| *is_stopping);
        let mut stopping = std::pin::pin!(stopping);
        loop {
            if let Some(at) = self.next_alarm
                && alarm.deadline() != at.into()
            {
                alarm.as_mut().reset(at.into());
            }
            poll_fn(|cx| {
                events.is_stopping = stopping.as_mut().poll(cx).is_ready();
                self.poll_events(&mut events, alarm.as_mut(), cx)
            })
            .await;
            if events.is_stopping {
                return self.stop().await;
            }
            self.now = Instant::now();
            self.reload_keys();
            if events.is_readable {
                self.receive_batches(&mut batch);
            }
            for handoff in events.handoffs.drain(..) {
                self.handle_handoff(handoff);
            }
            for key in events.ready.drain(..) {
                self.serve(key);
            }
            if events.is_alarm_due {
                self.wake_due();
            }
            self.decide_takeovers();
            self.keep_candidates();
            self.keep_shared_client();
            self.keep_dtls();
            self.settle();
            // The runtime looks at sockets while this task waits.
            tokio::task::yield_now().await;
        }
    }

    fn poll_events(&mut self, events: &mut Events, alarm: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        let _ = self.socket.poll_flush(cx);
        // Errors concern one datagram, and are seen by the receive call.
        events.is_readable = self.socket.poll_readable(cx).is_ready();
        let has_work = self.inbox.poll_take(&mut events.ready, &mut events.handoffs, cx).is_ready();
        events.is_alarm_due = self.next_alarm.is_some() && alarm.poll(cx).is_ready();
        if events.is_readable || has_work || events.is_alarm_due || events.is_stopping {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Wakes peers that are due.
    fn wake_due(&mut self) {
        let mut due = Vec::new();
        self.wheel.advance(self.now, &mut due);
        self.next_alarm = self.wheel.next();
        for key in due {
            let Some(peer) = self.peers.get_mut(key) else { continue };
            if !peer.alarm.rang(self.now) {
                continue;
            }
            let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
            let action = peer.machine.handle_timeout(&mut io);
            self.after(key, action);
            self.touch(key);
        }
    }

    /// Reads keys and certificates again, if the gateway was told so.
    fn reload_keys(&mut self) {
        let version = self.shared.keys_version.load(Relaxed);
        if std::mem::replace(&mut self.keys_version, version) != version {
            self.socket.reload_dtls(&self.shared.config.listener);
        }
    }

    /// Repeats handshakes of DTLS that are due.
    fn keep_dtls(&mut self) {
        let peers = &self.peers;
        let has_client = |socket| peers.find(Origin { socket, via: Via::default(), node: None }).is_some();
        if let Some(at) = self.socket.keep_dtls(self.now, has_client) {
            self.ring_by(at);
        }
    }

    /// Begins a lap at a time that the wheel does not know.
    fn ring_by(&mut self, at: Instant) {
        self.next_alarm = Some(self.next_alarm.map_or(at, |next| next.min(at)));
    }

    /// Notes that a peer was called, so that it is settled at the end of the lap.
    #[inline]
    fn touch(&mut self, key: Key) {
        if let Some(peer) = self.peers.get_mut(key)
            && !std::mem::replace(&mut peer.is_touched, true)
        {
            self.touched.push(key);
        }
    }

    /// Writes the output of all peers that were called, and arms their timers.
    fn settle(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            self.flush(key);
            let Some(peer) = self.peers.get_mut(key) else { continue };
            peer.is_touched = false;
            let is_unsaved = peer.has_unsaved_state();
            let may_save = is_unsaved && peer.saved_until <= self.now + SAVES_AT_ONCE * SAVE_PAUSE;
            let save_at = (is_unsaved && !may_save).then(|| self.now + SAVE_PAUSE);
            if let Some(deadline) = [peer.machine.poll_timeout(), save_at].into_iter().flatten().min() {
                self.wheel.arm(&mut peer.alarm, key, deadline);
                // Up to a slot early: then the wheel wakes no peer, and gives the next time.
                self.next_alarm = Some(self.next_alarm.map_or(deadline, |next| next.min(deadline)));
            }
            if peer.is_held && peer.machine.accepts_packets() {
                peer.waker.wake_by_ref();
            }
            if peer.current_evidence() != peer.evidence {
                self.peers.note_evidence(key);
            }
            if may_save {
                self.save(key);
            }
        }
        self.touched = touched;
        self.release_guests();
        self.socket.publish_sent();
        self.counters.publish_output(&self.output);
        self.counters.clients.store(self.peers.len() as u64, Relaxed);
        self.counters.timers.store(self.wheel.armed() as u64, Relaxed);
    }

    /// Stores changed topic ids and Wills. They are stored later if the writer has no room.
    fn save(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if !peer.has_unsaved_state() {
            return;
        }
        let is_saved = match self.shared.state_name(peer.machine.client_id(), peer.identity.as_deref()) {
            Some(name) => self.shared.states.save(name.as_str(), &peer.machine),
            None => true,
        };
        if is_saved {
            peer.saved_version = peer.machine.state_version();
            peer.saved_until = peer.saved_until.max(self.now) + SAVE_PAUSE;
        } else {
            count(&self.counters.state_unsaved, 1);
        }
    }

    /// Tells all clients that the gateway stops, and leaves their sessions at the broker.
    async fn stop(mut self) {
        self.now = Instant::now();
        for key in self.peers.keys() {
            let Some(peer) = self.peers.get_mut(key) else { continue };
            let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
            let action = peer.machine.close(&mut io);
            self.after(key, action);
        }
        self.settle();
        self.socket.close_dtls();
        let last = async {
            poll_fn(|cx| self.socket.poll_flush(cx)).await;
            while self.closing.join_next().await.is_some() {}
        };
        let is_late = tokio::time::timeout(STOP_TIME, last).await.is_err();
        self.socket.publish_sent();
        if is_late {
            tracing::warn!(streams = self.closing.len(), "broker has not closed the streams of all clients");
        }
    }
}
