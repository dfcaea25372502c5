//! Report of `scenario slow`: sections for the terminal and the page, and the data files.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Arrival, GOAL_MEAN, PHASES, PUBLISHED_SWITCH_MS, SlowArgs, SlowFigures, published};
use crate::LoadgenError;
use crate::number::{brief, count, fixed, ms, optional};
use crate::report::chart::{Axis, Figure, Ink, Mark, Scale, Stroke, Zone};
use crate::report::charts::{Frame, LEAST_MS, Label};
use crate::report::files::{create_directory, file_name, write_csv, write_json};
use crate::report::model::{Block, Cell, Report, Section, Table, Tone};
use crate::report::origin::Origin;
use crate::report::{LATE_MS, html, text};

/// Prints the plan.
pub(crate) fn print_head(out: &mut dyn Write, args: &SlowArgs) -> Result<(), LoadgenError> {
    text::print(out, &[Section::default().with(Block::List(head(args)))])
}

/// Prints the results of one size.
pub(crate) fn print_size(out: &mut dyn Write, found: &SlowFigures) -> Result<(), LoadgenError> {
    text::print(out, &[size_section(found)])
}

/// Prints the goals and writes all files, if `args` name a directory.
pub(crate) fn finish(out: &mut dyn Write, args: &SlowArgs, found: &[SlowFigures]) -> Result<(), LoadgenError> {
    text::print(out, &[goals(found)])?;
    let Some(directory) = &args.out else { return Ok(()) };
    create_directory(directory)?;
    write_json(&directory.join("summary.json"), &summary(args, found))?;
    for figures in found {
        write_messages(&directory.join(format!("{}.csv", name(figures))), figures)?;
    }
    html::write(directory, &report(args, found))
}

fn report(args: &SlowArgs, found: &[SlowFigures]) -> Report {
    let lost: u64 = found.iter().map(lost).sum();
    let verdict = if lost == 0 { "Nothing lost.".to_owned() } else { format!("Lost {}.", count(lost)) };
    let late = found.iter().map(|figures| figures.lateness_p99_ms).fold(0.0, f64::max);
    let late = (late > LATE_MS).then(|| {
        let text = format!("The publisher was late, by up to {} ms (p99): this machine was too busy.", brief(late));
        Block::Banner(Tone::Warning, text)
    });
    let missed = found.iter().filter(|figures| !is_goal_reached(figures)).count();
    let goal = match missed {
        0 => (Tone::Good, "All goals reached.".to_owned()),
        missed => (Tone::Bad, format!("Goals missed with {missed} of {} sizes.", found.len())),
    };
    let ratio = |figures: &SlowFigures| {
        let mean = figures.phases[2].map_or("unknown".to_owned(), |after| format!("× {:.2}", after.mean_ratio));
        format!("{} {mean}", figures.size)
    };
    let each: Vec<_> = found.iter().map(ratio).collect();
    let mut sections = vec![
        Section::default()
            .with(Block::Banner(Tone::of_faults(lost), verdict))
            .with(Block::Banner(goal.0, goal.1))
            .with_all(late),
        goals(found),
    ];
    sections.extend(found.iter().map(|figures| size_section(figures).with_all(course(figures))));
    let files = "Each message at each normal receiver is a row of normal-SIZE.csv; all figures are in summary.json.";
    sections.push(Section::new("Plan").with(Block::List(head(args))).with(files.to_owned()));
    let headline = format!("Mean latency beside slow receivers: {}", each.join(", "));
    Report { title: "Slow receivers".to_owned(), headline, origin: Origin::here(), sections }
}

/// Description of the run, in lines.
fn head(args: &SlowArgs) -> Vec<String> {
    let slow = match args.slow_reads {
        0.0 => "nothing".to_owned(),
        share => format!("{:.0} % of their messages", share * 100.0),
    };
    vec![
        format!("scenario slow: {} normal and {} slow receivers, QoS 1, lasting sessions", args.normal, args.slow),
        format!(
            "all read for {:?}; then the slow ones read {slow}; the first {:?} of that are the switch, {:?} are after it",
            args.before, args.switch, args.after
        ),
        "latency: of the normal receivers, from when a message is made until it is received, in ms".to_owned(),
        "x: in relation to the mean before; worst/worst: the worst in relation to the worst before".to_owned(),
    ]
}

