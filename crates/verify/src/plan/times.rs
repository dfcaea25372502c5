//! Planned times of actions.

use crate::rng::Rng;
use crate::template::{Action, Complaints, Start, Template};
use crate::units::Time;

/// Planned begins of one action, in the order of time.
pub(super) struct Begins {
    pub(super) at: Vec<Time>,
    /// Planned end of the last repetition; `None` if the fault lasts to the end of the measurement.
    pub(super) end: Option<Time>,
}

/// Planned begins of all actions, in the order of the template.
pub(super) fn begins(template: &Template, seed: u64, complaints: &mut Complaints) -> Vec<Begins> {
    let mut known: Vec<Option<Begins>> = template.actions.iter().map(|_| None).collect();
    // An action may wait for one further down, so each lap plans those whose predecessors are planned.
    loop {
        let mut has_changed = false;
        for index in 0..known.len() {
            if known[index].is_none()
                && let Some(first) = first(template, index, &known, seed, complaints)
            {
                known[index] = Some(repeated(&template.actions[index], first, template, complaints));
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    let circle = template.actions.iter().zip(&known).find(|(_, begins)| begins.is_none());
    if let Some((action, _)) = circle
        && complaints.is_empty()
    {
        complaints.add(
            action.start_place,
            format!("action {:?} waits for itself", action.name),
            "begin one action of the circle at a time, as \"start: 40\"".to_owned(),
        );
    }
    known.into_iter().map(|begins| begins.unwrap_or(Begins { at: Vec::new(), end: None })).collect()
}

fn first(
    template: &Template,
    index: usize,
    known: &[Option<Begins>],
    seed: u64,
    complaints: &mut Complaints,
) -> Option<Time> {
    let action = &template.actions[index];
    match &action.start {
        Start::At(time) => Some(*time),
        Start::Random(from, to) => {
            // Whole milliseconds are easier to read, and to repeat by hand.
            let range = (to.ns() - from.ns()) / 1_000_000;
            let ms = Rng::new(seed, &format!("start of {}", action.name)).below(range + 1);
            Some(from.plus(Time::from_ns(ms * 1_000_000)))
        }
        Start::After(other, pause) => {
            let at = template.actions.iter().position(|action| action.name == *other)?;
            let begins = known.get(at)?.as_ref()?;
            let Some(end) = begins.end else {
                complaints.add(
                    action.start_place,
                    format!("action {other:?} lasts to the end of the measurement"),
                    format!("give {other} a duration"),
                );
                return None;
            };
            Some(end.plus(*pause))
        }
    }
}

fn repeated(action: &Action, first: Time, template: &Template, complaints: &mut Complaints) -> Begins {
    let time = template.measure.time;
    let lasts = action.duration.unwrap_or_default();
    let mut at = vec![first];
    if let Some(every) = action.every {
        let times = action.times.unwrap_or(u32::MAX);
        while (at.len() as u32) < times {
            let next = first.plus(Time::from_ns(every.ns().saturating_mul(at.len() as u64)));
            if action.times.is_none() && next.plus(lasts) > time || next.plus(lasts) > time.plus(time) {
                break;
            }
            at.push(next);
        }
    }
    let last = at.last().map_or(first, |last| last.plus(lasts));
    // The latest random start has to fit, for any seed.
    let latest = match action.start {
        Start::Random(_, to) => last.plus(to.minus(first)),
        Start::At(_) | Start::After(..) => last,
    };
    if latest > time || first >= time {
        complaints.add(
            action.start_place,
            format!("action {:?} ends at {latest}, and the measurement at {time}", action.name),
            format!("give \"measure: {{ time: {} }}\" or more, or begin earlier", latest.secs().ceil()),
        );
    }
    let is_over = action.duration.is_some() || action.fault.is_momentary() || action.fault.is_final();
    Begins { at, end: is_over.then_some(last) }
}
