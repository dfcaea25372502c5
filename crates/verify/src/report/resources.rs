//! Limits that a run reached; processor, memory and disk of its instances; traffic of its links.

use std::ops::Range;

use tenbin_loadgen::report::{Axis, Block, Cell, Drawing, Figure, Ink, Mark, Plot, Scale, Stroke, Table};

use super::Run;
use super::causes::{Cause, ProcessorLimit, RateLimit, Samples, causes, size};
use super::plots::zones;
use crate::judge::windows::Phase;
use crate::plan::Instance;
use crate::results::{Event, Happening, InstanceSample, LinkSample, MACHINE};
use crate::template::{Fault, StartBy};
use crate::units::Time;

/// Links with less of all bytes than this share are left out.
const MINOR: f64 = 0.01;
/// Most links of a table.
const MOST_LINKS: usize = 20;

/// Limits that were reached in each phase; nothing for a run without samples.
pub(super) fn limits(run: &Run) -> Vec<Block> {
    if run.sockets.is_empty() && run.instances.is_empty() {
        return Vec::new();
    }
    let (limits, processor_limits) = fault_limits(run);
    let Run { links, sockets, instances, .. } = run;
    let samples = Samples { links, sockets, instances, limits: &limits, processor_limits: &processor_limits };
    let mut table = Table::new(["phase", "limit"]);
    table.text_columns = 2;
    let mut before: Vec<Cause> = Vec::new();
    for (phase, times) in phases(run) {
        let found = causes(&samples, &times);
        for cause in &found {
            let is_same = |other: &Cause| (other.kind, &other.subject) == (cause.kind, &cause.subject);
            let as_before = if before.iter().any(is_same) { "; as before" } else { "" };
            table.add(phase.to_string(), [format!("{}: {}{as_before}", cause.subject, cause.text)]);
        }
        if phase == Phase::Before {
            before = found;
        }
    }
    let (sampled, unsampled) = sampled(run);
    match table.rows.is_empty() {
        true => vec![Block::Text(format!("No {sampled} was at a limit.{unsampled}"))],
        false => {
            let text = format!("Likely causes, by the limits that each phase reached.{unsampled}");
            vec![Block::Text(text), table.into()]
        }
    }
}

/// Kinds of things that were sampled, and a sentence on the others, with a blank before it.
fn sampled(run: &Run) -> (String, String) {
    let kinds = [
        ("connection", !run.sockets.is_empty()),
        ("link", !run.links.is_empty()),
        ("processor", !run.instances.is_empty()),
    ];
    let of = |wanted: bool| kinds.iter().filter(|kind| kind.1 == wanted).map(|kind| kind.0).collect::<Vec<_>>();
    let mut unsampled: Vec<String> = of(false).iter().map(|name| format!("{name}s")).collect();
    let is_container = |instance: &Instance| matches!(instance.start, StartBy::Image(_));
    if run.plan.iter().flat_map(|plan| &plan.instances).any(is_container) {
        unsampled.push("processes and sockets in containers".to_owned());
    }
    let sentence =
        if unsampled.is_empty() { String::new() } else { format!(" Not sampled: {}.", unsampled.join(", ")) };
    (of(true).join(" or "), sentence)
}

/// Processor time of each instance over time, and the use of processor, memory and disk by phase.
pub(super) fn instances(run: &Run, prefix: &str) -> Vec<Block> {
    if run.instances.is_empty() {
        return Vec::new();
    }
    let mut names = Vec::new();
    for sample in &run.instances {
        if !names.contains(&sample.name.as_str()) {
            names.push(sample.name.as_str());
        }
    }
    vec![processor_chart(run, prefix, &names).into(), usage(run, &names).into()]
}

