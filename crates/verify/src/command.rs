//! The commands of `tenbin-verify`.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::Setup;
#[cfg(target_os = "linux")]
use crate::args::NodeArgs;
use crate::args::{AwaitPortArgs, CheckArgs, Command, PlanArgs, ProbeArgs, ReportArgs, StatusArgs};
use crate::configs;
use crate::error::{Error, hint};
use crate::files::read;
use crate::groups::Group;
use crate::leader;
use crate::library;
use crate::plan::{Need, Plan, missing, need_of_runtime, support};
use crate::probe::{Answer, answers};
use crate::template::{FAULTS, RUNTIMES, Runtime, Template, suggestion};

/// Runs a command, with its output to `out`; returns the exit code.
///
/// # Errors
/// Unreadable files, mistakes in templates, and failures of `out`.
pub fn run(command: &Command, setup: &Setup, out: &mut dyn Write) -> Result<u8, Error> {
    match command {
        Command::Run(args) => return crate::run::run(args, setup, out),
        Command::Report(ReportArgs { directories, out: page }) => {
            let page = page.clone().unwrap_or_else(|| directories[0].join("report.html"));
            crate::report::write(directories, &page)?;
            writeln!(out, "{}", page.display())?;
        }
        #[cfg(target_os = "linux")]
        Command::Restore(args) => return crate::restore::restore(args.run.as_deref(), out),
        #[cfg(target_os = "linux")]
        Command::Guard(args) => return Ok(u8::from(tenbin_lab::guard_main(&args.arguments) != 0)),
        #[cfg(target_os = "linux")]
        Command::Relay(args) => crate::relay::run(args)?,
        #[cfg(target_os = "linux")]
        Command::Node(NodeArgs { attach: Some(socket), .. }) => crate::runtime::nodes::relay(socket)?,
        #[cfg(target_os = "linux")]
        Command::Node(args) => crate::runtime::nodes::serve(args.silence.duration()).map_err(Error::Node)?,
        #[cfg(not(target_os = "linux"))]
        Command::Restore(_) | Command::Guard(_) | Command::Relay(_) | Command::Node(_) => {}
        Command::AwaitPort(AwaitPortArgs { address, mqtt, health }) => {
            return Ok(u8::from(!answers(address, Answer::of(*mqtt, *health))));
        }
        Command::Status(StatusArgs { socket, stream: true }) => {
            crate::status::serve(socket, io::stdin().lock(), out)?;
        }
        Command::Status(StatusArgs { socket, stream: false }) => match crate::status::ask(socket) {
            Ok(line) => write!(out, "{line}")?,
            Err(_) => return Ok(1),
        },
        Command::Burden(args) => crate::burden::run(args)?,
        Command::Agent(args) => {
            tenbin_loadgen::run_to(tenbin_loadgen::Command::Agent(args.clone()), &setup.drivers, out)
                .map_err(|error| Error::Agent(error.to_string()))?
        }
        Command::Plan(PlanArgs { file, json }) => {
            for (index, plan) in file.plans()?.iter().enumerate() {
                if *json {
                    write!(out, "{}", plan.json())?;
                    continue;
                }
                if index > 0 {
                    writeln!(out, "\n{}\n", "─".repeat(80))?;
                }
                crate::dry_run(plan, out)?;
            }
        }
        Command::Check(CheckArgs { files }) if files.is_empty() => check_machine(out)?,
        Command::Check(CheckArgs { files }) => check_files(files, out)?,
        Command::Probe(ProbeArgs { kind, instances }) => {
            if let Some(leader) = leader::probe(kind, instances).map_err(Error::Probe)? {
                writeln!(out, "{leader}")?;
            }
        }
        Command::List => {
            for ready in library::ALL {
                let templates = Template::read(ready.name, ready.text)?;
                let title = templates.first().and_then(|template| template.title.as_deref()).unwrap_or_default();
                writeln!(out, "{:<20}{title}", ready.name)?;
            }
        }
    }
    Ok(0)
}

fn check_files(files: &[PathBuf], out: &mut dyn Write) -> Result<(), Error> {
    for path in files {
        let mut members = Vec::new();
        for template in read(path)? {
            let plan = Plan::new(&template, None)?;
            members.extend(plan.members.iter().cloned());
            let missing = plan.lacks();
            let verdict = if missing.is_empty() { "can run here" } else { "is valid, and cannot run here" };
            writeln!(out, "{}, variant {}: {verdict}", plan.name, plan.variant)?;
            for line in missing {
                writeln!(out, "  missing {line}")?;
            }
        }
        for name in configs::without_member(path, &members) {
            let known = members.iter().flat_map(|member| [member.entry.as_str(), member.name.as_str()]);
            let known = suggestion(&name, known.collect::<std::collections::BTreeSet<_>>());
            writeln!(out, "configs/{name}: {} has nothing of this name{}", path.display(), hint(known.as_deref()))?;
        }
    }
    Ok(())
}

