//! Faults of a plan: their repetitions, targets and phases.

use super::change::describe;
use super::times::Begins;
use super::{PlannedAction, PlannedPhase, PlannedTargets, Selection};
use crate::judge::windows::{Effect, windows};
use crate::rng::Rng;
use crate::template::{self, Action, Member, Target, Targets, Template};
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
            let targets = targets(action, repetition, members, seed);
            let (change, undo) = describe(&action.fault, &targets, action.duration.is_some());
            let after = match &action.start {
                template::Start::After(other, pause) => Some((other.clone(), *pause)),
                _ => None,
            };
            all.push(PlannedAction {
                name: action.name.clone(),
                repetition,
                at,
                after,
                duration: action.duration,
                fault: action.fault.clone(),
                targets,
                change,
                undo,
            });
        }
    }
    all.sort_by_key(|action| action.at);
    all
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
