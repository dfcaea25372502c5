//! A plan in words: every process, address, change and its undo, in order.

use std::io::{self, Write};

#[cfg(target_os = "linux")]
use tenbin_kit::programs::Program;

use crate::docker;
use crate::line::Line;
#[cfg(target_os = "linux")]
use crate::plan::Node;
use crate::plan::{Client, ConfigFile, Instance, Plan, PlannedAction};
#[cfg(target_os = "linux")]
use crate::runtime::nodes::{Ssh, hash_of};
use crate::systems;
use crate::template::{Expect, Role, Runtime, StartBy, WarmUp};
use crate::units::Time;

/// Writes `plan` in words. Nothing is started.
///
/// # Errors
/// Those of `out`.
pub fn dry_run(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let Plan { name, variant, seed, runtime, measure, .. } = plan;
    writeln!(out, "{name}, variant {variant}, runtime {}, seed {seed}", runtime.name())?;
    if let Some(title) = &plan.title {
        writeln!(out, "{title}")?;
    }
    writeln!(out, "\nMachines")?;
    for machine in &plan.machines {
        let node = machine.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        let relays = machine.relays.as_ref().map_or(String::new(), |address| format!(", a relay to {address}"));
        writeln!(out, "  {:<16}{}{node}{relays}", machine.name, machine.address)?;
    }
    writeln!(out, "\nSystems")?;
    for instance in &plan.instances {
        writeln!(out, "  {:<16}{}", instance.name, system_text(instance))?;
    }
    writeln!(out, "\nClients")?;
    for client in &plan.clients {
        writeln!(out, "  {:<16}{}", client.entry.name, client_text(client))?;
    }
    writeln!(out, "\nSteps")?;
    for (step, undo) in setup(plan) {
        writeln!(out, "  {:>9}  {step}", "")?;
        writeln!(out, "  {:>9}    undo: {undo}", "")?;
    }
    if plan.needs_maximum {
        writeln!(out, "  {:>9}  publish in a closed loop for {}, to find the maximum rate", "", measure.max)?;
    }
    let warm_up = match measure.warm_up {
        WarmUp::Steady => format!("until the load is steady, {} at most", measure.warm_up.most()),
        WarmUp::For(time) => format!("for {time}"),
    };
    writeln!(out, "  {:>9}  start the clients and warm up {warm_up}", "")?;
    writeln!(out, "  {:>9}  begin to measure", moment(Time::ZERO))?;
    for (at, line) in timeline(plan) {
        writeln!(out, "  {:>9}  {line}", moment(at))?;
    }
    writeln!(
        out,
        "  {:>9}  stop publishing, and wait {} at most for messages under way",
        moment(measure.time),
        measure.drain
    )?;
    writeln!(out, "  {:>9}  collect results, and undo the steps above in reverse order", "")?;
    if measure.repeat > 1 {
        writeln!(out, "  {:>9}  repeat all of it, {} runs together", "", measure.repeat)?;
    }
    writeln!(out, "\nPhases")?;
    for phase in &plan.phases {
        writeln!(out, "  {:<24}{} to {}", phase.phase.to_string(), phase.from, phase.to)?;
    }
    if !plan.assertions.is_empty() {
        let expect = match plan.expect {
            Expect::Pass => "each must hold in every run",
            Expect::Fail => "expected: at least one fails",
        };
        writeln!(out, "\nAssertions ({expect})")?;
        for assertion in &plan.assertions {
            writeln!(out, "  {assertion}")?;
        }
    }
    writeln!(out, "\nNeeds")?;
    if plan.needs.is_empty() {
        writeln!(out, "  nothing")?;
    }
    for need in &plan.needs {
        let is_here = plan.needs_here().any(|here| here == need);
        let without = match crate::plan::missing(need).filter(|_| is_here) {
            Some(correction) => format!(" (missing here: {correction})"),
            None if is_here => String::new(),
            None => " (on each node)".to_owned(),
        };
        writeln!(out, "  {need}{without}")?;
    }
    Ok(())
}

