//! Which actions begin and end when.

use crate::plan::{Plan, PlannedAction};
use crate::units::Time;

/// State of one planned action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ActionState {
    /// It has not begun.
    Waiting,
    /// Its change is being made.
    Beginning,
    /// It is in effect until this time; `None` to the end of the measurement.
    Active(Option<Time>),
    /// Its undo is under way.
    Ending,
    /// It is over, since this time.
    Over(Time),
}

/// Next step of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActionStep {
    /// Make the change of the action with this number.
    Begin(usize),
    /// Undo it.
    End(usize),
}

/// The actions of a run, by their numbers in the plan. It reads no clock.
#[derive(Debug)]
pub(crate) struct Schedule<'p> {
    actions: &'p [PlannedAction],
    states: Vec<ActionState>,
}

impl<'p> Schedule<'p> {
    /// The actions of `plan`; none has begun.
    pub(crate) fn new(plan: &'p Plan) -> Self {
        Self { actions: &plan.actions, states: vec![ActionState::Waiting; plan.actions.len()] }
    }

    /// Steps that are due at `now`, each once.
    pub(crate) fn due(&mut self, now: Time) -> Vec<ActionStep> {
        let mut steps = Vec::new();
        for number in 0..self.actions.len() {
            match self.states[number] {
                ActionState::Waiting if self.begin(number).is_some_and(|at| at <= now) => {
                    self.states[number] = ActionState::Beginning;
                    steps.push(ActionStep::Begin(number));
                }
                ActionState::Active(Some(end)) if end <= now => {
                    self.states[number] = ActionState::Ending;
                    steps.push(ActionStep::End(number));
                }
                _ => {}
            }
        }
        steps
    }

    /// The change is complete at `now`. A momentary fault ends at once.
    pub(crate) fn begun(&mut self, number: usize, now: Time) {
        let action = &self.actions[number];
        let end = action.duration.or(action.fault.is_momentary().then_some(Time::ZERO));
        let is_final = end.is_none() && action.fault.is_final();
        self.states[number] =
            if is_final { ActionState::Over(now) } else { ActionState::Active(end.map(|time| now.plus(time))) };
    }

    /// The undo is complete at `now`, or the change failed.
    pub(crate) fn over(&mut self, number: usize, now: Time) {
        self.states[number] = ActionState::Over(now);
    }

    /// Ends everything: no action begins any more, and those in effect are returned to be undone.
    pub(crate) fn end_all(&mut self, now: Time) -> Vec<usize> {
        let mut active = Vec::new();
        for (number, state) in self.states.iter_mut().enumerate() {
            match state {
                ActionState::Waiting => *state = ActionState::Over(now),
                ActionState::Active(_) => {
                    *state = ActionState::Ending;
                    active.push(number);
                }
                // One whose change is being made ends as soon as that is complete.
                ActionState::Beginning | ActionState::Ending | ActionState::Over(_) => {}
            }
        }
        active
    }

