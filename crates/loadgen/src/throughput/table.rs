//! Printed figures.

use std::io::{self, Write};

use super::measure::Measurement;
use crate::ThroughputArgs;
use crate::statistics::median;

/// Prints the plan.
pub(super) fn write_head(out: &mut dyn Write, args: &ThroughputArgs) -> io::Result<()> {
    writeln!(
        out,
        "throughput: {} publishers to {} {}, payload {} bytes, QoS {}, MQTT {}, window {}, {} runs of {:?}",
        args.publishers,
        args.subscribers,
        if args.fanout { "subscribers, each message to all" } else { "subscribers of one share group" },
        args.payload,
        args.qos,
        args.protocol,
        args.window,
        args.runs,
        args.duration,
    )?;
    out.flush()
}

/// Prints one run.
pub(super) fn write_run(out: &mut dyn Write, name: &str, number: u32, found: &Measurement) -> io::Result<()> {
    write!(out, "  run {number} {name}: {:.0} deliveries/s", found.deliveries_per_second)?;
    if let Some(cpu_seconds) = found.cpu_seconds {
        write!(out, ", {cpu_seconds:.2} s of processor time")?;
    }
    write!(out, ", lost {}, duplicated {}", found.lost, found.duplicated)?;
    if found.refused > 0 {
        write!(out, ", refused {}", found.refused)?;
    }
    writeln!(out)?;
    out.flush()
}

/// Prints the medians of each target; losses and duplicates are sums over all its runs.
pub(super) fn write_medians(out: &mut dyn Write, targets: &[(&str, Vec<Measurement>)]) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<16}{:>14}{:>8}{:>18}{:>8}{:>8}{:>10}{:>10}{:>12}",
        "median", "deliveries/s", "ratio", "per CPU-second", "ratio", "CPU s", "RSS MiB", "lost", "duplicated"
    )?;
    let first = targets.first().map(|(_, runs)| Medians::of(runs));
    for (name, runs) in targets {
        let medians = Medians::of(runs);
        let ratio = |of: fn(&Medians) -> Option<f64>| Some(of(&medians)? / of(first.as_ref()?)?);
        writeln!(
            out,
            "{name:<16}{:>14}{:>8}{:>18}{:>8}{:>8}{:>10}{:>10}{:>12}",
            cell(medians.per_second, 0),
            cell(ratio(|medians| medians.per_second), 2),
            cell(medians.per_cpu_second, 0),
            cell(ratio(|medians| medians.per_cpu_second), 2),
            cell(medians.cpu_seconds, 2),
            cell(medians.resident_mib, 1),
            runs.iter().map(|run| run.lost).sum::<u64>(),
            runs.iter().map(|run| run.duplicated).sum::<u64>(),
        )?;
    }
    writeln!(out, "ratio: to the first target; CPU: of the broker's process; lost, duplicated: all runs, by count")?;
    out.flush()
}

/// Medians over the runs that have the figure.
struct Medians {
    per_second: Option<f64>,
    per_cpu_second: Option<f64>,
    cpu_seconds: Option<f64>,
    resident_mib: Option<f64>,
}

impl Medians {
    fn of(runs: &[Measurement]) -> Self {
        let over = |of: fn(&Measurement) -> Option<f64>| median(&runs.iter().filter_map(of).collect::<Vec<_>>());
        Self {
            per_second: over(|run| Some(run.deliveries_per_second)),
            per_cpu_second: over(|run| run.deliveries_per_cpu_second),
            cpu_seconds: over(|run| run.cpu_seconds),
            resident_mib: over(|run| Some(run.resident_kib? as f64 / 1024.0)),
        }
    }
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.filter(|value| value.is_finite()).map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(deliveries_per_second: f64, cpu_seconds: Option<f64>, lost: u64) -> Measurement {
        Measurement {
            deliveries_per_second,
            cpu_seconds,
            deliveries_per_cpu_second: cpu_seconds.map(|cpu| deliveries_per_second / cpu),
            resident_kib: cpu_seconds.map(|_| 2048),
            lost,
            duplicated: 0,
            refused: 0,
        }
    }

    #[test]
    fn medians_stand_beside_their_ratio_to_the_first_target() {
        let first = vec![run(100.0, Some(1.0), 1), run(300.0, Some(1.0), 0), run(200.0, Some(1.0), 2)];
        let second = vec![run(100.0, None, 0)];
        let mut out = Vec::new();
        write_medians(&mut out, &[("one", first), ("two", second)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<_>> = text.lines().skip(2).take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["one", "200", "1.00", "200", "1.00", "1.00", "2.0", "3", "0"]);
        assert_eq!(rows[1], ["two", "100", "0.50", "-", "-", "-", "-", "0", "0"]);
    }
}
