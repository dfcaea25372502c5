//! Assertions on the outcome of a run: `lost=0,p99<50ms`.

use std::fmt;
use std::str::FromStr;

use super::Outcome;
use super::figure::{FIGURES, Figure, Unit};
use super::term::{Relation, Term};

/// Assertions that all have to hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assertions(pub(crate) Vec<Assertion>);

/// A comparison of a figure with a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Assertion {
    figure: &'static Figure,
    relation: Relation,
    /// In the figure's unit.
    bound: f64,
}

/// An assertion and its result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Check {
    pub(crate) assertion: Assertion,
    /// `None` if the run has no such value, as a latency without arrivals.
    pub(crate) value: Option<f64>,
    pub(crate) holds: bool,
}

impl Assertions {
    pub(crate) fn check(&self, outcome: &Outcome) -> Vec<Check> {
        self.0.iter().map(|assertion| assertion.check(outcome)).collect()
    }
}

impl Assertion {
    /// The assertion that `figure` equals `bound`.
    pub(crate) fn equal(figure: &'static Figure, bound: f64) -> Self {
        Self { figure, relation: Relation::Equal, bound }
    }

    /// Evaluates the assertion. It fails if the figure is unknown.
    pub(crate) fn check(self, outcome: &Outcome) -> Check {
        let value = (self.figure.of)(outcome);
        let holds = value.is_some_and(|value| self.relation.holds(value, self.bound));
        Check { assertion: self, value, holds }
    }
}

impl Check {
    /// `p99 = 61.2 ms, wanted < 50 ms`.
    pub(crate) fn found(&self) -> String {
        let Assertion { figure, relation, bound } = self.assertion;
        let value = self.value.map_or("unknown".to_owned(), |value| figure.unit.text(value));
        format!("{} = {value}, wanted {relation} {}", figure.name, figure.unit.text(bound))
    }
}

impl FromStr for Assertions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let terms = text.split(',').map(str::trim);
        terms.map(|term| term.parse().map_err(|wrong| format!("{term:?}: {wrong}"))).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(term: &str) -> Result<Self, String> {
        let term: Term = term.parse()?;
        // A run has no phases.
        let name = [Some(term.figure), term.phase].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let figure = Figure::find(&name).ok_or_else(|| format!("{name:?} is no figure of a run"))?;
        Ok(Self { figure, relation: term.relation, bound: figure.unit.parse(&term.bound.to_string())? })
    }
}

impl fmt::Display for Assertions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, assertion) in self.0.iter().enumerate() {
            write!(f, "{}{assertion}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.figure.name, self.relation, self.figure.unit.text(self.bound))
    }
}

