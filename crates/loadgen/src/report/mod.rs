//! Results: tables on standard output; in a directory, data files and an HTML report.

mod chart;
mod comparison_page;
mod csv;
mod html;
mod json;
mod number;
mod run_csv;
mod run_figures;
mod run_report;
mod run_tables;
#[cfg(test)]
mod sample;
mod scenario_figures;
mod scenario_page;
mod scenario_tables;
mod scenario_trace;
mod series;
mod slow_page;
mod table;

pub use comparison_page::{Compared, write as write_comparison};
pub use run_report::write as write_run_report;
pub(crate) use slow_page::write as write_slow;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use scenario_trace::RunTrace;

use crate::LoadgenError;
use crate::scenario::{Plan, RunFigures, RunRecord, Simulated};
use crate::statistics::Summary;

/// Collects runs as they end.
pub(crate) struct Report<'a> {
    out: &'a mut dyn Write,
    directory: Option<PathBuf>,
    runs: Vec<Run>,
    /// Simulated figures of each policy, if requested.
    simulated: Vec<(String, Simulated)>,
}

/// Figures of one run.
pub(crate) struct Run {
    pub(crate) policy: String,
    /// From 1.
    pub(crate) number: u32,
    pub(crate) figures: RunFigures,
    /// Trace for figures, if files are written.
    trace: Option<RunTrace>,
}

impl<'a> Report<'a> {
    /// Prints the plan. Files go into `directory`, which is created if needed.
    pub(crate) fn start(plan: &Plan, directory: Option<&Path>, out: &'a mut dyn Write) -> Result<Self, LoadgenError> {
        if let Some(path) = directory {
            std::fs::create_dir_all(path).map_err(|source| LoadgenError::Write { path: path.to_owned(), source })?;
        }
        table::write_plan(out, plan).and_then(|()| out.flush()).map_err(LoadgenError::Print)?;
        let simulated = |policy: &String| Some((policy.clone(), Simulated::of(plan, policy)?));
        let simulated = plan.policies.iter().filter(|_| plan.compare).filter_map(simulated).collect();
        Ok(Self { out, directory: directory.map(Path::to_owned), runs: Vec::new(), simulated })
    }

    /// Prints a run and writes its messages.
    pub(crate) fn add_run(
        &mut self,
        plan: &Plan,
        policy: &str,
        number: u32,
        record: &RunRecord,
    ) -> Result<(), LoadgenError> {
        if let Some(directory) = &self.directory {
            let path = directory.join(format!("{}-run{number}.csv", file_name(policy)));
            write_file(&path, |file| csv::write_messages(file, record))?;
        }
        let figures = RunFigures::of(record);
        let trace = self.directory.as_ref().map(|_| RunTrace::of(record, &figures));
        let run = Run { policy: policy.to_owned(), number, figures, trace };
        table::write_run(self.out, plan, &run).and_then(|()| self.out.flush()).map_err(LoadgenError::Print)?;
        self.runs.push(run);
        Ok(())
    }

    /// Prints all runs side by side and writes the summary and the page.
    pub(crate) fn finish(self, plan: &Plan) -> Result<(), LoadgenError> {
        if let Some(directory) = &self.directory {
            let summary = json::summary(plan, &self.runs, &self.simulated);
            write_file(&directory.join("summary.json"), |file| writeln!(file, "{summary:#}"))?;
            scenario_page::page(plan, &self.runs)?.write(directory)?;
        }
        table::write_overview(self.out, plan, &self.runs, &self.simulated)
            .and_then(|()| self.out.flush())
            .map_err(LoadgenError::Print)
    }
}

/// One latency figure of each of a policy's runs, in ms, in their order.
fn of_runs(runs: &[Run], policy: &str, figure: impl Fn(&Summary) -> f64) -> Vec<f64> {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    of_policy.filter_map(|run| run.figures.latency.as_ref().map(&figure)).collect()
}

/// `policy` as part of a file name; other characters than letters, digits, `_` and `-` are replaced.
pub(crate) fn file_name(policy: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    policy.chars().map(plain).collect()
}

fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), LoadgenError> {
    let file = std::fs::File::create(path).map(io::BufWriter::new);
    file.and_then(|mut file| {
        write(&mut file)?;
        file.flush()
    })
    .map_err(|source| LoadgenError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stays_inside_its_directory() {
        assert_eq!(file_name("round_robin"), "round_robin");
        assert_eq!(file_name("../a b"), "___a_b");
    }
}
