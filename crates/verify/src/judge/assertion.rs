//! Assertions on figures: `lost = 0`, `received_bytes during delay >= 0.95 x before`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tenbin_loadgen::run::{Bound as Written, Relation, Term};

use super::figure::Figure;
use super::measured::Figures;
use super::windows::Phase;

/// A comparison of a figure of a phase with a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Assertion {
    /// The figure.
    pub figure: Figure,
    /// Its phase.
    pub phase: Phase,
    /// The comparison.
    pub relation: Relation,
    /// Right side of the comparison.
    pub bound: Bound,
}

/// Right side of an assertion.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// A value in the figure's unit.
    Value(f64),
    /// The same figure of another phase, times a factor.
    Times(f64, Phase),
}

/// An assertion and its result in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The assertion.
    #[cfg_attr(test, schemars(with = "String"))]
    pub assertion: Assertion,
    /// Value of the figure in its unit: a number, seconds, messages a second or bytes a second; null if it is absent.
    pub value: Option<f64>,
    /// Bound in the same unit; null if it is a multiple of an absent figure.
    pub bound: Option<f64>,
    /// True if the assertion holds. It does not if a figure is absent.
    pub holds: bool,
}

impl Assertion {
    /// Evaluates the assertion. It fails if a figure is absent.
    pub fn check(&self, figures: &Figures) -> Check {
        let value = figures.get(&self.phase, self.figure);
        let bound = match &self.bound {
            Bound::Value(value) => Some(*value),
            Bound::Times(factor, phase) => figures.get(phase, self.figure).map(|value| factor * value),
        };
        let holds = value.zip(bound).is_some_and(|(value, bound)| self.relation.holds(value, bound));
        Check { assertion: self.clone(), value, bound, holds }
    }

    /// Phases on both sides.
    pub fn phases(&self) -> impl Iterator<Item = &Phase> {
        let other = match &self.bound {
            Bound::Value(_) => None,
            Bound::Times(_, phase) => Some(phase),
        };
        std::iter::once(&self.phase).chain(other)
    }
}

impl Check {
    /// `lost is 12, wanted = 0`.
    pub fn found(&self) -> String {
        let Assertion { figure, phase, relation, bound } = &self.assertion;
        let text = |value: Option<f64>| value.map_or("absent".to_owned(), |value| figure.unit().text(value));
        let phase = if *phase == Phase::Whole { String::new() } else { format!(" {phase}") };
        let wanted = match bound {
            Bound::Value(_) => String::new(),
            Bound::Times(factor, of) => format!(" ({factor} x {of})"),
        };
        format!("{figure}{phase} is {}, wanted {relation} {}{wanted}", text(self.value), text(self.bound))
    }
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no assertion: write FIGURE [before|during NAME|after NAME] <= VALUE, or … >= 0.95 x before"
            )
        };
        let term = text.parse::<Term>().map_err(|_| form())?;
        let Term { figure, phase, relation, bound: written } = &term;
        if figure.is_empty() {
            return Err(form());
        }
        let figure = figure.parse::<Figure>()?;
        let bound = match written {
            Written::Times { factor, .. } if *factor < 0.0 => return Err(form()),
            Written::Times { factor, phase } => Bound::Times(*factor, phase.parse()?),
            Written::Value(value) if value.is_empty() => return Err(form()),
            Written::Value(value) => Bound::Value(figure.unit().parse(value)?),
        };
        let phase = phase.as_deref().unwrap_or_default().parse()?;
        if figure == Figure::Recovered && !matches!(phase, Phase::After(_)) {
            return Err(format!("{text:?} has no fault: write \"recovered after NAME {relation} {written}\""));
        }
        Ok(Self { figure, phase, relation: *relation, bound })
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { figure, phase, relation, bound } = self;
        write!(f, "{figure}")?;
        if *phase != Phase::Whole {
            write!(f, " {phase}")?;
        }
        match bound {
            Bound::Value(value) => write!(f, " {relation} {}", figure.unit().text(*value)),
            Bound::Times(factor, phase) => write!(f, " {relation} {factor} x {phase}"),
        }
    }
}

