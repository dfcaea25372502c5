//! Two publishers (QoS 1 and QoS 2) and a subscriber whose sessions outlive their connections.
//!
//! They use all nodes in turn, and write down every acknowledgement and every message. At the end nothing acknowledged may
//! be missing, QoS 2 must not repeat, and the order of each publisher must hold.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenbin_codec::{
    Ack, Connect, Disconnect, Packet, PacketId, PingReq, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe,
};

use crate::harness::{Cluster, attempt};
use crate::support::{PATIENCE, RawClient, Silence, at_qos, encode, lasting, subscription};

/// Filter of all messages of a ledger.
pub(crate) const FILTER: &str = "ledger/#";

/// Clients at work, see the module.
pub(crate) struct Ledger {
    shared: Arc<Shared>,
    publishers: Vec<JoinHandle<()>>,
    subscriber: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    book: Mutex<Book>,
    changed: Condvar,
}

#[derive(Default)]
struct Book {
    is_subscribed: bool,
    /// The publishers send nothing new, and end once everything is acknowledged.
    is_ending: bool,
    /// All clients end at once.
    is_over: bool,
    pages: [Page; 2],
    /// Longest time from a message's first PUBLISH to its acknowledgement.
    longest_wait: Duration,
    faults: Vec<String>,
}

/// Messages of one publisher, which numbers them from 1.
#[derive(Default)]
struct Page {
    sent: u64,
    acknowledged: BTreeSet<u64>,
    /// In the order of their arrival.
    received: Vec<u64>,
    distinct: HashSet<u64>,
}

