//! Conclusions from the figures: overloaded patterns, growing latency, lost messages.

use super::{Case, Row};

/// One line for each observation about a system.
pub(super) fn of(rows: &[Row]) -> Vec<String> {
    let mut levels: Vec<u8> = rows.iter().map(|row| row.qos).collect();
    levels.sort_unstable();
    levels.dedup();
    let at = |qos: u8| rows.iter().filter(move |row| row.qos == qos).collect::<Vec<_>>();
    levels.into_iter().flat_map(|qos| of_level(qos, &at(qos))).collect()
}

fn of_level(qos: u8, rows: &[&Row]) -> Vec<String> {
    [throughput(rows), overload(rows), growth(rows), loss(rows)]
        .into_iter()
        .flatten()
        .map(|line| format!("QoS {qos}: {line}"))
        .collect()
}

/// Compares throughput: `MLT-SHD delivers most, 84210 msg/s: 2.10 × SGL-SGL, 1.50 × …`.
fn throughput(rows: &[&Row]) -> Option<String> {
    let mut by_throughput = rows.to_vec();
    by_throughput.sort_by(|a, b| received(b).total_cmp(&received(a)));
    let (most, others) = by_throughput.split_first()?;
    let most_received = received(most);
    let others: Vec<_> = others
        .iter()
        .filter(|row| received(row) > 0.0)
        .map(|row| format!("{:.2} × {}", most_received / received(row), row.pattern))
        .collect();
    let compared = if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
    Some(format!("{} delivers most, {most_received:.0} msg/s{compared}", most.pattern))
}

fn overload(rows: &[&Row]) -> Option<String> {
    let behind: Vec<_> = rows.iter().filter(|row| lag(row) > BEHIND).collect();
    if behind.is_empty() {
        return Some("all patterns deliver as fast as is published".to_owned());
    }
    let each = behind.iter().map(|row| {
        format!("{} (delivers {:.0} % less than is published; {})", row.pattern, 100.0 * lag(row), busy(&row.case))
    });
    Some(format!("overloaded: {}", each.collect::<Vec<_>>().join(", ")))
}

/// Share of the published messages by which deliveries are behind.
fn lag(row: &Row) -> f64 {
    let published = row.case.mean("published_per_second").filter(|published| *published > 0.0);
    published.map_or(0.0, |published| 1.0 - received(row) / published)
}

fn received(row: &Row) -> f64 {
    row.case.mean("received_per_second").unwrap_or(0.0)
}

/// Describes which process lacks processor time.
fn busy(case: &Case) -> String {
    let [own_cores, threads] = ["own_cores", "threads"].map(|figure| case.mean(figure).unwrap_or(0.0));
    let own = format!("this program {own_cores:.1} cores");
    let Some((one, all)) = case.mean("broker_cores").zip(case.mean("all_brokers_cores")) else {
        return format!("the brokers' load is not known, {own}");
    };
    let machine = std::thread::available_parallelism().map_or(f64::INFINITY, |cores| cores.get() as f64);
    let who = if (BUSY..2.0 - BUSY).contains(&one) {
        "a broker's one core is busy".to_owned()
    } else if all + own_cores > BUSY * machine {
        format!("all {machine:.0} cores of the machine are busy")
    } else if own_cores > BUSY * threads {
        "this program is busy".to_owned()
    } else {
        "this program is not busy".to_owned()
    };
    format!("{who}: busiest broker {one:.1} cores, {own}")
}

fn growth(rows: &[&Row]) -> Option<String> {
    let growth = |row: &Row| {
        let last = row.case.mean("last_quarter_ms")?;
        Some((row.pattern, last, last / row.case.mean("first_quarter_ms")?)).filter(|(.., growth)| growth.is_finite())
    };
    let known: Vec<_> = rows.iter().filter_map(|row| growth(row)).collect();
    if known.is_empty() {
        return None;
    }
    let grows: Vec<_> = known
        .iter()
        .filter(|(_, last, growth)| *growth > GROWS && *last > GROWN_MS)
        .map(|(pattern, _, growth)| format!("{pattern} ({growth:.1} times as long at the end as at the beginning)"))
        .collect();
    Some(match grows.as_slice() {
        [] => "latency does not grow with time in any pattern".to_owned(),
        grows => format!("latency grows: {}", grows.join(", ")),
    })
}

fn loss(rows: &[&Row]) -> Option<String> {
    let lossy: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row.pattern, row.case.mean("lost").filter(|lost| *lost > 0.0)?)))
        .map(|(pattern, lost)| format!("{pattern} ({lost:.0})"))
        .collect();
    (!lossy.is_empty()).then(|| format!("messages are lost: {}", lossy.join(", ")))
}

/// Lag above which a pattern counts as overloaded.
const BEHIND: f64 = 0.05;

/// Share of a core from which on it counts as fully used.
const BUSY: f64 = 0.9;

/// Ratio of latencies above which latency counts as growing.
const GROWS: f64 = 1.5;

/// Minimum latency at the end for growth to count; below that it fluctuates.
const GROWN_MS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::super::{Pattern, figures};
    use super::*;
    use crate::run::sample;

    fn row(several: bool, received: f64, last_quarter_ms: f64, cores: Option<f64>, lost: f64) -> Row {
        let mut run = figures::of(&sample::outcome());
        run.extend([
            ("published_per_second", Some(1000.0)),
            ("received_per_second", Some(received)),
            ("first_quarter_ms", Some(10.0)),
            ("last_quarter_ms", Some(last_quarter_ms)),
            ("broker_cores", cores),
            ("all_brokers_cores", cores),
            ("lost", Some(lost)),
        ]);
        let case = Case { runs: vec![run], ..Case::default() };
        Row { pattern: Pattern { several, shared: false }, qos: 0, case }
    }

    #[test]
    fn overload_and_growing_latency_are_reported() {
        let rows = [row(false, 500.0, 80.0, Some(0.99), 0.0), row(true, 1000.0, 11.0, Some(0.3), 0.0)];
        let said = of(&rows).join("\n");
        for part in [
            "QoS 0: MLT-SGL delivers most, 1000 msg/s: 2.00 × SGL-SGL",
            "overloaded: SGL-SGL (delivers 50 % less than is published; a broker's one core is busy",
            "latency grows: SGL-SGL (8.0 times",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        assert!(!said.contains("lost"), "{said}");
    }

    #[test]
    fn calm_run_reports_no_overload_or_growth() {
        let said = of(&[row(false, 999.0, 10.0, None, 0.0)]).join("\n");
        assert!(said.contains("all patterns deliver as fast") && said.contains("latency does not grow"), "{said}");
    }

    #[test]
    fn unknown_broker_load_is_reported_as_unknown() {
        let said = of(&[row(false, 500.0, 10.0, None, 0.0)]).join("\n");
        assert!(said.contains("the brokers' load is not known"), "{said}");
    }

    #[test]
    fn loss_is_named_by_pattern() {
        assert!(
            of(&[row(true, 1000.0, 10.0, None, 7.0)])
                .iter()
                .any(|line| line.contains("messages are lost: MLT-SGL (7)"))
        );
    }
}
