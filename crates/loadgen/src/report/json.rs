//! All figures, the published ones and the parameters, for programs.

use serde_json::{Value, json};

use super::{Run, overall_means};
use crate::scenario::{Delays, Plan, RunFigures, STABLE_PHASE, SubscriberFigures, overall_ms, stable_phase};
use crate::statistics::{Summary, median};

pub(super) fn summary(plan: &Plan, runs: &[Run]) -> Value {
    let policies: Vec<_> = plan.policies.iter().map(|policy| policy_value(plan, runs, policy)).collect();
    json!({
        "parameters": {
            "scenario": plan.scenario,
            "interval_ms": plan.schedule.interval.as_secs_f64() * 1e3,
            "messages": plan.schedule.messages,
            "payload_bytes": crate::payload::Stamp::PAYLOAD_LEN,
            "qos": plan.qos.bits(),
            "ping_interval_ms": plan.ping_interval.as_secs_f64() * 1e3,
            "eager_pings": plan.eager_pings,
            "service_ms": plan.services.map(|service| service.as_secs_f64() * 1e3),
            "runs": plan.runs,
            "stable_phase": { "first": STABLE_PHASE.start, "last": STABLE_PHASE.end - 1 },
        },
        "policies": policies,
    })
}

fn policy_value(plan: &Plan, runs: &[Run], policy: &str) -> Value {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    let published_phase = stable_phase(plan.scenario, policy).map(|rows| {
        let row = |row: crate::scenario::PublishedPhase| {
            json!({ "n": row.n, "min": row.min, "max": row.max, "mean": row.mean, "sd": row.sd })
        };
        rows.map(row)
    });
    json!({
        "policy": policy,
        "median_latency_ms": median(&overall_means(runs, policy)),
        "published": {
            "interval_ms": 10.0,
            "latency_ms": overall_ms(plan.scenario, policy),
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
        "latency_ms": summary_value(figures.latency),
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
    summary.map_or(Value::Null, |s| json!({ "n": s.n, "min": s.min, "max": s.max, "mean": s.mean, "sd": s.sd }))
}

fn delays_value(delays: Delays) -> Value {
    json!({ "p50": delays.p50_ms, "p99": delays.p99_ms, "max": delays.max_ms })
}
