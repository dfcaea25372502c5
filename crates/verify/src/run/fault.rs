//! Changes of faults, and their undos.

use std::path::Path;
use std::time::Duration;

use super::stage::Stage;
use crate::groups::Limit;
use crate::line::Line;
use crate::plan::{PlannedAction, PlannedTargets, Selection};
use crate::runtime::{LinkFault, Proc};
use crate::template::{Fault, InstanceRole};

/// Undo of a change that was made.
pub(crate) enum Undo {
    /// Nothing is left to undo.
    Nothing,
    /// Starts instances again.
    Start(Vec<String>),
    /// Continues processes.
    Resume(Vec<String>),
    /// Lifts a fault of links.
    Lift(u64),
    /// Writes old limits back.
    EndLimits(Vec<u64>),
    /// Ends load processes.
    End(Vec<Box<dyn Proc>>),
    /// Runs a command for each name.
    Run(Vec<(String, Line)>),
    /// Sets clocks right.
    Clock(Vec<String>),
}

/// Targets of a fault as they are when it begins.
pub(crate) enum Resolved {
    /// Instances and clients.
    Members(Vec<String>),
    /// Directed links.
    Links(Vec<(String, String)>),
}

impl Resolved {
    /// Text for the event log.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Members(members) => members.clone(),
            Self::Links(links) => links.iter().map(|(from, to)| format!("{from} → {to}")).collect(),
        }
    }
}

/// Resolves the targets of `action` with the present roles.
pub(crate) fn resolve(stage: &Stage, action: &PlannedAction) -> Result<Resolved, String> {
    let members = &stage.plan.members;
    let has_roles = action.targets.selections().iter().any(|selection| selection.members.is_none());
    let roles = if has_roles { stage.roles()? } else { Default::default() };
    let role = |name: &str| -> Option<InstanceRole> { roles.get(name).copied() };
    let of = |selection: &Selection| selection.members.clone().unwrap_or_else(|| selection.resolve(members, role));
    let resolved = match &action.targets {
        PlannedTargets::Members(selection) => Resolved::Members(of(selection)),
        targets => Resolved::Links(targets.links(members, of)),
    };
    let is_empty = resolved.names().is_empty();
    if is_empty { Err("no instance is its target now".to_owned()) } else { Ok(resolved) }
}

/// Makes the change of `action`; returns when it is complete.
pub(crate) fn begin(stage: &Stage, action: &PlannedAction, targets: &Resolved) -> Result<Undo, String> {
    let time = action.duration.map(|duration| duration.duration());
    match targets {
        Resolved::Links(links) => {
            let shape = link_fault(&action.fault).ok_or_else(|| "it acts on no link".to_owned())?;
            stage.world.impair(links, &shape, time).map(Undo::Lift)
        }
        Resolved::Members(names) => on_members(stage, action, names, time),
    }
}

fn on_members(stage: &Stage, action: &PlannedAction, names: &[String], time: Option<Duration>) -> Result<Undo, String> {
    let all = || names.to_vec();
    let start = || if time.is_some() { Undo::Start(all()) } else { Undo::Nothing };
    Ok(match &action.fault {
        Fault::Stop { grace } => {
            stage.stop(names, grace.duration())?;
            start()
        }
        Fault::Restart { grace } => {
            stage.stop(names, grace.duration())?;
            Undo::Start(all())
        }
        Fault::Kill => {
            stage.kill(names)?;
            start()
        }
        Fault::Pause => {
            stage.pause(names, time)?;
            Undo::Resume(all())
        }
        Fault::PowerCut => {
            stage.power_cut(names)?;
            start()
        }
        Fault::CpuLoad { threads, share } => {
            loads(stage, names, &["cpu".to_owned(), threads.to_string(), share.get().to_string()])?
        }
        Fault::MemoryLoad { bytes } => loads(stage, names, &["memory".to_owned(), bytes.bytes().to_string()])?,
        Fault::DiskLoad { threads, size } => {
            loads(stage, names, &["disk".to_owned(), threads.to_string(), size.bytes().to_string()])?
        }
        Fault::CpuLimit { share } => limit(stage, names, Limit::Cpu(share.get()))?,
        Fault::MemoryLimit { bytes } => limit(stage, names, Limit::Memory(bytes.bytes()))?,
        Fault::DiskFull { leave } => fill(stage, names, leave.bytes())?,
        Fault::ClockSkew { by, drift_ppm } => {
            let offset = format!("{:+} x{}\n", by.ns() as f64 / 1e9, 1.0 + drift_ppm / 1e6);
            set_clocks(stage, names, &offset)?;
            Undo::Clock(all())
        }
        Fault::Command { command, undo } => {
            let lines = |text: &str| names.iter().map(|name| (name.clone(), Line::shell(text))).collect::<Vec<_>>();
            run(stage, &lines(command))?;
            undo.as_deref().map_or(Undo::Nothing, |undo| Undo::Run(lines(undo)))
        }
        other => return Err(format!("this version cannot inject {}", other.name())),
    })
}