/// Help text that lists all figures.
pub(crate) fn help() -> String {
    let mut help = "Figures that --assert and --find-rate know, with = != < <= > >=:\n".to_owned();
    for figure in FIGURES {
        let unit = match figure.unit {
            Unit::Milliseconds => " (us, ms or s)",
            _ => "",
        };
        help += &format!("  {:<28}{}{unit}\n", figure.name, figure.what);
    }
    help += "Exit code: 0; 1 where an assertion failed or the run could not be made; 2 for wrong arguments";
    help
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    fn check(text: &str) -> Vec<Check> {
        text.parse::<Assertions>().unwrap().check(&sample::outcome())
    }

    #[test]
    fn each_relation_holds_where_it_should() {
        // The sample has lost 3 messages of 1000, and its p99 is 61.2 ms.
        for (text, holds) in [
            ("lost=3", true),
            ("lost==3", true),
            ("lost=0", false),
            ("lost!=0", true),
            ("lost<3", false),
            ("lost<=3", true),
            ("lost>3", false),
            ("lost >= 3", true),
            ("expected=1e3", true),
            ("p99<50ms", false),
            ("p99<61200us", false),
            ("p99<=61200us", true),
            ("p99<0.1s", true),
            ("p99.9>100ms", true),
            ("uncorrected_p99<50ms", true),
            ("jain>0.9", true),
        ] {
            assert_eq!(check(text)[0].holds, holds, "{text}");
        }
    }

    #[test]
    fn a_failure_says_what_was_found_and_what_was_wanted() {
        let checks = check("lost=0, p99<50ms,p50<1s");
        let failed: Vec<_> = checks.iter().filter(|check| !check.holds).map(Check::found).collect();
        assert_eq!(failed, ["lost = 3, wanted = 0", "p99 = 61.2 ms, wanted < 50 ms"]);
        assert_eq!(checks[2].assertion.to_string(), "p50 < 1000 ms");
    }

    #[test]
    fn unknown_latency_fails_every_assertion() {
        let outcome = Outcome { latency: None, ..sample::outcome() };
        for text in ["p99<50ms", "p99>=0ms", "p99!=1ms"] {
            let checks = text.parse::<Assertions>().unwrap().check(&outcome);
            assert!(!checks[0].holds && checks[0].found().contains("p99 = unknown"), "{text}");
        }
    }

    #[test]
    fn figures_that_a_run_cannot_know_fail_assertions() {
        let value = |outcome: &Outcome, text: &str| text.parse::<Assertions>().unwrap().check(outcome)[0].value;
        let mut outcome = sample::outcome();
        outcome.verdict.exact = false;
        for text in ["out_of_order=0", "to_another_member=0", "wrong=0"] {
            assert_eq!(value(&outcome, text), None, "{text}: payloads do not say which message they are");
        }
        assert_eq!((value(&outcome, "lost=0"), value(&outcome, "foreign=0")), (Some(3.0), Some(0.0)));

        outcome = sample::outcome();
        outcome.plan.publishers.count = 0;
        for text in ["expected=0", "received>=0", "lost=0", "duplicated=0", "out_of_order=0", "wrong=0"] {
            assert_eq!(value(&outcome, text), None, "{text}: others publish");
        }
        assert_eq!(value(&outcome, "foreign=0"), Some(0.0));
    }

    #[test]
    fn missing_counts_lost_unacknowledged_and_refused() {
        let holds = |outcome: &Outcome, text: &str| text.parse::<Assertions>().unwrap().check(outcome)[0].holds;
        let mut whole = sample::outcome();
        whole.verdict.lost = 0;
        assert!(holds(&whole, "missing=0"));
        let unanswered = Outcome { unacknowledged: 1, ..whole.clone() };
        let refused = Outcome { not_taken: 1, ..whole.clone() };
        for outcome in [&unanswered, &refused] {
            assert!(holds(outcome, "lost=0") && holds(outcome, "missing=1"));
        }
        assert!(holds(&sample::outcome(), "missing=3"));
        whole.plan.publishers.count = 0;
        assert!(!holds(&whole, "missing=0"), "others publish");
    }

    #[test]
    fn a_term_that_cannot_be_read_is_named() {
        for (text, term) in [
            ("lost=0,p99<50", "p99<50"),
            ("lost=0ms", "lost=0ms"),
            ("lots=0", "lots"),
            ("lost", "lost"),
            ("lost!0", "lost!0"),
            ("lost=", "lost="),
            ("p99<NaNms", "p99<NaNms"),
            ("jain>inf", "jain>inf"),
            ("", "\"\""),
            ("lost=0,,p99<1s", "\"\""),
        ] {
            let wrong = text.parse::<Assertions>().unwrap_err();
            assert!(wrong.contains(term) && !wrong.contains('\n'), "{text}: {wrong}");
        }
    }

    #[test]
    fn help_lists_every_figure_once() {
        let help = help();
        for figure in FIGURES {
            let is_listed = |line: &&str| line.split_whitespace().next() == Some(figure.name);
            assert_eq!(help.lines().filter(is_listed).count(), 1, "{}", figure.name);
        }
    }
}
