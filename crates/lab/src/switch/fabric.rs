//! All links of a lab, and the frames that they hold. It reads no clock and no socket.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::frame;
use super::link::{Link, LinkCounters, Passage};
use super::shape::Shape;

/// First bytes of all hardware addresses of a lab; the number of the machine follows.
const HARDWARE: [u8; 4] = [0x02, b'l', b'a', b'b'];

/// Hardware address of machine number `port`.
pub(crate) fn hardware_address(port: u16) -> [u8; 6] {
    let [high, low] = port.to_be_bytes();
    [HARDWARE[0], HARDWARE[1], HARDWARE[2], HARDWARE[3], high, low]
}

/// Number of the machine with this hardware address.
fn number([a, b, c, d, high, low]: [u8; 6]) -> Option<u16> {
    ([a, b, c, d] == HARDWARE).then(|| u16::from_be_bytes([high, low]))
}

/// Numbers of the machines that a frame comes from and goes to.
pub(super) fn ends(frame: &[u8]) -> Option<(u16, u16)> {
    Some((number(frame::source(frame)?)?, number(frame::destination(frame)?)?))
}

/// Links between all machines, by the numbers of their ports.
#[derive(Debug)]
pub(crate) struct Fabric {
    seed: u64,
    names: Vec<String>,
    links: Vec<Vec<Link>>,
    line: BinaryHeap<Reverse<Held>>,
    arrived: u64,
    /// The next time at which a fault ends by itself.
    next_end: Option<Duration>,
}

/// A frame that waits for its time.
#[derive(Debug)]
struct Held {
    due: Duration,
    order: u64,
    from: u16,
    to: u16,
    frame: Vec<u8>,
}

impl Fabric {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, names: Vec::new(), links: Vec::new(), line: BinaryHeap::new(), arrived: 0, next_end: None }
    }

    /// Adds a machine, and links from it and to it. Returns its number.
    pub(crate) fn add(&mut self, name: &str) -> u16 {
        let port = self.names.len();
        self.names.push(name.to_owned());
        let (seed, names) = (self.seed, &self.names);
        for (from, links) in self.links.iter_mut().enumerate() {
            links.push(Link::new(seed, &names[from], name));
        }
        self.links.push(names.iter().map(|to| Link::new(seed, name, to)).collect());
        port as u16
    }

    pub(crate) fn impair(&mut self, id: u64, links: &[(u16, u16)], shape: &Shape, until: Option<Duration>) {
        for (from, to) in links {
            if let Some(link) = self.link(*from, *to) {
                link.impair(id, shape.clone(), until);
            }
        }
        self.next_end = [self.next_end, until].into_iter().flatten().min();
    }

    pub(crate) fn lift(&mut self, id: u64) {
        self.links.iter_mut().flatten().for_each(|link| link.lift(id));
    }

    /// Passes a frame of machine `from` on, or holds it. `send` returns false if the receiver's interface is full.
    pub(crate) fn frame(&mut self, now: Duration, from: u16, frame: &[u8], send: &mut impl FnMut(u16, &[u8]) -> bool) {
        // Addresses are known without ARP, and IPv6 is not in use: everything for all machines is noise.
        let Some(to) = frame::destination(frame).and_then(number).filter(|to| *to != from) else { return };
        let Some(link) = self.links.get_mut(usize::from(from)).and_then(|links| links.get_mut(usize::from(to))) else {
            return;
        };
        let (line, arrived) = (&mut self.line, &mut self.arrived);
        link.offer(now, frame, |passage| match passage {
            Passage::Now(frame) => send(to, frame),
            Passage::Held(due, frame) => {
                *arrived += 1;
                line.push(Reverse(Held { due, order: *arrived, from, to, frame }));
                true
            }
        });
    }

    /// Passes all frames on that are due, and ends the faults whose time is over.
    pub(crate) fn advance(&mut self, now: Duration, send: &mut impl FnMut(u16, &[u8]) -> bool) {
        if self.next_end.is_some_and(|end| end <= now) {
            self.next_end = self.links.iter_mut().flatten().filter_map(|link| link.expire(now)).min();
        }
        while self.line.peek().is_some_and(|Reverse(held)| held.due <= now) {
            let Some(Reverse(held)) = self.line.pop() else { return };
            let taken = send(held.to, &held.frame);
            if let Some(link) = self.link(held.from, held.to) {
                link.released(&held.frame, taken);
            }
        }
    }

    /// When `advance` has something to do.
    pub(crate) fn next(&self) -> Option<Duration> {
        let due = self.line.peek().map(|Reverse(held)| held.due);
        [due, self.next_end].into_iter().flatten().min()
    }

    /// Takes note that a machine's interface took no frame that came through a trunk: its link is another fabric's.
    pub(crate) fn overflowed(&mut self, from: u16, to: u16, frame: &[u8]) {
        if let Some(link) = self.link(from, to) {
            link.counters.overflowed += frame::packets(frame);
        }
    }

    /// Counters of all links.
    pub(crate) fn counters(&self) -> Vec<LinkCounters> {
        let rows = self.names.iter().zip(&self.links);
        let links = rows.flat_map(|(from, links)| self.names.iter().zip(links).map(move |(to, link)| (from, to, link)));
        let counters = |(from, to, link): (&String, &String, &Link)| LinkCounters {
            from: from.clone(),
            to: to.clone(),
            counters: link.counters,
        };
        links.filter(|(from, to, _)| from != to).map(counters).collect()
    }

    fn link(&mut self, from: u16, to: u16) -> Option<&mut Link> {
        self.links.get_mut(usize::from(from))?.get_mut(usize::from(to))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}
