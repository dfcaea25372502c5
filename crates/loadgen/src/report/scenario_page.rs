//! `report.html` of a scenario.

use super::html::{Page, Tone};
use super::{Run, scenario_figures, scenario_tables, table};
use crate::LoadgenError;
use crate::scenario::{Plan, STABLE_PHASE, stable_phase};
use crate::statistics::median;

pub(super) fn page(plan: &Plan, runs: &[Run]) -> Result<Page, LoadgenError> {
    let mut text = Vec::new();
    table::write_plan(&mut text, plan).map_err(LoadgenError::Print)?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let mut page = Page::new(&format!("Scenario {}", plan.scenario.name), lines.next().unwrap_or_default());
    page.list(&lines.map(str::to_owned).collect::<Vec<_>>());

    let lost = runs.iter().map(|run| run.figures.totals.lost).sum::<u64>();
    let duplicated = runs.iter().map(|run| run.figures.totals.duplicated).sum::<u64>();
    match (lost, duplicated) {
        (0, 0) => page.banner(Tone::Good, "✓ Nothing lost, nothing duplicated."),
        _ => page.banner(Tone::Bad, &format!("✗ Lost {lost}, duplicated {duplicated}.")),
    }
    page.table(&scenario_tables::overview(plan, runs));
    if plan.runs > 1 {
        page.paragraph(&format!("Medians of {} runs.", plan.runs));
    }
    page.figure(scenario_figures::mean_latency(plan, runs));

    let shown: Vec<_> = plan.policies.iter().filter_map(|policy| middle_run(runs, policy)).collect();
    if let Some(claims) = scenario_tables::claims(plan, &shown) {
        page.heading("What the thesis says, and what is found here");
        page.table(&claims);
    }
    if scenario_figures::has_stable_phase(plan) {
        page.heading(&format!("Stable phase: messages {} to {}", STABLE_PHASE.start, STABLE_PHASE.end - 1));
        // Policies with published values first.
        let (published, ours) =
            shown.iter().partition::<Vec<&&Run>, _>(|run| stable_phase(&plan.scenario.name, &run.policy).is_some());
        for run in published.into_iter().chain(ours) {
            let (table, figure) = scenario_tables::stable_phase_table(plan, run);
            page.titled_table(&table, figure);
        }
    }
    // The thesis' policy first, as it is the only one in the thesis' figures.
    let (proposed, others): (Vec<&Run>, Vec<&Run>) = shown.into_iter().partition(|run| run.policy == "thesis_score");
    for run in proposed.into_iter().chain(others) {
        page.heading(&if plan.runs > 1 { format!("{}, run {}", run.policy, run.number) } else { run.policy.clone() });
        scenario_figures::of_policy(plan, run).into_iter().for_each(|figure| page.figure(figure));
    }
    page.heading("Runs");
    page.table(&scenario_tables::runs(runs));
    page.paragraph("Each message of each run is a row of POLICY-runN.csv; all figures are in summary.json.");
    Ok(page)
}

/// The run whose mean latency is nearest to the policy's median.
fn middle_run<'a>(runs: &'a [Run], policy: &str) -> Option<&'a Run> {
    let of_policy = || runs.iter().filter(|run| run.policy == policy);
    let mean = |run: &Run| run.figures.latency.map_or(f64::INFINITY, |latency| latency.mean);
    let middle = median(&of_policy().map(mean).collect::<Vec<_>>())?;
    of_policy().min_by(|a, b| (mean(a) - middle).abs().total_cmp(&(mean(b) - middle).abs()))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, Directory};
    use super::*;

    #[test]
    fn the_thesis_figures_and_tables_have_its_numbers_and_values() {
        let (plan, runs) = sample::thesis_runs();
        let directory = Directory::new("thesis");
        page(&plan, &runs).unwrap().write(&directory.0).unwrap();
        for (name, values) in [
            ("figure-44-mean-latency.svg", &["1,400.7", "1,492.3", "27.4", "4,401.5"][..]),
            ("figure-45-messages-per-second.svg", &["published (tables 7 and 8)"]),
            ("figure-46-processing-time.svg", &["mean processing time t_p, ms"]),
            ("figure-47-latency-per-message.svg", &["stable phase", "1,000"]),
            ("table-7-stable-phase-round_robin.svg", &["4,664.1", "923.4", "166"]),
            ("table-8-stable-phase-thesis_score.svg", &["34.8", "199"]),
            ("round_robin-messages-per-second.svg", &[]),
        ] {
            let svg = directory.read(name);
            roxmltree::Document::parse(&svg).expect(name);
            values.iter().for_each(|value| assert!(svg.contains(value), "{name}: {value}"));
        }
        let html = directory.read("report.html");
        for text in ["Figure 44", "Table 7", "≤ 98 %", "≤ 19.3 ms", "Medians of 2 runs", "4,664.1"] {
            assert!(html.contains(text), "{text}");
        }
        assert!(!html.contains("://") && !html.contains("<script") && !html.contains("src="));
    }

    #[test]
    fn a_figure_shows_the_run_in_the_middle() {
        let (_, mut runs) = sample::thesis_runs();
        runs.retain(|run| run.policy == "random");
        let run = middle_run(&runs, "random").unwrap();
        assert_eq!(run.number, 1, "both are as far; the first");
        assert!(middle_run(&runs, "adaptive").is_none());
    }
}
