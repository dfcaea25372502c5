//! `run`: from arguments to results.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::args::RunArgs;
use super::assertion::Check;
use super::conf::Conf;
use super::self_test::self_test;
use super::{
    Doors, Drivers, ExecuteOptions, Execution, Outcome, Plan, junit, mqttloader_record, perform, planning,
    report as reports,
};
use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::report::write_file;
use crate::target::{RunningBroker, TargetArg, TargetList};

/// Runs the load of the arguments and reports the outcome.
pub(crate) async fn run(args: RunArgs, drivers: &Drivers, out: &mut dyn Write) -> Result<(), LoadgenError> {
    match unless_interrupted(measure(&args, drivers, out)).await {
        Ok(Some(measured)) => report(&args, &measured, out),
        Ok(None) => Ok(()),
        Err(error) => {
            if let Some(path) = &args.junit {
                // The error of the run matters more than an error of its report.
                let _ = write_file(path, |file| junit::write_error(file, &error));
            }
            Err(error)
        }
    }
}

/// The load of a run: its brokers, and the sources of its plan.
pub(crate) struct Load {
    conf: Conf,
    pub(crate) brokers: Vec<RunningBroker>,
    pub(crate) options: ExecuteOptions,
}

impl Load {
    /// Reads the configuration file and starts the brokers that do not run.
    pub(crate) async fn of(args: &RunArgs, drivers: &Drivers) -> Result<Self, LoadgenError> {
        let conf = Conf::read(args.load.conf.as_deref())?;
        let brokers = brokers(args, &conf).await?;
        let options = ExecuteOptions {
            drivers: drivers.clone(),
            agents: args.agents.clone(),
            token: args.token.clone(),
            ntp: args.ntp.clone().or_else(|| conf.ntp.clone()),
            ..ExecuteOptions::default()
        };
        Ok(Self { conf, brokers, options })
    }

    /// The plan, with a new tag each time.
    pub(crate) fn plan(&self, args: &RunArgs) -> Result<Plan, LoadgenError> {
        let plan = planning::plan(&args.load, &self.conf, self.brokers.iter().map(RunningBroker::place).collect())?;
        let doors = if args.one_system { Doors::OneSystem } else { Doors::Independent };
        Ok(Plan { doors, ..plan })
    }
}

/// A completed run, and the directory for its record.
struct Measured {
    execution: Execution,
    record_directory: Option<PathBuf>,
}

/// Runs the load; `None` after a self-test, which prints its own results.
async fn measure(args: &RunArgs, drivers: &Drivers, out: &mut dyn Write) -> Result<Option<Measured>, LoadgenError> {
    if args.self_test {
        return self_test(out).await.map(|()| None);
    }
    let mut load = Load::of(args, drivers).await?;
    let record_directory = args.record_file.clone().or_else(|| load.conf.output.clone());
    let plan = Plan { records: args.records || record_directory.is_some(), ..load.plan(args)? };
    let execution = perform(&plan, &mut load.brokers, load.options.clone(), &mut Progress::new()).await?;
    Ok(Some(Measured { execution, record_directory }))
}

/// Writes all outputs; a failed one does not prevent the others.
fn report(args: &RunArgs, measured: &Measured, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let Measured { execution, record_directory } = measured;
    let checks: Vec<Check> = args.assertions.iter().flat_map(|one| one.check(&execution.outcome)).collect();
    let printed = reports::print(out, &execution.outcome);
    let written = write_files(args, record_directory.as_deref(), execution, &checks);
    let judged = judge(args, &execution.outcome, &checks, out);
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

fn write_files(
    args: &RunArgs,
    record_directory: Option<&Path>,
    execution: &Execution,
    checks: &[Check],
) -> Result<(), LoadgenError> {
    if let Some(directory) = record_directory {
        mqttloader_record::write(directory, &execution.outcome, &execution.departures, &execution.arrivals)?;
    }
    if let Some(directory) = &args.out {
        let records = args.records.then_some(execution.arrivals.as_slice());
        reports::write(directory, &execution.outcome, records, checks)?;
    }
    Ok(())
}

/// Prints the results of the assertions and writes the JUnit report.
///
/// # Errors
/// An assertion failed.
fn judge(args: &RunArgs, outcome: &Outcome, checks: &[Check], out: &mut dyn Write) -> Result<(), LoadgenError> {
    if let Some(path) = &args.junit {
        write_file(path, |file| junit::write(file, outcome, checks))?;
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
