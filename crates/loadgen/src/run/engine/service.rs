//! Processing times of simulated workers.

use std::num::NonZeroU16;
use std::time::Duration;

use tenbin_simulator::Distribution;

use crate::run::{Service, Work};
use crate::scenario::{Pace, Timeline};

/// Timeline of the worker with number `member` in its audience; the run begins at `start_ns` of the worker's clock.
///
/// Random times are drawn for each message from its own number. So they do not depend on the member that gets it, and
/// are the same in every run of a comparison.
pub(super) fn timeline(work: &Work, member: u32, start_ns: u64) -> Timeline {
    let hands = NonZeroU16::new(work.parallelism).unwrap_or(NonZeroU16::MIN);
    Timeline::parallel(pace(service_of(work, member), start_ns), hands)
}

/// Start and end of the pause of worker `member`, after the start of the run.
pub(super) fn pause(work: &Work, member: u32) -> Option<(Duration, Duration)> {
    match *service_of(work, member) {
        Service::Pause { at, lasts, .. } => Some((at, at.saturating_add(lasts))),
        _ => None,
    }
}

/// Service entry of a member; entries are dealt over the members in turn.
fn service_of(work: &Work, member: u32) -> &Service {
    &work.service[member as usize % work.service.len()]
}

fn pace(service: &Service, start_ns: u64) -> Pace {
    let at = |after: Duration| start_ns.saturating_add(ns(after));
    let (steps, pauses) = match *service {
        Service::Fixed(mean)
        | Service::Exponential(mean)
        | Service::Jitter { mean, .. }
        | Service::Pareto { mean, .. } => (vec![(0, ns(mean))], vec![]),
        Service::Step { before, after, at: step } => (vec![(0, ns(before)), (at(step), ns(after))], vec![]),
        Service::Pause { service, at: from, lasts } => {
            (vec![(0, ns(service))], vec![(at(from), at(from.saturating_add(lasts)))])
        }
    };
    Pace::new(steps, distribution(service), pauses, SEED)
}

fn distribution(service: &Service) -> Distribution {
    match *service {
        Service::Fixed(_) | Service::Step { .. } | Service::Pause { .. } => Distribution::Fixed,
        Service::Jitter { by, .. } => Distribution::Jitter(by),
        Service::Exponential(_) => Distribution::Exponential,
        Service::Pareto { shape, .. } => Distribution::Pareto(shape),
    }
}

/// Nanoseconds, saturating at 2^64, which is 584 years.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Arbitrary.
const SEED: u64 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const START: u64 = 1_000_000 * MS;

    fn work(service: impl Into<Vec<Service>>) -> Work {
        Work { service: service.into(), parallelism: 1, reports: None }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Start and end in ms after the run's start, by member 0, for messages that arrive at these ms.
    fn slots(service: Service, received_ms: &[u64]) -> Vec<(u64, u64)> {
        let mut timeline = timeline(&work([service]), 0, START);
        let after = |ns: u64| (ns - START) / MS;
        let slots = received_ms.iter().map(|&at| timeline.take(0, START + at * MS, 0));
        slots.map(|slot| (after(slot.taken_ns), after(slot.finished_ns))).collect()
    }

    #[test]
    fn step_changes_service_time_of_later_messages() {
        let step = Service::Step { before: ms(25), after: ms(200), at: ms(100) };
        assert_eq!(slots(step, &[90, 91, 92]), [(90, 115), (115, 315), (315, 515)]);
    }

    #[test]
    fn nothing_is_taken_or_done_in_a_pause() {
        let service = Service::Pause { service: ms(25), at: ms(100), lasts: ms(2000) };
        assert_eq!(slots(service.clone(), &[90, 200, 3200]), [(90, 2115), (2115, 2140), (3200, 3225)]);
        assert_eq!(pause(&work([service]), 3), Some((ms(100), ms(2100))));
        assert_eq!(pause(&work([Service::Fixed(ms(1))]), 0), None);
    }

    #[test]
    fn services_are_dealt_over_the_members() {
        let work = work([Service::Fixed(ms(25)), Service::Fixed(ms(50))]);
        let finished = |member| timeline(&work, member, 0).take(0, 0, 0).finished_ns / MS;
        assert_eq!([0, 1, 2, 3].map(finished), [25, 50, 25, 50]);
    }

    #[test]
    fn random_times_belong_to_the_message_and_keep_the_mean() {
        let mean_of = |service: Service| {
            let work = work([service]);
            let took = |message: u64| {
                let [a, b] = [0, 1].map(|member| timeline(&work, member, 0).take(message, 0, 0).finished_ns);
                assert_eq!(a, b, "whoever gets it");
                a as f64
            };
            (0..20_000).map(took).sum::<f64>() / 20_000.0 / 1e6
        };
        let mean = ms(10);
        for (service, tolerance) in [
            (Service::Jitter { mean, by: 0.5 }, 0.2),
            (Service::Exponential(mean), 0.4),
            (Service::Pareto { mean, shape: 3.0 }, 0.6),
        ] {
            let found = mean_of(service.clone());
            assert!((found - 10.0).abs() < tolerance, "{service:?}: {found}");
        }
    }
}