/// Results of one size.
fn size_section(found: &SlowFigures) -> Section {
    let mut table = Table::new(["", "n", "mean", "p99", "worst", "mean x", "worst x", "worst/worst"]);
    for (name, phase) in PHASES.iter().zip(&found.phases) {
        let latency = phase.map(|phase| phase.latency);
        let [mean, p99, worst] = [latency.map(|l| l.mean), latency.map(|l| l.p99), latency.map(|l| l.max)].map(ms);
        let ratios = phase.map(|phase| [phase.mean_ratio, phase.worst_ratio, phase.worst_to_worst]);
        let [a, b, c] = ratios.map_or([None; 3], |ratios| ratios.map(Some)).map(|ratio| optional(ratio, 2));
        table.add(*name, [count(latency.map_or(0, |l| l.n as u64)), mean, p99, worst, a, b, c]);
    }
    if let Some(published) = published(found.size.bytes) {
        for (name, mean, worst) in [
            ("published: flow to disk", published.mean_after.0, published.worst.0),
            ("published: proposed", published.mean_after.1, published.worst.1),
        ] {
            let [mean, worst] = [fixed(mean, 2), fixed(worst, 0)];
            table.add(name, ["", "", "", "", &mean, &worst].map(Cell::aside));
        }
    }
    let lines = course_lines(found).into_iter().chain(switch_line(found)).chain(count_lines(found));
    let title = format!("{}, {:.0} messages a second", found.size, found.size.messages_per_second);
    Section::new(&title).with(table).with_all(lines)
}

fn course_lines(found: &SlowFigures) -> [String; 3] {
    let ms = |time: Option<Duration>| time.map(|time| format!("{:.0} ms", time.as_secs_f64() * 1e3));
    let spooled = match (ms(found.first_spooled), ms(found.all_spooled)) {
        (None, _) => "n/a, the broker says nothing of spooling".to_owned(),
        (Some(first), None) => format!("{first} for the first slow receiver, never said for all"),
        (Some(first), Some(all)) => format!("{first} for the first slow receiver, {all} for all"),
    };
    let calm = ms(found.calm_after).unwrap_or("never".to_owned());
    let (backlog, drain) = (found.backlog, found.drain.as_secs_f64());
    [
        format!("from slow to spooled: {spooled}"),
        format!("until the latency of a second was at most {GOAL_MEAN} x the mean before: {calm}"),
        format!("the slow ones had {backlog} messages to come at the end; drained for {drain:.1} s"),
    ]
}

/// Switches between the nodes of a pair, beside the published ones.
fn switch_line(found: &SlowFigures) -> Option<String> {
    let switches = found.switches?;
    let (least, most) = PUBLISHED_SWITCH_MS;
    let back = switches.all_back_s.map_or("not all back".to_owned(), |time| format!("all back after {time:.1} s"));
    Some(format!(
        "switched to another node {} times, {} of them back: p50 {:.1} ms, worst {:.1} ms (published {least:.0} to \
         {most:.0} ms); {back}; connections lost {}",
        switches.count, switches.back, switches.p50_ms, switches.max_ms, switches.lost
    ))
}

/// Goals of a pair, and whether a size reaches them: mean latency during the switch phase and after it, and switch times.
fn pair_goal(figures: &SlowFigures) -> Option<(String, bool)> {
    let switches = figures.switches?;
    let during_goal = if figures.size.bytes >= LARGE { GOAL_DURING_LARGE } else { GOAL_DURING };
    let [during, after] = [1, 2].map(|phase| figures.phases[phase].map(|phase| phase.mean_ratio));
    let is_within = |ratio: Option<f64>, goal| ratio.is_some_and(|ratio| ratio <= goal);
    let has_quick_switches =
        switches.count > 0 && switches.p50_ms <= GOAL_SWITCH_MS.0 && switches.max_ms <= GOAL_SWITCH_MS.1;
    let are_back = is_within(switches.all_back_s, GOAL_BACK_S);
    let is_reached = is_within(during, during_goal)
        && is_within(after, GOAL_AFTER)
        && has_quick_switches
        && are_back
        && lost(figures) == 0;
    let [during, after] = [during, after].map(|ratio| optional(ratio, 2));
    let text = format!(
        "pair: during {during} (goal {during_goal}), after {after} (goal {GOAL_AFTER}), switch p50 {:.1}, worst {:.1} ms (goals \
         {} and {}), all back after {} s (goal {GOAL_BACK_S})",
        switches.p50_ms,
        switches.max_ms,
        GOAL_SWITCH_MS.0,
        GOAL_SWITCH_MS.1,
        optional(switches.all_back_s, 1)
    );
    Some((text, is_reached))
}

