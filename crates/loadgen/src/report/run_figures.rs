//! Figures of a run.

use super::chart::{Bar, Bars, Drawing, Figure, Group, Ink, Mark, Plot, Scale, Shape, Stroke, Thinned, Zone};
use super::number;
use super::run_csv::{latency_ms, receiver_numbers};
use super::run_tables::audience_name;
use super::series::{LEAST_MS, POINTS_MAX, each_or_range, in_steps, latency_title, line, plot, steps, thinned_text};
use crate::run::{AudienceOutcome, CurvePoint, MessageRecord, Outcome, Second, SubscriberOutcome};

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
    let whole = outcome.latency?;
    let at = |second: &Second| f64::from(second.second) + 0.5;
    let of = |figure: fn(&crate::run::Latency) -> f64| -> Vec<(f64, f64)> {
        let ms = |second: &Second| second.latency.as_ref().map_or(f64::NAN, figure);
        outcome.per_second.iter().map(|second| (at(second), ms(second))).collect()
    };
    let (p50, p99, max) = (of(|l| l.p50), of(|l| l.p99), of(|l| l.max));
    let between = |low: &[(f64, f64)], high: &[(f64, f64)]| {
        Shape::Band(low.iter().zip(high).map(|(low, high)| (low.0, low.1, high.1)).collect())
    };
    let lowest = p50.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let y = Scale::for_latencies(lowest, whole.p50, whole.max, LEAST_MS);
    let marks = vec![
        Mark { name: None, ink: Ink::Colour(1), shape: between(&p99, &max) },
        Mark { name: None, ink: Ink::Colour(0), shape: between(&p50, &p99) },
        line("maximum", Ink::Neutral, max, Stroke::Dotted),
        line("p99", Ink::Colour(1), p99, Stroke::Solid),
        line("p50, the median", Ink::Colour(0), p50, Stroke::Solid),
    ];
    let caption =
        "Latency of the messages that arrived in each second: the median, the 99th percentile and the maximum.";
    Some(plot(
        "latency-over-time",
        "Latency over time",
        caption,
        Plot { y_title: latency_title("latency", y), y, marks, ..over_time(outcome) },
    ))
}

fn latency_per_message(outcome: &Outcome, records: &[MessageRecord]) -> Option<Figure> {
    let whole = outcome.latency?;
    let start_ns = outcome.started_unix_ms.saturating_mul(1_000_000);
    let frame = over_time(outcome);
    let y = Scale::for_latencies(whole.min, whole.p50, whole.max, LEAST_MS);
    let (names, class_of) = classes(outcome);
    let mut classes: Vec<_> = names.iter().map(|_| Thinned::new(frame.x, y)).collect();
    for record in records {
        let at = (record.due_ns as f64 - start_ns as f64) / 1e9;
        let class = class_of.get(record.receiver as usize).copied().unwrap_or(0);
        classes.get_mut(class)?.add(at, latency_ms(record));
    }
    let limit = POINTS_MAX / classes.len().max(1);
    let mut drawn = 0;
    let marks = names.into_iter().zip(classes).enumerate().map(|(number, (name, points))| {
        let points = points.into_points(limit);
        drawn += points.len();
        Mark { name, ink: Ink::Colour(number), shape: Shape::Points(points) }
    });
    let marks: Vec<_> = marks.collect();
    let thinned = thinned_text(drawn, records.len());
    let caption = format!("Each dot is a message, at the time at which it was to go out.{thinned}");
    let y_title = latency_title("latency", y);
    let x_title = "due time, s after the start".to_owned();
    Some(plot("latency-per-message", "Latency of each message", &caption, Plot { y_title, y, marks, x_title, ..frame }))
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
        outcome.audiences.iter().map(|audience| audience_name(outcome, audience)).collect()
    } else {
        Vec::new()
    };
    match names.len() {
        0 | 1 => (vec![None], class_of),
        _ => (names.into_iter().map(Some).collect(), class_of),
    }
}

fn latency_distribution(outcome: &Outcome) -> Option<Figure> {
    let whole = outcome.latency.filter(|_| !outcome.latency_curve.is_empty())?;
    let (corrected, uncorrected) = (&outcome.latency_curve, &outcome.latency_uncorrected_curve);
    let shortest = corrected.iter().chain(uncorrected).map(|point| point.ms).fold(f64::INFINITY, f64::min);
    let y = Scale::tail(whole.count);
    let points = |curve: &[CurvePoint]| curve.iter().map(|point| (point.ms, point.share)).collect();
    let mut marks = vec![line("from the due time", Ink::Colour(0), points(corrected), Stroke::Solid)];
    let mut caption =
        "Share of the messages that took at most so long. Both axes are stretched for the slowest ones.".to_owned();
    if !uncorrected.is_empty() {
        marks.push(line("from sending", Ink::Colour(1), points(uncorrected), Stroke::Dashed));
        caption += " Counted from sending, a message that had to wait for the broker before it could be sent looks fast: \
                    coordinated omission. What users wait counts from the due time.";
    }
    Some(plot(
        "latency-distribution",
        "Distribution of latency",
        &caption,
        Plot {
            x_title: "latency, ms (log scale)".to_owned(),
            x: Scale::log(shortest.max(LEAST_MS), whole.max.max(LEAST_MS)),
            y_title: "messages that took at most so long".to_owned(),
            y,
            marks,
            zones: Vec::new(),
        },
    ))
}

