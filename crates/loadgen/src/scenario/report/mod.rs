//! Report of a scenario: sections for the terminal and the page, and the data files.

mod charts;
mod json;
#[cfg(test)]
mod sample;
mod trace;

use std::io::Write;
use std::path::{Path, PathBuf};

use tenbin_codec::{QoS, ReportCarrier};
use tenbin_simulator::scenario::{Acknowledges, Reports, WorkerKind};

use super::{
    BestPossible, Delivery, FIRST_ABOVE_SECOND_MS, PAYLOAD_LEN, Plan, REDUCTION_PERCENT, RISE_OF_THE_FAST_MS,
    RunFigures, RunRecord, Simulated, Totals, WorkerRecord, overall_ms, stable_phase,
};
use crate::LoadgenError;
use crate::number::{brief, count, fixed, optional};
use crate::report::chart::{Drawing, Figure};
use crate::report::files::{create_directory, file_name, write_csv, write_json};
use crate::report::model::{Block, Cell, Report, Section, Table, Tone};
use crate::report::origin::Origin;
use crate::report::{LATE_MS, html, text};
use crate::statistics::{Summary, median};
use trace::RunTrace;

/// Collects runs as they end.
pub(crate) struct ScenarioReport<'a> {
    out: &'a mut dyn Write,
    directory: Option<PathBuf>,
    runs: Vec<Run>,
    /// Simulated figures of each policy, if requested.
    simulated: Vec<(String, Simulated)>,
}

/// Figures of one run.
#[derive(serde::Serialize)]
pub(super) struct Run {
    #[serde(skip)]
    pub(super) policy: String,
    /// From 1.
    #[serde(rename = "run")]
    pub(super) number: u32,
    #[serde(flatten)]
    pub(super) figures: RunFigures,
    /// Trace for figures, if files are written.
    #[serde(skip)]
    trace: Option<RunTrace>,
}

impl<'a> ScenarioReport<'a> {
    /// Prints the plan. Files go into `directory`, which is created if needed.
    pub(crate) fn start(plan: &Plan, directory: Option<&Path>, out: &'a mut dyn Write) -> Result<Self, LoadgenError> {
        directory.map_or(Ok(()), create_directory)?;
        text::print(out, &[Section::default().with(Block::List(plan_lines(plan)))])?;
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
            write_messages(&directory.join(format!("{}-run{number}.csv", file_name(policy))), record)?;
        }
        let figures = RunFigures::of(record);
        let trace = self.directory.as_ref().map(|_| RunTrace::of(record, &figures));
        let run = Run { policy: policy.to_owned(), number, figures, trace };
        text::print(self.out, &[run_section(plan, &run)])?;
        self.runs.push(run);
        Ok(())
    }

    /// Prints all runs side by side and writes the summary and the page.
    pub(crate) fn finish(self, plan: &Plan) -> Result<(), LoadgenError> {
        if let Some(directory) = &self.directory {
            write_json(&directory.join("summary.json"), &json::summary(plan, &self.runs, &self.simulated))?;
            html::write(directory, &report(plan, &self.runs, &self.simulated))?;
        }
        let title = format!("latency of all messages in ms{}", medians_of(plan, ", medians of"));
        let overview = Section::new(&title).with(overview(plan, &self.runs, &self.simulated));
        text::print(self.out, &[overview.with_all(warnings(&self.runs))])
    }
}

