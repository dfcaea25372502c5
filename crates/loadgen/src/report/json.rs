//! All figures, published figures and parameters as JSON.

use serde_json::{Value, json};
use tenbin_simulator::scenario::WorkerKind;

use super::{Run, of_runs};
use crate::scenario::{Delays, Plan, RunFigures, STABLE_PHASE, Simulated, SubscriberFigures, overall_ms, stable_phase};
use crate::statistics::{Summary, median};

pub(super) fn summary(plan: &Plan, runs: &[Run], simulated: &[(String, Simulated)]) -> Value {
    let simulated = |policy: &String| simulated.iter().find(|(name, _)| name == policy).map(|(_, figures)| *figures);
    let policies = plan.policies.iter().map(|policy| policy_value(plan, runs, policy, simulated(policy)));
    let policies: Vec<_> = policies.collect();
    let service_ms = |kind: &WorkerKind| std::iter::repeat_n(kind.service.ms(), kind.count.get() as usize);
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
        "policies": policies,
    })
}

fn policy_value(plan: &Plan, runs: &[Run], policy: &str, simulated: Option<Simulated>) -> Value {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    let published_phase = stable_phase(&plan.scenario.name, policy).map(|rows| {
        let row = |row: crate::scenario::PublishedPhase| {
            json!({ "n": row.n, "min": row.min, "max": row.max, "mean": row.mean, "sd": row.sd })
        };
        rows.map(row)
    });
    json!({
        "policy": policy,
        "median_latency_ms": median(&of_runs(runs, policy, |latency| latency.mean)),
        "simulated_latency_ms": simulated.map(|figures| {
            json!({ "mean": figures.mean, "p50": figures.p50, "p99": figures.p99, "max": figures.max })
        }),
        "published": {
            "interval_ms": 10.0,
            "latency_ms": overall_ms(&plan.scenario.name, policy),
            "stable_phase_ms": published_phase,
        },
        "runs": of_policy.map(|run| run_value(run.number, &run.figures)).collect::<Vec<_>>(),
    })
}

fn run_value(number: u32, figures: &RunFigures) -> Value {
    let totals = figures.totals;
    json!({
        "run": number,
        "published": totals.published,
        "received": totals.received,
        "lost": totals.lost,
        "duplicated": totals.duplicated,
        "unknown": totals.unknown,
        "not_taken": figures.not_taken,
        "died_with_a_worker": figures.died,
        "latency_ms": summary_value(figures.latency),
        "best_possible_ms": summary_value(figures.best_possible.as_made),
        "best_possible_as_received_ms": summary_value(figures.best_possible.as_received),
        "publisher_lateness_ms": delays_value(figures.lateness),
        "worker_wake_up_ms": delays_value(figures.wake_up),
        "subscribers": figures.subscribers.iter().map(subscriber_value).collect::<Vec<_>>(),
    })
}

fn subscriber_value(figures: &SubscriberFigures) -> Value {
    json!({
        "name": figures.name,
        "service_ms": figures.service_ms,
        "latency_ms": summary_value(figures.latency),
        "stable_phase_ms": summary_value(figures.stable),
        "messages_per_second": figures.messages_per_second,
        "messages_in_each_second": figures.per_second,
    })
}

fn summary_value(summary: Option<Summary>) -> Value {
    let value = |s: Summary| {
        json!({
            "n": s.n, "min": s.min, "max": s.max, "mean": s.mean, "p50": s.p50, "p99": s.p99, "sd": s.sd,
        })
    };
    summary.map_or(Value::Null, value)
}

fn delays_value(delays: Delays) -> Value {
    json!({ "p50": delays.p50_ms, "p99": delays.p99_ms, "max": delays.max_ms })
}
