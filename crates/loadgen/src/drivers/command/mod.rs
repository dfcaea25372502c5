//! Clients that are programs of the user, in any language.
//!
//! ```text
//! Plan ─► arguments, variables ─► Program ─► lines ─► Records ─► Part
//! ```
//!
//! A program runs all publishers of its process, or all members of an audience. It tells each message in a line, as
//! docs/VERIFY.md describes.

mod line;
mod program;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use crate::LoadgenError;
use crate::run::{
    Assignment, Audience, ClientKinds, Driver, DriverFuture, DriverRun, Layout, Pace, Part, Plan, RunClock, Slice,
    Spread, Status,
};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use self::program::Program;
use self::records::{Clients, Records};
use super::{names, settings};

/// The driver of client programs, protocol `command`.
///
/// The setting [`COMMAND`](super::COMMAND) is a line for the shell, which gets the arguments of the program. All other
/// settings are variables of the program: `acks` is `TENBIN_ACKS`.
#[derive(Debug, Clone, Copy)]
pub struct CommandDriver;

impl Driver for CommandDriver {
    fn protocol(&self) -> &'static str {
        "command"
    }

    fn starts_programs_of_the_plan(&self) -> bool {
        true
    }

    fn prepare(&self, assignment: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>> {
        Box::pin(async move {
            let command = assignment.plan.settings.get(super::COMMAND).cloned();
            let missing = || LoadgenError::Arguments(format!("protocol command needs the setting {}", super::COMMAND));
            prepare(command.ok_or_else(missing)?, None, assignment).await
        })
    }
}

/// Starts the programs of the clients by `command`, a line for the shell, and waits until they are ready. `files` are there as
/// long as the programs run.
///
/// # Errors
/// The plan asks for something that programs are not told; a program fails.
pub(super) async fn prepare(
    command: String,
    files: Option<TempDir>,
    assignment: Assignment,
) -> Result<Box<dyn DriverRun>, LoadgenError> {
    let Assignment { plan, layout, slice, clock } = assignment;
    check(&plan, slice)?;
    let mut programs = Vec::new();
    for part in parts(&plan, &layout, slice) {
        let program = program(&command, &part, &plan, &clock);
        let publishers = if matches!(part.clients, Clients::Publishers(_)) { part.numbers() } else { 0..0 };
        let records = Records::new(part.clients, &plan, &layout, clock);
        programs.push(Program::start(program, part.name, records, publishers, &plan, clock).await?);
    }
    Ok(Box::new(Programs { programs, _files: files }))
}

fn check(plan: &Plan, slice: Slice) -> Result<(), LoadgenError> {
    settings::check_nothing_of_mqtt(plan)?;
    let slow = |audience: &Audience| audience.slow.is_some_and(|slow| slow.members != audience.count);
    let refused = [
        (matches!(plan.publishers.pace, Pace::Closed { .. }), "window of deliveries"),
        (plan.publishers.topics != 1, "second topic of a publisher"),
        (plan.audiences.iter().any(slow), "single slow members"),
        (slice.of > 1, "agents that share clients"),
    ];
    match refused.iter().find(|(is_asked_for, _)| *is_asked_for) {
        None => Ok(()),
        Some((_, what)) => Err(LoadgenError::Arguments(format!("no {what} with protocol {}", plan.protocol))),
    }
}

/// A program's part of a run.
struct ProgramPart {
    /// Name in errors.
    name: String,
    clients: Clients,
    group: Option<String>,
    slow: Option<f64>,
    /// Brokers of the clients.
    spread: Spread,
}

impl ProgramPart {
    /// Numbers of its clients.
    fn numbers(&self) -> Range<u32> {
        match &self.clients {
            Clients::Publishers(numbers) | Clients::Subscribers { receivers: numbers, .. } => numbers.clone(),
        }
    }
}

fn parts(plan: &Plan, layout: &Layout, slice: Slice) -> Vec<ProgramPart> {
    let mut parts = Vec::new();
    let is_here = |kinds| matches!(slice.clients, ClientKinds::All) || slice.clients == kinds;
    for (number, audience) in plan.audiences.iter().enumerate() {
        let members = || (0..).zip(layout.receivers()).filter(|(_, receiver)| receiver.audience == number);
        let (Some((first, _)), true) = (members().next(), is_here(ClientKinds::Audience(number as u32))) else {
            continue;
        };
        let receivers = first..first + members().count() as u32;
        parts.push(ProgramPart {
            name: audience.name.clone(),
            clients: Clients::Subscribers { receivers, is_group: audience.share.is_some() },
            group: audience.share.clone(),
            slow: audience.slow.map(|slow| slow.rate),
            spread: audience.spread,
        });
    }
    if plan.publishers.count > 0 && is_here(ClientKinds::Publishers) {
        parts.push(ProgramPart {
            name: "publishers".to_owned(),
            clients: Clients::Publishers(0..plan.publishers.count),
            group: None,
            slow: None,
            spread: plan.publishers.spread,
        });
    }
    parts
}

