//! The bound for messages that have come already: those of a run that was measured, not simulated.

use std::num::NonZeroU32;

use crate::{
    arrivals::Arrivals,
    chooser::Chooser,
    plan::Plan,
    scenario::{Scenario, WorkerKind},
    simulation::simulate,
    span::Span,
};

/// A message of a run that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it came; the times in [`WorkerKind`] are counted from the same moment.
    pub at: Span,
    /// What [`Distribution::service_ns`](crate::Distribution::service_ns) draws its service time from.
    pub luck: u64,
}

/// When each of `arrivals`, which are in the order of time, is taken out of one queue by whoever of `workers` is free,
/// as [`Chooser::CentralQueue`] has it; at last, where `is_acknowledged` gives what a worker that died had to others.
/// `None` for what nobody takes, since nobody is left.
pub fn central_queue(workers: Vec<WorkerKind>, is_acknowledged: bool, arrivals: &[Arrival]) -> Vec<Option<Span>> {
    // Interval and number are replaced by what came.
    let scenario = Scenario::of(String::new(), NonZeroU32::MIN, Arrivals::Fixed(Span::from_ns(1)), workers);
    let deliveries = simulate(&Plan::with(&scenario, arrivals), is_acknowledged, Chooser::CentralQueue);
    let start_ns = scenario.idle.ns();
    deliveries.iter().map(|delivery| Some(Span::from_ns(delivery.taken?.0 - start_ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_taken_by_who_is_free() {
        let text = "messages = 1\narrivals = { fixed = \"1s\" }\n[[workers]]\nservice = \"25ms\"\njoins = \"30ms\"\n\
                    [[workers]]\nservice = \"10ms\"\ndies = \"45ms\"";
        let workers = Scenario::parse("test", text).unwrap().workers;
        let arrivals = [0.0, 1.0, 2.0, 34.0, 41.0, 44.0].map(|ms| Arrival { at: Span::from_ms(ms), luck: 0 });
        let taken_ms = |is_acknowledged| {
            let taken = central_queue(workers.clone(), is_acknowledged, &arrivals);
            taken.into_iter().map(|taken| taken.map(Span::ms)).collect::<Vec<_>>()
        };
        // The fast one is alone at first and idle from 30 to 34 ms. It dies with the message of 44 ms, and the slow one
        // is busy until 66 ms with that of 41 ms.
        assert_eq!(taken_ms(false), [0.0, 10.0, 20.0, 34.0, 41.0, 44.0].map(Some));
        assert_eq!(taken_ms(true), [0.0, 10.0, 20.0, 34.0, 41.0, 66.0].map(Some));
        assert_eq!(central_queue(Vec::new(), true, &arrivals[..1]), [None]);
    }
}
