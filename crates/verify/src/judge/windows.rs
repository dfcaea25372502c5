//! Phases of a run, from the actual begins and ends of its faults.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::recovery::TICK;
use crate::units::Time;

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The whole measurement.
    Whole,
    /// The last seconds ahead of the first fault.
    Before,
    /// While all of these actions are in effect, in the order of their names.
    During(Vec<String>),
    /// From the end of an action to the begin of the next one, or to the end of the measurement.
    After(String),
}

/// When an action was in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Name of the action.
    pub action: String,
    /// When its change was complete.
    pub begin: Time,
    /// When its undo was complete: a killed instance is ready again.
    pub end: Time,
}

/// Times of a phase. A repeated action has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The phase.
    pub phase: Phase,
    /// Adjoining or separate times, in order, without empty ones.
    pub times: Vec<Range<Time>>,
}

/// All phases of a run with their times: `Whole`, `Before`, each action, and each overlap of actions.
///
/// `before` is the length of the phase before, and `end` the end of the measurement. A phase without any time is left out.
pub fn windows(effects: &[Effect], before: Time, end: Time) -> Vec<Window> {
    let mut windows = vec![Window { phase: Phase::Whole, times: spans([Time::ZERO..end]) }];
    let Some(first) = effects.iter().map(|effect| effect.begin).min() else { return windows };
    windows.push(Window { phase: Phase::Before, times: spans([first.minus(before)..first.min(end)]) });
    let mut names: Vec<&str> = Vec::new();
    for effect in effects {
        if !names.contains(&effect.action.as_str()) {
            names.push(&effect.action);
        }
    }
    for name in &names {
        let during = of(effects, name).map(|effect| effect.begin..effect.end.min(end));
        windows.push(Window { phase: Phase::During(vec![(*name).to_owned()]), times: spans(during) });
    }
    windows.extend(overlaps(effects, end));
    for name in &names {
        let after = of(effects, name).filter_map(|effect| {
            // A fault that is still in effect continues into the time after this one, which is then an overlap's.
            let next = effects.iter().map(|other| other.begin).filter(|&begin| begin >= effect.end).min();
            let is_alone = !effects.iter().any(|other| other.begin < effect.end && effect.end < other.end);
            is_alone.then(|| effect.end..next.unwrap_or(end).min(end))
        });
        windows.push(Window { phase: Phase::After((*name).to_owned()), times: spans(after) });
    }
    windows.retain(|window| !window.times.is_empty());
    windows
}

/// Effects of one action.
fn of<'e>(effects: &'e [Effect], name: &'e str) -> impl Iterator<Item = &'e Effect> {
    effects.iter().filter(move |effect| effect.action == name)
}

/// A window for each set of at least two actions that are in effect at a time.
fn overlaps(effects: &[Effect], end: Time) -> Vec<Window> {
    let mut edges: Vec<Time> = effects.iter().flat_map(|effect| [effect.begin, effect.end.min(end)]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut windows: Vec<Window> = Vec::new();
    for pair in edges.windows(2) {
        let active = effects.iter().filter(|effect| effect.begin <= pair[0] && pair[1] <= effect.end.min(end));
        let mut names: Vec<String> = active.map(|effect| effect.action.clone()).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() < 2 {
            continue;
        }
        let phase = Phase::During(names);
        match windows.iter_mut().find(|window| window.phase == phase) {
            Some(window) => match window.times.last_mut() {
                Some(last) if last.end == pair[0] => last.end = pair[1],
                _ => window.times.push(pair[0]..pair[1]),
            },
            None => windows.push(Window { phase, times: vec![pair[0]..pair[1]] }),
        }
    }
    windows
}

fn spans(times: impl IntoIterator<Item = Range<Time>>) -> Vec<Range<Time>> {
    times.into_iter().filter(|span| span.start < span.end).collect()
}

impl Window {
    /// Its times as whole ticks, by which latencies are kept: a tick in which a fault begins or ends belongs to the fault
    /// alone.
    pub fn in_ticks(&self) -> Vec<Range<Time>> {
        let whole = |ticks: u64| Time::from_ns(ticks * TICK.ns());
        let (down, up) = (|at: Time| whole(at.ns() / TICK.ns()), |at: Time| whole(at.ns().div_ceil(TICK.ns())));
        let is_of_faults = matches!(self.phase, Phase::During(_) | Phase::Whole);
        let rounded = |span: &Range<Time>| match is_of_faults {
            true => down(span.start)..up(span.end),
            false => up(span.start)..down(span.end),
        };
        spans(self.times.iter().map(rounded))
    }

    /// All of its time.
    pub fn length(&self) -> Time {
        self.times.iter().fold(Time::ZERO, |sum, span| sum.plus(span.end.minus(span.start)))
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole run"),
            Self::Before => f.write_str("before"),
            Self::During(actions) => write!(f, "during {}", actions.join("+")),
            Self::After(action) => write!(f, "after {action}"),
        }
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
        match text.trim().split_once(' ').map(|(word, rest)| (word, rest.trim())) {
            None if text.trim() == "before" => Ok(Self::Before),
            None if text.trim().is_empty() => Ok(Self::Whole),
            Some(("whole", "run")) => Ok(Self::Whole),
            Some(("during", names)) if names.split('+').map(str::trim).all(is_name) => {
                let mut names: Vec<_> = names.split('+').map(|name| name.trim().to_owned()).collect();
                names.sort_unstable();
                Ok(Self::During(names))
            }
            Some(("after", name)) if is_name(name) => Ok(Self::After(name.to_owned())),
            _ => Err(format!("{text:?} is no phase: give before, during NAME or after NAME")),
        }
    }
}

