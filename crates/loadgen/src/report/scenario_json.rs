//! All figures, published figures and parameters of a scenario as JSON.

use serde_json::{Value, json};
use tenbin_simulator::scenario::WorkerKind;

use super::scenario::{Run, means};
use crate::scenario::{Delays, Plan, RunFigures, STABLE_PHASE, Simulated, SubscriberFigures, overall_ms, stable_phase};
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
            "runs": of_policy.map(|run| run_value(run.number, &run.figures)).collect::<Vec<_>>(),
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
            "report_carrier": plan.carrier.map(|carrier| carrier.as_str()),
            "warm_up_ms": plan.warm_up.map(|warm_up| warm_up.as_secs_f64() * 1e3),
            "worker_command": plan.worker_command,
            "service_ms": plan.scenario.workers.iter().flat_map(service_ms).collect::<Vec<_>>(),
            "runs": plan.runs,
            "stable_phase": { "first": STABLE_PHASE.start, "last": STABLE_PHASE.end - 1 },
        },
        "policies": plan.policies.iter().map(policy).collect::<Vec<_>>(),
    })
}

fn run_value(number: u32, figures: &RunFigures) -> Value {
    let totals = figures.totals;
    let delays = |delays: Delays| json!({ "p50": delays.p50_ms, "p99": delays.p99_ms, "max": delays.max_ms });
    let subscriber = |figures: &SubscriberFigures| {
        json!({
            "name": figures.name,
            "service_ms": figures.service_ms,
            "latency_ms": figures.latency,
            "stable_phase_ms": figures.stable,
            "messages_per_second": figures.messages_per_second,
            "messages_in_each_second": figures.per_second,
        })
    };
    json!({
        "run": number,
        "published": totals.published,
        "received": totals.received,
        "lost": totals.lost,
        "duplicated": totals.duplicated,
        "unknown": totals.unknown,
        "not_taken": figures.not_taken,
        "died_with_a_worker": figures.died,
        "latency_ms": figures.latency,
        "best_possible_ms": figures.best_possible.as_made,
        "best_possible_as_received_ms": figures.best_possible.as_received,
        "publisher_lateness_ms": delays(figures.lateness),
        "worker_wake_up_ms": delays(figures.wake_up),
        "subscribers": figures.subscribers.iter().map(subscriber).collect::<Vec<_>>(),
    })
}