    /// True if no action is in effect, and no step is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.states.iter().all(|state| matches!(state, ActionState::Waiting | ActionState::Over(_)))
    }

    /// States of the earlier repetitions of an action.
    fn earlier(&self, number: usize) -> impl Iterator<Item = ActionState> {
        let action = &self.actions[number];
        let is_earlier = |other: &&PlannedAction| other.name == action.name && other.repetition < action.repetition;
        self.actions.iter().zip(&self.states).filter(move |(other, _)| is_earlier(other)).map(|(_, state)| *state)
    }

    /// When an action begins: at its time, or after the actual end of another one. `None` before that is known.
    fn begin(&self, number: usize) -> Option<Time> {
        let action = &self.actions[number];
        if action.wait_for.is_some() && self.earlier(number).any(|state| !matches!(state, ActionState::Over(_))) {
            return None;
        }
        let Some((other, pause)) = &action.after else { return Some(action.at) };
        let all = 0..self.actions.len();
        let repetitions =
            |name: &String| all.clone().filter(|&other| self.actions[other].name == *name).collect::<Vec<_>>();
        let mut end = Time::ZERO;
        for repetition in repetitions(other) {
            let ActionState::Over(at) = self.states[repetition] else { return None };
            end = end.max(at);
        }
        // Later repetitions keep their distance from the first.
        let first =
            repetitions(&action.name).into_iter().map(|one: usize| self.actions[one].at).min().unwrap_or(action.at);
        Some(end.plus(*pause).plus(action.at.minus(first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;

    fn plan(actions: &str) -> Plan {
        let text = format!("systems:\n  b: {{ kind: tenbin }}\n  p: {{ publishes_to: b }}\nactions: [ {actions} ]\n");
        let templates = Template::read("t.yaml", &text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        Plan::new(&templates[0], None).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    fn secs(seconds: f64) -> Time {
        Time::from_secs_f64(seconds)
    }

    #[test]
    fn faults_last_from_their_actual_begin() {
        let plan = plan("{ fault: kill, target: b, start: 20, duration: 2 }");
        let mut schedule = Schedule::new(&plan);
        assert_eq!(schedule.due(secs(19.99)), []);
        assert_eq!(schedule.due(secs(20.0)), [ActionStep::Begin(0)]);
        assert_eq!(schedule.due(secs(20.5)), [], "it is being made");
        schedule.begun(0, secs(20.7));
        assert_eq!((schedule.due(secs(22.6)), schedule.is_idle()), (vec![], false));
        assert_eq!(schedule.due(secs(22.7)), [ActionStep::End(0)]);
        schedule.over(0, secs(23.0));
        assert!(schedule.is_idle());
    }

    #[test]
    fn an_action_waits_for_the_actual_end_of_another() {
        let plan = plan(
            "{ name: one, fault: pause, target: b, start: 20, duration: 2 }, { name: two, fault: kill, target: b, start: after one + 3s }",
        );
        let mut schedule = Schedule::new(&plan);
        assert_eq!(schedule.due(secs(20.0)), [ActionStep::Begin(0)]);
        schedule.begun(0, secs(20.0));
        assert_eq!(schedule.due(secs(30.0)), [ActionStep::End(0)]);
        assert_eq!(schedule.due(secs(40.0)), [], "the undo takes long");
        schedule.over(0, secs(41.0));
        assert_eq!(schedule.due(secs(43.9)), []);
        assert_eq!(schedule.due(secs(44.0)), [ActionStep::Begin(1)]);
        schedule.begun(1, secs(44.0));
        assert!(schedule.is_idle(), "a kill without a duration has no end");
    }

    #[test]
    fn repetitions_that_wait_for_copies_never_overlap() {
        let text = "systems: { b: { kind: tenbin, mode: pair }, w: { kind: etcd }, p: { publishes_to: b } }\n\
                    actions: [ { fault: kill, target: b-1, start: 20, duration: 2, every: 4s, times: 2, wait_for: copies 2 } ]\n";
        let templates = Template::read("t.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let plan = Plan::new(&templates[0], None).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let mut schedule = Schedule::new(&plan);
        assert_eq!(schedule.due(secs(20.0)), [ActionStep::Begin(0)]);
        schedule.begun(0, secs(23.0));
        assert_eq!(schedule.due(secs(24.0)), [], "the first one waited");
        assert_eq!(schedule.due(secs(25.0)), [ActionStep::End(0)]);
        schedule.over(0, secs(25.5));
        assert_eq!(schedule.due(secs(25.5)), [ActionStep::Begin(1)]);
    }

    #[test]
    fn the_end_of_a_run_ends_what_is_in_effect() {
        let plan = plan(
            "{ name: one, fault: pause, target: b, start: 20 }, { name: two, fault: pause, target: b, start: 25 }",
        );
        let mut schedule = Schedule::new(&plan);
        schedule.due(secs(20.0));
        schedule.begun(0, secs(20.0));
        assert_eq!(schedule.due(secs(24.0)), [], "it lasts to the end");
        assert_eq!(schedule.end_all(secs(24.0)), [0]);
        assert_eq!(schedule.due(secs(26.0)), []);
    }
}
