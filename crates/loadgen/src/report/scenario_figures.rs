//! Figures of a scenario.
//!
//! For the thesis' two scenarios they are its figures 43 to 47 (document 000, §5.1.2); other scenarios and policies
//! have the same figures.

use tenbin_simulator::Arrivals;

use super::chart::{Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Zone};
use super::series::{each_or_range, latency_title, plot, thinned_text};
use super::{Run, file_name, number};
use crate::scenario::{Plan, RunFigures, STABLE_PHASE, SubscriberFigures, overall_ms, stable_phase};
use crate::statistics::{Summary, median};

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
    let published = plan.policies.iter().enumerate().filter_map(|(place, policy)| {
        let value = overall_ms(&plan.scenario.name, policy)?;
        let label = number::fixed(value, 1);
        Some(Bar { ink: policy_ink(plan, place), is_hollow: true, value, spread: None, label })
    });
    all.bars.extend(published);
    // Put each published value below ours.
    all.bars
        .sort_by_key(|bar| plan.policies.iter().enumerate().position(|(place, _)| policy_ink(plan, place) == bar.ink));
    groups.push(all);

    let mut legend: Vec<_> = plan
        .policies
        .iter()
        .enumerate()
        .map(|(place, policy)| (policy.clone(), policy_ink(plan, place), false))
        .collect();
    if groups.iter().flat_map(|group| &group.bars).any(|bar| bar.is_hollow) {
        legend.push(("published".to_owned(), Ink::Neutral, true));
    }
    let bars = Bars { title: "mean latency, ms".to_owned(), groups, legend, reference: None };
    let several =
        if plan.runs > 1 { " Medians of the runs' means; the line is from the lowest to the highest." } else { "" };
    let (number, says) = match plan.scenario.name.as_str() {
        "1" => (
            Some(43),
            " The thesis prints no values with it: thesis_score, its proposal, is as good as round robin, and random worse at every subscriber.",
        ),
        "2" => (Some(44), " The thesis prints the values for all messages only."),
        _ => (None, ""),
    };
    let name = number.map_or("mean-latency".to_owned(), |number| format!("figure-{number}-mean-latency"));
    let title = titled(number, "Mean latency of each subscriber");
    let caption = format!("From a message's creation until its worker takes it out of its queue.{several}{says}");
    Figure { name, title, caption, drawing: Drawing::Bars(bars) }
}

fn group(plan: &Plan, runs: &[Run], name: &str, latency: impl Fn(&Run) -> Option<Summary>) -> Group {
    let bars = plan.policies.iter().enumerate().filter_map(|(place, policy)| {
        let of_policy = runs.iter().filter(|run| run.policy == *policy);
        let means: Vec<_> = of_policy.filter_map(|run| Some(latency(run)?.mean)).collect();
        let (value, range) = (median(&means)?, Summary::of(&means)?);
        let spread = (plan.runs > 1).then_some((range.min, range.max));
        Some(Bar { ink: policy_ink(plan, place), is_hollow: false, value, spread, label: number::fixed(value, 1) })
    });
    Group { name: name.to_owned(), bars: bars.collect() }
}

/// Figures of one run of a policy: figures 45, 46 and 47 for the thesis' policy in its second scenario.
pub(super) fn of_policy(plan: &Plan, run: &Run) -> Vec<Figure> {
    [messages_per_second(plan, run), processing_time(plan, run), latency_per_message(plan, run)]
        .into_iter()
        .flatten()
        .collect()
}

fn messages_per_second(plan: &Plan, run: &Run) -> Option<Figure> {
    let trace = run.trace.as_ref()?;
    let whole_seconds = (trace.seconds.floor() as usize).max(1);
    let row = |one: &SubscriberFigures| {
        let each = (0..whole_seconds).map(|second| one.per_second.get(second).map_or(0.0, |count| *count as f64));
        (one.name.clone(), each.collect::<Vec<_>>())
    };
    let rows: Vec<_> = run.figures.subscribers.iter().map(row).collect();
    let highest = rows.iter().flat_map(|(_, row)| row).fold(0.0_f64, |a, b| a.max(*b));
    let (mut marks, how) = each_or_range(rows, 0.0)?;
    let mut caption = format!("Messages that reached each subscriber in each second.{how}");
    let stable = stable_seconds(plan).filter(|(_, to)| *to <= trace.seconds);
    if let Some(((from, to), published)) = stable.zip(stable_phase(&plan.scenario.name, &run.policy)) {
        for (place, row) in published.iter().enumerate() {
            let level = f64::from(row.n) / (to - from);
            let name = (place == 0).then(|| "published (tables 7 and 8)".to_owned());
            marks.push(Mark {
                name,
                ink: Ink::Neutral,
                shape: Shape::Line(vec![(from, level), (to, level)], Stroke::Dotted),
            });
        }
        caption += " The dotted lines are how the thesis' stable phase was divided, at the rate of this run.";
    }
    let zones = stable.map(|(from, to)| stable_zone(from, to)).into_iter().collect();
    let (name, title) = named(plan, run, 45, "messages-per-second", "Messages a second to each subscriber");
    Some(plot(
        &name,
        &title,
        &caption,
        Plot {
            x_title: "time since the first message, s".to_owned(),
            x: Scale::Linear { from: 0.0, to: trace.seconds.max(1.0) },
            y_title: "messages a second".to_owned(),
            y: Scale::from_zero(highest),
            marks,
            zones,
        },
    ))
}

