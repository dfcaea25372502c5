use std::time::Duration;

use tenbin_simulator::scenario::WorkerKind;
use tenbin_simulator::{Rng, Scenario, Span};

/// Specification of one worker: its kind, and when it joins and leaves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Role {
    /// `sub-0`, `sub-1`, … in the order of joining.
    pub(crate) name: String,
    pub(crate) kind: WorkerKind,
    /// After the start of the run; a worker at zero joins before the first message.
    pub(crate) joins: Span,
    pub(crate) exit: Option<Exit>,
}

/// How and when a worker ends, after the start of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Exit {
    /// It unsubscribes, finishes its queued messages and disconnects.
    Leaves(Span),
    /// Its connection ends without DISCONNECT, and its queued messages are never finished.
    Dies(Span),
}

impl Exit {
    pub(crate) fn at(self) -> Span {
        match self {
            Self::Leaves(at) | Self::Dies(at) => at,
        }
    }
}

/// All workers of a run of `scenario` with messages due within `duration`, including those from churn.
///
/// The same `seed` yields the same workers.
pub(crate) fn cast(scenario: &Scenario, duration: Duration, seed: u64) -> Vec<Role> {
    let kinds = scenario.workers.iter().flat_map(|kind| (0..kind.count.get()).map(move |_| kind));
    let mut roles: Vec<_> = kinds.map(Role::of).collect();
    if let Some(churn) = &scenario.churn {
        let mut rng = Rng::new(seed);
        let mut at = churn.every;
        while at.duration() < duration {
            let present = |role: &Role| role.joins < at && role.exit.is_none_or(|exit| exit.at() > at);
            let present: Vec<_> = (0..roles.len()).filter(|&index| present(&roles[index])).collect();
            if !present.is_empty() {
                let goes = &mut roles[present[(rng.next_u64() % present.len() as u64) as usize]];
                let planned_exit = goes.exit.replace(if churn.dies { Exit::Dies(at) } else { Exit::Leaves(at) });
                let successor = Role { joins: at, exit: planned_exit, ..goes.clone() };
                roles.push(successor);
            }
            at = Span::from_ns(at.ns() + churn.every.ns());
        }
    }
    roles.sort_by_key(|role| role.joins);
    for (index, role) in roles.iter_mut().enumerate() {
        role.name = format!("sub-{index}");
    }
    roles
}

impl Role {
    /// The role in the warm-up run, for a worker whose speed the broker should remember: no pauses, steps or exit.
    ///
    /// `None` for a worker that the broker does not know before.
    pub(crate) fn as_known_before(&self) -> Option<Self> {
        let is_known = self.kind.remembered && self.joins == Span::ZERO;
        let kind = WorkerKind { pauses: Vec::new(), steps: Vec::new(), ..self.kind.clone() };
        is_known.then(|| Self { kind, exit: None, ..self.clone() })
    }

    fn of(kind: &WorkerKind) -> Self {
        let exit = kind.leaves.map(Exit::Leaves).or(kind.dies.map(Exit::Dies));
        Self { name: String::new(), kind: kind.clone(), joins: kind.joins.unwrap_or(Span::ZERO), exit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(rest: &str) -> Vec<Role> {
        let text = format!("messages = 1\narrivals = {{ fixed = \"10ms\" }}\n{rest}");
        cast(&Scenario::parse("test", &text).unwrap(), Duration::from_secs(10), 7)
    }

    #[test]
    fn workers_are_numbered_as_they_join() {
        let roles = roles(
            "[[workers]]\nservice = \"1ms\"\njoins = \"3s\"\ndies = \"5s\"\n\
             [[workers]]\ncount = 2\nservice = \"2ms\"\nleaves = \"4s\"",
        );
        let seconds = |span: Span| span.ms() / 1e3;
        let found: Vec<_> = roles
            .iter()
            .map(|role| (role.name.as_str(), role.kind.service.ms(), seconds(role.joins), role.exit))
            .collect();
        let leaves = Some(Exit::Leaves(Span::from_ms(4000.0)));
        let dies = Some(Exit::Dies(Span::from_ms(5000.0)));
        assert_eq!(found, [("sub-0", 2.0, 0.0, leaves), ("sub-1", 2.0, 0.0, leaves), ("sub-2", 1.0, 3.0, dies)]);
    }

    #[test]
    fn churn_replaces_a_worker_by_another_of_its_kind_at_each_turn() {
        let workers = "[[workers]]\ncount = 2\nservice = \"1ms\"\n[[workers]]\nservice = \"2ms\"";
        for dies in [false, true] {
            let roles = roles(&format!("churn = {{ every = \"2s\", dies = {dies} }}\n{workers}"));
            // At 2, 4, 6 and 8 s.
            assert_eq!(roles.len(), 3 + 4);
            for at in [1.0, 3.0, 5.0, 7.0, 9.0].map(|s: f64| Span::from_ms(s * 1000.0)) {
                let present = roles.iter().filter(|role| role.joins <= at && role.exit.is_none_or(|e| e.at() > at));
                let mut services: Vec<_> = present.map(|role| role.kind.service.ms()).collect();
                services.sort_by(f64::total_cmp);
                assert_eq!(services, [1.0, 1.0, 2.0], "at {at}");
            }
            let exits = roles.iter().filter_map(|role| role.exit);
            assert!(exits.clone().count() == 4 && exits.into_iter().all(|e| matches!(e, Exit::Dies(_)) == dies));
        }
    }
}
