//! Limits that a run has reached: windows and buffers of connections, rates of links, processors.
//!
//! They are likely causes of a phase's figures. This is a pure function of samples.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::results::{InstanceSample, LinkSample, MACHINE, SocketSample};
use crate::units::Time;

/// Share of a phase in which a connection must be limited to be worth a line.
const SIGNIFICANT: f64 = 0.25;
/// The same for congestion, of which every connection has some.
const CONGESTED: f64 = 0.5;
/// Share of processors that counts as all of them.
const ALL: f64 = 0.9;
/// Share of the bytes that is worth a line if sent again, and the least number of them.
const SENT_AGAIN: (f64, u64) = (0.005, 1500);
/// Round trip below which the speed of processors decides, unless the bound of a window is below `FAST` bytes a second.
const FAR_MS: f64 = 1.0;
const FAST: f64 = 125e6;
/// Most by which a rate may exceed a bound that comes from one sample a second.
const TOLERANCE: f64 = 1.25;

/// Samples of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Samples<'a> {
    pub(crate) links: &'a [LinkSample],
    pub(crate) sockets: &'a [SocketSample],
    pub(crate) instances: &'a [InstanceSample],
    pub(crate) limits: &'a [RateLimit],
}

/// Rate to which a fault limits a link.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RateLimit {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bits_per_second: u64,
    pub(crate) queue_bytes: u64,
    pub(crate) time: Range<Time>,
}

/// A limit that was reached.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cause {
    pub(crate) kind: Kind,
    /// The connection, link, instance or machine.
    pub(crate) subject: String,
    /// The limit in words.
    pub(crate) text: String,
}

/// Kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    ReceiveWindow,
    SlowReader,
    SendBuffer,
    Congestion,
    Rate,
    Processor,
}

/// Limits that were reached in these times, connections first.
pub(crate) fn causes(samples: &Samples<'_>, times: &[Range<Time>]) -> Vec<Cause> {
    let seconds = Seconds::of(times);
    let mut causes = connections(samples.sockets, &seconds);
    causes.extend(links(samples, &seconds, times));
    causes.extend(processors(samples.instances, &seconds));
    causes
}

/// Whole seconds of some times; of shorter times, the seconds that they touch.
struct Seconds<'t> {
    times: &'t [Range<Time>],
    has_whole: bool,
}

impl<'t> Seconds<'t> {
    fn of(times: &'t [Range<Time>]) -> Self {
        let has_whole = times.iter().any(|time| time.start.secs().ceil() + 1.0 <= time.end.secs());
        Self { times, has_whole }
    }

    fn contain(&self, second: u64) -> bool {
        let (from, to) = (Time::from_secs(second), Time::from_secs(second + 1));
        self.times.iter().any(|time| match self.has_whole {
            true => time.start <= from && to <= time.end,
            false => time.start < to && from < time.end,
        })
    }

    fn count(&self) -> f64 {
        let last = self.times.iter().map(|time| time.end.secs().ceil() as u64).max().unwrap_or_default();
        (0..last).filter(|second| self.contain(*second)).count().max(1) as f64
    }
}

/// One connection in one direction, in the seconds of a phase.
struct Connection<'s> {
    samples: Vec<&'s SocketSample>,
    /// Bytes that its receiver has not read, in the same seconds.
    unread: Vec<f64>,
    seconds: f64,
}

/// Connections from one machine to another, by the ports of both ends.
type Pair<'s> = BTreeMap<(u16, u16), Connection<'s>>;