pub(super) fn report(plan: &Plan, runs: &[Run], simulated: &[(String, Simulated)]) -> Report {
    let shown: Vec<_> = plan.policies.iter().filter_map(|policy| middle_run(runs, policy)).collect();
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let (lost, duplicated) = (sum(|run| run.figures.totals.lost), sum(|run| run.figures.totals.duplicated));
    let verdict = match (lost, duplicated) {
        (0, 0) => "Nothing lost, nothing duplicated.".to_owned(),
        _ => format!("Lost {lost}, duplicated {duplicated}."),
    };
    let mut sections = vec![
        Section::default()
            .with(Block::Banner(Tone::of_faults(lost + duplicated), verdict))
            .with_all(warnings(runs))
            .with(overview(plan, runs, simulated))
            .with_all((plan.runs > 1).then(|| format!("{}.", medians_of(plan, "Medians of"))))
            .with(charts::mean_latency(plan, runs)),
    ];
    sections.extend(claims(plan, &shown).map(|claims| Section::new("The thesis' claims").with(claims)));
    // The thesis' policy first, as it is the only one in the thesis' figures.
    let (proposed, others): (Vec<&Run>, Vec<&Run>) = shown.into_iter().partition(|run| run.policy == "thesis_score");
    for run in proposed.into_iter().chain(others) {
        sections.push(run_section(plan, run).with_all(charts::of_policy(plan, run)));
    }
    let files = "Each message of each run is a row of POLICY-runN.csv; all figures are in summary.json.".to_owned();
    sections.push(Section::new("Runs").with(runs_table(runs)).with(files));
    sections.push(Section::new("Plan").with(Block::List(plan_lines(plan))));
    let title = format!("Scenario {}", plan.scenario.name);
    Report { title, headline: headline(plan, runs), origin: Origin::here(), sections }
}

/// Policies by their mean latency, the best first.
fn headline(plan: &Plan, runs: &[Run]) -> String {
    let mean = |policy: &String| Some((policy.replace('_', " "), medians(runs, policy, |run| run.latency)[0]?));
    let mut means: Vec<_> = plan.policies.iter().filter_map(mean).collect();
    means.sort_by(|a, b| a.1.total_cmp(&b.1));
    let best = plan.policies.iter().filter_map(|policy| medians(runs, policy, |run| run.best_possible.as_made)[0]);
    means.extend(best.reduce(f64::min).map(|best| ("best possible".to_owned(), best)));
    let each: Vec<_> = means.iter().map(|(name, ms)| format!("{name} {} ms", brief(*ms))).collect();
    if each.is_empty() { "no message was taken".to_owned() } else { each.join(", ") }
}

/// Reasons for which the machine rather than the broker may have made the figures.
fn warnings(runs: &[Run]) -> Vec<Block> {
    let worst = |of: fn(&RunFigures) -> Option<f64>, limit: f64| {
        let values = runs.iter().filter_map(|run| Some((of(&run.figures)?, run)));
        values.filter(|(value, _)| *value > limit).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let late = worst(|figures| Some(figures.lateness.p99), LATE_MS).map(|(late, run)| {
        let (late, policy, number) = (brief(late), &run.policy, run.number);
        format!(
            "The publisher was late, by up to {late} ms (p99) in {policy}, run {number}: this machine was too busy."
        )
    });
    let best = worst(|figures| Some(figures.best_possible.as_made?.mean), BEST_MS).map(|(best, run)| {
        let (best, policy, number) = (brief(best), &run.policy, run.number);
        format!(
            "Even the best possible distribution has a mean of {best} ms in {policy}, run {number}: the machine stood \
             still for a while, or the workers have no time to spare."
        )
    });
    late.into_iter().chain(best).map(|text| Block::Banner(Tone::Warning, text)).collect()
}

/// The run whose mean latency is nearest to the policy's median.
fn middle_run<'a>(runs: &'a [Run], policy: &str) -> Option<&'a Run> {
    let of_policy = || runs.iter().filter(|run| run.policy == policy);
    let mean = |run: &Run| run.figures.latency.map_or(f64::INFINITY, |latency| latency.mean);
    let middle = median(&of_policy().map(mean).collect::<Vec<_>>())?;
    of_policy().min_by(|a, b| (mean(a) - middle).abs().total_cmp(&(mean(b) - middle).abs()))
}