/// The command of a program, with arguments and variables.
fn program(command: &str, part: &ProgramPart, plan: &Plan, clock: &RunClock) -> Command {
    let role = if matches!(part.clients, Clients::Publishers(_)) { "publisher" } else { "subscriber" };
    let publishers = &plan.publishers;
    let (rate, interval) = match publishers.pace {
        Pace::Open { interval } => {
            let rate = f64::from(publishers.count) / interval.as_secs_f64();
            (rate.to_string(), Some(interval.as_nanos().to_string()))
        }
        _ => ("max".to_owned(), None),
    };
    let mut program = Command::new("/bin/sh");
    program.args(["-c", &format!("{command} \"$@\""), "client"]).args([
        role,
        &doors(plan, part.spread),
        names::first_level(&publishers.topic),
        &publishers.payload.to_string(),
        &rate,
        part.group.as_deref().unwrap_or("-"),
        &plan.tag.to_string(),
    ]);
    let numbers = part.numbers();
    let mut variables: BTreeMap<String, String> = plan.settings.clone();
    variables.remove(super::COMMAND);
    let own = [
        ("count", Some(numbers.len().to_string())),
        ("first", Some(numbers.start.to_string())),
        ("publishers", Some(publishers.count.to_string())),
        ("interval_ns", interval),
        ("in_flight", Some(publishers.in_flight.to_string())),
        ("messages", publishers.messages.map(|messages| messages.to_string())),
        ("qos", Some(publishers.qos.to_string())),
        ("slow", part.slow.map(|rate| rate.to_string())),
        ("clock_ns", Some(monotonic_offset_ns(clock).to_string())),
    ];
    variables.extend(own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let own = std::env::var(super::OWN_VARIABLES).unwrap_or_default();
    let variables = variables.into_iter().map(|(name, value)| (format!("TENBIN_{}", name.to_uppercase()), value));
    let inherited = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, value) in changes(&own, inherited, variables) {
        match value {
            Some(value) => program.env(name, value),
            None => program.env_remove(name),
        };
    }
    program
}

/// Changes that turn the `inherited` environment into the environment of a program with these `variables`. Inherited
/// `TENBIN_…` variables are removed, because they would contradict the plan. The variables that `own` names stay: the
/// template sets them.
fn changes(
    own: &str,
    inherited: impl Iterator<Item = String>,
    variables: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, Option<String>> {
    let removed = inherited.filter(|name| name.starts_with("TENBIN_")).map(|name| (name, None));
    let all = removed.chain(variables.map(|(name, value)| (name, Some(value))));
    all.filter(|(name, _)| !own.split(',').any(|own| own == name)).collect()
}

/// Addresses of the system; the address of the clients' broker is first.
fn doors(plan: &Plan, spread: Spread) -> String {
    let first = match spread {
        Spread::InTurns => 0,
        Spread::Broker(number) => usize::from(number),
    };
    names::doors(plan, first).join(",")
}

/// The run's clock minus the monotonic clock, in nanoseconds.
fn monotonic_offset_ns(clock: &RunClock) -> i64 {
    let monotonic = || {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    };
    let reading = |_| {
        let (before, now, after) = (monotonic(), clock.now_ns() as i64, monotonic());
        (after - before, now - (before + after) / 2)
    };
    // The shortest reading was not interrupted.
    (0..5).map(reading).min().map_or(0, |(_, offset)| offset)
}

/// All programs of a process.
struct Programs {
    programs: Vec<Program>,
    _files: Option<TempDir>,
}

impl DriverRun for Programs {
    fn start(&mut self, start_ns: u64) {
        self.programs.iter().for_each(|program| program.begin(start_ns));
    }

    fn status(&self) -> Status {
        let mut sum = Status::default();
        for program in &self.programs {
            let status = program.status();
            sum.add(&status);
            sum.failure = sum.failure.or(status.failure);
        }
        sum
    }

    fn take_failure(&self) -> Option<LoadgenError> {
        self.programs.iter().find_map(Program::take_failure)
    }

    fn stop_publishing(&self) {
        self.programs.iter().for_each(Program::stop);
    }

    fn finish(self: Box<Self>) -> DriverFuture<'static, Part> {
        Box::pin(async move {
            let Self { programs, _files } = *self;
            programs.iter().for_each(Program::close);
            let mut part = Part::default();
            for program in programs {
                part.merge(program.finish().await?);
            }
            Ok(part)
        })
    }
}