fn processing_time(plan: &Plan, run: &Run) -> Option<Figure> {
    let trace = run.trace.as_ref()?;
    let names = || run.figures.subscribers.iter().map(|one| one.name.clone());
    let is_reported = trace.reported_ms.iter().any(|course| !course.is_empty());
    let (marks, caption) = if is_reported && trace.reported_ms.len() <= Ink::COLOURS {
        let courses = names().zip(&trace.reported_ms).enumerate().map(|(place, (name, course))| Mark {
            name: Some(name),
            ink: Ink::Colour(place),
            shape: Shape::Steps(course.clone(), Stroke::of(place)),
        });
        let marks: Vec<_> = courses.collect();
        let caption = "t_p as the broker knows it by each worker's load reports: the mean of the last five. Reports that \
                       were made before the first message count as 0 and hold it down at first.";
        (marks, caption.to_owned())
    } else {
        let rows = names().zip(trace.processing_ms.iter().cloned()).collect();
        let (marks, how) = each_or_range(rows, f64::NAN)?;
        (marks, format!("Mean time of the messages that each worker took in each second.{how}"))
    };
    let highest = marks.iter().map(|mark| highest_of(&mark.shape)).fold(0.0, f64::max);
    let (name, title) = named(plan, run, 46, "processing-time", "Processing time of each subscriber");
    Some(plot(
        &name,
        &title,
        &caption,
        Plot {
            x_title: "time since the first message, s".to_owned(),
            x: Scale::Linear { from: 0.0, to: trace.seconds.max(1.0) },
            y_title: "mean processing time t_p, ms".to_owned(),
            y: Scale::from_zero(highest),
            marks,
            zones: Vec::new(),
        },
    ))
}

fn latency_per_message(plan: &Plan, run: &Run) -> Option<Figure> {
    let trace = run.trace.as_ref()?;
    let RunFigures { latency, subscribers, totals, .. } = &run.figures;
    let latency = latency.as_ref()?;
    let names = subscribers.iter().map(|one| Some(one.name.clone())).chain([None]);
    let is_few = trace.latencies.len() == subscribers.len();
    let marks = names.zip(&trace.latencies).enumerate().map(|(place, (name, points))| Mark {
        name: name.filter(|_| is_few),
        ink: Ink::Colour(place),
        shape: Shape::Points(points.clone()),
    });
    let marks = marks.collect();
    let is_published = has_stable_phase(plan) && totals.published >= STABLE_PHASE.end;
    let zones = is_published.then(|| stable_zone(STABLE_PHASE.start as f64, STABLE_PHASE.end as f64));
    let (name, title) = named(plan, run, 47, "latency-per-message", "Latency of each message");
    let drawn = trace.latencies.iter().map(Vec::len).sum();
    let thinned = thinned_text(drawn, latency.n);
    let caption = format!("Each dot is a message: the time that it waited for its worker.{thinned}");
    Some(plot(
        &name,
        &title,
        &caption,
        Plot {
            x_title: "number of the message".to_owned(),
            x: Scale::Linear { from: 0.0, to: totals.published.max(1) as f64 },
            y_title: latency_title("latency", trace.latency_scale),
            y: trace.latency_scale,
            marks,
            zones: zones.into_iter().collect(),
        },
    ))
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

fn highest_of(shape: &Shape) -> f64 {
    match shape {
        Shape::Line(points, _) | Shape::Steps(points, _) | Shape::Points(points) => {
            points.iter().fold(0.0, |highest, point| point.1.max(highest))
        }
        Shape::Band(edges) => edges.iter().fold(0.0, |highest, edge| edge.2.max(highest)),
    }
}

/// Maximum number of subscribers with a group of bars each.
const SUBSCRIBERS_MAX: usize = 12;