/// Undoes a change; returns when that is complete: a killed instance is ready again. A lost node undoes by itself.
pub(crate) fn undo(stage: &Stage, undo: Undo) -> Result<(), String> {
    let undone = match undo {
        Undo::Nothing => Ok(()),
        Undo::Start(names) => stage.start_again(&names),
        Undo::Resume(names) => stage.resume(&names),
        Undo::Lift(fault) => stage.world.lift(fault),
        Undo::EndLimits(limits) => end_limits(stage, &limits),
        Undo::End(loads) => loads.iter().try_for_each(|load| load.kill()),
        Undo::Run(lines) => run(stage, &lines),
        Undo::Clock(names) => set_clocks(stage, &names, "+0\n"),
    };
    if stage.world.lost().is_some() { Ok(()) } else { undone }
}

/// Runs a command on the machine of each name. On a machine that is this one, it has the name as `TENBIN_TARGET`.
fn run(stage: &Stage, lines: &[(String, Line)]) -> Result<(), String> {
    for (name, line) in lines {
        let mut line = line.clone();
        line.environment.push(("TENBIN_TARGET".to_owned(), name.clone()));
        let output = stage.world.exec(name, &line)?;
        if !output.is_success {
            return Err(format!("the command for {name} failed: {}", output.stderr.trim()));
        }
    }
    Ok(())
}

/// Starts a load process beside each of these.
fn loads(stage: &Stage, names: &[String], arguments: &[String]) -> Result<Undo, String> {
    let mut started = Vec::new();
    for name in names {
        let all = ["burden".to_owned(), stage.world.data(name).display().to_string()];
        let line = stage.world.programs(name).verify(all.into_iter().chain(arguments.iter().cloned()));
        started.push(stage.world.spawn_beside(name, &line, &stage.log(&format!("{name}.load")))?);
    }
    Ok(Undo::End(started))
}

fn limit(stage: &Stage, names: &[String], limit: Limit) -> Result<Undo, String> {
    let mut set = Vec::new();
    for name in names {
        match stage.world.limit(name, limit) {
            Ok(number) => set.push(number),
            Err(reason) => {
                end_limits(stage, &set)?;
                return Err(format!("{name}: {reason}"));
            }
        }
    }
    Ok(Undo::EndLimits(set))
}

fn end_limits(stage: &Stage, limits: &[u64]) -> Result<(), String> {
    limits.iter().rev().try_for_each(|limit| stage.world.end_limit(*limit))
}

/// Fills the filesystem of each instance's data up to `leave` bytes.
fn fill(stage: &Stage, names: &[String], leave: u64) -> Result<Undo, String> {
    let mut undo = Vec::new();
    for name in names {
        let data = stage.world.data(&stage.instance(name)?.machine);
        let file = data.join(".fills-the-disk").display().to_string();
        undo.push((name.clone(), Line::new("rm", ["-f".to_owned(), file.clone()])));
        let script = format!(
            "free=$(df --output=avail -B1 '{}' | tail -n 1); [ \"$free\" -le {leave} ] || \
             head -c $((free - {leave})) /dev/zero > '{file}' || true",
            data.display()
        );
        run(stage, &[(name.clone(), Line::shell(script))])?;
    }
    Ok(Undo::Run(undo))
}

fn set_clocks(stage: &Stage, names: &[String], offset: &str) -> Result<(), String> {
    for name in names {
        stage.world.write(name, &stage.clock_file(name)?, offset.as_bytes(), None)?;
    }
    Ok(())
}

/// Environment of a process whose clock follows `file`. Monotonic clocks stay right, as they do on a machine whose date
/// is changed.
pub(crate) fn clock_environment(file: &Path) -> Vec<(String, String)> {
    let directories = ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let libraries = directories.iter().map(|directory| format!("{directory}/faketime/libfaketime.so.1"));
    let Some(library) = libraries.into_iter().find(|library| Path::new(library).exists()) else { return Vec::new() };
    let pairs = [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn link_fault(fault: &Fault) -> Option<LinkFault> {
    let none = LinkFault::default();
    Some(match fault {
        Fault::NetDelay { delay, jitter } => LinkFault { delay: delay.duration(), jitter: jitter.duration(), ..none },
        Fault::NetReorder { delay, jitter } => {
            LinkFault { delay: delay.duration(), jitter: jitter.duration(), reorder: true, ..none }
        }
        Fault::NetLoss { loss } => LinkFault { loss: loss.get(), ..none },
        Fault::NetDuplicate { duplicate } => LinkFault { duplicate: duplicate.get(), ..none },
        Fault::NetCorrupt { corrupt } => LinkFault { corrupt: corrupt.get(), ..none },
        Fault::NetRate { rate, queue } => LinkFault { rate: Some((rate.bits(), queue.bytes())), ..none },
        Fault::NetPartition => LinkFault { partition: true, ..none },
        _ => return None,
    })
}