/// Description of the plan, in lines.
fn plan_lines(plan: &Plan) -> Vec<String> {
    let scenario = &plan.scenario;
    let (messages, bytes) = (scenario.messages, PAYLOAD_LEN);
    let kinds: Vec<_> = scenario.workers.iter().map(|kind| kind_text(plan, kind)).collect();
    let head = format!("{messages} messages of {bytes} bytes, {}, QoS {}", scenario.arrivals, plan.qos);
    let mut lines = vec![format!("scenario {}: {head}", scenario.name), format!("workers: {}", kinds.join("; "))];
    if let Some(churn) = &scenario.churn {
        let verb = if churn.dies { "dies" } else { "leaves" };
        lines.push(format!("every {} one of them {verb} and another joins", churn.every));
    }
    lines.push(match &plan.worker_command {
        Some(command) => format!("each is a separate program: {}", command.join(" ")),
        None if scenario.workers.iter().all(|kind| kind.reports == Reports::Never) => "no reports".to_owned(),
        None => {
            let early = if scenario.pings.eager { " and early" } else { "" };
            let carrier = plan.carrier.map(ReportCarrier::from);
            let carrier = carrier.map_or(String::new(), |carrier| format!(", carried by {carrier}"));
            format!("reports every {:?}{early}{carrier}", plan.ping_interval())
        }
    });
    lines.extend(plan.warm_up.map(|warm_up| format!("they have been there before, for {warm_up:?}")));
    lines.push("latency: from creation until taken from the worker's queue, in ms".to_owned());
    if scenario.name == "2" {
        lines.push("published: figures of the thesis, whose interval was nominally 10 ms".to_owned());
        lines.push("10.7 ms explain its mean with round robin, 1,492 ms; --all has that interval".to_owned());
    }
    lines
}

/// Description of a kind of workers: `2 x 25ms acknowledging on receipt, 200ms from 5s on`.
fn kind_text(plan: &Plan, kind: &WorkerKind) -> String {
    let mut text = format!("{} x {}", kind.count, kind.service);
    if kind.distribution != Default::default() {
        text += &format!(" ({})", kind.distribution);
    }
    if kind.threads.get() > 1 {
        text += &format!(" on {} threads", kind.threads);
    }
    if plan.qos != QoS::AtMostOnce && kind.acknowledges == Acknowledges::OnArrival {
        text += " acknowledging on receipt";
    }
    for step in &kind.steps {
        text += &format!(", {} from {} on", step.service, step.at);
    }
    for pause in &kind.pauses {
        text += &format!(", standing still at {} for {}", pause.at, pause.length);
    }
    for (verb, at) in [("joins", kind.joins), ("leaves", kind.leaves), ("dies", kind.dies)] {
        text += &at.map_or(String::new(), |at| format!(", {verb} at {at}"));
    }
    text
}

/// Tables of one run.
fn run_section(plan: &Plan, run: &Run) -> Section {
    let figures = &run.figures;
    let mut table = Table::new(["", "ms each", "messages", "per s", "mean", "p50", "p99", "max"]);
    let mut add = |name: &str, [each, rate]: [String; 2], latency: Option<Summary>| {
        let messages = count(latency.map_or(0, |latency| latency.n as u64));
        table.add(name, [each, messages, rate].into_iter().chain(four(latency)));
    };
    for of in &figures.subscribers {
        add(&of.name, [of.service_ms.to_string(), fixed(of.messages_per_second, 1)], of.latency);
    }
    let per_second = figures.subscribers.iter().map(|of| of.messages_per_second).sum();
    add("overall", [String::new(), fixed(per_second, 1)], figures.latency);
    let BestPossible { as_made, as_received } = figures.best_possible;
    add("best possible", Default::default(), as_made);
    add("  as received", Default::default(), as_received);
    if let Some(published) = overall_ms(&plan.scenario.name, &run.policy) {
        table.add("published", ["", "", ""].map(Cell::from).into_iter().chain([Cell::aside(fixed(published, 1))]));
    }
    let totals = figures.totals;
    let Totals { published, received, lost, duplicated, unknown } = totals;
    let mut counts = format!("published {published}, received {received}, lost {lost}, duplicated {duplicated}");
    let others =
        [("left in a queue", figures.not_taken), ("died with a worker", figures.died), ("from elsewhere", unknown)];
    for (name, number) in others.into_iter().filter(|(_, number)| *number > 0) {
        counts += &format!(", {name} {number}");
    }
    let (lateness, wake_up) = (figures.lateness, figures.wake_up.p99);
    let mut late = format!("publisher late by {:.2} ms (p99; at most {:.2})", lateness.p99, lateness.max);
    if plan.worker_command.is_none() {
        late += &format!("; workers woke late by {wake_up:.2} ms (p99), which is left out");
    }
    let stable = charts::has_stable_phase(plan).then(|| stable_phase_table(plan, run));
    Section::new(&format!("{}, run {} of {}", run.policy, run.number, plan.runs))
        .with(table)
        .with_all(stable)
        .with(counts)
        .with(late)
}

