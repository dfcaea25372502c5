//! Limits that a run has reached: windows and buffers of connections, rates of links, processors.
//!
//! They are likely causes of a phase's figures. This is a pure function of samples.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::results::{InstanceSample, LinkSample, MACHINE, SocketSample};
use crate::units::Time;

/// Share of a phase, or of a second, in which a connection must be limited to be worth a line.
const SIGNIFICANT: f64 = 0.25;
/// Share of a second from which on one limit alone explains it.
const BUSY: f64 = 0.5;
/// Share of the rate that a window allows from which on the window is the limit, however much its receiver has not read.
const FULL: f64 = 0.6;
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
    pub(crate) processor_limits: &'a [ProcessorLimit],
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

/// Processors to which a fault limits an instance or client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProcessorLimit {
    pub(crate) name: String,
    pub(crate) processors: f64,
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
    causes.extend(processors(samples, &seconds, times));
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
#[derive(Default)]
struct Connection<'s> {
    samples: Vec<&'s SocketSample>,
    /// Bytes that its receiver has not read, for each sample.
    unread: Vec<f64>,
}

/// Connections from one machine to another, by the ports of both ends.
type Pair<'s> = BTreeMap<(u16, u16), Connection<'s>>;

/// A limit with its share of the phase.
type Limit = (f64, Kind, String);

/// Limits of the most limited connection of each pair of machines.
fn connections(sockets: &[SocketSample], seconds: &Seconds<'_>) -> Vec<Cause> {
    let mut all: BTreeMap<(&str, &str), Pair<'_>> = BTreeMap::new();
    let mut unread: BTreeMap<(&str, u16, &str, u16, u64), u64> = BTreeMap::new();
    for sample in sockets.iter().filter(|sample| seconds.contain(sample.second)) {
        let pair = all.entry((&sample.from, &sample.to)).or_default();
        pair.entry((sample.port, sample.peer_port)).or_default().samples.push(sample);
        unread.insert((&sample.from, sample.port, &sample.to, sample.peer_port, sample.second), sample.unread);
    }
    let count = seconds.count();
    let mut found = Vec::new();
    for ((from, to), pair) in &mut all {
        for ((port, peer_port), connection) in pair.iter_mut() {
            let other = |sample: &&SocketSample| unread.get(&(*to, *peer_port, *from, *port, sample.second));
            let bytes = |sample| other(sample).map_or(0.0, |bytes| *bytes as f64);
            connection.unread = connection.samples.iter().map(bytes).collect();
        }
        let total = |limits: &Vec<Limit>| limits.iter().map(|(share, ..)| share).sum::<f64>();
        let limits = pair.values().map(|connection| connection.limits(count));
        let most = limits.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default();
        let several = if pair.len() > 1 { format!(" (one of {} connections)", pair.len()) } else { String::new() };
        for (share, kind, text) in most {
            found.push((share, Cause { kind, subject: format!("{from} → {to}"), text: format!("{text}{several}") }));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, cause)| cause).collect()
}