impl Serialize for Assertion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Assertion {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Help text that lists all figures.
pub(crate) fn help() -> String {
    let mut help = "Figures of assertions, FIGURE [PHASE] OP VALUE or FIGURE [PHASE] OP FACTOR x PHASE:\n".to_owned();
    for (_, name, _, what) in super::figure::FIGURES {
        help += &format!("  {name:<20}{what}\n");
    }
    help += "Phases: before, during NAME, during NAME+NAME, after NAME; without one the whole run\n";
    help += "Exit code: 0 if all is as expected; 1 if an assertion fails, or a run could not start;\n";
    help += "2 for wrong arguments or an unreadable file; 3 if a change could not be undone";
    help
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let during = || Phase::During(vec!["delay".to_owned()]);
        for (phase, figure, value) in [
            (Phase::Whole, Figure::Lost, 3.0),
            (Phase::Before, Figure::ReceivedBytes, 1e7),
            (during(), Figure::ReceivedBytes, 9.4e6),
            (Phase::Before, Figure::P99, 0.002),
            (during(), Figure::P99, 0.061),
            (Phase::After("delay".to_owned()), Figure::Recovered, 4.0),
        ] {
            figures.set(phase, figure, value);
        }
        figures
    }

    #[test]
    fn assertions_compare_with_values_and_phases() {
        for (text, holds) in [
            ("lost = 3", true),
            ("lost=3", true),
            ("lost == 3", true),
            ("lost = 0", false),
            ("lost != 0", true),
            ("lost < 3", false),
            ("lost <= 3", true),
            ("lost > 2", true),
            ("received_bytes during delay >= 0.95 x before", false),
            ("received_bytes during delay >= 0.9 x before", true),
            ("received_bytes during delay >= 9 MB/s", true),
            ("p99 during delay <= 61ms", true),
            ("p99 during delay <= 10 x before", false),
            ("recovered after delay <= 10s", true),
            ("recovered after delay <= 3.9s", false),
        ] {
            assert_eq!(text.parse::<Assertion>().unwrap().check(&figures()).holds, holds, "{text}");
        }
    }

    #[test]
    fn an_absent_figure_fails_every_assertion() {
        for text in
            ["duplicated = 0", "duplicated != 1", "p99 >= 0ms", "lost <= 2 x before", "lost during delay >= 0 x before"]
        {
            let check = text.parse::<Assertion>().unwrap().check(&figures());
            assert!(!check.holds && check.found().contains("absent"), "{text}: {}", check.found());
        }
    }

    #[test]
    fn a_check_says_what_was_found() {
        let found = |text: &str| text.parse::<Assertion>().unwrap().check(&figures()).found();
        assert_eq!(found("lost = 0"), "lost is 3, wanted = 0");
        assert_eq!(
            found("received_bytes during delay >= 0.95 x before"),
            "received_bytes during delay is 9.4 MB/s, wanted >= 9.5 MB/s (0.95 x before)"
        );
    }

    #[test]
    fn texts_survive_printing() {
        for text in [
            "lost = 0",
            "received_bytes during delay >= 0.95 x before",
            "recovered after delay <= 10 s",
            "p99.9 during delay+kill < 50 ms",
            "received_messages before > 1000 msg/s",
            "sent_bytes = 10.216 MB/s",
        ] {
            let assertion = text.parse::<Assertion>().unwrap();
            assert_eq!(assertion.to_string(), text);
            let json = serde_json::to_string(&assertion).unwrap();
            assert_eq!(serde_json::from_str::<Assertion>(&json).unwrap(), assertion);
        }
    }

    #[test]
    fn wrong_assertions_say_how_to_write_them() {
        for (text, wanted) in [
            ("lots = 0", "did you mean \"lost\"?"),
            ("lost", "write FIGURE"),
            ("lost =", "write FIGURE"),
            ("= 0", "write FIGURE"),
            ("lost ! 0", "write FIGURE"),
            ("lost = many", "give one as 0"),
            ("p99 < 50", "give us, ms or s"),
            ("received_bytes > 10", "give 10 MB/s"),
            ("received_messages > 10 MB/s", "give 1000 msg/s"),
            ("lost while kill = 0", "give before, during NAME or after NAME"),
            ("lost = 2 x later", "give before, during NAME or after NAME"),
            ("recovered <= 10s", "recovered after NAME <= 10s"),
        ] {
            let wrong = text.parse::<Assertion>().unwrap_err();
            assert!(wrong.contains(wanted), "{text}: {wrong}");
        }
    }
}
