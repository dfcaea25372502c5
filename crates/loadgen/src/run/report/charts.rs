//! Figures of a run.

use super::csv::{latency_ms, receiver_numbers};
use super::name_of;
use crate::number;
use crate::report::chart::{
    Axis, Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Thinned, Zone,
};
use crate::report::charts::{Frame, LEAST_MS, Label, POINTS_MAX, in_steps};
use crate::run::{AudienceOutcome, Latency, MessageRecord, Outcome, Second};

/// All figures that have data.
pub(super) fn figures(outcome: &Outcome, records: Option<&[MessageRecord]>) -> Vec<Figure> {
    let of_messages = records.and_then(|records| latency_per_message(outcome, records));
    [latency_over_time(outcome), of_messages, latency_distribution(outcome), throughput(outcome)]
        .into_iter()
        .chain([subscriber_shares(outcome), subscriber_throughput(outcome), processing_time(outcome)])
        .flatten()
        .collect()
}

fn latency_over_time(outcome: &Outcome) -> Option<Figure> {
    let label = Label(
        "latency-over-time",
        "Latency over time",
        "Latency of the messages that arrived in each second: the median, the 99th percentile and the maximum.",
    );
    let whole = outcome.latency?;
    let of = |figure: fn(&Latency) -> f64| -> Vec<(f64, f64)> {
        let ms = |second: &Second| second.latency.as_ref().map_or(f64::NAN, figure);
        outcome.per_second.iter().map(|second| (f64::from(second.second) + 0.5, ms(second))).collect()
    };
    let (p50, p99, max) = (of(|l| l.p50), of(|l| l.p99), of(|l| l.max));
    let band = |ink, low: &[(f64, f64)], high: &[(f64, f64)]| {
        let edges = low.iter().zip(high).map(|(low, high)| (low.0, low.1, high.1)).collect();
        Mark { name: None, ink: Ink::Colour(ink), shape: Shape::Band(edges) }
    };
    let lowest = p50.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let y = Axis::new("latency, ms", Scale::for_latencies(lowest, whole.p50, whole.max, LEAST_MS));
    let marks = vec![
        band(1, &p99, &max),
        band(0, &p50, &p99),
        Mark::line("maximum", Ink::Neutral, max, Stroke::Dotted),
        Mark::line("p99", Ink::Colour(1), p99, Stroke::Solid),
        Mark::line("p50, the median", Ink::Colour(0), p50, Stroke::Solid),
    ];
    Some(label.plot("", over_time(outcome).plot(y, marks)))
}

fn latency_per_message(outcome: &Outcome, records: &[MessageRecord]) -> Option<Figure> {
    let label = Label(
        "latency-per-message",
        "Latency of each message",
        "Each dot is a message, at the time at which it was to go out.",
    );
    let whole = outcome.latency?;
    let start_ns = outcome.started_unix_ms.saturating_mul(1_000_000);
    let mut frame = over_time(outcome);
    frame.x.title = "due time, s after the start".to_owned();
    let y = Scale::for_latencies(whole.min, whole.p50, whole.max, LEAST_MS);
    let (names, class_of) = classes(outcome);
    let mut classes: Vec<_> = names.iter().map(|_| Thinned::new(frame.x.scale, y)).collect();
    for record in records {
        let at = (record.due_ns as f64 - start_ns as f64) / 1e9;
        let class = class_of.get(record.receiver as usize).copied().unwrap_or(0);
        classes.get_mut(class)?.add(at, latency_ms(record));
    }
    let limit = POINTS_MAX / classes.len().max(1);
    let points = classes.into_iter().map(|points| points.into_points(limit));
    Some(label.dots(frame, y, names.into_iter().zip(points).collect(), records.len()))
}

