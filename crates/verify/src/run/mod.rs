//! The command `run`: starts systems, breaks them under load, and judges the outcome.
//!
//! ```text
//! plan ─► stage (instances) ─► load ─► course: warm-up, schedule ─► faults, drain ─► measured ─► verdict
//! ```

mod fault;
mod faults;
mod load;
mod measured;
mod one;
mod roles;
mod sampler;
mod schedule;
mod stage;
mod steady;
mod watch;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tenbin_kit::programs::Program;
use tenbin_loadgen::Drivers;
use tenbin_loadgen::run::{Fault as Outcome, TestCase, TestSuite};

use crate::args::RunArgs;
use crate::error::Error;
use crate::line::Programs;
use crate::plan::{Node, Plan};
use crate::recorded::{self, Recorded};
use crate::results::{RunVerdict, VariantVerdict, Verdict, create, directory_of, write};
use crate::runtime::WORK;
use crate::template::Runtime;
use crate::{files, report};

/// The program around the command.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Drivers of clients in this process.
    pub drivers: Drivers,
    /// Path of the program `tenbin-verify`. Without it all clients run in this process, and only the runtime `processes`
    /// works.
    pub program: Option<PathBuf>,
}

impl Setup {
    /// The running program `tenbin-verify`, with these drivers.
    pub fn installed(drivers: Drivers) -> Self {
        Self { drivers, program: std::env::current_exe().ok() }
    }

    fn programs(&self) -> Programs {
        let verify = self.program.clone().unwrap_or_default();
        Programs { verify, tenbin: Program::Tenbin.find().unwrap_or_default() }
    }
}

/// Runs all variants of the files, each as often as it should be; returns the exit code.
///
/// # Errors
/// Unreadable files, mistakes in them, and results that cannot be written. A run that fails is no error: the verdict has
/// its reason.
pub(crate) fn run(args: &RunArgs, setup: &Setup, out: &mut dyn Write) -> Result<u8, Error> {
    let plans = args.file.plans()?;
    let [first, ..] = &plans[..] else { return Ok(0) };
    if let Some(node) = plans.iter().flat_map(|plan| &plan.nodes).find(|node| !is_allowed(node, &args.allow_hosts)) {
        return Err(Error::NotAllowed { node: node.name.clone(), address: node.address });
    }
    let records = records(args)?;
    let directory = args.out.clone().unwrap_or_else(|| default_directory(first));
    create(&directory)?;
    for (number, path) in args.file.files.iter().enumerate() {
        let name = if number == 0 { "template.yaml".to_owned() } else { format!("template-{}.yaml", number + 1) };
        write(&directory.join(name), files::text(path)?.as_bytes())?;
    }
    let is_interrupted = Arc::new(AtomicBool::new(false));
    watch_interrupts(Arc::clone(&is_interrupted));
    let began = std::time::Instant::now();
    let mut variants = Vec::new();
    for plan in &plans {
        let mut runs = Vec::new();
        for number in 1..=args.repeat.unwrap_or(plan.measure.repeat) {
            if is_interrupted.load(Ordering::Relaxed) {
                break;
            }
            write!(out, "{}", heading(plan, number))?;
            out.flush()?;
            let run = one_run(plan, number, &directory, setup, args, &is_interrupted)?;
            writeln!(out, "{}", outcome(plan, &run))?;
            runs.push(run);
        }
        let variant = VariantVerdict::new(&plan.variant, plan.expect, runs, plan.published.clone());
        variants.push(variant.compared(records.iter().find_map(|known| known.of(&plan.name, &plan.variant))));
    }
    let verdict = Verdict::new(&first.name, first.title.clone(), variants);
    write(&directory.join("verdict.json"), verdict.json().as_bytes())?;
    write(&directory.join("junit.xml"), &junit(&verdict, began.elapsed().as_secs_f64())?)?;
    report::remember_origin(&directory)?;
    report::write(std::slice::from_ref(&directory), &directory.join("report.html"))?;
    if args.record {
        writeln!(out, "recorded in {}", recorded::record(&args.file.files[0], &verdict)?.display())?;
    }
    print_summary(&verdict, &directory, out)?;
    Ok(verdict.exit_code)
}

/// Recorded outcomes beside each file.
fn records(args: &RunArgs) -> Result<Vec<Recorded>, Error> {
    let files = &args.file.files;
    if args.record && (files.len() != 1 || !files[0].exists()) {
        return Err(Error::NoFileToRecord(files[0].display().to_string()));
    }
    files.iter().map(|path| Recorded::beside(path)).collect()
}

