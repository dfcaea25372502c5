//! A network between clients and a gateway that loses, doubles and delays datagrams, and so reorders them.
//!
//! It is a part of the test's process and not the switch of `tenbin-lab`, which needs network namespaces and root. It
//! also sees each datagram before it may be lost, and so checks that every repeated PUBLISH is marked DUP.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::support::Dice;

/// Percentages of lost and of doubled datagrams, and the longest delay of each copy.
const LOST: u64 = 10;
const DOUBLED: u64 = 5;
const DELAY_MS: u64 = 40;

const PUBLISH: u8 = 0x0C;
const DUP: u8 = 0x80;
const QOS_BITS: u8 = 0x60;

/// Counts of all datagrams, and faults of their senders.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// PUBLISH messages that their sender repeated.
    pub(crate) repeated: u64,
    /// Repeated messages without DUP: who sent them, and the datagram.
    pub(crate) unmarked: Vec<(Sender, Vec<u8>)>,
}

/// Who sends in one direction between a client and the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sender {
    Client(SocketAddr),
    GatewayTo(SocketAddr),
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    report: Arc<Mutex<Report>>,
}

/// One direction between one client and the gateway.
struct Direction {
    sender: Sender,
    dice: Dice,
    /// Content of the last PUBLISH with each MsgId, without DUP.
    published: HashMap<[u8; 2], Vec<u8>>,
    report: Arc<Mutex<Report>>,
}

impl Relay {
    /// Relays between clients at [`Relay::address`] and the gateway, on the current runtime.
    pub(crate) async fn start(gateway: SocketAddr, seed: u64) -> Self {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a free port"));
        let address = front.local_addr().expect("an address");
        let report = Arc::new(Mutex::new(Report::default()));
        tokio::spawn(relay(front, gateway, seed, Arc::clone(&report)));
        Self { address, report }
    }

    /// The report so far.
    pub(crate) fn report(&self) -> Report {
        std::mem::take(&mut *self.report.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn relay(front: Arc<UdpSocket>, gateway: SocketAddr, seed: u64, report: Arc<Mutex<Report>>) {
    let mut clients: HashMap<SocketAddr, (Arc<UdpSocket>, Direction)> = HashMap::new();
    let mut buffer = [0; 2048];
    loop {
        // An error tells that a client is gone.
        let Ok((size, client)) = front.recv_from(&mut buffer).await else { continue };
        if !clients.contains_key(&client) {
            let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a free port"));
            back.connect(gateway).await.expect("an address");
            let number = 2 * clients.len();
            let up = Direction::new(Sender::Client(client), seed, number, &report);
            let down = Direction::new(Sender::GatewayTo(client), seed, number + 1, &report);
            tokio::spawn(relay_back(Arc::clone(&back), Arc::clone(&front), client, down));
            clients.insert(client, (back, up));
        }
        let Some((back, up)) = clients.get_mut(&client) else { continue };
        for delay in up.delays(&buffer[..size]) {
            let (back, datagram) = (Arc::clone(back), buffer[..size].to_vec());
            tokio::spawn(async move {
                sleep(delay).await;
                let _ = back.send(&datagram).await;
            });
        }
    }
}

async fn relay_back(back: Arc<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr, mut down: Direction) {
    let mut buffer = [0; 2048];
    loop {
        // An error tells that the gateway is gone; it may come back.
        let Ok(size) = back.recv(&mut buffer).await else { continue };
        for delay in down.delays(&buffer[..size]) {
            let (front, datagram) = (Arc::clone(&front), buffer[..size].to_vec());
            tokio::spawn(async move {
                sleep(delay).await;
                let _ = front.send_to(&datagram, client).await;
            });
        }
    }
}

impl Direction {
    fn new(sender: Sender, seed: u64, number: usize, report: &Arc<Mutex<Report>>) -> Self {
        Self { sender, dice: Dice::new(seed, number), published: HashMap::new(), report: Arc::clone(report) }
    }

    /// Checks a datagram, and rolls the delay of each of its copies: none if it is lost.
    fn delays(&mut self, datagram: &[u8]) -> Vec<Duration> {
        let (is_lost, is_doubled) = (self.dice.percent(LOST), self.dice.percent(DOUBLED));
        let copies = if is_lost { 0 } else { 1 + usize::from(is_doubled) };
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.sent += 1;
        report.lost += u64::from(is_lost);
        report.doubled += u64::from(copies == 2);
        if let [_, PUBLISH, flags, topic_0, topic_1, id_0, id_1, data @ ..] = datagram
            && flags & QOS_BITS != 0
        {
            let content = [&[flags & !DUP, *topic_0, *topic_1], data].concat();
            let last = self.published.insert([*id_0, *id_1], content.clone());
            if last.is_some_and(|last| last == content) {
                report.repeated += 1;
                if flags & DUP == 0 {
                    report.unmarked.push((self.sender, datagram.to_vec()));
                }
            }
        }
        drop(report);
        (0..copies).map(|_| Duration::from_micros(self.dice.within(0..DELAY_MS * 1000))).collect()
    }
}
