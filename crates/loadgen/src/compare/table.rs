use std::io::{self, Write};

use super::{CompareArgs, Compared};
use crate::run::Outcome;
use crate::target::TargetArg;

/// Prints the plan.
pub(super) fn write_head(out: &mut dyn Write, args: &CompareArgs, targets: &[TargetArg]) -> io::Result<()> {
    let names: Vec<_> = targets.iter().map(TargetArg::name).collect();
    writeln!(out, "compare: {}; in turns, runs on each: {}", names.join(", "), args.runs)?;
    out.flush()
}

/// Prints one run.
pub(super) fn write_run(out: &mut dyn Write, name: &str, number: u32, outcome: &Outcome) -> io::Result<()> {
    let received = outcome.received.average_per_second;
    write!(out, "  run {number} {name}: received {received:.0}/s")?;
    if let Some(latency) = outcome.latency {
        write!(out, ", mean {}, p99 {} ms", cell(Some(latency.mean)), cell(Some(latency.p99)))?;
    }
    writeln!(out, ", lost {}, duplicated {}", outcome.verdict.lost, outcome.verdict.duplicated)?;
    out.flush()
}

/// Prints medians, and ratios to the first broker.
pub(super) fn write_medians(out: &mut dyn Write, compared: &[Compared]) -> io::Result<()> {
    writeln!(out)?;
    let columns = [
        Column::plain("published/s", "published_per_second"),
        Column::plain("received/s", "received_per_second"),
        Column::ratio("received_per_second"),
        Column::least("lowest", "received_per_second"),
        Column::most("highest", "received_per_second"),
        Column::plain("per CPU-s", "deliveries_per_cpu_second"),
        Column::ratio("deliveries_per_cpu_second"),
        Column::plain("CPU s", "cpu_seconds"),
    ];
    write_table(out, "throughput", compared, &columns)?;
    writeln!(out)?;
    let columns = [
        Column::plain("mean", "mean"),
        Column::ratio("mean"),
        Column::plain("p50", "p50"),
        Column::plain("p99", "p99"),
        Column::ratio("p99"),
        Column::plain("p99.9", "p999"),
        Column::plain("max", "max"),
        Column::sum("lost", "lost"),
        Column::sum("duplicated", "duplicated"),
    ];
    write_table(out, "latency in ms", compared, &columns)?;
    if compared.iter().any(|compared| compared.median("waiting_mean").is_some()) {
        writeln!(out)?;
        let columns = [
            Column::plain("mean", "waiting_mean"),
            Column::ratio("waiting_mean"),
            Column::plain("p50", "waiting_p50"),
            Column::plain("p99", "waiting_p99"),
            Column::ratio("waiting_p99"),
            Column::plain("p99.9", "waiting_p999"),
            Column::plain("max", "waiting_max"),
            Column::plain("Jain", "jain"),
        ];
        write_table(out, "until work begins", compared, &columns)?;
    }
    writeln!(
        out,
        "medians; ratio: to the first; CPU: of the broker's process; lowest and highest of received/s, \
         lost and duplicated: of all runs"
    )?;
    out.flush()
}

struct Column {
    title: &'static str,
    figure: &'static str,
    of: fn(&Compared, &Compared, &str) -> Option<f64>,
    is_ratio: bool,
}

impl Column {
    fn plain(title: &'static str, figure: &'static str) -> Self {
        Self { title, figure, of: |compared, _, figure| compared.median(figure), is_ratio: false }
    }

    fn ratio(figure: &'static str) -> Self {
        let of = |compared: &Compared, first: &Compared, figure: &str| {
            Some(compared.median(figure)? / first.median(figure)?).filter(|ratio| ratio.is_finite())
        };
        Self { title: "ratio", figure, of, is_ratio: true }
    }

    fn least(title: &'static str, figure: &'static str) -> Self {
        Self {
            title,
            figure,
            of: |compared, _, figure| compared.values(figure).into_iter().reduce(f64::min),
            is_ratio: false,
        }
    }

    fn most(title: &'static str, figure: &'static str) -> Self {
        Self {
            title,
            figure,
            of: |compared, _, figure| compared.values(figure).into_iter().reduce(f64::max),
            is_ratio: false,
        }
    }

    fn sum(title: &'static str, figure: &'static str) -> Self {
        let of = |compared: &Compared, _: &Compared, figure: &str| {
            Some(compared.values(figure).into_iter().fold(0.0, |sum, of| sum + of))
        };
        Self { title, figure, of, is_ratio: false }
    }
}

fn write_table(out: &mut dyn Write, title: &str, compared: &[Compared], columns: &[Column]) -> io::Result<()> {
    write!(out, "{title:<20}")?;
    columns.iter().try_for_each(|column| write!(out, "{:>12}", column.title))?;
    writeln!(out)?;
    for row in compared {
        write!(out, "  {:<18}", row.name)?;
        for column in columns {
            let value = (column.of)(row, &compared[0], column.figure);
            let text =
                if column.is_ratio { value.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")) } else { cell(value) };
            write!(out, "{text:>12}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// At least three digits; whole numbers without decimals.
fn cell(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.fract() == 0.0 || value >= 1000.0 => format!("{value:.0}"),
        Some(value) if value >= 100.0 => format!("{value:.1}"),
        Some(value) if value >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Latency, Throughput, sample};

    fn outcome(received: f64, mean: f64, lost: u64) -> Outcome {
        let mut outcome = sample::outcome();
        outcome.received = Throughput { average_per_second: received, ..outcome.received };
        outcome.latency = outcome.latency.map(|latency| Latency { mean, ..latency });
        outcome.verdict.lost = lost;
        outcome
    }

    #[test]
    fn medians_stand_beside_their_ratio_to_the_first() {
        let compared = [
            Compared {
                name: "one".into(),
                runs: [(100.0, 4.0, 1), (300.0, 2.0, 0), (200.0, 3.0, 2)].map(|(a, b, c)| outcome(a, b, c)).into(),
            },
            Compared { name: "two".into(), runs: vec![Outcome { broker_usage: Vec::new(), ..outcome(50.0, 6.0, 0) }] },
        ];
        let mut out = Vec::new();
        write_medians(&mut out, &compared).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows = |name: &str| {
            let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix(name));
            rows.map(|row| row.split_whitespace().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        assert_eq!(rows("one ")[0], ["400", "200", "1.00", "100", "300", "1594", "1.00", "0.500"]);
        assert_eq!(rows("two ")[0], ["400", "50", "0.25", "50", "50", "-", "-", "-"]);
        assert_eq!(rows("one ")[1], ["3", "1.00", "10", "61.20", "1.00", "150", "200", "3", "0"]);
        assert_eq!(rows("two ")[1][..2], ["6", "2.00"]);
    }
}