fn throughput(outcome: &Outcome) -> Option<Figure> {
    let highest = outcome.per_second.iter().map(|second| second.published.max(second.received)).max()?;
    let of = |figure: fn(&Second) -> u64| {
        let each = outcome.per_second.iter().map(|second| (f64::from(second.second), figure(second) as f64));
        in_steps(each.collect())
    };
    let marks = vec![
        steps("published", Ink::Colour(0), of(|second| second.published), Stroke::Solid),
        steps("received", Ink::Colour(1), of(|second| second.received), Stroke::Dashed),
    ];
    let caption =
        "Messages in each second of the run: published by all publishers, received by all subscribers together.";
    Some(plot(
        "throughput",
        "Throughput",
        caption,
        Plot {
            y_title: "messages a second".to_owned(),
            y: Scale::from_zero(highest as f64),
            marks,
            ..over_time(outcome)
        },
    ))
}

fn subscriber_shares(outcome: &Outcome) -> Option<Figure> {
    let several: Vec<_> = outcome.audiences.iter().filter(|audience| audience.subscribers.len() > 1).collect();
    let members = several.iter().map(|audience| audience.subscribers.len()).sum::<usize>();
    let jain =
        |audience: &&AudienceOutcome| Some(format!("{}: {:.4}", audience_name(outcome, audience), audience.jain?));
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
    Some(Figure { name: "subscriber-shares".to_owned(), title: "Who got how much".to_owned(), caption, drawing })
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
    let legend =
        |(number, audience): (usize, &&AudienceOutcome)| (audience_name(outcome, audience), Ink::Colour(number), false);
    Bars {
        title: "share of the audience's messages, %".to_owned(),
        groups,
        legend: if audiences.len() > 1 { audiences.iter().enumerate().map(legend).collect() } else { Vec::new() },
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
        let name = (audiences.len() <= Ink::COLOURS).then(|| audience_name(outcome, audience));
        marks.push(Mark { name, ink: Ink::Colour(number), shape: Shape::Steps(in_steps(each), Stroke::of(number)) });
    }
    Plot {
        x_title: "subscribers, those with most messages first".to_owned(),
        x: Scale::Linear { from: 0.0, to: longest as f64 },
        y_title: "share of the audience's messages, %".to_owned(),
        y: Scale::from_zero(highest),
        marks,
        zones: Vec::new(),
    }
}

fn shares(audience: &AudienceOutcome) -> Vec<f64> {
    let all = audience.subscribers.iter().map(|one| one.received).sum::<u64>().max(1) as f64;
    audience.subscribers.iter().map(|one| one.received as f64 * 100.0 / all).collect()
}

fn subscriber_throughput(outcome: &Outcome) -> Option<Figure> {
    let subscribers: Vec<_> = outcome.audiences.iter().flat_map(|audience| &audience.subscribers).collect();
    let rows = subscribers.iter().map(|one| {
        let each = one.per_second.iter().map(|count| f64::from(*count));
        (one.name.clone(), each.collect::<Vec<_>>())
    });
    let rows: Vec<_> = rows.collect();
    let highest = rows.iter().flat_map(|(_, row)| row).fold(0.0_f64, |a, b| a.max(*b));
    let (marks, how) = each_or_range(rows, 0.0)?;
    let caption = format!("Messages that each subscriber received in each second.{how}");
    Some(plot(
        "subscriber-throughput",
        "Throughput of each subscriber",
        &caption,
        Plot { y_title: "messages a second".to_owned(), y: Scale::from_zero(highest), marks, ..over_time(outcome) },
    ))
}

fn processing_time(outcome: &Outcome) -> Option<Figure> {
    let subscribers = outcome.audiences.iter().flat_map(|audience| &audience.subscribers);
    let is_worker = |one: &&SubscriberOutcome| one.processing_ms.iter().any(Option::is_some);
    let rows: Vec<_> = subscribers
        .filter(is_worker)
        .map(|one| (one.name.clone(), one.processing_ms.iter().map(|ms| ms.unwrap_or(f64::NAN)).collect::<Vec<_>>()))
        .collect();
    let highest = rows.iter().flat_map(|(_, row)| row).fold(0.0_f64, |a, b| a.max(*b));
    let (marks, how) = each_or_range(rows, f64::NAN)?;
    let caption = format!("Mean time, t_p, that each worker took for a message in each second.{how}");
    Some(plot(
        "processing-time",
        "Processing time of each worker",
        &caption,
        Plot {
            y_title: "mean processing time t_p, ms".to_owned(),
            y: Scale::from_zero(highest),
            marks,
            ..over_time(outcome)
        },
    ))
}

/// Common frame of plots over the time of the run.
fn over_time(outcome: &Outcome) -> Plot {
    let seconds = outcome.per_second.len().max(1) as f64;
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
    let y = Scale::from_zero(1.0);
    let x = Scale::Linear { from: 0.0, to: seconds };
    Plot { x_title: "time since the start, s".to_owned(), x, y_title: String::new(), y, marks: Vec::new(), zones }
}

/// Maximum number of bars of a figure.
const BARS_MAX: usize = 40;