fn count_lines(found: &SlowFigures) -> [String; 4] {
    let counts = &found.counts;
    let mut published = format!("published {}", counts.published);
    for (name, count) in [("refused", counts.refused), ("not acknowledged", counts.unacknowledged)] {
        if count > 0 {
            published += &format!(", {name} {count}");
        }
    }
    let [normal, slow] = [("normal", counts.normal), ("slow", counts.slow)].map(|(name, tally)| {
        let queued =
            if tally.still_queued > 0 { format!(", still queued {}", tally.still_queued) } else { String::new() };
        let (lost, duplicated, out_of_order) = (tally.lost, tally.duplicated, tally.out_of_order);
        format!("{name}: lost {lost}, duplicated {duplicated}, out of order {out_of_order}{queued}")
    });
    let late = format!("publisher late by {:.2} ms (p99; at most {:.2})", found.lateness_p99_ms, found.lateness_max_ms);
    [published, normal, slow, late]
}

/// Whether the goals are reached, for each size.
fn goals(found: &[SlowFigures]) -> Section {
    let line = |figures: &SlowFigures| {
        let mean = optional(figures.phases[2].map(|after| after.mean_ratio), 2);
        let (worst, lost) = (optional(figures.worst_to_worst(), 2), lost(figures));
        let verdict = if is_goal_reached(figures) { "reached" } else { "missed" };
        let of_pair = pair_goal(figures).map_or(String::new(), |(text, is_reached)| {
            format!("; {text}: {}", if is_reached { "reached" } else { "missed" })
        });
        format!("{:<10}{verdict}: mean {mean}, worst {worst}, lost {lost}{of_pair}", figures.size.to_string())
    };
    let goals =
        format!("mean after at most {GOAL_MEAN} x, worst since slow at most {GOAL_WORST} x the worst before, lost 0");
    Section::new(&format!("goals: {goals}")).with_all(found.iter().map(line))
}

fn is_goal_reached(figures: &SlowFigures) -> bool {
    let mean = figures.phases[2].is_some_and(|after| after.mean_ratio <= GOAL_MEAN);
    mean && figures.worst_to_worst().is_some_and(|worst| worst <= GOAL_WORST) && lost(figures) == 0
}

fn lost(figures: &SlowFigures) -> u64 {
    figures.counts.normal.lost + figures.counts.slow.lost
}

/// Name of a size's files: `normal-4_KiB`.
fn name(figures: &SlowFigures) -> String {
    format!("normal-{}", file_name(&figures.size.to_string()))
}

fn write_messages(path: &Path, figures: &SlowFigures) -> Result<(), LoadgenError> {
    let rows = figures.arrivals.iter().map(|Arrival { receiver, sequence, due, latency_ms }| {
        let phase = figures.bounds.at(*due).map_or("", |phase| PHASES[phase]);
        format!("{receiver},{sequence},{phase},{},{latency_ms:.6}", due.as_nanos())
    });
    write_csv(path, "receiver,sequence,phase,due_ns,latency_ms", rows)
}

/// Mean and worst latency of the normal receivers in each tenth of a second.
fn course(figures: &SlowFigures) -> Option<Figure> {
    let mut slots: Vec<(f64, u32, f64)> = Vec::new();
    for arrival in &figures.arrivals {
        let slot = (arrival.due.as_secs_f64() / SLOT) as usize;
        slots.resize(slots.len().max(slot + 1), (0.0, 0, 0.0));
        let (sum, count, worst) = &mut slots[slot];
        (*sum, *count, *worst) = (*sum + arrival.latency_ms, *count + 1, worst.max(arrival.latency_ms));
    }
    let (before, end) = (figures.phases[0]?.latency.mean, slots.len() as f64 * SLOT);
    let points = |value: fn(&(f64, u32, f64)) -> f64| {
        let filled = slots.iter().enumerate().filter(|(_, slot)| slot.1 > 0);
        filled.map(|(number, slot)| ((number as f64 + 0.5) * SLOT, value(slot))).collect::<Vec<_>>()
    };
    let (mean, worst) = (points(|(sum, count, _)| sum / f64::from(*count)), points(|slot| slot.2));
    let least = mean.iter().map(|point| point.1).fold(before, f64::min);
    let most = worst.iter().map(|point| point.1).fold(0.0, f64::max);
    let y = Axis::new("latency, ms", Scale::for_latencies(least, before, most, LEAST_MS));
    let from = figures.bounds.before.as_secs_f64();
    let switch = Zone { from, to: from + figures.bounds.switch.as_secs_f64(), name: "switch".to_owned() };
    let marks = vec![
        Mark::line("worst", Ink::Colour(1), worst, Stroke::of(1)),
        Mark::line("mean", Ink::Colour(0), mean, Stroke::Solid),
        Mark::line("mean before", Ink::Neutral, vec![(0.0, before), (end, before)], Stroke::Dotted),
    ];
    let (name, title) = (name(figures), format!("{}: latency of the normal receivers", figures.size));
    let caption = "Of each tenth of a second. Where the switch begins, the slow receivers become slow; the dotted \
                   line is the mean before.";
    let frame = Frame::new("time at which a message was due, s", end, vec![switch]);
    Some(Label(&name, &title, caption).plot("", frame.plot(y, marks)))
}