fn moment(at: Time) -> String {
    format!("{:.3} s", at.secs())
}

pub(crate) fn system_text(instance: &Instance) -> String {
    let start = match &instance.start {
        StartBy::Kind => format!("{} ({})", instance.kind.name(), instance.kind.program().unwrap_or_default()),
        StartBy::Command(command) => format!("command: {command}"),
        StartBy::Image(image) => format!("image: {image}"),
        StartBy::External(address) => format!("{} outside of the lab, at {address}", instance.kind.name()),
    };
    let mut text = format!("{start}, clients at {}", instance.door);
    if let Some(peer) = instance.peer.as_ref().filter(|_| !instance.peers.is_empty()) {
        text += &format!(", peers at {peer}");
    }
    if let Some(disk) = instance.disk {
        text += &format!(", {} of {}", if disk.is_image { "a disk image" } else { "a tmpfs" }, disk.size);
    }
    if !instance.cpus.is_empty() {
        text += &format!(", processors {:?}", instance.cpus);
    }
    for (key, value) in &instance.config {
        text += &format!(", {key}={value}");
    }
    text
}

pub(crate) fn client_text(client: &Client) -> String {
    let doors = client.doors.join(", ");
    let plural = if client.entry.count == 1 { "" } else { "s" };
    let mut text = match client.entry.role {
        Role::Publisher => {
            format!(
                "{} publisher{}, {} messages, {}, to {doors}",
                client.entry.count, plural, client.entry.size, client.entry.rate
            )
        }
        Role::Subscriber => format!("{} subscriber{plural} at {doors}", client.entry.count),
    };
    if let Some(role) = client.entry.begins_at {
        text += &format!(", the {} first", role.name());
    }
    if let Some(qos) = client.entry.qos {
        text += &format!(", QoS {qos}");
    }
    if let Some(acks) = client.entry.acks {
        text += &format!(", acks {}", acks.name());
    }
    if let Some(group) = &client.entry.group {
        text += &format!(", group {group}");
    }
    if let Some(slow) = client.entry.slow {
        text += &format!(", reading {slow} msg/s");
    }
    match &client.entry.program {
        Some(StartBy::Command(program) | StartBy::Image(program)) => text + &format!(", by {program}"),
        _ => text,
    }
}