/// Names of the point classes, and the class of each receiver: subscribers, else audiences, else one class.
fn classes(outcome: &Outcome) -> (Vec<Option<String>>, Vec<usize>) {
    let subscribers = || outcome.audiences.iter().flat_map(|audience| &audience.subscribers);
    let numbers = receiver_numbers(outcome);
    let mut class_of = vec![0; subscribers().count()];
    let mut set = |receiver: Option<&usize>, class| {
        if let Some(place) = receiver.and_then(|receiver| class_of.get_mut(*receiver)) {
            *place = class;
        }
    };
    let names: Vec<_> = if subscribers().count() <= Ink::COLOURS {
        subscribers().enumerate().for_each(|(class, one)| set(numbers.get(&one.name), class));
        subscribers().map(|one| one.name.clone()).collect()
    } else if outcome.audiences.len() <= Ink::COLOURS {
        for (class, audience) in outcome.audiences.iter().enumerate() {
            audience.subscribers.iter().for_each(|one| set(numbers.get(&one.name), class));
        }
        outcome.audiences.iter().map(|audience| name_of(outcome, audience)).collect()
    } else {
        Vec::new()
    };
    match names.len() {
        0 | 1 => (vec![None], class_of),
        _ => (names.into_iter().map(Some).collect(), class_of),
    }
}

fn latency_distribution(outcome: &Outcome) -> Option<Figure> {
    let mut curves = vec![("from the due time", outcome.latency_curve.as_slice())];
    let mut caption =
        "Share of the messages that took at most so long. Both axes are stretched for the slowest ones.".to_owned();
    if !outcome.latency_uncorrected_curve.is_empty() {
        curves.push(("from sending", &outcome.latency_uncorrected_curve));
        caption += " Counted from sending, a message that had to wait for the broker before it could be sent looks \
                    fast: coordinated omission. Users wait from the due time on.";
    }
    Label("latency-distribution", "Distribution of latency", &caption).distribution(&curves, outcome.latency?.count)
}

fn throughput(outcome: &Outcome) -> Option<Figure> {
    let label = Label(
        "throughput",
        "Throughput",
        "Messages in each second of the run: published by all publishers, received by all subscribers together.",
    );
    let highest = outcome.per_second.iter().map(|second| second.published.max(second.received)).max()?;
    let of = |figure: fn(&Second) -> u64| {
        let each = outcome.per_second.iter().map(|second| (f64::from(second.second), figure(second) as f64));
        in_steps(each.collect())
    };
    let marks = vec![
        Mark::steps("published", Ink::Colour(0), of(|second| second.published), Stroke::Solid),
        Mark::steps("received", Ink::Colour(1), of(|second| second.received), Stroke::Dashed),
    ];
    let y = Axis::new("messages a second", Scale::from_zero(highest as f64));
    Some(label.plot("", over_time(outcome).plot(y, marks)))
}

fn subscriber_shares(outcome: &Outcome) -> Option<Figure> {
    let several: Vec<_> = outcome.audiences.iter().filter(|audience| audience.subscribers.len() > 1).collect();
    let members = several.iter().map(|audience| audience.subscribers.len()).sum::<usize>();
    let jain = |audience: &&AudienceOutcome| Some(format!("{}: {:.4}", name_of(outcome, audience), audience.jain?));
    let jain = several.iter().filter_map(jain).collect::<Vec<_>>();
    let mut caption = "Part of its audience's messages that each subscriber got.".to_owned();
    if !jain.is_empty() && jain.len() <= 8 {
        caption += &format!(" Jain's index, 1 where all got as many: {}.", jain.join(", "));
    }
    let drawing = match members {
        0 => return None,
        1..=BARS_MAX => Drawing::Bars(share_bars(outcome, &several)),
        _ => {
            caption += " Subscribers are in the order of their shares.";
            Drawing::Plot(share_curves(outcome, &several))
        }
    };
    Some(Figure::new("subscriber-shares", "Messages of each subscriber", &caption, drawing))
}