/// Traffic of the links that carried most, or dropped packets.
pub(super) fn links(run: &Run) -> Vec<Block> {
    let mut sums: Vec<LinkSum<'_>> = Vec::new();
    for sample in &run.links {
        let place = sums.iter().position(|sum| (sum.from, sum.to) == (&*sample.from, &*sample.to));
        let place = place.unwrap_or_else(|| {
            sums.push(LinkSum { from: &sample.from, to: &sample.to, ..LinkSum::default() });
            sums.len() - 1
        });
        sums[place].add(sample);
    }
    let (all, number) = (sums.iter().map(|sum| sum.bytes).sum::<u64>() as f64, sums.len());
    sums.retain(|sum| sum.dropped > 0 || sum.bytes as f64 >= MINOR * all);
    sums.sort_by_key(|sum| std::cmp::Reverse((sum.bytes, sum.dropped)));
    sums.truncate(MOST_LINKS);
    if sums.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(["link", "MB", "most MB/s", "packets", "dropped", "most queued"]);
    for sum in &sums {
        let [bytes, most] = [sum.bytes, sum.most].map(|bytes| Cell::from(format!("{:.2}", bytes as f64 / 1e6)));
        let (packets, queued) = (Cell::from(sum.packets.to_string()), Cell::from(size(sum.queued as f64)));
        let cells = [bytes, most, packets, Cell::faults(sum.dropped), queued];
        table.add(format!("{} → {}", sum.from, sum.to), cells);
    }
    let left = number - sums.len();
    let rest = (left > 0).then(|| Block::Text(format!("{left} more links are in links.csv; they carried little.")));
    std::iter::once(table.into()).chain(rest).collect()
}

/// Traffic of a link in a run.
#[derive(Debug, Clone, Default, PartialEq)]
struct LinkSum<'s> {
    from: &'s str,
    to: &'s str,
    bytes: u64,
    /// Greatest number of bytes in a second.
    most: u64,
    packets: u64,
    dropped: u64,
    /// Greatest number of bytes that were held at the end of a second.
    queued: u64,
}

impl LinkSum<'_> {
    fn add(&mut self, sample: &LinkSample) {
        self.bytes += sample.bytes;
        self.most = self.most.max(sample.bytes);
        self.packets += sample.packets;
        self.dropped += sample.dropped;
        self.queued = self.queued.max(sample.queued_bytes);
    }
}

fn processor_chart(run: &Run, prefix: &str, names: &[&str]) -> Figure {
    let of = |name: &str| run.instances.iter().filter(|sample| sample.name == name).cloned().collect::<Vec<_>>();
    let total = |samples: &[InstanceSample]| samples.iter().map(|sample| sample.cpu).sum::<f64>();
    let mut series = names.iter().filter(|name| **name != MACHINE).map(|name| (*name, of(name))).collect::<Vec<_>>();
    series.sort_by(|a, b| total(&b.1).total_cmp(&total(&a.1)));
    series.truncate(Ink::COLOURS);
    series.sort_by_key(|(name, _)| *name);
    let points = |samples: &[InstanceSample]| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for sample in samples {
            let at = sample.second as f64 + 0.5;
            // An instance that was away leaves a gap.
            if let Some(last) = points.last().filter(|last| at - last.0 > 1.0) {
                points.push((last.0 + 1.0, f64::NAN));
            }
            points.push((at, sample.cpu));
        }
        points
    };
    let mut marks = Vec::new();
    for (number, (name, samples)) in series.iter().enumerate() {
        marks.push(Mark::line(name, Ink::Colour(number), points(samples), Stroke::of(number)));
    }
    marks.push(Mark::line(MACHINE, Ink::Neutral, points(&of(MACHINE)), Stroke::Dotted));
    let most = run.instances.iter().map(|sample| sample.cpu).fold(0.0, f64::max);
    let end = run.instances.iter().map(|sample| sample.second + 1).max().unwrap_or_default();
    let end = (run.seconds.len() as f64).max(end as f64);
    let plot = Plot {
        x: Axis::new("seconds after the warm-up", Scale::Linear { from: 0.0, to: end }),
        y: Axis::new("processors in use", Scale::from_zero(most)),
        marks,
        zones: zones(run, end),
    };
    let caption = "Processor time of each process tree and of all processes of the machine, in seconds a second.";
    Figure::new(&format!("{prefix}-processor"), "Processor time", caption, Drawing::Plot(plot))
}