/// The most significant limit of each pair of machines.
fn connections(sockets: &[SocketSample], seconds: &Seconds<'_>) -> Vec<Cause> {
    let mut all: BTreeMap<(&str, &str), Pair<'_>> = BTreeMap::new();
    let mut unread: BTreeMap<(&str, u16, &str, u16, u64), u64> = BTreeMap::new();
    let count = seconds.count();
    for sample in sockets.iter().filter(|sample| seconds.contain(sample.second)) {
        let pair = all.entry((&sample.from, &sample.to)).or_default();
        let new = || Connection { samples: Vec::new(), unread: Vec::new(), seconds: count };
        pair.entry((sample.port, sample.peer_port)).or_insert_with(new).samples.push(sample);
        unread.insert((&sample.from, sample.port, &sample.to, sample.peer_port, sample.second), sample.unread);
    }
    let mut found = Vec::new();
    for ((from, to), pair) in &mut all {
        for ((port, peer_port), connection) in pair.iter_mut() {
            let other = |sample: &&SocketSample| unread.get(&(*to, *peer_port, *from, *port, sample.second));
            connection.unread = connection.samples.iter().filter_map(other).map(|bytes| *bytes as f64).collect();
        }
        let limits = pair.values().filter_map(Connection::limit);
        let Some((share, kind, text)) = limits.max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let several = match pair.len() {
            1 => String::new(),
            number => format!(" (one of {number} connections)"),
        };
        found.push((share, Cause { kind, subject: format!("{from} → {to}"), text: format!("{text}{several}") }));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, cause)| cause).collect()
}

impl Connection<'_> {
    fn sum(&self, value: fn(&SocketSample) -> f64) -> f64 {
        self.samples.iter().map(|sample| value(sample)).sum()
    }

    fn median(&self, value: fn(&SocketSample) -> f64) -> f64 {
        median(self.samples.iter().map(|sample| value(sample)))
    }

    /// Share of the time, kind and text of what limits it most; `None` if nothing does.
    fn limit(&self) -> Option<(f64, Kind, String)> {
        let again = self.sent_again();
        let Some((share, kind, text)) = self.window() else {
            return again.map(|(share, text)| (share, Kind::Congestion, text));
        };
        let again = again.map_or(String::new(), |(_, text)| format!("; {text}"));
        Some((share, kind, format!("{text} ({} of the time){again}", percent(share))))
    }

    /// Share of the bytes that were sent again, if it is worth a line.
    fn sent_again(&self) -> Option<(f64, String)> {
        let (again, once) = (self.sum(|sample| sample.retransmitted as f64), self.sum(|s| s.acknowledged as f64));
        let share = again / (again + once).max(1.0);
        let is_much = share >= SENT_AGAIN.0 && again >= SENT_AGAIN.1 as f64;
        is_much.then(|| (share, format!("{} of its bytes were sent again", percent(share))))
    }

    /// The window or buffer that stops the sender, with its share of the time.
    fn window(&self) -> Option<(f64, Kind, String)> {
        let share = |value: fn(&SocketSample) -> f64| self.sum(value) / self.seconds;
        let (receiver, buffer) = (share(|sample| sample.receiver_limited), share(|sample| sample.buffer_limited));
        let network = share(|sample| sample.busy) - buffer;
        let rtt_ms = self.median(|sample| sample.rtt_ms);
        // A sender that paces itself, as BBR does, rarely counts as stopped by the receiver.
        let waits = self.median(|sample| f64::from(u8::from(sample.unsent > 0))) > 0.0;
        let is_far = rtt_ms >= FAR_MS || self.sent_again().is_some();
        if receiver >= SIGNIFICANT.max(buffer) || (network - receiver >= CONGESTED && waits && is_far) {
            let others = self.median(|sample| sample.send_window.max(sample.in_flight) as f64);
            let own = self.median(|sample| sample.congestion_window as f64);
            let unread = median(self.unread.iter().copied());
            if receiver >= SIGNIFICANT && unread > 0.5 * others {
                let text = format!("the receiver reads too slowly: {} wait in its socket", size(unread));
                return Some((receiver, Kind::SlowReader, text));
            }
            let share = if receiver >= SIGNIFICANT { receiver } else { network };
            let has_window = self.samples.iter().any(|sample| sample.send_window > 0);
            return match receiver >= SIGNIFICANT || (has_window && others < own) {
                true => Some((share, Kind::ReceiveWindow, self.bound("window", others, rtt_ms)?)),
                false => Some((share, Kind::Congestion, self.bound("congestion window", own, rtt_ms)?)),
            };
        }
        if buffer >= SIGNIFICANT {
            let held = self.median(|sample| (sample.in_flight + sample.unsent) as f64);
            return Some((buffer, Kind::SendBuffer, self.bound("send buffer", held, rtt_ms)?));
        }
        None
    }

    /// The rate that a window for each round trip allows, in words; `None` if the connection was clearly faster, or the
    /// rate tells nothing.
    fn bound(&self, name: &str, window: f64, rtt_ms: f64) -> Option<String> {
        let bound = window / (rtt_ms / 1e3);
        let took = self.sum(|sample| sample.acknowledged as f64) / self.seconds;
        let is_telling = took <= TOLERANCE * bound && (rtt_ms >= FAR_MS || bound < FAST);
        let text = || format!("{name} {} at {}, so at most {} MB/s", size(window), ms(rtt_ms), digits(bound / 1e6));
        (window > 0.0 && rtt_ms > 0.0 && is_telling).then(text)
    }
}

