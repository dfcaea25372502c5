//! Figures of a scenario.
//!
//! For the thesis' two scenarios they are its figures 43 to 47 (document 000, §5.1.2); other scenarios and policies
//! have the same figures.

use tenbin_simulator::Arrivals;

use super::Run;
use super::trace::RunTrace;
use crate::number::fixed;
use crate::report::chart::{Axis, Bar, Figure, Group, Ink, Mark, Scale, Shape, Stroke, Zone};
use crate::report::charts::{Frame, Label};
use crate::report::files::file_name;
use crate::scenario::{Plan, STABLE_PHASE, SubscriberFigures, overall_ms, stable_phase};
use crate::statistics::Summary;

/// Mean latency of each subscriber and of all messages, with each policy: figures 43 and 44.
pub(super) fn mean_latency(plan: &Plan, runs: &[Run]) -> Figure {
    let names = runs.iter().flat_map(|run| run.figures.subscribers.iter().map(|one| one.name.clone()));
    let mut names: Vec<String> = names.collect();
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    names.dedup();
    if names.len() > SUBSCRIBERS_MAX {
        names.clear();
    }
    let of_one =
        |name: &str, run: &Run| run.figures.subscribers.iter().find(|one| one.name == name).and_then(|one| one.latency);
    let mut groups: Vec<_> = names.iter().map(|name| group(plan, runs, name, |run| of_one(name, run))).collect();
    let mut all = group(plan, runs, "all messages", |run| run.figures.latency);
    let inks = || plan.policies.iter().enumerate().map(|(place, policy)| (policy, policy_ink(plan, place)));
    all.bars.extend(inks().filter_map(|(policy, ink)| {
        let value = overall_ms(&plan.scenario.name, policy)?;
        Some(Bar { ink, is_hollow: true, value, spread: None, label: fixed(value, 1) })
    }));
    // Put each published value below ours.
    all.bars.sort_by_key(|bar| inks().position(|(_, ink)| ink == bar.ink));
    groups.push(all);

    let mut legend: Vec<_> = inks().map(|(policy, ink)| (policy.clone(), ink, false)).collect();
    if groups.iter().flat_map(|group| &group.bars).any(|bar| bar.is_hollow) {
        legend.push(("published".to_owned(), Ink::Neutral, true));
    }
    let several =
        if plan.runs > 1 { " Medians of the runs' means; the line is from the lowest to the highest." } else { "" };
    let (number, remark) = match plan.scenario.name.as_str() {
        "1" => (
            Some(43),
            " The thesis prints no values with it: thesis_score, its proposal, is as good as round robin, and random worse at every subscriber.",
        ),
        "2" => (Some(44), " The thesis prints the values for all messages only."),
        _ => (None, ""),
    };
    let name = number.map_or("mean-latency".to_owned(), |number| format!("figure-{number}-mean-latency"));
    let caption = format!("From a message's creation until its worker takes it out of its queue.{several}{remark}");
    Label(&name, &titled(number, "Mean latency of each subscriber"), &caption).bars("mean latency, ms", groups, legend)
}

fn group(plan: &Plan, runs: &[Run], name: &str, latency: impl Fn(&Run) -> Option<Summary>) -> Group {
    let bars = plan.policies.iter().enumerate().filter_map(|(place, policy)| {
        let of_policy = runs.iter().filter(|run| run.policy == *policy);
        let means: Vec<_> = of_policy.filter_map(|run| Some(latency(run)?.mean)).collect();
        Bar::of_runs(policy_ink(plan, place), &means, |value| fixed(value, 1))
    });
    Group { name: name.to_owned(), bars: bars.collect() }
}

/// Figures of one run of a policy: figures 45, 46 and 47 for the thesis' policy in its second scenario.
pub(super) fn of_policy(plan: &Plan, run: &Run) -> Vec<Figure> {
    let figures = |trace| {
        let figures = [messages_per_second, processing_time, latency_per_message];
        figures.into_iter().filter_map(move |figure| figure(plan, run, trace))
    };
    run.trace.as_ref().map(figures).into_iter().flatten().collect()
}

fn messages_per_second(plan: &Plan, run: &Run, trace: &RunTrace) -> Option<Figure> {
    let whole_seconds = (trace.seconds.floor() as usize).max(1);
    let row = |one: &SubscriberFigures| {
        let each = (0..whole_seconds).map(|second| one.per_second.get(second).map_or(0.0, |count| *count as f64));
        (one.name.clone(), each.collect::<Vec<_>>())
    };
    let rows: Vec<_> = run.figures.subscribers.iter().map(row).collect();
    let mut caption = "Messages that reached each subscriber in each second.".to_owned();
    let stable = stable_seconds(plan).filter(|(_, to)| *to <= trace.seconds);
    let mut marks = Vec::new();
    if let Some(((from, to), published)) = stable.zip(stable_phase(&plan.scenario.name, &run.policy)) {
        for (place, row) in published.iter().enumerate() {
            let level = f64::from(row.n) / (to - from);
            let name = (place == 0).then(|| "published (tables 7 and 8)".to_owned());
            let shape = Shape::Line(vec![(from, level), (to, level)], Stroke::Dotted);
            marks.push(Mark { name, ink: Ink::Neutral, shape });
        }
        caption += " The dotted lines are how the thesis' stable phase was divided, at the rate of this run.";
    }
    let zones = stable.map(|(from, to)| stable_zone(from, to)).into_iter().collect();
    let frame = Frame { zones, ..since_first_message(trace) };
    let (name, title) = named(plan, run, 45, "messages-per-second", "Messages a second to each subscriber");
    Label(&name, &title, &caption).by_second(frame, "messages a second", rows, 0.0, marks)
}

