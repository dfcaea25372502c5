//! Limits of instances and clients: each that a fault may limit is started in control groups of its own.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tenbin_lab::journal::{Entry, Journal, Undo};

use super::Site;
use crate::groups::{Group, Groups, Limit, Version};
use crate::plan::Plan;
use crate::systems::Line;
use crate::template::Fault;

/// Group into which this program moves, out of a delegated group: that must have no processes of its own.
const TOOL: &str = "tenbin-verify";

/// Limits of a run.
pub(crate) struct Limits {
    journal: Option<Arc<Journal>>,
    groups: HashMap<String, Groups>,
    set: Mutex<(u64, HashMap<u64, Vec<Entry>>)>,
}

impl Limits {
    /// Makes the groups of all members of `plan` that an action may limit, but not of those that `has_own`. The journal
    /// removes them.
    pub(crate) fn prepare(plan: &Plan, site: &Site<'_>, has_own: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut limits = Self { journal: site.journal.cloned(), groups: HashMap::new(), set: Mutex::default() };
        let run = site.work.file_name().unwrap_or_default().to_string_lossy();
        let names = limited(plan).into_iter().filter(|name| !has_own(name)).collect::<Vec<_>>();
        if names.is_empty() {
            return Ok(limits);
        }
        let own = Groups::of("self")?;
        let [cpu, memory] = [&own.cpu, &own.memory].map(|own| limits.parent(own));
        let (cpu, memory) = (cpu?, memory?);
        for name in names {
            let make = |parent: &Group| limits.make(parent, &format!("{run}-{name}"));
            let groups = Groups { cpu: make(&cpu)?, memory: make(&memory)? };
            limits.groups.insert(name, groups);
        }
        Ok(limits)
    }

    /// The command in the groups of a member, with all processes that it starts.
    pub(crate) fn inside(&self, member: &str, line: &Line) -> Line {
        let Some(groups) = self.groups.get(member) else { return line.clone() };
        let script =
            "for group in \"$1\" \"$2\"; do echo 0 > \"$group/cgroup.procs\" || exit; done; shift 2; exec \"$@\"";
        let groups = [&groups.cpu, &groups.memory].map(|group| group.directory.display().to_string());
        let arguments = ["-c".to_owned(), script.to_owned(), "sh".to_owned()].into_iter().chain(groups);
        let arguments = arguments.chain([line.program.clone()]).chain(line.arguments.iter().cloned());
        Line { environment: line.environment.clone(), ..Line::new("/bin/sh", arguments) }
    }

    /// Limits a member, or the container with these groups; returns the number of the limit.
    pub(crate) fn set(&self, member: &str, own: Option<Groups>, limit: Limit) -> Result<u64, String> {
        let groups = own.as_ref().or_else(|| self.groups.get(member));
        let groups = groups.ok_or_else(|| format!("{member} has no control group"))?;
        let mut entries = Vec::new();
        for (path, content) in groups.files(limit) {
            let shown = path.display().to_string();
            let old = fs::read_to_string(&path).map_err(|error| format!("cannot read {shown}: {error}"))?;
            let set = self.record(Undo::Write { path: path.clone(), content: old }).and_then(|entry| {
                entries.push(entry);
                fs::write(&path, &content).map_err(|error| format!("cannot write {content} to {shown}: {error}"))
            });
            if let Err(reason) = set {
                self.undo(entries)?;
                return Err(reason);
            }
        }
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.0 += 1;
        let number = set.0;
        set.1.insert(number, entries);
        Ok(number)
    }