impl Serialize for Phase {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(action: &str, begin: u64, end: u64) -> Effect {
        Effect { action: action.to_owned(), begin: Time::from_secs(begin), end: Time::from_secs(end) }
    }

    fn shown(effects: &[Effect]) -> Vec<String> {
        let spans = |times: &[Range<Time>]| {
            let spans: Vec<_> = times.iter().map(|span| format!("{}-{}", span.start.secs(), span.end.secs())).collect();
            spans.join(",")
        };
        let windows = windows(effects, Time::from_secs(20), Time::from_secs(90));
        windows.iter().map(|window| format!("{} {}", window.phase, spans(&window.times))).collect()
    }

    #[test]
    fn one_fault_divides_the_run() {
        assert_eq!(
            shown(&[effect("delay", 40, 60)]),
            ["whole run 0-90", "before 20-40", "during delay 40-60", "after delay 60-90"]
        );
        assert_eq!(shown(&[]), ["whole run 0-90"]);
    }

    #[test]
    fn an_overlap_is_a_phase_of_its_own() {
        assert_eq!(
            shown(&[effect("kill", 40, 50), effect("delay", 45, 60)]),
            [
                "whole run 0-90",
                "before 20-40",
                "during kill 40-50",
                "during delay 45-60",
                "during delay+kill 45-50",
                "after delay 60-90",
            ],
            "the kill ends within the delay, so nothing is after the kill alone"
        );
    }

    #[test]
    fn a_repeated_fault_has_several_times() {
        assert_eq!(
            shown(&[effect("kill", 10, 12), effect("kill", 20, 23)]),
            ["whole run 0-90", "before 0-10", "during kill 10-12,20-23", "after kill 12-20,23-90"]
        );
    }

    #[test]
    fn faults_beyond_the_end_are_cut_there() {
        assert_eq!(shown(&[effect("pause", 85, 95)]), ["whole run 0-90", "before 65-85", "during pause 85-90"]);
    }

    #[test]
    fn ticks_at_the_edges_of_a_fault_are_its_own() {
        let ms = |ms: u64| Time::from_ns(ms * 1_000_000);
        let effect = |begin, end| Effect { action: "kill".to_owned(), begin: ms(begin), end: ms(end) };
        let windows = windows(&[effect(4_003, 5_001), effect(7_000, 8_000)], ms(2_000), ms(9_004));
        let text = |window: &Window| {
            let spans = window.in_ticks().into_iter().map(|span| format!("{}-{}", span.start.secs(), span.end.secs()));
            format!("{} {}", window.phase, spans.collect::<Vec<_>>().join(","))
        };
        assert_eq!(
            windows.iter().map(text).collect::<Vec<_>>(),
            ["whole run 0-9.01", "before 2.01-4", "during kill 4-5.01,7-8", "after kill 5.01-7,8-9"]
        );
    }

    #[test]
    fn names_of_an_overlap_have_no_order() {
        let phase = "during kill+delay".parse::<Phase>().unwrap();
        assert_eq!(
            (&phase, phase.to_string()),
            (&"during delay + kill".parse().unwrap(), "during delay+kill".to_owned())
        );
        for text in ["during", "after a b", "later", "during +", "after"] {
            assert!(text.parse::<Phase>().is_err(), "{text}");
        }
    }
}
