//! All figures, published figures and parameters of a scenario as JSON.

use serde_json::{Value, json};
use tenbin_codec::ReportCarrier;
use tenbin_simulator::scenario::WorkerKind;

use super::{Run, means};
use crate::scenario::{Plan, STABLE_PHASE, Simulated, overall_ms, stable_phase};
use crate::statistics::median;

pub(super) fn summary(plan: &Plan, runs: &[Run], simulated: &[(String, Simulated)]) -> Value {
    let service_ms = |kind: &WorkerKind| std::iter::repeat_n(kind.service.ms(), kind.count.get() as usize);
    let policy = |policy: &String| {
        let of_policy = runs.iter().filter(|run| run.policy == *policy);
        json!({
            "policy": policy,
            "median_latency_ms": median(&means(runs, policy)),
            "simulated_latency_ms": simulated.iter().find(|(name, _)| name == policy).map(|(_, figures)| *figures),
            "published": {
                "interval_ms": 10.0,
                "latency_ms": overall_ms(&plan.scenario.name, policy),
                "stable_phase_ms": stable_phase(&plan.scenario.name, policy),
            },
            "runs": of_policy.collect::<Vec<_>>(),
        })
    };
    json!({
        "parameters": {
            "scenario": plan.scenario.name,
            "arrivals": plan.scenario.arrivals.to_string(),
            "messages": plan.scenario.messages,
            "payload_bytes": crate::scenario::PAYLOAD_LEN,
            "qos": plan.qos.bits(),
            "ping_interval_ms": plan.ping_interval().as_secs_f64() * 1e3,
            "eager_pings": plan.scenario.pings.eager,
            "report_carrier": plan.carrier.map(|carrier| ReportCarrier::from(carrier).as_str()),
            "warm_up_ms": plan.warm_up.map(|warm_up| warm_up.as_secs_f64() * 1e3),
            "worker_command": plan.worker_command,
            "service_ms": plan.scenario.workers.iter().flat_map(service_ms).collect::<Vec<_>>(),
            "runs": plan.runs,
            "stable_phase": { "first": STABLE_PHASE.start, "last": STABLE_PHASE.end - 1 },
        },
        "policies": plan.policies.iter().map(policy).collect::<Vec<_>>(),
    })
}