    /// Writes the old limit back.
    pub(crate) fn lift(&self, number: u64) -> Result<(), String> {
        let entries = self.set.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number);
        self.undo(entries.unwrap_or_default())
    }

    fn undo(&self, entries: Vec<Entry>) -> Result<(), String> {
        let journal = self.journal()?;
        entries.into_iter().rev().try_for_each(|entry| journal.undo(entry)).map_err(|error| error.to_string())
    }

    fn record(&self, undo: Undo) -> Result<Entry, String> {
        self.journal()?.record(undo).map_err(|error| error.to_string())
    }

    fn journal(&self) -> Result<&Journal, String> {
        self.journal.as_deref().ok_or_else(|| "limits need the program tenbin".to_owned())
    }

    /// The group in which groups of the run are made: this program's own. In version 2 it must not have processes, so
    /// root uses the top of the hierarchy, and others move this program out of the way.
    fn parent(&self, own: &Group) -> Result<Group, String> {
        let Group { version: Version::Two, root, directory } = own else { return Ok(own.clone()) };
        let directory = match directory {
            _ if rustix::process::geteuid().is_root() => root.clone(),
            own if own.ends_with(TOOL) => own.parent().unwrap_or(root).to_owned(),
            own => {
                // The group and its processes end with the delegated one.
                let tool = own.join(TOOL);
                let _ = fs::create_dir(&tool);
                for process in read(&own.join("cgroup.procs"))?.lines() {
                    write(&tool.join("cgroup.procs"), process)?;
                }
                own.clone()
            }
        };
        let file = directory.join("cgroup.subtree_control");
        let enabled = read(&file)?;
        for controller in
            ["cpu", "memory"].into_iter().filter(|name| !enabled.split_whitespace().any(|one| one == *name))
        {
            self.record(Undo::Write { path: file.clone(), content: format!("-{controller}") })?;
            write(&file, &format!("+{controller}"))?;
        }
        Ok(Group { directory, ..own.clone() })
    }

    fn make(&self, parent: &Group, name: &str) -> Result<Group, String> {
        let directory = parent.directory.join(name);
        if !directory.exists() {
            self.record(Undo::RemoveGroup { path: directory.clone() })?;
            fs::create_dir(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        }
        Ok(Group { directory, ..parent.clone() })
    }
}

/// Members that an action may limit.
fn limited(plan: &Plan) -> BTreeSet<String> {
    let limits = |action: &&crate::plan::PlannedAction| {
        matches!(action.fault, Fault::CpuLimit { .. } | Fault::MemoryLimit { .. })
    };
    let selections = plan.actions.iter().filter(limits).flat_map(|action| action.targets.selections());
    let all = || plan.instances.iter().map(|instance| instance.name.clone()).collect();
    selections.flat_map(|selection| selection.members.clone().unwrap_or_else(all)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("cannot write {content} to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use tenbin_lab::Helper;

    use super::*;

    #[test]
    fn limits_are_set_and_lifted_with_their_undos_recorded() {
        let directory = tempfile::tempdir().unwrap();
        // The second guard is of no use here.
        let journal = Journal::open(&Helper::new("true", &[]), directory.path()).unwrap();
        let limits = Limits { journal: Some(Arc::new(journal)), groups: HashMap::new(), set: Mutex::default() };
        // A hierarchy of version 2 as files: a group with this program in it.
        let root = directory.path().join("cgroup");
        let own = root.join("scope");
        fs::create_dir_all(&own).unwrap();
        for group in [&root, &own] {
            fs::write(group.join("cgroup.subtree_control"), "memory\n").unwrap();
            fs::write(group.join("cgroup.procs"), "7\n").unwrap();
        }
        let group = Group { version: Version::Two, root: root.clone(), directory: own.clone() };
        let parent = limits.parent(&group).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(parent.directory, if is_root { root } else { own.clone() });
        assert_eq!(read(&parent.directory.join("cgroup.subtree_control")).unwrap(), "+cpu");
        if !is_root {
            assert_eq!(read(&own.join(TOOL).join("cgroup.procs")).unwrap(), "7");
        }
        let made = Group { directory: parent.directory.join("run-broker"), ..parent.clone() };
        fs::create_dir(&made.directory).unwrap();
        let (cpu, memory) = (made.directory.join("cpu.max"), made.directory.join("memory.max"));
        fs::write(&cpu, "max 100000\n").unwrap();
        let groups = || Some(Groups { cpu: made.clone(), memory: made.clone() });
        let number = limits.set("broker", groups(), Limit::Cpu(0.5)).unwrap();
        assert_eq!(read(&cpu).unwrap(), "50000 100000");
        limits.lift(number).unwrap();
        assert_eq!(read(&cpu).unwrap(), "max 100000\n");
        let error = limits.set("broker", groups(), Limit::Memory(1)).unwrap_err();
        assert!(error.contains("memory.max"), "{error}");
        assert!(limits.set("other", None, Limit::Memory(1)).unwrap_err().contains("other has no control group"));
        // Left to the journal: both limits, then the controller.
        fs::write(&memory, "max\n").unwrap();
        limits.set("broker", groups(), Limit::Cpu(0.5)).unwrap();
        limits.set("broker", groups(), Limit::Memory(1)).unwrap();
        assert!(limits.journal().unwrap().undo_all().is_empty());
        assert_eq!((read(&cpu).unwrap().as_str(), read(&memory).unwrap().as_str()), ("max 100000\n", "max\n"));
        assert_eq!(read(&parent.directory.join("cgroup.subtree_control")).unwrap(), "-cpu");
    }
}
