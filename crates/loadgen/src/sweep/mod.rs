//! Sweeps: several runs of the engine, and their figures side by side.
//!
//! * `compare` puts the same load on several brokers or policies, in turns.
//! * `pattern` puts a fixed kind of load on several arrangements of brokers and subscribers.
//! * `find_rate` repeats a load at other rates, until it has the highest one that holds.
//!
//! Each command makes plans, and names the figures that it takes of a run. Runs and tables are made here.

mod compare;
mod comparison;
mod find_rate;
mod pattern;
mod table;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

pub use compare::CompareArgs;
pub use pattern::PatternArgs;

pub(crate) use compare::run as compare;
pub(crate) use find_rate::run as find_rate;
pub(crate) use pattern::run as pattern;

use crate::progress::Progress;
use crate::run::{Broker, ExecuteOptions, Outcome, Plan, perform};
use crate::target::{RunningBroker, TargetArg};
use crate::{LoadgenError, statistics};
use comparison::{Compared, write as write_comparison};

/// Figures of one run by name; `None` if the run does not have the figure.
type Figures = BTreeMap<&'static str, Option<f64>>;

/// All runs of one load on the same brokers.
#[derive(Debug, Default)]
struct Case {
    name: String,
    runs: Vec<Figures>,
    outcomes: Vec<Outcome>,
}

/// Measurements of a command on each case.
#[derive(Debug)]
struct Sweep {
    /// Runs of each case.
    runs: u32,
    figures: fn(&Outcome) -> Figures,
    /// Figures to print after each run, each with the text before and after it.
    printed: &'static [(&'static str, &'static str, &'static str)],
}

impl Sweep {
    /// Measures the targets in turns, each as often as the sweep has runs.
    async fn in_turns(
        &self,
        targets: &[TargetArg],
        default_port: u16,
        plan: impl Fn(Broker) -> Result<Plan, LoadgenError>,
        out: &mut dyn Write,
    ) -> Result<Vec<Case>, LoadgenError> {
        let mut cases: Vec<_> = targets.iter().map(|target| Case::new(target.name())).collect();
        for number in 1..=self.runs {
            for (target, case) in targets.iter().zip(&mut cases) {
                let mut broker = [target.start(default_port).await?];
                let plan = plan(broker[0].place())?;
                self.measure(case, number, &plan, &mut broker, out).await?;
            }
        }
        Ok(cases)
    }

    /// Runs `plan` once more for `case`, and prints its figures.
    async fn measure(
        &self,
        case: &mut Case,
        number: u32,
        plan: &Plan,
        brokers: &mut [RunningBroker],
        out: &mut dyn Write,
    ) -> Result<(), LoadgenError> {
        let title = format!("{} {number}/{}: ", case.name, self.runs);
        let options = ExecuteOptions { title, ..ExecuteOptions::default() };
        let outcome = perform(plan, brokers, options, &mut Progress::new()).await?.outcome;
        let figures = (self.figures)(&outcome);
        table::write_run(out, number, &case.name, &figures, self.printed).map_err(LoadgenError::Print)?;
        case.runs.push(figures);
        case.outcomes.push(outcome);
        Ok(())
    }
}

impl Case {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Values of a figure, of the runs that have it.
    fn values(&self, figure: &str) -> Vec<f64> {
        self.runs.iter().filter_map(|run| *run.get(figure)?).collect()
    }

    /// The middle value of a figure, or the mean of the two in the middle.
    fn median(&self, figure: &str) -> Option<f64> {
        statistics::median(&self.values(figure))
    }

    fn sum(&self, figure: &str) -> Option<f64> {
        self.values(figure).into_iter().reduce(|a, b| a + b)
    }

    fn mean(&self, figure: &str) -> Option<f64> {
        Some(self.sum(figure)? / self.values(figure).len() as f64)
    }

    /// One value for each figure.
    fn each(&self, of: fn(&Self, &str) -> Option<f64>) -> Figures {
        self.runs.first().into_iter().flat_map(BTreeMap::keys).map(|name| (*name, of(self, name))).collect()
    }
}

/// Writes the page on `cases` into `directory`, which is created if needed.
fn write_page(directory: &Path, title: &str, cases: &[&Case]) -> Result<(), LoadgenError> {
    let compared = cases.iter().map(|case| Compared { name: &case.name, outcomes: &case.outcomes });
    write_comparison(directory, title, &compared.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_taken_over_the_runs_that_have_it() {
        let runs = [Some(4.0), Some(1.0), None, Some(3.0), Some(2.0)].map(|of| Figures::from([("a", of)])).into();
        let mut case = Case { runs, ..Case::default() };
        assert_eq!((case.median("a"), case.mean("a"), case.sum("a")), (Some(2.5), Some(2.5), Some(10.0)));
        case.runs.pop();
        assert_eq!((case.median("a"), case.median("b"), case.mean("b")), (Some(3.0), None, None));
        assert_eq!(case.each(Case::sum), Figures::from([("a", Some(8.0))]));
    }
}