/// Lists runtimes and faults with their missing prerequisites.
fn check_machine(out: &mut dyn Write) -> io::Result<()> {
    let groups = Group::of("self").map_or_else(|reason| reason, |_| "version 2".to_owned());
    writeln!(out, "control groups: {groups}")?;
    for (name, runtime) in RUNTIMES {
        let lacks: Vec<_> = need_of_runtime(runtime).into_iter().filter(|need| missing(need).is_some()).collect();
        writeln!(out, "runtime {name}: {}", if lacks.is_empty() { "ready" } else { "lacks prerequisites" })?;
        for need in &lacks {
            writeln!(out, "  missing {need}: {}", missing(need).unwrap_or_default())?;
        }
        let list = |needs: &[Need]| needs.iter().map(Need::to_string).collect::<Vec<_>>().join(", ");
        if runtime == Runtime::Ssh {
            let needs = need_of_runtime(Runtime::Namespaces);
            writeln!(out, "  each node needs {}, the program sha256sum and a connection by ssh", list(&needs))?;
        }
        for fault in FAULTS {
            let line = match crate::template::example(fault).map(|fault| support(&fault, runtime, None)) {
                None => continue,
                Some(Err(reason)) => format!("no: {reason}"),
                Some(Ok(needs)) if runtime == Runtime::Ssh && !needs.is_empty() => {
                    format!("yes, where nodes have {}", list(&needs))
                }
                Some(Ok(needs)) => match needs.iter().find_map(|need| Some((need, missing(need)?))) {
                    None => "yes".to_owned(),
                    Some((need, correction)) => format!("missing {need}: {correction}"),
                },
            };
            writeln!(out, "  {fault:<16}{line}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::FileArgs;

    fn output(command: &Command) -> Result<String, Error> {
        let mut out = Vec::new();
        let setup = Setup { drivers: tenbin_loadgen::Drivers::none(), program: None };
        run(command, &setup, &mut out).map(|_| String::from_utf8(out).unwrap())
    }

    fn plan(file: &str, variant: &[&str], json: bool) -> Result<String, Error> {
        let variant = variant.iter().map(|&name| name.to_owned()).collect();
        output(&Command::Plan(PlanArgs {
            file: FileArgs { files: vec![file.into()], variant, seed: Some(9), set: Vec::new() },
            json,
        }))
    }

    #[test]
    fn list_names_every_ready_verification() {
        let list = output(&Command::List).unwrap();
        assert_eq!(list.lines().count(), library::ALL.len());
        assert!(list.contains("kill-qos1           SIGKILL of the broker"), "{list}");
    }

    #[test]
    fn plan_needs_no_path_and_selects_variants() {
        let all = plan("kill-qos1", &[], false).unwrap();
        assert!(all.contains("variant tenbin") && all.contains("variant mosquitto"), "{all}");
        let one = plan("kill-qos1", &["mosquitto"], false).unwrap();
        assert!(one.contains("variant mosquitto") && !one.contains("variant tenbin"), "{one}");
        let plan: Plan = serde_json::from_str(&plan("kill-qos1", &["tenbin"], true).unwrap()).unwrap();
        assert_eq!((plan.variant.as_str(), plan.seed), ("tenbin", 9));
    }

    #[test]
    fn wrong_names_suggest_right_ones_with_exit_code_2() {
        for (result, wanted) in [
            (plan("kill-qos3", &[], false), "did you mean \"kill-qos1\"?"),
            (plan("kill-qos1", &["tenbim"], false), "no variant \"tenbim\"; did you mean \"tenbin\"?"),
            (plan("/no/such.yaml", &[], false), "cannot read /no/such.yaml"),
        ] {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(wanted) && error.exit_code() == 2, "{error}");
        }
    }

    #[test]
    fn check_lists_every_fault_of_every_runtime() {
        let text = output(&Command::Check(CheckArgs { files: Vec::new() })).unwrap();
        for fault in FAULTS {
            let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(fault)).count();
            assert_eq!(lines, RUNTIMES.len(), "{fault} in\n{text}");
        }
        assert!(text.contains("net.delay       no: runtime processes has no network"), "{text}");
        assert!(text.contains("each node needs user namespaces, the program unshare, the program ip"), "{text}");
        assert!(text.contains("power_cut       yes, where nodes have root, the program mount"), "{text}");
        let file = output(&Command::Check(CheckArgs { files: vec!["kill-qos1".into()] })).unwrap();
        assert!(file.lines().any(|line| line.starts_with("kill-qos1, variant tenbin: ")), "{file}");
    }
}
