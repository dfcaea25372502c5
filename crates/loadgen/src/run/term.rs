use std::fmt;
use std::str::FromStr;

/// An assertion as it is written: `FIGURE [PHASE] OP VALUE`, or `FIGURE [PHASE] OP FACTOR x PHASE`.
///
/// It gives figures and phases no meaning: the program that reads it knows their names and units.
///
/// ```
/// use tenbin_loadgen::run::{Bound, Relation, Term};
///
/// let term: Term = "received_bytes during delay >= 0.95 x before".parse().unwrap();
/// assert_eq!((&term.figure[..], term.phase.as_deref()), ("received_bytes", Some("during delay")));
/// assert_eq!(term.relation, Relation::AtLeast);
/// assert_eq!(term.bound, Bound::Times { factor: 0.95, phase: "before".to_owned() });
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Name of the figure: the first word.
    pub figure: String,
    /// Words between the figure and the relation; `None` for the whole run.
    pub phase: Option<String>,
    /// How the figure compares with the bound.
    pub relation: Relation,
    /// Right side of the comparison.
    pub bound: Bound,
}

/// Right side of an assertion.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// A value in the unit of the figure, as text; [`Unit::parse`](super::Unit::parse) reads it.
    Value(String),
    /// A multiple of the same figure in another phase.
    Times {
        /// The multiplier.
        factor: f64,
        /// The other phase.
        phase: String,
    },
}

/// Comparison of a figure with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// `=`, also `==`.
    Equal,
    /// `!=`.
    NotEqual,
    /// `<`.
    Less,
    /// `<=`.
    AtMost,
    /// `>`.
    Greater,
    /// `>=`.
    AtLeast,
}

impl Relation {
    /// Whether `value` has this relation to `bound`.
    pub fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::Equal => value == bound,
            Self::NotEqual => value != bound,
            Self::Less => value < bound,
            Self::AtMost => value <= bound,
            Self::Greater => value > bound,
            Self::AtLeast => value >= bound,
        }
    }
}

impl FromStr for Term {
    type Err = String;

    /// Parses an assertion.
    ///
    /// # Errors
    /// There is no figure, no relation or no bound. The error names the missing part.
    fn from_str(term: &str) -> Result<Self, String> {
        let at = term.find(['<', '>', '=', '!']).ok_or("want FIGURE, one of = != < <= > >=, and a number")?;
        let (left, rest) = term.split_at(at);
        let (relation, bound) = RELATIONS
            .iter()
            .find_map(|(text, relation)| Some((*relation, rest.strip_prefix(text)?)))
            .ok_or("want one of = != < <= > >=")?;
        let mut words = left.split_whitespace();
        let figure = words.next().unwrap_or_default().to_owned();
        let phase = words.collect::<Vec<_>>().join(" ");
        Ok(Self { figure, phase: (!phase.is_empty()).then_some(phase), relation, bound: Bound::parse(bound)? })
    }
}

impl Bound {
    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [factor, "x", phase @ ..] = words.as_slice() else { return Ok(Self::Value(text.trim().to_owned())) };
        let factor = factor.parse::<f64>().ok().filter(|factor| factor.is_finite());
        let wanted = || format!("{:?}: want FACTOR x PHASE", text.trim());
        if phase.is_empty() {
            return Err(wanted());
        }
        Ok(Self::Times { factor: factor.ok_or_else(wanted)?, phase: phase.join(" ") })
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.figure)?;
        if let Some(phase) = &self.phase {
            write!(f, " {phase}")?;
        }
        write!(f, " {} {}", self.relation, self.bound)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.write_str(value),
            Self::Times { factor, phase } => write!(f, "{factor} x {phase}"),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, _) = RELATIONS.iter().rfind(|(_, relation)| relation == self).expect("each has a sign");
        f.write_str(text)
    }
}

/// Longer signs first for parsing; of two signs for one relation, the last is printed.
const RELATIONS: [(&str, Relation); 7] = [
    ("<=", Relation::AtMost),
    (">=", Relation::AtLeast),
    ("!=", Relation::NotEqual),
    ("==", Relation::Equal),
    ("<", Relation::Less),
    (">", Relation::Greater),
    ("=", Relation::Equal),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_have_a_figure_a_phase_and_a_bound() {
        for (text, figure, phase, printed) in [
            ("lost=0", "lost", None, "lost = 0"),
            ("p99.9 during  kill+delay<1.5s", "p99.9", Some("during kill+delay"), "p99.9 during kill+delay < 1.5s"),
            ("rate after x >= 2 x before", "rate", Some("after x"), "rate after x >= 2 x before"),
            ("p99 != 1 x during a b", "p99", None, "p99 != 1 x during a b"),
        ] {
            let term: Term = text.parse().unwrap();
            assert_eq!((&term.figure[..], term.phase.as_deref(), &term.to_string()[..]), (figure, phase, printed));
            assert_eq!(term.to_string().parse(), Ok(term), "{text}");
        }
    }

    #[test]
    fn terms_without_a_relation_or_a_phase_are_refused() {
        for text in ["lost", "lost!0", "p99 < much x before", "p99 < NaN x before", "p99 < 2 x "] {
            assert!(text.parse::<Term>().is_err(), "{text}");
        }
    }
}