/// All figures as JSON.
fn summary(args: &SlowArgs, found: &[SlowFigures]) -> Value {
    json!({
        "parameters": {
            "normal": args.normal,
            "slow": args.slow,
            "slow_reads": args.slow_reads,
            "before_s": args.before.as_secs_f64(),
            "switch_s": args.switch.as_secs_f64(),
            "after_s": args.after.as_secs_f64(),
            "back_s": args.back.as_secs_f64(),
            "drain_limit_s": args.drain.as_secs_f64(),
            "spooling_topic": args.spooling_topic,
            "pair": args.pair,
        },
        "sizes": found.iter().map(size_value).collect::<Vec<_>>(),
    })
}

fn size_value(found: &SlowFigures) -> Value {
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    let phase = |name: &&str, phase: &Option<super::PhaseLatency>| {
        let value = phase.map(|phase| {
            json!({
                "n": phase.latency.n,
                "mean": phase.latency.mean,
                "p50": phase.latency.p50,
                "p99": phase.latency.p99,
                "max": phase.latency.max,
                "mean_to_mean_before": phase.mean_ratio,
                "worst_to_mean_before": phase.worst_ratio,
                "worst_to_worst_before": phase.worst_to_worst,
            })
        });
        ((*name).to_owned(), value.into())
    };
    let pair = |(flow_to_disk, proposed): (f64, f64)| json!({ "flow_to_disk": flow_to_disk, "proposed": proposed });
    let published = published(found.size.bytes)
        .map(|published| json!({ "mean_after": pair(published.mean_after), "worst": pair(published.worst) }));
    let counts = &found.counts;
    json!({
        "bytes": found.size.bytes,
        "messages_per_second": found.size.messages_per_second,
        "latency_ms": PHASES.iter().zip(&found.phases).map(|(a, b)| phase(a, b)).collect::<serde_json::Map<_, _>>(),
        "published_ratios": published,
        "first_spooled_ms": ms(found.first_spooled),
        "all_spooled_ms": ms(found.all_spooled),
        "calm_after_ms": ms(found.calm_after),
        "backlog": found.backlog,
        "switches": found.switches,
        "drain_s": found.drain.as_secs_f64(),
        "published": counts.published,
        "refused": counts.refused,
        "unacknowledged": counts.unacknowledged,
        "normal": counts.normal,
        "slow": counts.slow,
        "publisher_lateness_ms": { "p99": found.lateness_p99_ms, "max": found.lateness_max_ms },
    })
}

/// Allowed worst latency since receivers became slow, relative to the worst before.
const GOAL_WORST: f64 = 10.0;

/// Goals of a pair: mean latency while receivers become slow, in relation to the mean before; the same with large messages,
/// of this many bytes or more; the same afterwards; median and longest time of a switch.
const GOAL_DURING: f64 = 1.5;
const GOAL_DURING_LARGE: f64 = 1.3;
const LARGE: usize = 64 * 1024;
const GOAL_AFTER: f64 = 1.0;
const GOAL_SWITCH_MS: (f64, f64) = (15.0, 60.0);
/// Time until all slow receivers are back at the leader, once they read everything again.
const GOAL_BACK_S: f64 = 120.0;

/// Width of a time slot, in seconds.
const SLOT: f64 = 0.1;
