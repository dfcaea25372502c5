//! Metrics as text: OpenMetrics 1.0, and the Prometheus format 0.0.4.

use std::fmt::Write as _;

/// Metrics of one scrape, by family.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<Family>,
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only rises; its name ends with `_total`.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Counts by upper bound.
    Histogram,
}

#[derive(Debug)]
struct Family {
    name: String,
    kind: Kind,
    help: String,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    suffix: &'static str,
    labels: String,
    value: f64,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Exposition {
    /// Media type of OpenMetrics.
    pub const OPEN_METRICS: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    /// Media type of the older format.
    pub const PROMETHEUS: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Adds a value of the family `name`; the first value of a family sets its kind and its help text.
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, kind, help).samples.push(Sample { suffix: "", labels: shown(labels), value });
    }

    /// Adds a histogram: counts of values by their upper bound, the last one without a bound, and their sum.
    pub fn add_histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        counts: impl Iterator<Item = (f64, u64)>,
        sum: f64,
    ) {
        let family = self.family(name, Kind::Histogram, help);
        let mut total = 0;
        for (bound, count) in counts {
            total += count;
            let bound = number(bound);
            let labels = shown(&[labels, &[("le", &bound)]].concat());
            family.samples.push(Sample { suffix: "_bucket", labels, value: total as f64 });
        }
        family.samples.push(Sample { suffix: "_sum", labels: shown(labels), value: sum });
        family.samples.push(Sample { suffix: "_count", labels: shown(labels), value: total as f64 });
    }

    /// Adds the families of `others` that are not there yet.
    pub(crate) fn add_missing(&mut self, others: Self) {
        for family in others.families {
            if !self.families.iter().any(|known| known.name == family.name) {
                self.families.push(family);
            }
        }
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) -> &mut Family {
        let at = self.families.iter().rposition(|family| family.name == name).unwrap_or_else(|| {
            self.families.push(Family { name: name.to_owned(), kind, help: help.to_owned(), samples: Vec::new() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    /// Writes all families. `is_open`: as OpenMetrics, where a family of counters is named without `_total`.
    pub fn text(&self, is_open: bool) -> String {
        let mut text = String::new();
        for Family { name, kind, help, samples } in &self.families {
            let family = if is_open && *kind == Kind::Counter { name.trim_end_matches("_total") } else { name };
            let _ = writeln!(text, "# HELP {family} {}", escaped(help, false));
            let _ = writeln!(text, "# TYPE {family} {}", kind.name());
            for Sample { suffix, labels, value } in samples {
                let _ = writeln!(text, "{name}{suffix}{labels} {}", number(*value));
            }
        }
        if is_open {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// Labels in braces; nothing without labels.
fn shown(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true)));
    format!("{{{}}}", labels.collect::<Vec<_>>().join(","))
}

fn escaped(text: &str, with_quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if with_quotes { text.replace('"', "\\\"") } else { text }
}

/// A number as both formats have it.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value if value.is_nan() => "NaN".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Exposition {
        let mut metrics = Exposition::default();
        metrics.add("a_total", Kind::Counter, "Counts \\ a\nb", &[("reason", "x\"\\\n")], 3.0);
        metrics.add("b", Kind::Gauge, "Bytes.", &[], f64::INFINITY);
        metrics.add("a_total", Kind::Counter, "", &[("reason", "y")], 1e15);
        metrics.add_histogram("c_seconds", "Time.", &[("q", "1")], [(0.5, 2), (f64::INFINITY, 1)].into_iter(), 4.25);
        metrics
    }

    #[test]
    fn families_are_written_together_and_escaped() {
        let text = sample().text(false);
        let expected = "# HELP a_total Counts \\\\ a\\nb\n# TYPE a_total counter\na_total{reason=\"x\\\"\\\\\\n\"} 3\n\
                        a_total{reason=\"y\"} 1000000000000000\n# HELP b Bytes.\n# TYPE b gauge\nb +Inf\n\
                        # HELP c_seconds Time.\n# TYPE c_seconds histogram\nc_seconds_bucket{q=\"1\",le=\"0.5\"} 2\n\
                        c_seconds_bucket{q=\"1\",le=\"+Inf\"} 3\nc_seconds_sum{q=\"1\"} 4.25\nc_seconds_count{q=\"1\"} 3\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn families_that_are_there_stay_as_they_are() {
        let (mut metrics, mut others) = (sample(), sample());
        others.add("d", Kind::Gauge, "More.", &[], 1.0);
        metrics.add_missing(others);
        assert_eq!(metrics.text(false), format!("{}# HELP d More.\n# TYPE d gauge\nd 1\n", sample().text(false)));
    }

    #[test]
    fn open_metrics_names_counters_without_total_and_ends() {
        let text = sample().text(true);
        assert!(text.starts_with("# HELP a Counts") && text.contains("# TYPE a counter\na_total{"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