/// The stable phase of a run beside the published one (tables 7 and 8).
fn stable_phase_table(plan: &Plan, run: &Run) -> Figure {
    let published = stable_phase(&plan.scenario.name, &run.policy);
    let mut table = Table::new(["stable phase 500-999", "n", "min", "max", "mean", "sd"]);
    for (place, one) in run.figures.subscribers.iter().enumerate() {
        let of = |figure: fn(Summary) -> f64| optional(one.stable.map(figure), 1);
        let n = one.stable.map_or(0, |stable| stable.n).to_string();
        table.add(one.name.clone(), [n, of(|s| s.min), of(|s| s.max), of(|s| s.mean), of(|s| s.sd)]);
        if let Some(row) = published.and_then(|rows| rows.get(place).copied()) {
            let ms = [(row.min, 0), (row.max, 0), (row.mean, 1), (row.sd, 1)].map(|(ms, digits)| fixed(ms, digits));
            let cells = [row.n.to_string()].into_iter().chain(ms).map(Cell::aside);
            table.add(Cell::aside("  published"), cells);
        }
    }
    let number = match (plan.scenario.name.as_str(), run.policy.as_str()) {
        ("2", "round_robin") => Some(7),
        ("2", "thesis_score") => Some(8),
        _ => None,
    };
    let policy = file_name(&run.policy);
    let title = format!("Stable phase (messages 500 to 999), {}", run.policy);
    let (name, title) = match number {
        Some(number) => (format!("table-{number}-stable-phase-{policy}"), format!("Table {number}: {title}")),
        None => (format!("{policy}-stable-phase"), title),
    };
    let caption = if number.is_some() { "Ours, and the published values below." } else { "" };
    Figure::new(&name, &title, caption, Drawing::Table(table))
}

/// All policies side by side.
fn overview(plan: &Plan, runs: &[Run], simulated: &[(String, Simulated)]) -> Table {
    let mut table = match plan.runs {
        1 => Table::new(["", "mean", "p50", "p99", "max", "published"]),
        _ => Table::new(["", "mean", "p50", "p99", "max", "published", "low mean", "high mean"]),
    };
    let text = |values: [Option<f64>; 4]| values.map(|value| optional(value, 1));
    for policy in &plan.policies {
        let ours = medians(runs, policy, |figures| figures.latency);
        let published = Cell::aside(optional(overall_ms(&plan.scenario.name, policy), 1));
        let means = Summary::of(&means(runs, policy)).filter(|_| plan.runs > 1);
        let range = means.into_iter().flat_map(|means| [means.min, means.max]).map(|mean| fixed(mean, 1).into());
        table.add(policy.clone(), text(ours).map(Cell::from).into_iter().chain([published]).chain(range));
        table.add("  best possible", text(medians(runs, policy, |figures| figures.best_possible.as_made)));
        table.add("    as received", text(medians(runs, policy, |figures| figures.best_possible.as_received)));
        if let Some((_, simulated)) = simulated.iter().find(|(name, _)| name == policy) {
            let Simulated { mean, p50, p99, max } = *simulated;
            table.add("  simulated", text([mean, p50, p99, max].map(Some)));
            let ratio = |measured: Option<f64>, simulated: f64| optional(measured.map(|ours| ours / simulated), 2);
            table.add("  measured / simulated", [ratio(ours[0], mean), String::new(), ratio(ours[2], p99)]);
        }
    }
    table
}

/// Message counts of each run, and the lateness of publisher and workers.
fn runs_table(runs: &[Run]) -> Table {
    let head =
        ["run", "published", "received", "lost", "duplicated", "mean, ms", "publisher late, p99", "workers late"];
    let mut table = Table::new(head);
    for run in runs {
        let (totals, figures) = (run.figures.totals, &run.figures);
        let mean = optional(figures.latency.map(|latency| latency.mean), 1);
        let late = [figures.lateness.p99, figures.wake_up.p99].map(|ms| fixed(ms, 2));
        let counts = [totals.published, totals.received].map(|number| count(number).into());
        let faults = [totals.lost, totals.duplicated].map(Cell::faults);
        let rest = [mean].into_iter().chain(late).map(Cell::from);
        table.add(format!("{}, run {}", run.policy, run.number), counts.into_iter().chain(faults).chain(rest));
    }
    table
}