impl Connection<'_> {
    /// What limits it for a significant part of `seconds`.
    fn limits(&self, seconds: f64) -> Vec<Limit> {
        let again = self.sent_again();
        let mut limits = Vec::new();
        for kind in [Kind::ReceiveWindow, Kind::SlowReader, Kind::SendBuffer, Kind::Congestion] {
            let own =
                (0..self.samples.len()).filter_map(|at| self.stop(at).filter(|stop| stop.0 == kind).map(|s| (at, s.1)));
            let (own, shares): (Vec<_>, Vec<_>) = own.unzip();
            let share = shares.iter().sum::<f64>() / seconds;
            if share >= SIGNIFICANT
                && let Some(text) = self.text(kind, &own, again.is_some())
            {
                limits.push((share, kind, format!("{text} ({} of the time)", percent(share))));
            }
        }
        limits.sort_by(|a, b| b.0.total_cmp(&a.0));
        match (limits.first_mut(), again) {
            (Some((_, _, text)), Some((_, again))) => *text = format!("{text}; {again}"),
            (None, Some((share, again))) => limits.push((share, Kind::Congestion, again)),
            _ => {}
        }
        limits
    }

    /// What stops the sender in a sample, and for which share of its second.
    ///
    /// A sender that paces itself, as BBR does, rarely counts as stopped by the receiver. While bytes wait to be sent, the
    /// smaller one of both windows is the limit.
    fn stop(&self, at: usize) -> Option<(Kind, f64)> {
        let sample = self.samples[at];
        let (receiver, buffer) = (sample.receiver_limited, sample.buffer_limited);
        let network = sample.busy - buffer;
        if buffer > receiver && buffer >= SIGNIFICANT {
            return Some((Kind::SendBuffer, buffer));
        }
        let waits = network >= BUSY && sample.unsent > 0;
        if receiver < SIGNIFICANT && !waits {
            return None;
        }
        let window = sample.send_window.max(sample.in_flight);
        let share = if receiver >= BUSY || !waits { receiver } else { network };
        // A window of 0 is full.
        let is_slow = self.unread[at] > 0.0
            && self.unread[at] >= 0.5 * window as f64
            && (window == 0 || (sample.acknowledged as f64) < FULL * window as f64 / (sample.rtt_ms / 1e3));
        let is_small = if window == 0 { is_slow } else { sample.send_window > 0 && window < sample.congestion_window };
        let is_receiver = receiver >= BUSY || is_small;
        Some((
            match is_receiver {
                true if is_slow => Kind::SlowReader,
                true => Kind::ReceiveWindow,
                false => Kind::Congestion,
            },
            share,
        ))
    }

    /// A limit in words, by the samples in which it was reached; `None` if it tells nothing.
    fn text(&self, kind: Kind, own: &[usize], is_lossy: bool) -> Option<String> {
        let median = |value: fn(&SocketSample) -> u64| median(own.iter().map(|at| value(self.samples[*at]) as f64));
        let rtt_ms = self::median(own.iter().map(|at| self.samples[*at].rtt_ms));
        let (name, window) = match kind {
            Kind::SlowReader => {
                let unread = self::median(own.iter().map(|at| self.unread[*at]));
                return Some(format!("the receiver reads too slowly: {} wait in its socket", size(unread)));
            }
            Kind::SendBuffer => ("send buffer", median(|sample| sample.in_flight + sample.unsent)),
            Kind::Congestion => ("congestion window", median(|sample| sample.congestion_window)),
            _ => ("window", median(|sample| sample.send_window.max(sample.in_flight))),
        };
        if kind == Kind::ReceiveWindow && window == 0.0 {
            return Some("the receiver's window is full".to_owned());
        }
        let bound = window / (rtt_ms / 1e3);
        let took = own.iter().map(|at| self.samples[*at].acknowledged as f64).sum::<f64>() / own.len().max(1) as f64;
        let is_far = rtt_ms >= FAR_MS || bound < FAST || is_lossy;
        let is_telling = window > 0.0 && rtt_ms > 0.0 && took <= TOLERANCE * bound && is_far;
        let text = || format!("{name} {} at {}, so at most {} MB/s", size(window), ms(rtt_ms), digits(bound / 1e6));
        is_telling.then(text)
    }

    /// Share of the bytes that were sent again, if it is worth a line.
    fn sent_again(&self) -> Option<(f64, String)> {
        let sum = |value: fn(&SocketSample) -> u64| self.samples.iter().map(|sample| value(sample)).sum::<u64>() as f64;
        let (again, once) = (sum(|sample| sample.retransmitted), sum(|sample| sample.acknowledged));
        let share = again / (again + once).max(1.0);
        let is_much = share >= SENT_AGAIN.0 && again >= SENT_AGAIN.1 as f64;
        is_much.then(|| (share, format!("{} of its bytes were sent again", percent(share))))
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

/// Instances and clients that use all of their processors, all that a fault allows, or just one.
fn processors(samples: &Samples<'_>, seconds: &Seconds<'_>, times: &[Range<Time>]) -> Vec<Cause> {
    let mut all: BTreeMap<&str, Vec<&InstanceSample>> = BTreeMap::new();
    for sample in samples.instances.iter().filter(|sample| seconds.contain(sample.second)) {
        all.entry(&sample.name).or_default().push(sample);
    }
    let cause = |(name, rows): (&str, Vec<&InstanceSample>)| {
        let processors = rows.iter().map(|row| row.processors).max().unwrap_or_default();
        let mean = rows.iter().map(|row| row.cpu).sum::<f64>() / rows.len() as f64;
        let overlaps = |limit: &&ProcessorLimit| {
            limit.name == name && times.iter().any(|time| time.start < limit.time.end && limit.time.start < time.end)
        };
        let limits = samples.processor_limits.iter().filter(overlaps).map(|limit| limit.processors);
        let limit = limits.min_by(f64::total_cmp).filter(|limit| mean >= ALL * limit);
        let is_one = processors > 1 && rows.len() > 1 && rows.iter().all(|row| (0.93..=1.07).contains(&row.cpu));
        let text = if mean >= ALL * f64::from(processors) && processors > 0 {
            match name {
                MACHINE => {
                    format!("{mean:.2} of {processors} processors are busy, so figures are limits of this machine")
                }
                _ => format!("it uses {mean:.2} of {processors} processors"),
            }
        } else if let Some(limit) = limit {
            format!("it uses {mean:.2} of the {limit:.2} processors that the fault leaves")
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