/// Links whose rate, limited by a fault, is used up.
fn links(samples: &Samples<'_>, seconds: &Seconds<'_>, times: &[Range<Time>]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for limit in samples.limits {
        let overlaps = |time: &Range<Time>| time.start < limit.time.end && limit.time.start < time.end;
        let is_in =
            |sample: &&LinkSample| sample.from == limit.from && sample.to == limit.to && seconds.contain(sample.second);
        let rows = samples.links.iter().filter(is_in).collect::<Vec<_>>();
        if rows.is_empty() || !times.iter().any(overlaps) {
            continue;
        }
        let bits = rows.iter().map(|row| row.bytes * 8).sum::<u64>() as f64 / seconds.count();
        let queued = median(rows.iter().map(|row| row.queued_bytes as f64));
        let dropped = rows.iter().map(|row| row.dropped).sum::<u64>();
        let is_full = queued >= 0.5 * limit.queue_bytes as f64;
        if bits >= ALL * limit.bits_per_second as f64 || is_full {
            let text = format!(
                "{} of the fault's {} Mbit/s are in use, {} wait in its queue, {dropped} packets were dropped",
                digits(bits / 1e6),
                digits(limit.bits_per_second as f64 / 1e6),
                size(queued),
            );
            causes.push(Cause { kind: Kind::Rate, subject: format!("{} → {}", limit.from, limit.to), text });
        }
    }
    causes
}

/// Instances and clients that use all of their processors, or just one.
fn processors(instances: &[InstanceSample], seconds: &Seconds<'_>) -> Vec<Cause> {
    let mut all: BTreeMap<&str, Vec<&InstanceSample>> = BTreeMap::new();
    for sample in instances.iter().filter(|sample| seconds.contain(sample.second)) {
        all.entry(&sample.name).or_default().push(sample);
    }
    let cause = |(name, rows): (&str, Vec<&InstanceSample>)| {
        let processors = rows.iter().map(|row| row.processors).max().unwrap_or_default();
        let mean = rows.iter().map(|row| row.cpu).sum::<f64>() / rows.len() as f64;
        let is_one = processors > 1 && rows.len() > 1 && rows.iter().all(|row| (0.93..=1.07).contains(&row.cpu));
        let text = if mean >= ALL * f64::from(processors) && processors > 0 {
            match name {
                MACHINE => {
                    format!("{mean:.2} of {processors} processors are busy, so figures are limits of this machine")
                }
                _ => format!("it uses {mean:.2} of {processors} processors"),
            }
        } else if is_one {
            "it uses one processor all the time, as one busy thread does".to_owned()
        } else {
            return None;
        };
        Some(Cause { kind: Kind::Processor, subject: name.to_owned(), text })
    };
    all.into_iter().filter_map(cause).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values = values.collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Bytes with a unit, in whole numbers.
pub(crate) fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 10.0 * 1024.0 * 1024.0 => format!("{:.0} MiB", bytes / 1024.0 / 1024.0),
        bytes if bytes >= 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{bytes:.0} bytes"),
    }
}

fn ms(ms: f64) -> String {
    if ms < 1.0 { format!("{ms:.2} ms") } else { format!("{ms:.1} ms") }
}

fn percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}

/// At least two significant digits.
fn digits(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:.2}"),
        value if value < 10.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
#[path = "causes_tests.rs"]
mod tests;
