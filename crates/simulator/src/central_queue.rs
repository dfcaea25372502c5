//! The bound for the messages of a measured run, which are not simulated.

use std::{num::NonZeroU32, sync::Arc};

use tenbin_kit::Span;

use crate::{
    arrivals::{Arrival, Arrivals},
    chooser::Chooser,
    plan::Plan,
    scenario::{Scenario, WorkerKind},
    simulation::simulate,
};

/// Times at which free `workers` take each of `arrivals` out of one queue, as with [`Chooser::CentralQueue`].
///
/// `arrivals` are in the order of time. With `is_acknowledged`, messages of a dead worker go to others, and the last
/// time counts. `None` for a message that no worker is left to take.
pub fn central_queue(workers: Vec<WorkerKind>, is_acknowledged: bool, arrivals: &[Arrival]) -> Vec<Option<Span>> {
    // The measured arrivals replace interval and number.
    let scenario = Scenario::of(String::new(), NonZeroU32::MIN, Arrivals::Fixed(Span::from_ns(1)), workers);
    let outcome = simulate(&Plan::with(&scenario, arrivals), is_acknowledged, Chooser::CentralQueue, &Arc::default());
    let start_ns = scenario.idle.ns();
    outcome.deliveries.iter().map(|delivery| Some(Span::from_ns(delivery.taken?.0 - start_ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_taken_by_free_workers() {
        let text = "messages = 1\narrivals = { fixed = \"1s\" }\n[[workers]]\nservice = \"25ms\"\njoins = \"30ms\"\n\
                    [[workers]]\nservice = \"10ms\"\ndies = \"45ms\"";
        let workers = Scenario::parse("test", text).unwrap().workers;
        let arrivals = [0.0, 1.0, 2.0, 34.0, 41.0, 44.0].map(|ms| Arrival { at: Span::from_ms(ms), seed: 0 });
        let taken_ms = |is_acknowledged| {
            let taken = central_queue(workers.clone(), is_acknowledged, &arrivals);
            taken.into_iter().map(|taken| taken.map(Span::ms)).collect::<Vec<_>>()
        };
        // The fast worker is alone at first and idle from 30 to 34 ms. It dies with the message of 44 ms. The slow
        // worker is busy until 66 ms with that of 41 ms.
        assert_eq!(taken_ms(false), [0.0, 10.0, 20.0, 34.0, 41.0, 44.0].map(Some));
        assert_eq!(taken_ms(true), [0.0, 10.0, 20.0, 34.0, 41.0, 66.0].map(Some));
        assert_eq!(central_queue(Vec::new(), true, &arrivals[..1]), [None]);
    }
}