/// Steps before the clients start, each with its undo.
pub(crate) fn setup(plan: &Plan) -> Vec<(String, String)> {
    let mut steps = Vec::new();
    let names = |of: &dyn Fn(&Instance) -> bool| {
        let names: Vec<_> = plan.instances.iter().filter(|i| of(i)).map(|i| i.name.as_str()).collect();
        names.join(", ")
    };
    match plan.runtime {
        Runtime::Namespaces | Runtime::Docker => {
            let ends = "the guard ends; the kernel removes its namespaces with all processes, mounts and interfaces";
            steps.push(("start the guard in new namespaces".to_owned(), ends.to_owned()));
            let machines = format!("make a machine for each of the {} addresses, and the switch", plan.machines.len());
            steps.push((machines, "they end with the guard".to_owned()));
            for machine in plan.machines.iter().filter_map(|machine| Some((&machine.name, machine.relays.as_ref()?))) {
                let relay = format!("start a relay on {} to {}", machine.0, machine.1);
                steps.push((relay, "it ends with the guard".to_owned()));
            }
        }
        Runtime::Ssh => {
            #[cfg(target_os = "linux")]
            steps.extend(plan.nodes.iter().flat_map(|node| steps_of_node(plan, node)));
            for (place, node) in plan.nodes.iter().enumerate() {
                for other in &plan.nodes[place + 1..] {
                    let step = format!("join {} to {} ({}) by a trunk over TCP", other.name, node.name, node.address);
                    steps.push((step, "it ends with the remote ends".to_owned()));
                }
            }
        }
        Runtime::Processes => {
            steps.push(("make a directory for the run".to_owned(), "remove the directory".to_owned()));
        }
    }
    let images = names(&|instance| instance.disk.is_some_and(|disk| disk.is_image));
    if !images.is_empty() {
        steps.push((format!("make and mount a disk image for {images}"), "unmount and remove the images".to_owned()));
    }
    for ConfigFile { member, name, source } in &plan.configs {
        steps.push((format!("put {} into {member} as {name}", source.display()), "remove the copy".to_owned()));
    }
    let run = docker::Run { name: "$RUN", work: "$WORK".as_ref(), results: "$RESULTS".as_ref(), pull: plan.pull };
    for (instance, image) in plan.instances.iter().filter_map(|instance| match &instance.start {
        StartBy::Image(image) => Some((instance, image)),
        _ => None,
    }) {
        let [configs, results] = systems::directories(docker::CONFIGS.as_ref(), docker::RESULTS.as_ref());
        let names = instance.environment.iter().chain([&configs, &results]).map(|(name, _)| name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let file = run.environment(&instance.name);
        steps.push((format!("write {file}, readable by this user only, with {names}"), "remove the file".to_owned()));
        steps.push((shown(&run.create(instance, image)), shown_parts(&run.remove())));
        steps.push((
            format!("{}, join it to the switch, and wait until it is ready", shown(&run.start(&instance.name))),
            "as before".to_owned(),
        ));
    }
    let is_own = |instance: &&Instance| !matches!(instance.start, StartBy::External(_) | StartBy::Image(_));
    for instance in plan.instances.iter().filter(is_own) {
        steps.push((
            format!("start {} and wait until it is ready", instance.name),
            format!("send SIGTERM to {}, and SIGKILL if it is still there", instance.name),
        ));
    }
    steps
}

/// Steps that prepare a node and start its remote end, each with its undo.
#[cfg(target_os = "linux")]
fn steps_of_node(plan: &Plan, node: &Node) -> Vec<(String, String)> {
    let (name, ssh) = (&node.name, Ssh::new(plan, node));
    let hash = |program| hash_of(program).unwrap_or_else(|reason| format!("({reason})"));
    let programs = [Some(Program::Verify), plan.starts_tenbin().then_some(Program::Tenbin)];
    let copy = |program: Program| {
        let copy = ssh.shown_copy(program, &hash(program));
        let kept = format!("none: {name} keeps the program, for later runs of the same version");
        (format!("copy {} to {name}, unless it is there: {copy}", program.name()), kept)
    };
    let mut steps: Vec<_> = programs.into_iter().flatten().map(copy).collect();
    let ends = format!("close its input; {name} then undoes all changes that it made");
    steps.push((format!("start the remote end on {name}: {}", ssh.shown_start(&hash(Program::Verify))), ends));
    steps
}

/// A command line as a shell reads it.
fn shown(line: &Line) -> String {
    let parts = std::iter::once(line.program.clone()).chain(line.arguments.iter().cloned());
    shown_parts(&parts.collect::<Vec<_>>())
}

fn shown_parts(parts: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,$@".contains(c);
    let quoted = |part: &String| if part.chars().all(is_plain) { part.clone() } else { format!("'{part}'") };
    parts.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Changes and undos by their planned times.
fn timeline(plan: &Plan) -> Vec<(Time, String)> {
    let mut lines = Vec::new();
    for action in &plan.actions {
        let after = action.after.as_ref().map_or(String::new(), |(other, pause)| {
            if pause.ns() > 0 { format!(" (begins {pause} after {other})") } else { format!(" (begins after {other})") }
        });
        let wait = action.wait_for.map_or(String::new(), |wait_for| format!(", once copies is {}", wait_for.copies));
        lines.push((action.at, format!("{}{}: {}{after}{wait}", action.name, number(action), action.change)));
        if let Some(undo) = &action.undo {
            let end = match action.duration {
                Some(duration) => action.at.plus(duration),
                None if action.fault.is_momentary() => action.at,
                None => plan.measure.time,
            };
            lines.push((end, format!("{}{}: undo: {undo}", action.name, number(action))));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    lines
}

/// The number of a repetition, if it is repeated.
fn number(action: &PlannedAction) -> String {
    if action.repetition > 1 { format!(" #{}", action.repetition) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library;
    use crate::template::Template;

    #[test]
    fn every_ready_verification_has_a_plan() {
        for ready in library::ALL {
            let templates = Template::read(ready.name, ready.text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            assert!(templates.iter().all(|template| template.title.is_some()), "{}", ready.name);
            for template in templates {
                let plan = Plan::new(&template, Some(3)).unwrap_or_else(|mistakes| panic!("{mistakes}"));
                assert_eq!(plan.json(), Plan::new(&template, Some(3)).unwrap().json(), "{}", ready.name);
                let mut text = Vec::new();
                dry_run(&plan, &mut text).unwrap();
                let text = String::from_utf8(text).unwrap();
                for action in &plan.actions {
                    assert!(text.contains(&action.change), "{}: {text}", ready.name);
                    assert!(action.undo.as_ref().is_none_or(|undo| text.contains(undo)), "{}: {text}", ready.name);
                }
                for machine in &plan.machines {
                    assert!(text.contains(&machine.address.to_string()), "{}: {text}", ready.name);
                }
                let is_measurement = plan.name == "paper-standalone" || plan.name == "paper-replication";
                assert_eq!(plan.assertions.is_empty(), is_measurement, "{}", ready.name);
            }
        }
    }

    #[test]
    fn a_dry_run_shows_all_variables_of_a_container() {
        let text = "base: { runtime: docker }\nsystems: { b: { kind: mqtt, image: x, environment: { TZ: UTC } }, p: { publishes_to: b } }\n";
        let mut shown = Vec::new();
        dry_run(&Plan::new(&Template::read("t.yaml", text).unwrap()[0], None).unwrap(), &mut shown).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("readable by this user only, with TZ, TENBIN_CONFIGS, TENBIN_RESULTS"), "{shown}");
    }

    #[test]
    fn a_dry_run_shows_the_condition_of_a_fault() {
        let ready = library::find("leader-kill").unwrap();
        let templates = Template::read("leader-kill", ready.text).unwrap();
        let pair = templates.iter().find(|template| template.variant == "tenbin-pair").unwrap();
        let mut shown = Vec::new();
        dry_run(&Plan::new(pair, None).unwrap(), &mut shown).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("processes of role:leader (when it begins), once copies is 2"), "{shown}");
    }

    #[test]
    fn a_dry_run_lists_steps_in_order() {
        let ready = library::find("paper-delay").unwrap();
        let text = ready.text.replace("rate: 2500", "rate: 70% of max");
        let templates = Template::read("paper-delay", &text).unwrap();
        let mut text = Vec::new();
        dry_run(&Plan::new(&templates[0], None).unwrap(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let mut rest = text.as_str();
        for line in [
            "paper-delay, variant kafka-acks-1, runtime namespaces, seed 1",
            "broker-1        10.77.0.1",
            "kafka (java), clients at broker-1:9092, peers at broker-1:9093",
            "1 publisher, 4 KiB messages, 70 % of the maximum, to broker-1:9092, broker-2:9092, broker-3:9092, acks 1",
            "start the guard",
            "undo: the guard ends",
            "start broker-3 and wait until it is ready",
            "undo: send SIGTERM to broker-3",
            "closed loop for 20 s",
            "40.000 s  delay: delay frames from role:leader",
            "60.000 s  delay: undo: reset the links from role:leader",
            "90.000 s  stop publishing",
            "3 runs together",
            "before                  20 s to 40 s",
            "during delay            40 s to 60 s",
            "expected: at least one fails",
            "received_bytes during delay >= 0.95 x before",
            "the program java",
        ] {
            let at = rest.find(line).unwrap_or_else(|| panic!("{line} is missing, or out of order, in\n{text}"));
            rest = &rest[at..];
        }
    }
}
