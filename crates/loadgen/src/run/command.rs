//! `run`: from arguments to results.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::args::RunArgs;
use super::assertion::{Assertions, Check};
use super::conf::Conf;
use super::perform::{Means, perform};
use super::self_test::self_test;
use super::{Execution, Outcome, Plan, junit, mqttloader_record, planning};
use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::report::run as reports;
use crate::saturate::{self, Search};
use crate::target::{RunningBroker, TargetArg, TargetList};

/// Runs the load of the arguments and reports the outcome.
pub(crate) async fn run(args: RunArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    match unless_interrupted(measure(&args, out)).await {
        Ok(Some(measured)) => report(&args, &measured, out),
        Ok(None) => Ok(()),
        Err(error) => {
            if let Some(path) = &args.junit {
                // The error of the run matters more than an error of its report.
                let _ = write_junit(path, |file| junit::write_error(file, &error));
            }
            Err(error)
        }
    }
}

/// A completed run, and the directory for its record.
struct Measured {
    finished: Execution,
    record_directory: Option<PathBuf>,
}

/// Runs the load; `None` after a self-test or a rate search, which print their own results.
async fn measure(args: &RunArgs, out: &mut dyn Write) -> Result<Option<Measured>, LoadgenError> {
    if args.self_test {
        return self_test(out).await.map(|()| None);
    }
    let conf = Conf::read(args.load.conf.as_deref())?;
    let mut brokers = brokers(args, &conf).await?;
    let means = Means {
        agents: args.agents.clone(),
        token: args.token.clone(),
        ntp: args.ntp.clone().or_else(|| conf.ntp.clone()),
        title: String::new(),
    };
    if let Some(bound) = &args.find_rate {
        return find_rate(args, &conf, bound, &mut brokers, &means, out).await.map(|()| None);
    }
    let record_directory = args.record_file.clone().or_else(|| conf.output.clone());
    let plan = Plan { records: args.records || record_directory.is_some(), ..plan(args, &conf, &brokers)? };
    let finished = perform(&plan, &mut brokers, &means, &mut Progress::new()).await?;
    Ok(Some(Measured { finished, record_directory }))
}

/// Writes all outputs; a failed one does not prevent the others.
fn report(args: &RunArgs, measured: &Measured, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let Measured { finished, record_directory } = measured;
    let checks: Vec<Check> = args.assertions.iter().flat_map(|one| one.check(&finished.outcome)).collect();
    let printed = reports::print(out, &finished.outcome);
    let written = write_files(args, record_directory.as_deref(), finished, &checks);
    let judged = judge(args, &finished.outcome, &checks, out);
    printed.and(written).and(judged)
}

/// Brokers of the arguments, else of the file, else the one on this machine; starts those to be started.
async fn brokers(args: &RunArgs, conf: &Conf) -> Result<Vec<RunningBroker>, LoadgenError> {
    let targets = match (&args.broker, &conf.broker) {
        (Some(TargetList(targets)), _) => targets.clone(),
        (None, Some(host)) => {
            let (name, host, port) = (host.clone(), host.trim_matches(['[', ']']).to_owned(), conf.broker_port);
            vec![TargetArg::Given { name, host, port, pid: None }]
        }
        (None, None) if conf.is_given => {
            return Err(LoadgenError::Arguments("the configuration file names no broker".to_owned()));
        }
        (None, None) => vec!["127.0.0.1".parse().expect("an address is a target")],
    };
    let mut brokers = Vec::new();
    for target in &targets {
        brokers.push(target.start(planning::default_port(&args.load, conf)).await?);
    }
    for pid in &args.pid {
        let place = match &pid.broker {
            None if brokers.len() == 1 => brokers.first_mut(),
            None => None,
            Some(name) => brokers.iter_mut().find(|broker| broker.name == *name),
        };
        let wrong = || LoadgenError::Arguments(format!("--pid {}: say which broker's: NAME=PID", pid.pid));
        place.ok_or_else(wrong)?.pid = Some(pid.pid);
    }
    Ok(brokers)
}

fn plan(args: &RunArgs, conf: &Conf, brokers: &[RunningBroker]) -> Result<Plan, LoadgenError> {
    planning::plan(&args.load, conf, brokers.iter().map(RunningBroker::place).collect())
}

async fn find_rate(
    args: &RunArgs,
    conf: &Conf,
    bound: &Assertions,
    brokers: &mut [RunningBroker],
    means: &Means,
    out: &mut dyn Write,
) -> Result<(), LoadgenError> {
    writeln!(out, "looking for the highest rate with {bound}, each for {:?}", args.step)
        .map_err(LoadgenError::Print)?;
    let mut search = Search::new(args.load.publish_rate.unwrap_or(saturate::FIRST_RATE));
    while let Some(rate) = search.next() {
        let plan = saturate::step_of(plan(args, conf, brokers)?, rate, args.step)?;
        let means = Means { title: format!("{rate} msg/s: "), ..means.clone() };
        let (latency, faults) = match perform(&plan, brokers, &means, &mut Progress::new()).await {
            Ok(Execution { outcome, .. }) => (outcome.latency, saturate::faults(&outcome, rate, args.step, bound)),
            // A broker may drop clients that it cannot keep up with. If a broker that we started has ended, that is
            // another error.
            Err(error @ LoadgenError::ConnectionLost { .. }) => (None, vec![error.to_string()]),
            Err(error) => return Err(error),
        };
        saturate::write_step(out, rate, latency, &faults)?;
        search.tried(rate, faults.is_empty());
    }
    saturate::write_result(out, &search, bound)
}

fn write_files(
    args: &RunArgs,
    record_directory: Option<&Path>,
    finished: &Execution,
    checks: &[Check],
) -> Result<(), LoadgenError> {
    if let Some(directory) = record_directory {
        mqttloader_record::write(directory, &finished.outcome, &finished.departures, &finished.arrivals)?;
    }
    if let Some(directory) = &args.out {
        let records = args.records.then_some(finished.arrivals.as_slice());
        reports::write_judged(directory, &finished.outcome, records, checks)?;
    }
    Ok(())
}

/// Prints the results of the assertions and writes the JUnit report.
///
/// # Errors
///
/// An assertion failed.
fn judge(args: &RunArgs, outcome: &Outcome, checks: &[Check], out: &mut dyn Write) -> Result<(), LoadgenError> {
    if let Some(path) = &args.junit {
        write_junit(path, |file| junit::write(file, outcome, checks))?;
    }
    for check in checks {
        let what = if check.holds { "holds" } else { "failed" };
        writeln!(out, "assertion {what}: {}", check.found()).map_err(LoadgenError::Print)?;
    }
    match checks.iter().filter(|check| !check.holds).count() {
        0 => Ok(()),
        failed => Err(LoadgenError::Assertions { failed, of: checks.len() }),
    }
}

fn write_junit(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), LoadgenError> {
    let file = fs::File::create(path).map(BufWriter::new);
    file.and_then(|mut file| write(&mut file).and_then(|()| file.flush()))
        .map_err(|source| LoadgenError::Write { path: path.to_owned(), source })
}