fn usage(run: &Run, names: &[&str]) -> Table {
    let head = ["processes", "phase", "processors, mean", "most", "of", "memory, most", "written", "read"];
    let mut table = Table::new(head);
    table.text_columns = 2;
    for name in names {
        let mut shown = *name;
        for (phase, times) in phases(run) {
            let rows: Vec<_> =
                run.instances.iter().filter(|sample| sample.name == *name && touches(&times, sample.second)).collect();
            let Some(first) = rows.first() else { continue };
            let (mean, most) = (
                rows.iter().map(|row| row.cpu).sum::<f64>() / rows.len() as f64,
                rows.iter().map(|row| row.cpu).fold(0.0, f64::max),
            );
            let rate = |bytes: fn(&InstanceSample) -> u64| {
                let sum = rows.iter().map(|row| bytes(row)).sum::<u64>() as f64 / rows.len() as f64;
                if *name == MACHINE { Cell::aside("–") } else { format!("{:.2} MB/s", sum / 1e6).into() }
            };
            let memory = rows.iter().map(|row| row.resident_bytes).max().unwrap_or_default();
            let cells = [
                phase.to_string().into(),
                format!("{mean:.2}").into(),
                format!("{most:.2}").into(),
                first.processors.to_string().into(),
                format!("{:.0} MiB", memory as f64 / 1024.0 / 1024.0).into(),
                rate(|row| row.written_bytes),
                rate(|row| row.read_bytes),
            ];
            table.add(std::mem::take(&mut shown), cells);
        }
    }
    table
}

/// Phases with their times, without the whole run if there are others.
fn phases(run: &Run) -> Vec<(Phase, Vec<Range<Time>>)> {
    let mut phases: Vec<(Phase, Vec<Range<Time>>)> = Vec::new();
    for time in &run.verdict.phases {
        match phases.iter_mut().find(|(phase, _)| *phase == time.phase) {
            Some((_, times)) => times.push(time.from..time.to),
            None => phases.push((time.phase.clone(), vec![time.from..time.to])),
        }
    }
    if phases.len() > 1 {
        phases.retain(|(phase, _)| *phase != Phase::Whole);
    }
    phases
}

/// True if most of the second is in these times.
fn touches(times: &[Range<Time>], second: u64) -> bool {
    let middle = Time::from_ns(second * 1_000_000_000 + 500_000_000);
    times.iter().any(|time| time.contains(&middle))
}