fn share_bars(outcome: &Outcome, audiences: &[&AudienceOutcome]) -> Bars {
    let mut groups = Vec::new();
    for (number, audience) in audiences.iter().enumerate() {
        for (one, share) in audience.subscribers.iter().zip(shares(audience)) {
            let label = format!("{} % ({})", number::fixed(share, 1), number::count(one.received));
            let bar = Bar { ink: Ink::Colour(number), is_hollow: false, value: share, spread: None, label };
            groups.push(Group { name: one.name.clone(), bars: vec![bar] });
        }
    }
    let equal = 100.0 / audiences[0].subscribers.len() as f64;
    let alike = audiences.iter().all(|audience| audience.subscribers.len() == audiences[0].subscribers.len());
    let legend = audiences.iter().enumerate().filter(|_| audiences.len() > 1);
    let legend = legend.map(|(number, audience)| (name_of(outcome, audience), Ink::Colour(number), false));
    Bars {
        title: "share of the audience's messages, %".to_owned(),
        groups,
        legend: legend.collect(),
        reference: alike.then(|| (equal, "equal shares".to_owned())),
    }
}

/// Shares of too many subscribers for a bar each.
fn share_curves(outcome: &Outcome, audiences: &[&AudienceOutcome]) -> Plot {
    let longest = audiences.iter().map(|audience| audience.subscribers.len()).max().unwrap_or(1);
    let mut marks = Vec::new();
    let mut highest = 0.0_f64;
    for (number, audience) in audiences.iter().enumerate() {
        let mut shares = shares(audience);
        shares.sort_by(|a, b| b.total_cmp(a));
        highest = highest.max(shares.first().copied().unwrap_or(0.0));
        let each = shares.into_iter().enumerate().map(|(place, share)| (place as f64, share)).collect();
        let name = (audiences.len() <= Ink::COLOURS).then(|| name_of(outcome, audience));
        marks.push(Mark { name, ink: Ink::Colour(number), shape: Shape::Steps(in_steps(each), Stroke::of(number)) });
    }
    let y = Axis::new("share of the audience's messages, %", Scale::from_zero(highest));
    Frame::new("subscribers, those with most messages first", longest as f64, Vec::new()).plot(y, marks)
}

fn shares(audience: &AudienceOutcome) -> Vec<f64> {
    let all = audience.subscribers.iter().map(|one| one.received).sum::<u64>().max(1) as f64;
    audience.subscribers.iter().map(|one| one.received as f64 * 100.0 / all).collect()
}

fn subscriber_throughput(outcome: &Outcome) -> Option<Figure> {
    let label = Label(
        "subscriber-throughput",
        "Throughput of each subscriber",
        "Messages that each subscriber received in each second.",
    );
    let subscribers = outcome.audiences.iter().flat_map(|audience| &audience.subscribers);
    let each = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).collect();
    let rows = subscribers.map(|one| (one.name.clone(), each(&one.per_second))).collect();
    label.by_second(over_time(outcome), "messages a second", rows, 0.0, Vec::new())
}

fn processing_time(outcome: &Outcome) -> Option<Figure> {
    let label = Label(
        "processing-time",
        "Processing time of each worker",
        "Mean time, t_p, that each worker took for a message in each second.",
    );
    let subscribers = outcome.audiences.iter().flat_map(|audience| &audience.subscribers);
    let workers = subscribers.filter(|one| one.processing_ms.iter().any(Option::is_some));
    let each = |ms: &[Option<f64>]| ms.iter().map(|ms| ms.unwrap_or(f64::NAN)).collect();
    let rows = workers.map(|one| (one.name.clone(), each(&one.processing_ms))).collect();
    label.by_second(over_time(outcome), "mean processing time t_p, ms", rows, f64::NAN, Vec::new())
}

/// Common frame of plots over the time of the run.
fn over_time(outcome: &Outcome) -> Frame {
    let mut zones = Vec::new();
    let left_out = outcome.per_second.chunk_by(|a, b| a.counts == b.counts).filter(|run| !run[0].counts);
    for run in left_out {
        let (from, to) = (f64::from(run[0].second), f64::from(run[run.len() - 1].second) + 1.0);
        let schedule = outcome.plan.schedule;
        let name = match run[0].second {
            0 if schedule.ramp_up > 0 => "ramp-up",
            second if second > 0 && schedule.ramp_down > 0 => "ramp-down",
            _ => "not counted",
        };
        zones.push(Zone { from, to, name: name.to_owned() });
    }
    Frame::new("time since the start, s", outcome.per_second.len().max(1) as f64, zones)
}

/// Maximum number of bars of a figure.
const BARS_MAX: usize = 40;
