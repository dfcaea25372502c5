//! Random scenarios.

use std::num::NonZeroU32;

use tenbin_balancer::Rng;
use tenbin_kit::Span;

use crate::{
    arrivals::Arrivals,
    distribution::Distribution,
    scenario::{Scenario, WorkerKind},
};

/// The scenario of this seed: 3 to 16 workers whose speeds differ by up to a factor of twenty, at QoS 0, 50 to 95 %
/// load.
///
/// The same seed always gives the same scenario.
pub fn random_scenario(seed: u64) -> Scenario {
    let mut draw = Draw(Rng::new(seed));
    let distribution = draw.distribution();
    let is_near = draw.chance(0.5);
    let has_threads = draw.chance(0.25);
    let workers: Vec<_> = (0..draw.whole(3, 16))
        .map(|_| WorkerKind {
            distribution,
            delay: Span::from_ms(if is_near { 0.2 } else { draw.log_uniform(0.2, 50.0) }),
            threads: count(if has_threads { draw.whole(1, 4) } else { 1 }),
            ..WorkerKind::of(Span::from_ms(draw.log_uniform(5.0, 100.0)))
        })
        .collect();
    let per_ms: f64 = workers.iter().map(|kind| f64::from(kind.threads.get()) / kind.service.ms()).sum();
    let rho = draw.uniform(0.5, 0.95);
    let interval_ms = 1.0 / (rho * per_ms);
    let arrivals = match draw.whole(0, 4) {
        0 | 1 => Arrivals::Fixed(Span::from_ms(interval_ms)),
        2 | 3 => Arrivals::Poisson(Span::from_ms(interval_ms)),
        _ => {
            let messages = draw.whole(5, 60);
            Arrivals::Bursts { messages: count(messages), every: Span::from_ms(interval_ms * f64::from(messages)) }
        }
    };
    let about = format!(
        "{} workers, {distribution}, {}{}{arrivals}, load {:.0} %",
        workers.len(),
        if is_near { "" } else { "far, " },
        if has_threads { "threads, " } else { "" },
        rho * 100.0
    );
    let messages = count((LENGTH_MS / interval_ms) as u32);
    let idle = Span::from_ms(draw.uniform(0.0, 3000.0));
    Scenario { about, idle, seeds: count(2), ..Scenario::of(format!("random {seed}"), messages, arrivals, workers) }
}

/// Duration of the load.
const LENGTH_MS: f64 = 20_000.0;

pub(super) fn count(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Source of the random parameters of a scenario.
pub(super) struct Draw(pub(super) Rng);

impl Draw {
    pub(super) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    /// From `from` to `to`, both included.
    pub(super) fn whole(&mut self, from: u32, to: u32) -> u32 {
        (self.uniform(f64::from(from), f64::from(to) + 1.0) as u32).min(to)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.uniform(0.0, 1.0) < probability
    }

    fn distribution(&mut self) -> Distribution {
        match self.whole(0, 4) {
            0 => Distribution::Fixed,
            1 => Distribution::Jitter(0.2),
            2 => Distribution::Jitter(0.5),
            3 => Distribution::Exponential,
            _ => Distribution::Pareto(2.5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_scenario_within_its_bounds() {
        assert_eq!(random_scenario(5), random_scenario(5));
        for seed in 0..200 {
            let scenario = random_scenario(seed);
            assert!((3..=16).contains(&scenario.worker_count()), "{}", scenario.about);
            assert!((100..100_000).contains(&scenario.messages.get()), "{}: {}", scenario.about, scenario.messages);
            assert!(scenario.workers.iter().all(|kind| (4.9..100.1).contains(&kind.service.ms())));
        }
    }
}
