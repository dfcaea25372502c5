//! All figures as JSON.

use serde_json::{Value, json};

use super::figures::Tally;
use super::{PHASES, PhaseLatency, SlowArgs, SlowFigures, published};

pub(super) fn summary(args: &SlowArgs, found: &[SlowFigures]) -> Value {
    json!({
        "parameters": {
            "normal": args.normal,
            "slow": args.slow,
            "slow_reads": args.slow_reads,
            "before_s": args.before.as_secs_f64(),
            "switch_s": args.switch.as_secs_f64(),
            "after_s": args.after.as_secs_f64(),
            "drain_limit_s": args.drain.as_secs_f64(),
            "spooling_topic": args.spooling_topic,
        },
        "sizes": found.iter().map(size).collect::<Vec<_>>(),
    })
}

fn size(found: &SlowFigures) -> Value {
    let ms = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    let phases =
        PHASES.iter().zip(&found.phases).map(|(name, phase)| ((*name).to_owned(), phase_value(phase.as_ref())));
    let published = published(found.size.bytes).map(|published| {
        json!({
            "mean_after": { "flow_to_disk": published.mean_after.0, "proposed": published.mean_after.1 },
            "worst": { "flow_to_disk": published.worst.0, "proposed": published.worst.1 },
        })
    });
    let counts = &found.counts;
    json!({
        "bytes": found.size.bytes,
        "messages_per_second": found.size.messages_per_second,
        "latency_ms": phases.collect::<serde_json::Map<_, _>>(),
        "published_ratios": published,
        "first_spooled_ms": ms(found.first_spooled),
        "all_spooled_ms": ms(found.all_spooled),
        "calm_after_ms": ms(found.calm_after),
        "backlog": found.backlog,
        "drain_s": found.drain.as_secs_f64(),
        "published": counts.published,
        "refused": counts.refused,
        "unacknowledged": counts.unacknowledged,
        "normal": tally(counts.normal),
        "slow": tally(counts.slow),
        "publisher_lateness_ms": { "p99": found.lateness_p99_ms, "max": found.lateness_max_ms },
    })
}

fn phase_value(phase: Option<&PhaseLatency>) -> Value {
    phase.map_or(Value::Null, |phase| {
        let latency = phase.latency;
        json!({
            "n": latency.n,
            "mean": latency.mean,
            "p50": latency.p50,
            "p99": latency.p99,
            "max": latency.max,
            "mean_to_mean_before": phase.mean_ratio,
            "worst_to_mean_before": phase.worst_ratio,
            "worst_to_worst_before": phase.worst_to_worst,
        })
    })
}

fn tally(tally: Tally) -> Value {
    json!({
        "lost": tally.lost,
        "still_queued": tally.still_queued,
        "duplicated": tally.duplicated,
        "out_of_order": tally.out_of_order,
    })
}