/// Claims of the thesis about figures 43 and 44 beside our values; `shown` has a run of each policy.
///
/// `None` if not all of its policies were run.
fn claims(plan: &Plan, shown: &[&Run]) -> Option<Table> {
    let of = |policy: &str| shown.iter().find(|run| run.policy == policy).map(|run| &run.figures);
    let (random, round_robin, proposed) = (of("random")?, of("round_robin")?, of("thesis_score")?);
    let mean = |figures: &RunFigures, subscriber: usize| Some(figures.subscribers.get(subscriber)?.latency?.mean);
    let all = |figures: &RunFigures| Some(figures.latency?.mean);
    let below = |ours: f64, others: [f64; 2]| format!("{:.1} %", 100.0 * (1.0 - ours / others[0].max(others[1])));
    let mut table = Table::new(["", "published", "here"]);
    let mut add = |claim: &str, published: &str, ours: String| {
        table.add(claim, [Cell::aside(published), Cell::from(ours)]);
    };
    match plan.scenario.name.as_str() {
        "1" => {
            let (ours, theirs, by_chance) = (all(proposed)?, all(round_robin)?, all(random)?);
            add("all messages: thesis_score, round_robin", "equal", format!("{ours:.2}, {theirs:.2} ms"));
            let worse = (0..3).filter(|n| mean(random, *n) > mean(round_robin, *n)).count();
            add("random is worse at", "every subscriber", format!("{worse} of 3, on average {by_chance:.1} ms"));
        }
        "2" => {
            let published = format!("≤ {REDUCTION_PERCENT} %");
            let whole = below(all(proposed)?, [all(random)?, all(round_robin)?]);
            add("all messages: thesis_score is below the others by", &published, whole);
            let slow = below(mean(proposed, 2)?, [mean(random, 2)?, mean(round_robin, 2)?]);
            add("sub-2, the slow one: below the others by", &published, slow);
            let rise = |n| Some(mean(proposed, n)? - mean(round_robin, n)?);
            let rise = format!("≤ {:.1} ms", rise(0)?.max(rise(1)?));
            add("sub-0 and sub-1: above round_robin by", &format!("≤ {RISE_OF_THE_FAST_MS} ms"), rise);
            let apart = format!("{} ms", fixed(mean(proposed, 0)? - mean(proposed, 1)?, 1));
            add("sub-0 is above sub-1, its equal, by", &format!("{FIRST_ABOVE_SECOND_MS} ms"), apart);
        }
        _ => return None,
    }
    Some(table)
}

/// Mean, p50, p99 and maximum, each as the median over a policy's runs.
fn medians(runs: &[Run], policy: &str, of: fn(&RunFigures) -> Option<Summary>) -> [Option<f64>; 4] {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    let summaries: Vec<_> = of_policy.filter_map(|run| of(&run.figures)).collect();
    let figures: [fn(&Summary) -> f64; 4] = [|l| l.mean, |l| l.p50, |l| l.p99, |l| l.max];
    figures.map(|figure| median(&summaries.iter().map(figure).collect::<Vec<_>>()))
}

/// Mean latency of each of a policy's runs, in ms, in their order.
pub(super) fn means(runs: &[Run], policy: &str) -> Vec<f64> {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    of_policy.filter_map(|run| Some(run.figures.latency.as_ref()?.mean)).collect()
}

fn four(summary: Option<Summary>) -> [String; 4] {
    let of = |figure: fn(Summary) -> f64| optional(summary.map(figure), 1);
    [of(|l| l.mean), of(|l| l.p50), of(|l| l.p99), of(|l| l.max)]
}

fn medians_of(plan: &Plan, text: &str) -> String {
    if plan.runs > 1 { format!("{text} {} runs", plan.runs) } else { String::new() }
}

