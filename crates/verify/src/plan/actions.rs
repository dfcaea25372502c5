//! Faults of a plan: their repetitions, targets and phases.

use super::change::describe;
use super::times::Begins;
use super::{PlannedAction, PlannedPhase, PlannedTargets, Selection};
use crate::judge::windows::{Effect, windows};
use crate::rng::Rng;
use crate::template::{self, Action, Fault, Member, Target, Targets, Template};
use crate::units::Time;

/// Phases of the run, by the times at which faults begin and end.
pub(super) fn phases(template: &Template, begins: &[Begins]) -> Vec<PlannedPhase> {
    let end = template.measure.time;
    let mut effects = Vec::new();
    for (action, begins) in template.actions.iter().zip(begins) {
        let lasts = match action.duration {
            Some(duration) => duration,
            None if action.fault.is_momentary() => Time::from_ns(1),
            None => end,
        };
        let effect = |&begin: &Time| Effect { action: action.name.clone(), begin, end: begin.plus(lasts) };
        effects.extend(begins.at.iter().map(effect));
    }
    let windows = windows(&effects, template.measure.before, end);
    let spans = windows.into_iter().flat_map(|window| {
        let phase = window.phase;
        window.times.into_iter().map(move |time| PlannedPhase { phase: phase.clone(), from: time.start, to: time.end })
    });
    spans.collect()
}

/// All repetitions of the faults, with their targets, in the order of their times.
pub(super) fn actions(template: &Template, begins: &[Begins], members: &[Member], seed: u64) -> Vec<PlannedAction> {
    let mut all = Vec::new();
    for (action, begins) in template.actions.iter().zip(begins) {
        for (index, &at) in begins.at.iter().enumerate() {
            let repetition = index as u32 + 1;
            let (fault, targets) = drawn(action, repetition, targets(action, repetition, members, seed), seed);
            let (change, undo) = describe(&fault, &targets, action.duration.is_some());
            let after = match &action.start {
                template::Start::After(other, pause) => Some((other.clone(), *pause)),
                _ => None,
            };
            all.push(PlannedAction {
                name: action.name.clone(),
                repetition,
                at,
                after,
                wait_for: action.wait_for,
                duration: duration(action, repetition, seed),
                fault,
                targets,
                change,
                undo,
            });
        }
    }
    all.sort_by_key(|action| action.at);
    all
}

/// Fault and targets of a repetition, with the seed's choice for a failover.
fn drawn(action: &Action, repetition: u32, targets: PlannedTargets, seed: u64) -> (Fault, PlannedTargets) {
    let PlannedTargets::Members(members) = &targets else { return (action.fault.clone(), targets) };
    if action.fault != Fault::Failover {
        return (action.fault.clone(), targets);
    }
    let cut_off = || PlannedTargets::Links { from: Some(members.clone()), to: None, both: true };
    match Rng::new(seed, &format!("fault of {} {repetition}", action.name)).below(3) {
        0 => (Fault::Kill, targets),
        1 => (Fault::Pause, targets),
        _ => (Fault::NetPartition, cut_off()),
    }
}

/// How long a repetition lasts, in whole milliseconds if the seed draws it.
fn duration(action: &Action, repetition: u32, seed: u64) -> Option<Time> {
    let (Some(from), Some(to)) = (action.duration_from, action.duration) else { return action.duration };
    let range = to.minus(from).ns() / 1_000_000;
    let ms = Rng::new(seed, &format!("duration of {} {repetition}", action.name)).below(range + 1);
    Some(from.plus(Time::from_ns(ms * 1_000_000)))
}

fn targets(action: &Action, repetition: u32, members: &[Member], seed: u64) -> PlannedTargets {
    let select = |part: &str, target: &Target| {
        let draw = Rng::new(seed, &format!("{part} of {} {repetition}", action.name)).next();
        let members = (!target.has_roles()).then(|| target.resolve(members, |_| None, &mut Rng::new(draw, "")));
        Selection { target: target.clone(), draw, members }
    };
    match &action.targets {
        Targets::Instances(target) => PlannedTargets::Members(select("target", target)),
        Targets::Links { from, to, both } => PlannedTargets::Links {
            from: from.as_ref().map(|target| select("from", target)),
            to: to.as_ref().map(|target| select("to", target)),
            both: *both,
        },
        Targets::Sides(sides) => PlannedTargets::Sides(
            sides.iter().enumerate().map(|(index, side)| select(&format!("side {index}"), side)).collect(),
        ),
    }
}
