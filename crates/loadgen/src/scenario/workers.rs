//! All workers of a run.

use std::time::Duration;

use tenbin_simulator::scenario::WorkerKind;
use tenbin_simulator::{Rng, Scenario, Span};

/// All workers of a run of `scenario` with messages due within `duration`, including those from churn, in the order of
/// joining.
///
/// The same `seed` yields the same workers.
pub(crate) fn of(scenario: &Scenario, duration: Duration, seed: u64) -> Vec<WorkerKind> {
    let kinds = scenario.workers.iter();
    let mut workers: Vec<_> = kinds.flat_map(|kind| (0..kind.count.get()).map(move |_| kind.clone())).collect();
    if let Some(churn) = &scenario.churn {
        let mut rng = Rng::new(seed);
        let mut at = churn.every;
        while at.duration() < duration {
            let present: Vec<_> = (0..workers.len()).filter(|&index| is_present(&workers[index], at)).collect();
            if !present.is_empty() {
                let goes = &mut workers[present[(rng.next_u64() % present.len() as u64) as usize]];
                let successor = WorkerKind { joins: Some(at), ..goes.clone() };
                (goes.leaves, goes.dies) = if churn.dies { (None, Some(at)) } else { (Some(at), None) };
                workers.push(successor);
            }
            at = Span::from_ns(at.ns() + churn.every.ns());
        }
    }
    workers.sort_by_key(|worker| worker.joins);
    workers
}

/// Whether the broker knows the speed of this worker before the run.
pub(super) fn is_known_before(worker: &WorkerKind) -> bool {
    worker.remembered && joins(worker) == Span::ZERO
}

/// The worker in the warm-up run: without pauses, steps and exit, and absent unless the broker should know it.
pub(super) fn as_known_before(worker: &WorkerKind) -> WorkerKind {
    let joins = if is_known_before(worker) { None } else { Some(NEVER) };
    let (pauses, steps) = (Vec::new(), Vec::new());
    WorkerKind { pauses, steps, joins, leaves: None, dies: None, ..worker.clone() }
}

fn is_present(worker: &WorkerKind, at: Span) -> bool {
    joins(worker) < at && worker.leaves.or(worker.dies).is_none_or(|exit| exit > at)
}

fn joins(worker: &WorkerKind) -> Span {
    worker.joins.unwrap_or(Span::ZERO)
}

/// After the end of every run: a day.
const NEVER: Span = Span::from_ns(86_400_000_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(rest: &str) -> Vec<WorkerKind> {
        let text = format!("messages = 1\narrivals = {{ fixed = \"10ms\" }}\n{rest}");
        of(&Scenario::parse("test", &text).unwrap(), Duration::from_secs(10), 7)
    }

    #[test]
    fn workers_are_in_order_of_joining() {
        let workers = workers(
            "[[workers]]\nservice = \"1ms\"\njoins = \"3s\"\ndies = \"5s\"\n\
             [[workers]]\ncount = 2\nservice = \"2ms\"\nleaves = \"4s\"",
        );
        let found: Vec<_> = workers
            .iter()
            .map(|worker| {
                (worker.service.ms(), joins(worker).ms(), worker.leaves.map(Span::ms), worker.dies.map(Span::ms))
            })
            .collect();
        let leaves = (2.0, 0.0, Some(4000.0), None);
        assert_eq!(found, [leaves, leaves, (1.0, 3000.0, None, Some(5000.0))]);
    }

    #[test]
    fn churn_replaces_a_worker_by_another_of_its_kind_at_each_turn() {
        let text = "[[workers]]\ncount = 2\nservice = \"1ms\"\n[[workers]]\nservice = \"2ms\"";
        for dies in [false, true] {
            let workers = workers(&format!("churn = {{ every = \"2s\", dies = {dies} }}\n{text}"));
            // At 2, 4, 6 and 8 s.
            assert_eq!(workers.len(), 3 + 4);
            for at in [1.0, 3.0, 5.0, 7.0, 9.0].map(|s: f64| Span::from_ms(s * 1000.0)) {
                let present = workers.iter().filter(|worker| is_present(worker, at));
                let mut services: Vec<_> = present.map(|worker| worker.service.ms()).collect();
                services.sort_by(f64::total_cmp);
                assert_eq!(services, [1.0, 1.0, 2.0], "at {at}");
            }
            let exits = |of: fn(&WorkerKind) -> Option<Span>| workers.iter().filter_map(of).count();
            assert_eq!((exits(|one| one.leaves), exits(|one| one.dies)), if dies { (0, 4) } else { (4, 0) });
        }
    }

    #[test]
    fn only_remembered_workers_are_there_in_the_warm_up() {
        let text = "remembered = true\nservice = \"1ms\"\ndies = \"5s\"\npauses = [{ at = \"1s\", for = \"1s\" }]";
        let workers = workers(&format!(
            "[[workers]]\n{text}\n[[workers]]\n{text}\njoins = \"2s\"\n[[workers]]\nservice = \"1ms\""
        ));
        let known: Vec<_> = workers.iter().map(as_known_before).collect();
        assert!(known.iter().all(|worker| worker.dies.is_none() && worker.pauses.is_empty()));
        let present = known.iter().filter(|worker| worker.joins.is_none());
        assert_eq!((present.count(), workers.iter().filter(|worker| is_known_before(worker)).count()), (1, 1));
    }
}