/// Faults that limited the rate of links, and those that limited processors, from begin to undo.
fn fault_limits(run: &Run) -> (Vec<RateLimit>, Vec<ProcessorLimit>) {
    let end = run.verdict.phases.iter().map(|time| time.to).max().unwrap_or_default();
    let (mut limits, mut processor_limits) = (Vec::new(), Vec::new());
    for action in run.plan.iter().flat_map(|plan| &plan.actions) {
        let is_own = |event: &&Event| (&event.action, event.repetition) == (&action.name, action.repetition);
        let at = |wanted: &Happening| {
            run.events.iter().filter(is_own).find(|event| event.happening == *wanted).and_then(|event| event.at)
        };
        let targets = run.events.iter().filter(is_own).find_map(|event| match &event.happening {
            Happening::Resolved { targets } => Some(targets),
            _ => None,
        });
        let (Some(begun), Some(targets)) = (at(&Happening::Begun), targets) else { continue };
        let time = begun..at(&Happening::Undone).unwrap_or(end);
        for target in targets {
            let time = time.clone();
            match (&action.fault, target.split_once(" → ")) {
                (Fault::NetRate { rate, queue }, Some((from, to))) => limits.push(RateLimit {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    bits_per_second: rate.bits(),
                    queue_bytes: queue.bytes(),
                    time,
                }),
                (Fault::CpuLimit { share }, _) => {
                    processor_limits.push(ProcessorLimit { name: target.clone(), processors: share.get(), time });
                }
                _ => {}
            }
        }
    }
    (limits, processor_limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::measured::Figures;
    use crate::judge::windows::{Effect, windows};
    use crate::plan::Plan;
    use crate::results::{RunVerdict, SocketSample, read_samples};
    use crate::template::Template;

    /// A run of 12 s with a fault from 4 s to 10 s.
    fn run(links: &str, instances: &str, sockets: Vec<SocketSample>) -> Run {
        let effect = Effect { action: "slow".to_owned(), begin: Time::from_secs(4), end: Time::from_secs(10) };
        let windows = windows(&[effect], Time::from_secs(3), Time::from_secs(12));
        let verdict = RunVerdict::new(1, 1, &windows, Figures::default(), &[]);
        let text = "systems:\n  b: { kind: tenbin }\n  p: { publishes_to: b, rate: 5 }\n\
                    actions:\n  - { name: slow, fault: net.rate, rate: 8 Mbit/s, from: p, to: b, start: 4, duration: 6 }";
        let templates = Template::read("t.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let plan = Plan::new(&templates[0], None).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let event = |at, happening| Event {
            time_ns: 0,
            at: Some(Time::from_secs(at)),
            action: "slow".to_owned(),
            repetition: 1,
            happening,
        };
        let events = vec![
            event(4, Happening::Resolved { targets: vec!["p → b".to_owned()] }),
            event(4, Happening::Begun),
            event(10, Happening::Undone),
        ];
        let (links, instances) = (read_samples(links), read_samples(instances));
        Run { verdict, plan: Some(plan), events, seconds: Vec::new(), links, sockets, instances }
    }

    fn rows(blocks: &[Block]) -> Vec<String> {
        let tables = blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(table),
            _ => None,
        });
        let line = |row: &Vec<Cell>| row.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(" | ");
        tables.flat_map(|table| &table.rows).map(line).collect()
    }

    const LINKS: &str = "second,from,to,bytes,packets,dropped,queued_bytes\n";
    const INSTANCES: &str = "second,name,cpu,processors,resident_bytes,read_bytes,written_bytes\n";

    #[test]
    fn links_with_traffic_or_drops_are_summed() {
        let text = format!("{LINKS}0,a,b,1000000,10,0,0\n1,a,b,5000000,1,2,2048\n1,b,a,7,1,0,0\n1,c,a,9,1,3,0\n");
        let blocks = links(&run(&text, "", Vec::new()));
        assert_eq!(rows(&blocks), ["a → b | 6.00 | 5.00 | 11 | 2 | 2 KiB", "c → a | 0.00 | 0.00 | 1 | 3 | 0 bytes"]);
        assert!(matches!(&blocks[1], Block::Text(text) if text.starts_with("1 more")), "{blocks:?}");
        assert!(links(&run(LINKS, "", Vec::new())).is_empty());
    }

    #[test]
    fn usage_is_shown_by_phase() {
        let mib = 1 << 20;
        let text = format!("{INSTANCES}2,b,0.5,2,{mib},0,1000000\n3,b,0.7,2,{mib},0,3000000\n5,b,1.5,2,{mib},0,0\n");
        let blocks = instances(&run("", &text, Vec::new()), "x");
        assert_eq!(
            rows(&blocks),
            [
                "b | before | 0.60 | 0.70 | 2 | 1 MiB | 2.00 MB/s | 0.00 MB/s",
                " | during slow | 1.50 | 1.50 | 2 | 1 MiB | 0.00 MB/s | 0.00 MB/s",
            ]
        );
        assert!(matches!(&blocks[0], Block::Figure(_)));
        assert!(instances(&run("", "", Vec::new()), "x").is_empty());
    }

    #[test]
    fn limits_are_named_in_the_phase_of_a_fault() {
        let links: String = (0..12).map(|second| format!("{second},p,b,990000,9,1,0\n")).collect();
        let instances: String = (0..12).map(|second| format!("{second},b,1.95,2,0,0,0\n")).collect();
        let found = limits(&run(&format!("{LINKS}{links}"), &format!("{INSTANCES}{instances}"), Vec::new()));
        assert_eq!(
            rows(&found),
            [
                "before | b: it uses 1.95 of 2 processors",
                "during slow | p → b: 7.9 of the fault's 8.0 Mbit/s are in use, 0 bytes wait in its queue, 6 packets were dropped",
                "during slow | b: it uses 1.95 of 2 processors; as before",
                "after slow | b: it uses 1.95 of 2 processors; as before",
            ]
        );
        let idle = limits(&run("", &format!("{INSTANCES}5,b,0.1,2,0,0,0\n"), Vec::new()));
        let wanted = "No processor was at a limit. Not sampled: connections, links.";
        assert!(matches!(&idle[..], [Block::Text(text)] if text == wanted), "{idle:?}");
        assert!(limits(&run("", "", Vec::new())).is_empty(), "nothing was sampled");
    }
}
