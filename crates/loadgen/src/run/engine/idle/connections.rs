use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::net::{TcpStream, UnixStream};
use mio::{Events, Interest, Poll, Token};
use rustix::io::Errno;
use tenbin_codec::{ConnAck, Packet, WriteBuffer};

use super::connecting::{Answer, Connecting};
use super::pings::Pings;
use super::socket::Socket;
use super::target::Targets;
use super::websocket::WebSocket;
use crate::LoadgenError;
use crate::run::engine::cuts::CutSchedule;
use crate::run::engine::driver_thread::{Common, RunStage};
use crate::run::{Counters, CutWhose, Idle, Part, Recorder, Slice};

/// Makes, keeps, cuts and disconnects idle connections.
///
/// A connection's place is its index in this process: 0, 1, 2, … Its number is its index among all processes.
///
/// ```text
/// due ──connect──► connecting (≤ 1,000) ──CONNACK──► open ──cut──► away ─┐
///      ▲                                               │
///      └───────────────────────────────────────────────┘
/// ```
pub(super) struct IdleConnections {
    common: Common,
    /// Number of the thread.
    number: usize,
    idle: Idle,
    slice: Slice,
    targets: Targets,
    recorder: Recorder,
    poll: Poll,
    /// By place; `None` for a connection that is not open.
    sockets: Vec<Option<Socket>>,
    connecting: HashMap<u32, Connecting>,
    /// Places in the order of their attempts, each with the time to give up.
    give_up: VecDeque<(Instant, u32)>,
    cuts: Option<CutSchedule>,
    /// Places that were cut, each with the time to reconnect.
    away: VecDeque<(Instant, u32)>,
    /// Beginning of second 0.
    start: Instant,
    /// Places that were due so far, and how many there are in all.
    begun: u32,
    places: u32,
    pings: Pings,
}

