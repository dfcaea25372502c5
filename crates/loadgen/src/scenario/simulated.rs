use std::sync::Arc;

use tenbin_codec::QoS;
use tenbin_simulator::{Case, Chooser, run_all};

use super::Plan;

/// Simulated result of a scenario under one policy; waiting times in ms.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Simulated {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Simulated {
    /// Simulates the plan's scenario, with all its seeds; `None` for a policy that the balancer does not have.
    pub(crate) fn of(plan: &Plan, policy: &str) -> Option<Self> {
        let chooser: Chooser = policy.parse().ok()?;
        let scenario = &plan.scenario;
        // QoS 2 acknowledges when the work is done, as QoS 1 does.
        let qos = u8::from(plan.qos != QoS::AtMostOnce);
        let case =
            Case { scenario, qos, choosers: vec![chooser], own: Arc::default(), seed: 1, seeds: scenario.seeds.get() };
        let waiting = &run_all(&[case])[0][0].waiting;
        let quantile = |fraction| waiting.quantile_ms(fraction);
        Some(Self { mean: waiting.mean_ms(), p50: quantile(0.5), p99: quantile(0.99), max: waiting.max_ms() })
    }
}
