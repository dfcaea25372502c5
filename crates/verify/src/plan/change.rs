//! Changes and their undos, in words.

use super::{PlannedTargets, Selection};
use crate::template::Fault;

/// The change of a fault, and its undo.
pub(super) fn describe(fault: &Fault, targets: &PlannedTargets, lasts: bool) -> (String, Option<String>) {
    let on = text(targets);
    let start_again = || lasts.then(|| format!("start {on} again and wait until it is ready"));
    match fault {
        Fault::Stop { grace } => {
            (format!("send SIGTERM to {on}, and SIGKILL after {grace} if it is still there"), start_again())
        }
        Fault::Kill => (format!("send SIGKILL to all processes of {on}"), start_again()),
        Fault::Restart { grace } => (
            format!("send SIGTERM to {on}, and SIGKILL after {grace} if it is still there"),
            Some(format!("start {on} again and wait until it is ready")),
        ),
        Fault::Pause => (format!("send SIGSTOP to all processes of {on}"), Some(format!("send SIGCONT to {on}"))),
        Fault::Failover => {
            (format!("kill or pause {on}, or cut its links"), Some("start, continue or join it again".to_owned()))
        }
        Fault::NetDelay { delay, jitter } => {
            let jitter = if jitter.ns() > 0 { format!(" ± {jitter}") } else { String::new() };
            link(format!("delay frames {on} by {delay}{jitter}"), &on)
        }
        Fault::NetLoss { loss } => link(format!("drop {loss} of the packets {on}"), &on),
        Fault::NetDuplicate { duplicate } => link(format!("deliver {duplicate} of the packets {on} twice"), &on),
        Fault::NetCorrupt { corrupt } => link(format!("damage {corrupt} of the packets {on}"), &on),
        Fault::NetReorder { delay, jitter } => {
            link(format!("delay frames {on} by {delay} ± {jitter}, each by its own time"), &on)
        }
        Fault::NetRate { rate, queue } => link(format!("limit {on} to {rate} with a queue of {queue}"), &on),
        Fault::NetPartition => link(format!("drop all packets {on}"), &on),
        Fault::CpuLoad { threads, share } => {
            load(format!("start {threads} threads that compute {share} of the time beside {on}"))
        }
        Fault::MemoryLoad { bytes } => load(format!("start a process that keeps {bytes} in use beside {on}")),
        Fault::DiskLoad { threads, size } => load(format!("start {threads} writers that sync each {size} beside {on}")),
        Fault::CpuLimit { share } => limit(format!("limit {on} to {share} of a processor")),
        Fault::MemoryLimit { bytes } => limit(format!("limit the memory of {on} to {bytes}")),
        Fault::DiskFull { leave } => {
            (format!("fill the filesystem of {on} up to {leave}"), Some("remove the file that fills it".to_owned()))
        }
        Fault::PowerCut => (
            format!("stop {on}, copy its disk image as it is, and send SIGKILL"),
            lasts.then(|| format!("mount the copy, start {on} and wait until it is ready")),
        ),
        Fault::ClockSkew { by, drift_ppm } => {
            let drift = if *drift_ppm == 0.0 { String::new() } else { format!(", {drift_ppm} ppm too fast") };
            (format!("set the clock of {on} to {by}{drift}"), Some("set the offset of the clock to 0".to_owned()))
        }
        Fault::Command { command, undo } => {
            (format!("run for {on}: {command}"), undo.as_ref().map(|undo| format!("run for {on}: {undo}")))
        }
    }
}

fn link(change: String, on: &str) -> (String, Option<String>) {
    (change, Some(format!("reset the links {on}")))
}

fn load(change: String) -> (String, Option<String>) {
    (change, Some("end them".to_owned()))
}

fn limit(change: String) -> (String, Option<String>) {
    (change, Some("write the old limit back".to_owned()))
}

fn text(targets: &PlannedTargets) -> String {
    let of = |selection: &Option<Selection>| selection.as_ref().map_or("all others".to_owned(), name);
    match targets {
        PlannedTargets::Members(selection) => name(selection),
        PlannedTargets::Links { from, to, both } => {
            format!("from {} to {}{}", of(from), of(to), if *both { " and back" } else { "" })
        }
        PlannedTargets::Sides(sides) => format!("between {}", sides.iter().map(name).collect::<Vec<_>>().join(" and ")),
    }
}

fn name(selection: &Selection) -> String {
    match &selection.members {
        Some(members) => members.join(", "),
        None => format!("{} (when it begins)", selection.target),
    }
}
