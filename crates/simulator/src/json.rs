//! The figures as JSON.

use serde_json::{Value, json};

use crate::{
    figures::{Figures, Times},
    runs::Case,
};

/// One case with all its choosers.
pub(crate) fn case(case: &Case<'_>, figures: &[Figures]) -> Value {
    let choosers: Vec<_> =
        case.choosers.iter().zip(figures).map(|(by, figures)| chooser(case.name_of(*by), figures)).collect();
    json!({
        "scenario": case.scenario.name,
        "qos": case.qos,
        "seed": case.seed,
        "seeds": case.seeds,
        "policies": choosers,
    })
}

fn chooser(name: &str, figures: &Figures) -> Value {
    let worker = |worker: &crate::figures::WorkerFigures| {
        json!({
            "messages": worker.messages,
            "sent": worker.sent,
            "held_most": worker.held_most,
            "waiting_ms": { "mean": worker.waiting.mean_ms(), "max": worker.waiting.max_ms() },
            "stable_phase_ms": { "mean": worker.stable.mean_ms(), "max": worker.stable.max_ms() },
        })
    };
    json!({
        "policy": name,
        "waiting_ms": times(&figures.waiting),
        "sojourn_ms": times(&figures.sojourn),
        "unfinished": figures.unfinished,
        "dead": figures.dead,
        "span_ms": figures.span_ms,
        "begun_in_time_percent": figures.in_time_percent(),
        "others_waiting_ms": times(&figures.others),
        "mean_waiting_by_seed_ms": figures.means_ms,
        "workers": figures.workers.iter().map(worker).collect::<Vec<_>>(),
    })
}

fn times(times: &Times) -> Value {
    json!({
        "mean": times.mean_ms(),
        "p50": times.quantile_ms(0.5),
        "p99": times.quantile_ms(0.99),
        "max": times.max_ms(),
    })
}