fn processing_time(plan: &Plan, run: &Run, trace: &RunTrace) -> Option<Figure> {
    let (name, title) = named(plan, run, 46, "processing-time", "Processing time of each subscriber");
    let axis = "mean processing time t_p, ms";
    let names = run.figures.subscribers.iter().map(|one| one.name.clone());
    let is_reported = trace.reported_ms.iter().any(|course| !course.is_empty());
    if !is_reported || trace.reported_ms.len() > Ink::COLOURS {
        let rows = names.zip(trace.processing_ms.iter().cloned()).collect();
        let caption = "Mean time of the messages that each worker took in each second.";
        let frame = since_first_message(trace);
        return Label(&name, &title, caption).by_second(frame, axis, rows, f64::NAN, Vec::new());
    }
    let courses = names.zip(&trace.reported_ms).enumerate();
    let marks = courses
        .map(|(place, (name, course))| Mark::steps(&name, Ink::Colour(place), course.clone(), Stroke::of(place)));
    let highest = trace.reported_ms.iter().flatten().map(|point| point.1).fold(0.0, f64::max);
    let caption = "t_p as the broker knows it by each worker's load reports: the mean of the last five. Reports that \
                   were made before the first message count as 0 and hold it down at first.";
    let plot = since_first_message(trace).plot(Axis::new(axis, Scale::from_zero(highest)), marks.collect());
    Some(Label(&name, &title, caption).plot("", plot))
}

fn latency_per_message(plan: &Plan, run: &Run, trace: &RunTrace) -> Option<Figure> {
    let (name, title) = named(plan, run, 47, "latency-per-message", "Latency of each message");
    let is_few = trace.latencies.len() == run.figures.subscribers.len();
    let names = run.figures.subscribers.iter().map(|one| Some(one.name.clone()).filter(|_| is_few)).chain([None]);
    let published = run.figures.totals.published;
    let is_published = has_stable_phase(plan) && published >= STABLE_PHASE.end;
    let zone = is_published.then(|| stable_zone(STABLE_PHASE.start as f64, STABLE_PHASE.end as f64));
    let frame = Frame::new("number of the message", published.max(1) as f64, zone.into_iter().collect());
    let label = Label(&name, &title, "Each dot is a message: the time that it waited for its worker.");
    let classes = names.zip(trace.latencies.iter().cloned()).collect();
    Some(label.dots(frame, trace.latency_scale, classes, run.figures.latency?.n))
}

fn since_first_message(trace: &RunTrace) -> Frame {
    Frame::new("time since the first message, s", trace.seconds.max(1.0), Vec::new())
}

/// Name and title, with the thesis' number if it is its figure, else with the policy's name.
fn named(plan: &Plan, run: &Run, number: u32, name: &str, title: &str) -> (String, String) {
    let policy = &run.policy;
    if plan.scenario.name == "2" && policy == "thesis_score" {
        (format!("figure-{number}-{name}"), titled(Some(number), &format!("{title}, {policy}")))
    } else {
        (format!("{}-{name}", file_name(policy)), format!("{title}, {policy}"))
    }
}

fn titled(number: Option<u32>, title: &str) -> String {
    number.map_or(title.to_owned(), |number| format!("Figure {number}: {title}"))
}

/// Whether the run has a stable phase.
pub(super) fn has_stable_phase(plan: &Plan) -> bool {
    let messages = u64::from(plan.scenario.messages.get());
    matches!(plan.scenario.name.as_str(), "1" | "2") && messages >= STABLE_PHASE.end
}

/// Start and end of the stable phase, by due time.
fn stable_seconds(plan: &Plan) -> Option<(f64, f64)> {
    let Arrivals::Fixed(every) = plan.scenario.arrivals else { return None };
    let at = |sequence: u64| sequence as f64 * every.ms() / 1e3;
    has_stable_phase(plan).then(|| (at(STABLE_PHASE.start), at(STABLE_PHASE.end)))
}

fn stable_zone(from: f64, to: f64) -> Zone {
    Zone { from, to, name: "stable phase".to_owned() }
}

/// Colour of a policy. The published policies and the default always have the same colour.
fn policy_ink(plan: &Plan, place: usize) -> Ink {
    const KNOWN: [(&str, usize); 4] = [("adaptive", 0), ("round_robin", 1), ("thesis_score", 2), ("random", 6)];
    const OTHERS: [usize; 4] = [3, 4, 5, 7];
    let known = |policy: &str| KNOWN.iter().find(|(name, _)| *name == policy).map(|(_, colour)| *colour);
    let others_before = plan.policies[..place].iter().filter(|policy| known(policy).is_none()).count();
    Ink::Colour(known(&plan.policies[place]).unwrap_or(OTHERS[others_before % OTHERS.len()]))
}

/// Maximum number of subscribers with a group of bars each.
const SUBSCRIBERS_MAX: usize = 12;