fn one_run(
    plan: &Plan,
    number: u32,
    results: &Path,
    setup: &Setup,
    args: &RunArgs,
    is_interrupted: &AtomicBool,
) -> Result<RunVerdict, Error> {
    let failed = |error: String| Ok(RunVerdict::failed(number, plan.seed, error, &plan.assertions));
    let lacks = plan.lacks();
    if !lacks.is_empty() {
        return failed(format!("missing {}", lacks.join("; ")));
    }
    if setup.program.is_none() && plan.runtime != Runtime::Processes {
        return failed(format!("runtime {} needs the program tenbin-verify", plan.runtime.name()));
    }
    #[cfg(target_os = "linux")]
    if let Err(reason) = crate::relay::check(plan, &args.allow_hosts) {
        return failed(reason);
    }
    let directory = directory_of(results, &plan.variant, number);
    create(&directory)?;
    // Paths of sockets must be short, and paths in a directory of results may be long. The name is random, hence unique.
    let name = format!("{WORK}{:016x}", RandomState::new().build_hasher().finish());
    #[cfg(target_os = "linux")]
    let journal = match crate::restore::journal(
        setup.program.is_some().then(|| setup.programs()).as_ref(),
        &directory,
        &std::env::temp_dir().join(&name),
    ) {
        Ok(journal) => journal.map(Arc::new),
        Err(error) => return failed(error),
    };
    let work = match tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir() {
        Ok(work) => work,
        Err(error) => return failed(format!("cannot create a directory for the run: {error}")),
    };
    let place = one::RunPlace {
        number,
        directory: &directory,
        work: work.path(),
        is_interrupted,
        #[cfg(target_os = "linux")]
        journal: journal.as_ref(),
    };
    let run = one::perform(setup, plan, &place);
    #[cfg(target_os = "linux")]
    let run = crate::restore::close(journal.as_deref(), run);
    Ok(run)
}

/// True for a node that the command line names, by name or address, and for this host.
fn is_allowed(node: &Node, hosts: &[String]) -> bool {
    node.address.is_loopback() || hosts.iter().any(|host| *host == node.name || *host == node.address.to_string())
}

/// Sets `is_interrupted` at SIGINT or SIGTERM, which then do not end the program.
fn watch_interrupts(is_interrupted: Arc<AtomicBool>) {
    let watch = move || -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                is_interrupted.store(true, Ordering::Relaxed);
            }
        })
    };
    // Without the thread a signal ends the program; the guards then undo.
    let _ = std::thread::Builder::new().name("interrupts".to_owned()).spawn(watch);
}

fn default_directory(plan: &Plan) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Path::new("results").join(format!("{}-{seconds}-{}", plan.name, plan.seed))
}

fn heading(plan: &Plan, number: u32) -> String {
    let again = if number > 1 { format!(", run {number}") } else { String::new() };
    format!("{}, {}{again}: ", plan.name, plan.variant)
}

/// Outcome of a run in a line, with the checks that fail.
fn outcome(plan: &Plan, run: &RunVerdict) -> String {
    let failing = run.checks.iter().filter(|check| !check.holds).map(crate::judge::assertion::Check::found);
    let text = match &run.error {
        Some(error) => format!("did not take place: {error}"),
        None if run.holds() => "all assertions hold".to_owned(),
        None => failing.collect::<Vec<_>>().join("; "),
    };
    let is_expected = run.error.is_none() && run.holds() == (plan.expect == crate::template::Expect::Pass);
    let expected = match (is_expected, run.holds()) {
        (true, false) => ", as expected",
        (false, true) => ", although a failure is expected",
        _ => "",
    };
    let left: String = run.not_undone.iter().map(|left| format!("\n  not undone: {left}")).collect();
    format!("{text}{expected}{left}")
}

fn print_summary(verdict: &Verdict, directory: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let is_compared = verdict.variants.iter().any(|variant| variant.as_recorded.is_some());
    let differences: Vec<_> = verdict.variants.iter().filter_map(VariantVerdict::difference).collect();
    for difference in &differences {
        writeln!(out, "differs from {}: {difference}", recorded::NAME)?;
    }
    let as_recorded = if is_compared && differences.is_empty() { ", as recorded" } else { "" };
    let as_expected = if verdict.as_expected { "✓ all as expected" } else { "✗ not as expected" };
    writeln!(out, "{as_expected}{as_recorded}")?;
    writeln!(out, "{}", directory.join("report.html").display())?;
    Ok(())
}

fn junit(verdict: &Verdict, seconds: f64) -> Result<Vec<u8>, Error> {
    let mut cases = Vec::new();
    for variant in &verdict.variants {
        for run in &variant.runs {
            let class = format!("{}.{}.{}", verdict.name, variant.name, run.number);
            let expects_failure = variant.expect == crate::template::Expect::Fail;
            if run.checks.is_empty() || run.error.is_some() {
                let fault = run.error.clone().map(Outcome::Error);
                cases.push(TestCase {
                    class: class.clone(),
                    name: "the run takes place".to_owned(),
                    seconds: 0.0,
                    fault,
                });
            }
            for check in &run.checks {
                let fault = (!check.holds && !expects_failure).then(|| Outcome::Failure(check.found()));
                cases.push(TestCase { class: class.clone(), name: check.assertion.to_string(), seconds: 0.0, fault });
            }
            if expects_failure {
                let found = "every assertion holds, and a failure is expected".to_owned();
                let fault = (run.error.is_none() && run.holds()).then_some(Outcome::Failure(found));
                cases.push(TestCase { class, name: "an assertion fails, as expected".to_owned(), seconds: 0.0, fault });
            }
        }
    }
    let suite = TestSuite { name: format!("tenbin-verify {}", verdict.name), cases, seconds, output: String::new() };
    let mut bytes = Vec::new();
    suite.write(&mut bytes)?;
    Ok(bytes)
}
