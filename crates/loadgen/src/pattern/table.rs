use std::io::{self, Write};

use super::args::{Pattern, PatternArgs};
use super::brokers::System;
use super::measured::{Measured, Row};

/// Prints the plan.
pub(super) fn write_head(out: &mut dyn Write, args: &PatternArgs, system: &System) -> io::Result<()> {
    let PatternArgs { publishers, payload, time, runs, .. } = args;
    writeln!(
        out,
        "{}: {publishers} publishers, {payload} bytes, no interval, {time} s; runs of each: {runs}",
        system.name
    )?;
    out.flush()
}

/// Prints one run.
pub(super) fn write_run(
    out: &mut dyn Write,
    pattern: Pattern,
    qos: u8,
    number: u32,
    measured: &Measured,
    notes: &[String],
) -> io::Result<()> {
    writeln!(
        out,
        "  {pattern} QoS {qos}, run {number}: published {:.0}/s, received {:.0}/s, mean {} ms, lost {:.0}",
        measured.published_per_second,
        measured.received_per_second,
        number_of(measured.latency_mean_ms),
        measured.lost,
    )?;
    notes.iter().try_for_each(|note| writeln!(out, "    note: {note}"))?;
    out.flush()
}

/// Prints the means of all runs.
pub(super) fn write(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<16}{:>12}{:>11}{:>10}{:>10}{:>10}{:>8}{:>10}{:>10}{:>8}",
        "mean of runs", "published/s", "received/s", "mean ms", "p99", "max", "lost", "first ¼", "last ¼", "growth"
    )?;
    for Row { pattern, qos, mean, .. } in rows {
        writeln!(
            out,
            "{:<16}{:>12.0}{:>11.0}{:>10}{:>10}{:>10}{:>8.0}{:>10}{:>10}{:>8}",
            format!("{pattern}  QoS {qos}"),
            mean.published_per_second,
            mean.received_per_second,
            number_of(mean.latency_mean_ms),
            number_of(mean.latency_p99_ms),
            number_of(mean.latency_max_ms),
            mean.lost,
            number_of(mean.first_quarter_ms),
            number_of(mean.last_quarter_ms),
            mean.growth().map_or("-".to_owned(), |growth| format!("{growth:.2}")),
        )?;
    }
    writeln!(out, "latency in ms; ¼: mean of what came in the first and in the last quarter of the time")?;
    out.flush()
}

fn number_of(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 100.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    #[test]
    fn a_row_has_both_throughputs_latency_loss_and_growth() {
        let mean = Measured {
            published_per_second: 1234.4,
            received_per_second: 1000.0,
            first_quarter_ms: Some(10.0),
            last_quarter_ms: Some(35.0),
            ..Measured::of(&sample::outcome())
        };
        let row = Row { pattern: Pattern { several: true, shared: true }, qos: 2, mean, runs: Vec::new() };
        let mut out = Vec::new();
        write(&mut out, &[row]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words: Vec<_> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words[..3], ["MLT-SHD", "QoS", "2"]);
        assert_eq!(words[3..], ["1234", "1000", "12.25", "61.20", "200", "3", "10.00", "35.00", "3.50"]);
    }
}
