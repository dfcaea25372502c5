//! Printed figures of a sweep.

use std::io::{self, Write};

use tenbin_kit::table::aligned;

use super::{Case, Figures};

/// A column of a table: its title, and the figure that it shows.
pub(super) type Column = (&'static str, Over, &'static str);

/// One value of a case, from the values of its runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Over {
    Mean,
    Median,
    Sum,
    Lowest,
    Highest,
    /// Ratio of the median to the first case's median.
    Ratio,
    /// Ratio of the mean to another figure's mean.
    Per(&'static str),
}

/// Prints one run; figures that it does not have are left out.
pub(super) fn write_run(
    out: &mut dyn Write,
    number: u32,
    name: &str,
    figures: &Figures,
    printed: &[(&str, &str, &str)],
) -> io::Result<()> {
    let text = |(before, figure, after): &(&str, &str, &str)| {
        let value = figures.get(figure).copied()??;
        Some(format!("{before}{}{after}", cell(Some(value))))
    };
    writeln!(out, "  run {number} {name}: {}", printed.iter().filter_map(text).collect::<Vec<_>>().join(", "))?;
    out.flush()
}

/// Prints a row for each case, under an empty line.
pub(super) fn write_table(out: &mut dyn Write, title: &str, cases: &[&Case], columns: &[Column]) -> io::Result<()> {
    let head = std::iter::once(title.to_owned()).chain(columns.iter().map(|(title, ..)| (*title).to_owned()));
    let mut rows = vec![head.collect::<Vec<_>>()];
    for case in cases {
        let cells = columns.iter().map(|(_, over, figure)| over.text(case, cases[0], figure));
        rows.push(std::iter::once(case.name.clone()).chain(cells).collect());
    }
    writeln!(out)?;
    aligned(&rows, 1, [0; 2]).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

impl Over {
    fn text(self, case: &Case, first: &Case, figure: &str) -> String {
        let ratio = |of: Option<f64>, to: Option<f64>| {
            let ratio = of.zip(to).map(|(of, to)| of / to).filter(|ratio| ratio.is_finite());
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        match self {
            Self::Mean => cell(case.mean(figure)),
            Self::Median => cell(case.median(figure)),
            Self::Sum => cell(case.sum(figure)),
            Self::Lowest => cell(case.values(figure).into_iter().reduce(f64::min)),
            Self::Highest => cell(case.values(figure).into_iter().reduce(f64::max)),
            Self::Ratio => ratio(case.median(figure), first.median(figure)),
            Self::Per(other) => ratio(case.mean(figure), case.mean(other)),
        }
    }
}

/// At least three digits; whole numbers without decimals.
fn cell(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
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

    fn case(name: &str, runs: &[(f64, Option<f64>)]) -> Case {
        let runs = runs.iter().map(|(a, b)| Figures::from([("a", Some(*a)), ("b", *b)])).collect();
        Case { name: name.to_owned(), runs, ..Case::default() }
    }

    #[test]
    fn values_of_all_runs_stand_beside_ratios_to_the_first_case() {
        let one = case("one", &[(100.0, Some(4.0)), (300.0, None), (200.0, Some(1.5))]);
        let two = case("the other", &[(50.0, None)]);
        let columns = [
            ("a", Over::Median, "a"),
            ("ratio", Over::Ratio, "a"),
            ("lowest", Over::Lowest, "a"),
            ("highest", Over::Highest, "a"),
            ("b", Over::Mean, "b"),
            ("sum", Over::Sum, "b"),
            ("a/b", Over::Per("b"), "a"),
        ];
        let mut out = Vec::new();
        write_table(&mut out, "medians", &[&one, &two], &columns).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "\n\
            medians      a  ratio  lowest  highest     b   sum    a/b\n\
            one        200   1.00     100      300  2.75  5.50  72.73\n\
            the other   50   0.25      50       50     -     -      -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn figures_that_a_run_lacks_are_not_printed() {
        let figures = Figures::from([("a", Some(1234.5)), ("b", None), ("c", Some(0.25))]);
        let mut out = Vec::new();
        let printed = [("received ", "a", "/s"), ("p99 ", "b", " ms"), ("lost ", "c", "")];
        write_run(&mut out, 2, "one", &figures, &printed).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  run 2 one: received 1234/s, lost 0.250\n");
    }
}