impl Book {
    fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    fn is_complete(&self) -> bool {
        self.pages.iter().all(|page| page.acknowledged.iter().all(|number| page.distinct.contains(number)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    fn wait(&self, what: &str, holds: impl Fn(&Book) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut book = self.lock();
        while !holds(&book) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} within {PATIENCE:?}: {}", summary(&book));
            book = self.changed.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn summary(book: &Book) -> String {
    let page = |page: &Page| {
        format!("sent {}, acknowledged {}, received {}", page.sent, page.acknowledged.len(), page.distinct.len())
    };
    format!("QoS 1: {}; QoS 2: {}; faults {:?}", page(&book.pages[0]), page(&book.pages[1]), book.faults)
}

impl Ledger {
    /// Starts the clients at different nodes, and waits until messages flow.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self::start_at(cluster, [0, 1], 0)
    }

    /// As [`Ledger::start`]. The publishers begin at these nodes, and the subscriber at another one.
    pub(crate) fn start_at(cluster: &Cluster, publishers: [usize; 2], subscriber: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let (of_subscriber, addresses) = (Arc::clone(&shared), cluster.addresses_from(subscriber));
        let subscriber = std::thread::spawn(move || Subscriber::new(of_subscriber, addresses).run());
        shared.wait("subscription", |book| book.is_subscribed);
        let publishers = [(0, QoS::AtLeastOnce), (1, QoS::ExactlyOnce)].map(|(page, qos)| {
            let (of_publisher, addresses) = (Arc::clone(&shared), cluster.addresses_from(publishers[page]));
            std::thread::spawn(move || Publisher::new(of_publisher, addresses, page, qos).run())
        });
        let ledger = Self { shared, publishers: publishers.into(), subscriber: Some(subscriber) };
        ledger.wait_for_more(20);
        ledger
    }

    /// Waits until `count` further messages of each publisher were acknowledged.
    pub(crate) fn wait_for_more(&self, count: u64) {
        // A message that is sent from here on has a larger number.
        let goals = self.shared.lock().pages.each_ref().map(|page| page.sent + count);
        self.shared.wait("further acknowledgements", |book| {
            let last = |page: &Page| page.acknowledged.last().copied().unwrap_or_default();
            book.pages.iter().zip(goals).all(|(page, goal)| last(page) >= goal)
        });
    }

    /// Number of acknowledged messages of each publisher.
    pub(crate) fn acknowledged(&self) -> [usize; 2] {
        self.shared.lock().pages.each_ref().map(|page| page.acknowledged.len())
    }

    /// Longest wait for an acknowledgement since the last call.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.shared.change(|book| std::mem::take(&mut book.longest_wait))
    }

    /// Number of messages that each publisher has sent.
    pub(crate) fn sent(&self) -> [u64; 2] {
        self.shared.lock().pages.each_ref().map(|page| page.sent)
    }

    /// Payloads of the acknowledged messages behind these numbers, see [`Ledger::sent`].
    ///
    /// A subscriber gets them if it had its SUBACK before. A message that was sent before, but acknowledged afterwards, may
    /// have been accepted before.
    pub(crate) fn acknowledged_behind(&self, sent: [u64; 2]) -> Vec<String> {
        let book = self.shared.lock();
        let pages = book.pages.iter().zip(sent).enumerate();
        let late = pages
            .flat_map(|(at, (page, sent))| page.acknowledged.range(sent + 1..).map(move |number| payload(at, *number)));
        late.collect()
    }

    /// Ends the publishers, waits for all acknowledgements and all messages, and judges.
    ///
    /// # Panics
    /// If anything is wrong.
    pub(crate) fn finish(mut self) {
        self.stop_publishing();
        self.shared.wait("message of each acknowledgement", Book::is_complete);
        self.judge();
    }

    /// Ends the publishers once everything is acknowledged.
    pub(crate) fn stop_publishing(&mut self) {
        self.shared.change(|book| book.is_ending = true);
        self.shared.wait("end of the acknowledgements", |book| {
            book.pages.iter().all(|page| page.acknowledged.len() as u64 == page.sent)
        });
        for publisher in self.publishers.drain(..) {
            publisher.join().expect("the publisher has not panicked");
        }
    }

    fn judge(&self) {
        let book = self.shared.lock();
        assert_eq!(book.faults, Vec::<String>::new(), "{}", summary(&book));
        let mut last = 0;
        for &number in &book.pages[1].received {
            assert!(number > last, "QoS 2: message {number} came after {last}");
            last = number;
        }
        let (mut last, mut known) = (0, HashSet::new());
        for &number in &book.pages[0].received {
            let is_first = known.insert(number);
            assert!(!is_first || number > last, "QoS 1: message {number} came first after {last}");
            last = last.max(number);
        }
        for page in &book.pages {
            assert!(page.distinct.iter().all(|number| *number <= page.sent), "a message that was never sent");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.shared.change(|book| book.is_over = true);
        for client in self.publishers.drain(..).chain(self.subscriber.take()) {
            let _ = client.join();
        }
    }
}

fn payload(page: usize, number: u64) -> String {
    format!("{page} {number:010} {}", "x".repeat(100))
}

fn read_payload(publish: &Publish) -> Option<(usize, u64)> {
    let text = std::str::from_utf8(&publish.payload).ok()?;
    let (page, rest) = text.split_once(' ')?;
    Some((page.parse().ok().filter(|page| *page < 2)?, rest.split_once(' ')?.0.parse().ok()?))
}

/// Connects to the addresses in turn.
struct Connector {
    addresses: Vec<SocketAddr>,
    next: usize,
    connect: Connect,
    /// A CONNACK was received, so there is a session.
    was_connected: bool,
}

impl Connector {
    fn new(client_id: &str, addresses: Vec<SocketAddr>) -> Self {
        let connect = lasting(ProtocolVersion::V5, client_id);
        Self { addresses, next: 0, connect, was_connected: false }
    }

    /// Connects. Also returns whether the session is there. `None`: the ledger is over.
    fn connect(&mut self, shared: &Shared) -> Option<(RawClient, bool)> {
        loop {
            if shared.lock().is_over {
                return None;
            }
            let address = self.addresses[self.next % self.addresses.len()];
            if let Some((client, connack)) = attempt(address, &self.connect) {
                if !connack.session_present && self.was_connected {
                    let client_id = &self.connect.client_id;
                    shared.change(|book| book.fault(format!("the session of {client_id:?} was lost")));
                }
                self.was_connected = true;
                return Some((client, connack.session_present));
            }
            self.next += 1;
            std::thread::sleep(RECONNECT_AFTER);
        }
    }

    /// The next connection is to the next address.
    fn lost(&mut self) {
        self.next += 1;
    }
}

fn send(client: &mut RawClient, packet: &Packet) {
    let bytes = encode(packet, ProtocolVersion::V5);
    client.try_send_bytes(&bytes);
}

struct Publisher {
    shared: Arc<Shared>,
    connector: Connector,
    page: usize,
    qos: QoS,
    in_flight: VecDeque<InFlight>,
    last_id: u16,
}

struct InFlight {
    id: PacketId,
    number: u64,
    sent_at: Instant,
    /// PUBREC was received.
    is_received: bool,
}

impl Publisher {
    fn new(shared: Arc<Shared>, addresses: Vec<SocketAddr>, page: usize, qos: QoS) -> Self {
        let connector = Connector::new(&format!("ledger-publisher-{page}"), addresses);
        Self { shared, connector, page, qos, in_flight: VecDeque::new(), last_id: 0 }
    }

    fn run(mut self) {
        while let Some((mut client, _)) = self.connector.connect(&self.shared) {
            for at in 0..self.in_flight.len() {
                let entry = &self.in_flight[at];
                let packet = match entry.is_received {
                    true => Packet::PubRel(Ack::new(entry.id, ReasonCode::Success)),
                    false => Packet::Publish(Publish { dup: true, ..self.message(entry) }),
                };
                send(&mut client, &packet);
            }
            if self.serve(&mut client) {
                return;
            }
            self.connector.lost();
        }
    }

    fn message(&self, entry: &InFlight) -> Publish {
        let topic = format!("ledger/{}", self.page);
        Publish { packet_id: Some(entry.id), ..at_qos(&topic, &payload(self.page, entry.number), self.qos) }
    }

    /// Uses a connection until it ends. True: everything is done.
    fn serve(&mut self, client: &mut RawClient) -> bool {
        let mut heard = Instant::now();
        loop {
            let (is_ending, is_over) = {
                let book = self.shared.lock();
                (book.is_ending, book.is_over)
            };
            if is_over || is_ending && self.in_flight.is_empty() {
                send(client, &Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
                return true;
            }
            if !is_ending && self.in_flight.len() < WINDOW {
                self.send_next(client);
            }
            match client.try_receive(PACE) {
                Ok(packet) => {
                    heard = Instant::now();
                    if !self.receive(client, &packet) {
                        return false;
                    }
                }
                Err(Silence::TimedOut) => {
                    if self.in_flight.is_empty() {
                        heard = Instant::now();
                    } else if heard.elapsed() > SILENCE_MAX {
                        return false;
                    }
                }
                Err(Silence::Closed) => return false,
                Err(Silence::Illegal(error)) => {
                    self.shared.change(|book| book.fault(format!("illegal packet: {error}")));
                    return false;
                }
            }
        }
    }

    fn send_next(&mut self, client: &mut RawClient) {
        self.last_id = self.last_id % 60_000 + 1;
        let number = self.shared.change(|book| {
            book.pages[self.page].sent += 1;
            book.pages[self.page].sent
        });
        let entry = InFlight {
            id: PacketId::new(self.last_id).expect("not 0"),
            number,
            sent_at: Instant::now(),
            is_received: false,
        };
        let message = self.message(&entry);
        self.in_flight.push_back(entry);
        send(client, &Packet::Publish(message));
    }

    /// False: the connection ends.
    fn receive(&mut self, client: &mut RawClient, packet: &Packet) -> bool {
        let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) = packet else {
            return !matches!(packet, Packet::Disconnect(_));
        };
        let Some(at) = self.in_flight.iter().position(|entry| entry.id == ack.packet_id) else { return true };
        let (number, page, reason) = (self.in_flight[at].number, self.page, ack.reason);
        if reason != ReasonCode::Success && !matches!(packet, Packet::PubComp(_)) {
            self.shared.change(|book| book.fault(format!("message {number} of {page} was answered by {reason:?}")));
        }
        if !matches!(packet, Packet::PubComp(_)) {
            let waited = self.in_flight[at].sent_at.elapsed();
            self.shared.change(|book| {
                if book.pages[page].acknowledged.insert(number) {
                    book.longest_wait = book.longest_wait.max(waited);
                }
            });
        }
        if matches!(packet, Packet::PubRec(_)) {
            self.in_flight[at].is_received = true;
            send(client, &Packet::PubRel(Ack::new(ack.packet_id, ReasonCode::Success)));
        } else {
            self.in_flight.remove(at);
        }
        true
    }
}

struct Subscriber {
    shared: Arc<Shared>,
    connector: Connector,
    /// Identifiers of QoS 2 messages whose PUBREL has yet to come.
    unreleased: HashSet<PacketId>,
}

impl Subscriber {
    fn new(shared: Arc<Shared>, addresses: Vec<SocketAddr>) -> Self {
        Self { shared, connector: Connector::new("ledger-subscriber", addresses), unreleased: HashSet::new() }
    }

    fn run(mut self) {
        while let Some((mut client, is_present)) = self.connector.connect(&self.shared) {
            if !is_present {
                self.unreleased.clear();
            }
            if !is_present || !self.shared.lock().is_subscribed {
                let subscriptions = vec![subscription(FILTER, QoS::ExactlyOnce)];
                let packet_id = client.next_id();
                let (subscription_identifier, user_properties) = (None, Vec::new());
                let subscribe = Subscribe { packet_id, subscription_identifier, user_properties, subscriptions };
                send(&mut client, &Packet::Subscribe(subscribe));
            }
            if self.serve(&mut client) {
                return;
            }
            self.connector.lost();
        }
    }

    /// Uses a connection until it ends. True: the ledger is over.
    fn serve(&mut self, client: &mut RawClient) -> bool {
        let mut heard = Instant::now();
        loop {
            if self.shared.lock().is_over {
                return true;
            }
            match client.try_receive(PING_EVERY) {
                Ok(packet) => {
                    heard = Instant::now();
                    if !self.receive(client, packet) {
                        return false;
                    }
                }
                Err(Silence::TimedOut) if heard.elapsed() > SILENCE_MAX => return false,
                Err(Silence::TimedOut) => send(client, &Packet::PingReq(PingReq::PLAIN)),
                Err(Silence::Closed) => return false,
                Err(Silence::Illegal(error)) => {
                    self.shared.change(|book| book.fault(format!("illegal packet: {error}")));
                    return false;
                }
            }
        }
    }

    /// False: the connection ends.
    fn receive(&mut self, client: &mut RawClient, packet: Packet) -> bool {
        match packet {
            Packet::Publish(publish) => {
                let Some(id) = publish.packet_id else { return true };
                if publish.qos == QoS::AtLeastOnce {
                    self.note(&publish);
                    send(client, &Packet::PubAck(Ack::new(id, ReasonCode::Success)));
                } else {
                    if self.unreleased.insert(id) {
                        self.note(&publish);
                    }
                    send(client, &Packet::PubRec(Ack::new(id, ReasonCode::Success)));
                }
            }
            Packet::PubRel(ack) => {
                self.unreleased.remove(&ack.packet_id);
                send(client, &Packet::PubComp(Ack::new(ack.packet_id, ReasonCode::Success)));
            }
            Packet::SubAck(_) => self.shared.change(|book| book.is_subscribed = true),
            Packet::Disconnect(_) => return false,
            _ => {}
        }
        true
    }

    fn note(&self, publish: &Publish) {
        self.shared.change(|book| match read_payload(publish) {
            Some((page, number)) => {
                book.pages[page].received.push(number);
                book.pages[page].distinct.insert(number);
            }
            None => book.fault(format!("an unknown message: {:?}", publish.payload)),
        });
    }
}

/// Messages without an acknowledgement.
const WINDOW: usize = 16;
/// Longest wait for an acknowledgement before the next message.
const PACE: Duration = Duration::from_millis(2);
const RECONNECT_AFTER: Duration = Duration::from_millis(5);
const PING_EVERY: Duration = Duration::from_millis(300);
/// Silence after which a client uses another node.
const SILENCE_MAX: Duration = Duration::from_secs(3);