/// Writes a row for each message that arrived.
///
/// Times are in ns since the run's first record. `taken_ns`, to which latency is measured, is when the worker was
/// free for the message; `taken_observed_ns` is when the worker's thread took it. These and the latency are empty if the
/// message was still queued at the end.
fn write_messages(path: &Path, record: &RunRecord) -> Result<(), LoadgenError> {
    let head = "sequence,subscriber,created_ns,received_ns,taken_ns,latency_ms,service_ms,duplicate,taken_observed_ns";
    let deliveries =
        record.workers.iter().flat_map(|worker| worker.deliveries.iter().map(move |delivery| (worker, delivery)));
    let row = |(worker, delivery): (&WorkerRecord, &Delivery)| {
        let Delivery { sequence, created_ns, received_ns, .. } = *delivery;
        let (name, is_duplicate) = (&worker.name, !delivery.is_first);
        let arrival = format!("{sequence},{name},{created_ns},{received_ns},");
        match (delivery.taken, delivery.latency_ms()) {
            (Some(taken), Some(latency_ms)) => {
                let service_ms = (taken.finished_ns - taken.taken_ns) as f64 / 1e6;
                let (taken_ns, observed_ns) = (taken.taken_ns, taken.observed_ns);
                format!("{arrival}{taken_ns},{latency_ms:.6},{service_ms},{is_duplicate},{observed_ns}")
            }
            _ => format!("{arrival},,,{is_duplicate},"),
        }
    };
    write_csv(path, head, deliveries.map(row))
}

/// Mean of the best possible latencies from which on the machine or the load, not the broker, makes the figures.
const BEST_MS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::run::report::sample::{read, shown};

    #[test]
    #[ignore = "writes target/report, to be looked at: .ci/report_check does"]
    fn samples_can_be_looked_at() {
        let (plan, runs) = sample::thesis_runs();
        html::write(&shown("scenario"), &report(&plan, &runs, &[])).unwrap();
    }

    #[test]
    fn the_thesis_figures_and_tables_have_its_numbers_and_values() {
        let (plan, runs) = sample::thesis_runs();
        let directory = TempDir::new().unwrap();
        html::write(directory.path(), &report(&plan, &runs, &[])).unwrap();
        for (name, values) in [
            ("figure-44-mean-latency.svg", &["1,400.7", "1,492.3", "27.4", "4,401.5", "(log scale)"][..]),
            ("figure-45-messages-per-second.svg", &["published (tables 7 and 8)"]),
            ("figure-46-processing-time.svg", &["mean processing time t_p, ms"]),
            ("figure-47-latency-per-message.svg", &["stable phase", "1,000"]),
            ("table-7-stable-phase-round_robin.svg", &["4,664.1", "923.4", "166"]),
            ("table-8-stable-phase-thesis_score.svg", &["34.8", "199"]),
            ("round_robin-messages-per-second.svg", &[]),
        ] {
            let svg = read(&directory, name);
            roxmltree::Document::parse(&svg).expect(name);
            values.iter().for_each(|value| assert!(svg.contains(value), "{name}: {value}"));
        }
        let html = read(&directory, "report.html");
        for text in ["Figure 44", "Table 7", "≤ 98 %", "≤ 19.3 ms", "Medians of 2 runs", "4,664.1"] {
            assert!(html.contains(text), "{text}");
        }
        assert!(html.contains("<h1>adaptive 3.2 ms, thesis score 32 ms, random 1,395 ms, round robin 1,469 ms, best possible 1.0 ms</h1>"), "{html}");
        assert!(!html.contains("://") && !html.contains("<script") && !html.contains("src="));
        assert!(!html.contains("banner warning"), "the machine was idle");
    }

    #[test]
    fn a_busy_machine_is_a_warning() {
        let (plan, mut runs) = sample::thesis_runs();
        runs[1].figures.lateness.p99 = 7.25;
        runs[2].figures.best_possible.as_made = Summary::of(&[12.0]);
        let directory = TempDir::new().unwrap();
        html::write(directory.path(), &report(&plan, &runs, &[])).unwrap();
        let html = read(&directory, "report.html");
        for text in ["late, by up to 7.2 ms (p99) in random, run 2", "a mean of 12 ms in round_robin, run 1"] {
            let banner =
                html.split("banner warning").skip(1).any(|banner| banner.split("</p>").next().unwrap().contains(text));
            assert!(banner, "{text}");
        }
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