impl IdleConnections {
    /// Prepares the idle connections of `slice`; makes none yet.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub(super) fn new(common: Common, number: usize, slice: Slice) -> Result<Self, LoadgenError> {
        let idle = common.plan.idle.expect("it is for plans with idle connections");
        let places = slice.count(idle.count);
        let recorder = Recorder::new(common.layout.clone(), &common.plan, u64::MAX);
        let targets = Targets::new(common.addresses.clone(), common.plan.brokers.len(), idle.count);
        let now = Instant::now();
        let mut pings = Pings::new(now);
        pings.keep_alive(common.plan.connection.keep_alive);
        let connections = Self {
            idle,
            slice,
            targets,
            recorder,
            poll: Poll::new().map_err(LoadgenError::Runtime)?,
            sockets: (0..places).map(|_| None).collect(),
            connecting: HashMap::new(),
            give_up: VecDeque::new(),
            cuts: None,
            away: VecDeque::new(),
            start: now,
            begun: 0,
            places,
            pings,
            common,
            number,
        };
        connections.counters().connecting.set(places.into());
        Ok(connections)
    }

    /// Blocks until the run is at a stage later than `stage`.
    pub(super) fn wait_for_stage_after(&self, stage: RunStage) {
        while self.stage() <= stage {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends recording; returns the results.
    pub(super) fn into_part(self) -> Part {
        self.recorder.into_part()
    }

    /// Serves the connections until the end of the run.
    ///
    /// # Errors
    /// This machine cannot make more connections, or no TLS connection is possible.
    pub(super) fn run(&mut self) -> Result<(), LoadgenError> {
        // The run ended before it began.
        let RunStage::Run { start_ns } = self.stage() else { return Ok(()) };
        self.recorder.start(start_ns);
        self.start = self.common.clock.instant(start_ns);
        self.cuts = CutSchedule::of(&self.common.plan, CutWhose::Idle, self.idle.count, start_ns);
        let mut events = Events::with_capacity(EVENTS);
        loop {
            match self.stage() {
                RunStage::End => break,
                RunStage::Drain => self.begin_no_more(),
                _ => {}
            }
            let now = Instant::now();
            self.cut(now);
            let is_behind = self.begin(now)?;
            self.give_up(now);
            self.ping(now);
            let pause = if is_behind { Duration::ZERO } else { self.pause() };
            self.poll(&mut events, pause)?;
            events.iter().try_for_each(|event| self.advance(event.token().0 as u32))?;
            self.counters().note_cpu();
        }
        self.say_goodbye(&mut events)
    }

    /// The current stage; [`RunStage::End`] if the engine is gone.
    fn stage(&self) -> RunStage {
        if self.common.stages.has_changed().is_err() { RunStage::End } else { *self.common.stages.borrow() }
    }

    fn counters(&self) -> &Counters {
        &self.common.shared.counters[self.number]
    }

    /// The number of the connection at `place` among all processes.
    fn connection(&self, place: u32) -> u32 {
        place * self.slice.of + self.slice.index
    }

    /// When the connection at `place` is due.
    fn due(&self, place: u32) -> Instant {
        match self.idle.rate {
            Some(rate) => self.start + Duration::from_secs_f64(f64::from(self.connection(place)) / rate),
            None => self.start,
        }
    }

    /// Begins due connections up to the limits; returns whether more are due now.
    fn begin(&mut self, now: Instant) -> Result<bool, LoadgenError> {
        for _ in 0..BEGIN_AT_ONCE {
            if self.connecting.len() >= self.connecting_max() {
                return Ok(false);
            }
            if let Some((_, place)) = self.away.pop_front_if(|(back, _)| *back <= now) {
                self.connect(place, now, false)?;
            } else if self.begun < self.places && self.due(self.begun) <= now {
                // Without a rate, a connection is due when it is begun.
                let due = self.idle.rate.map_or_else(Instant::now, |_| self.due(self.begun));
                self.begun += 1;
                self.connect(self.begun - 1, due, true)?;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The time is over: connections that are not due yet are not made.
    fn begin_no_more(&mut self) {
        self.counters().connecting.sub((self.places - self.begun).into());
        self.places = self.begun;
    }

    fn connecting_max(&self) -> usize {
        if self.idle.rate.is_some() { CONNECTING_MAX } else { CONNECTING_MAX_WITHOUT_RATE }
    }

    fn connect(&mut self, place: u32, due: Instant, is_first: bool) -> Result<(), LoadgenError> {
        let connection = self.connection(place);
        let mut socket = match self.open(connection) {
            Ok(socket) => socket?,
            Err(error) if is_our_fault(&error) => {
                let reason = format!("{error}, with {} idle connections", self.begun);
                return Err(LoadgenError::connect(&self.targets.target(connection).to_string(), reason));
            }
            Err(_) => {
                self.refuse(place);
                return Ok(());
            }
        };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let token = Token(place as usize);
        self.poll.registry().register(socket.source(), token, interest).map_err(LoadgenError::Runtime)?;
        self.sockets[place as usize] = Some(socket);
        let give_up = Instant::now() + ANSWER_MAX;
        self.give_up.push_back((give_up, place));
        self.connecting
            .insert(place, Connecting::new(due, give_up, is_first, self.connect_packet(connection, is_first)?));
        Ok(())
    }

    /// Begins a connection.
    fn open(&self, connection: u32) -> io::Result<Result<Socket, LoadgenError>> {
        match &self.common.plan.connection.unix {
            Some(path) => UnixStream::connect(path).map(|stream| Ok(Socket::Unix(stream))),
            None => self.targets.connect(connection).map(|stream| self.socket(connection, stream)),
        }
    }

    /// Wraps `stream` in the layers of the plan.
    fn socket(&self, connection: u32, stream: TcpStream) -> Result<Socket, LoadgenError> {
        let socket = self.tls_or_tcp(connection, stream)?;
        let Some(path) = &self.common.plan.connection.websocket else { return Ok(socket) };
        let host = self.common.plan.brokers[self.targets.broker(connection)].address();
        Ok(Socket::Framed(Box::new(WebSocket::new(socket, &host, path))))
    }

    fn tls_or_tcp(&self, connection: u32, stream: TcpStream) -> Result<Socket, LoadgenError> {
        let Some(tls) = self.common.connector.tls() else { return Ok(Socket::Tcp(stream)) };
        let begun = tls.begin(&self.common.plan.brokers[self.targets.broker(connection)].host, stream);
        begun.map(|stream| Socket::Tls(Box::new(stream))).map_err(|error| self.impossible(connection, error))
    }

    fn impossible(&self, connection: u32, error: impl fmt::Display) -> LoadgenError {
        LoadgenError::connect(&self.common.plan.brokers[self.targets.broker(connection)].address(), error)
    }

    /// Encodes CONNECT.
    fn connect_packet(&self, connection: u32, is_first: bool) -> Result<Bytes, LoadgenError> {
        let (client_id, connector) = (self.common.layout.idle_client_id(connection), &self.common.connector);
        let connect = connector.connect_packet(&client_id, true, is_first)?;
        let mut out = WriteBuffer::new();
        Packet::Connect(Box::new(connect)).encode(connector.version(), &mut out);
        Ok(out.to_bytes())
    }

    /// Handles an event at `place`. The event may be of an earlier socket at this place, which does no harm.
    fn advance(&mut self, place: u32) -> Result<(), LoadgenError> {
        let Some(socket) = &mut self.sockets[place as usize] else { return Ok(()) };
        let Some(connecting) = self.connecting.get_mut(&place) else {
            if !is_there(socket) {
                self.sockets[place as usize] = None;
                self.recorder.lost(self.common.clock.now_ns());
            }
            return Ok(());
        };
        match connecting.advance(socket, self.common.connector.version()) {
            Answer::None => {}
            Answer::Accepted(connack) => self.accept(place, &connack),
            Answer::Refused => self.refuse(place),
            Answer::Impossible(error) => return Err(self.impossible(self.connection(place), error)),
        }
        Ok(())
    }

    fn accept(&mut self, place: u32, connack: &ConnAck) {
        let Some(connecting) = self.connecting.remove(&place) else { return };
        let now = Instant::now();
        if connecting.is_first {
            self.recorder.connected(now.saturating_duration_since(connecting.due), self.common.clock.at_ns(now));
        } else {
            self.recorder.reconnected(connack.session_present, self.common.clock.at_ns(now));
        }
        if let Some(seconds) = connack.properties.server_keep_alive {
            self.pings.keep_alive(seconds);
        }
        self.settle();
    }

    fn refuse(&mut self, place: u32) {
        self.connecting.remove(&place);
        self.sockets[place as usize] = None;
        self.recorder.refused(self.common.clock.now_ns());
        self.settle();
    }

    /// Counts one attempt as answered.
    fn settle(&self) {
        self.counters().connecting.sub(1);
    }

    /// Refuses connections that have waited too long for an answer.
    fn give_up(&mut self, now: Instant) {
        while let Some((at, place)) = self.give_up.pop_front_if(|(at, _)| *at <= now) {
            if self.connecting.get(&place).is_some_and(|connecting| connecting.give_up == at) {
                self.refuse(place);
            }
        }
    }

    fn cut(&mut self, now: Instant) {
        if !self.common.shared.may_cut() {
            self.cuts = None;
        }
        let Some(away) = self.cuts.as_ref().map(CutSchedule::away) else { return };
        let now_ns = self.common.clock.at_ns(now);
        while let Some(connection) = self.cuts.as_mut().and_then(|cuts| cuts.due(now_ns)) {
            let place = connection / self.slice.of;
            // A connection that is not open yet cannot be cut.
            if !self.slice.has(connection) || self.connecting.contains_key(&place) {
                continue;
            }
            if let Some(socket) = self.sockets[place as usize].take() {
                reset(socket);
                self.recorder.cut();
                self.counters().connecting.add(1);
                self.away.push_back((now + away, place));
            }
        }
    }

    fn ping(&mut self, now: Instant) {
        while let Some(place) = self.pings.due(self.begun, now) {
            if let Some(socket) = &mut self.sockets[place as usize]
                && !self.connecting.contains_key(&place)
            {
                // A write fails if the connection is lost or blocked; then a ping would not help.
                let _ = socket.write(&PINGREQ);
            }
        }
    }

    /// How long the thread may wait for socket events.
    fn pause(&self) -> Duration {
        let may_begin = self.begun < self.places && self.connecting.len() < self.connecting_max();
        let next = may_begin.then(|| self.due(self.begun));
        let back = self.away.front().map(|(back, _)| *back);
        let cut = self.cuts.as_ref().map(|cuts| self.common.clock.instant(cuts.next_ns()));
        let first = [next, back, cut].into_iter().flatten().min();
        first.map_or(PAUSE_MAX, |first| first.saturating_duration_since(Instant::now()).min(PAUSE_MAX))
    }

    fn poll(&mut self, events: &mut Events, pause: Duration) -> Result<(), LoadgenError> {
        match self.poll.poll(events, Some(pause)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(LoadgenError::Runtime(error)),
            _ => Ok(()),
        }
    }

    /// Disconnects all open connections and waits until the broker has closed them, so that it publishes no Will.
    fn say_goodbye(&mut self, events: &mut Events) -> Result<(), LoadgenError> {
        let goodbye = self.common.connector.goodbye();
        let mut left = 0;
        for place in &mut self.sockets {
            // A socket that cannot be written to is not connected yet, or its peer does not read: no answer would come.
            if place.as_mut().is_some_and(|socket| socket.write(&goodbye).is_ok()) {
                left += 1;
            } else if let Some(socket) = place.take() {
                reset(socket);
            }
        }
        let until = Instant::now() + GOODBYE_MAX;
        while left > 0 && Instant::now() < until {
            self.poll(events, PAUSE_MAX)?;
            for event in &*events {
                let socket = &mut self.sockets[event.token().0];
                if socket.as_mut().is_some_and(|socket| !is_there(socket)) {
                    *socket = None;
                    left -= 1;
                }
            }
        }
        self.sockets.drain(..).flatten().for_each(reset);
        Ok(())
    }
}

/// Whether a connection is still open. The bytes read do not matter: they are PINGRESP or DISCONNECT.
fn is_there(socket: &mut Socket) -> bool {
    let mut chunk = [0; 256];
    loop {
        match socket.read(&mut chunk) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Resets a connection, so that its port does not stay in TIME_WAIT.
fn reset(socket: Socket) {
    let _ = socket.socket().set_linger(Some(Duration::ZERO));
}

/// Whether this machine has run out of ports, files or memory.
fn is_our_fault(error: &io::Error) -> bool {
    let ours = [Errno::ADDRNOTAVAIL, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    ours.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Maximum number of connections under way.
const CONNECTING_MAX: usize = 1000;
/// Maximum number of connections under way without a rate.
///
/// It is below the usual accept backlog of brokers: a connection beyond that is tried again only a second later.
const CONNECTING_MAX_WITHOUT_RATE: usize = 100;
/// Connections to begin before answers are read.
const BEGIN_AT_ONCE: usize = 64;
const EVENTS: usize = 1024;
const PAUSE_MAX: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(10);
const GOODBYE_MAX: Duration = Duration::from_secs(5);
const PINGREQ: [u8; 2] = [0xC0, 0];
