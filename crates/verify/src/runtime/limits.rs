//! Limits of instances and clients. Each target of a limiting fault is started in a separate control group.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tenbin_lab::journal::{Entry, Journal, Undo};

use super::Site;
use crate::groups::{CONTROLLERS, Group, Home, Limit, SUBTREE, TOOL};
use crate::line::Line;
use crate::plan::Plan;
use crate::template::Fault;

/// Limits of a run.
pub(crate) struct Limits {
    journal: Option<Arc<Journal>>,
    groups: HashMap<String, Group>,
    set: Mutex<Set>,
}

/// Limits in effect.
#[derive(Default)]
struct Set {
    last: u64,
    files: BTreeMap<PathBuf, Stack>,
}

/// Contents of a file by the numbers of their limits, the newest last. That is in the file.
struct Stack {
    original: Entry,
    contents: Vec<(u64, String)>,
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
        let parent = limits.parent(&Group::of("self")?, rustix::process::geteuid().is_root())?;
        for name in names {
            let group = limits.make(&parent, &format!("{run}-{name}"))?;
            limits.groups.insert(name, group);
        }
        Ok(limits)
    }

    /// The command in the group of a member, with all processes that it starts.
    pub(crate) fn inside(&self, member: &str, line: &Line) -> Line {
        let Some(group) = self.groups.get(member) else { return line.clone() };
        let script = "echo 0 > \"$1/cgroup.procs\" || exit; shift; exec \"$@\"";
        let group = group.directory.display().to_string();
        let arguments = ["-c".to_owned(), script.to_owned(), "sh".to_owned(), group, line.program.clone()];
        let arguments = arguments.into_iter().chain(line.arguments.iter().cloned());
        Line { environment: line.environment.clone(), ..Line::new("/bin/sh", arguments) }
    }

    /// Limits a member, or the container with this group; returns the number of the limit.
    pub(crate) fn set(&self, member: &str, own: Option<Group>, limit: Limit) -> Result<u64, String> {
        let group = own.as_ref().or_else(|| self.groups.get(member));
        let group = group.ok_or_else(|| format!("{member} has no control group"))?;
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.last += 1;
        let number = set.last;
        let (path, content) = group.file(limit);
        if let Err(reason) = self.push(&mut set, number, path, content) {
            self.take(&mut set, number)?;
            return Err(reason);
        }
        Ok(number)
    }

    /// Ends a limit: writes the newest one of the others, or the content before all of them.
    pub(crate) fn lift(&self, number: u64) -> Result<(), String> {
        self.take(&mut self.set.lock().unwrap_or_else(PoisonError::into_inner), number)
    }

    fn push(&self, set: &mut Set, number: u64, path: PathBuf, content: String) -> Result<(), String> {
        let stack = match set.files.entry(path.clone()) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(free) => {
                let original = self.record(Undo::Write { path: path.clone(), content: read(&path)? })?;
                free.insert(Stack { original, contents: Vec::new() })
            }
        };
        stack.contents.push((number, content.clone()));
        write(&path, &content)
    }

    fn take(&self, set: &mut Set, number: u64) -> Result<(), String> {
        let mut taken = Ok(());
        for (path, stack) in &mut set.files {
            let Some(at) = stack.contents.iter().position(|(of, _)| *of == number) else { continue };
            let is_newest = at + 1 == stack.contents.len();
            stack.contents.remove(at);
            let written = match stack.contents.last() {
                None => self.journal().and_then(|own| own.undo(stack.original).map_err(|error| error.to_string())),
                // A container that ended has taken its group along.
                Some((_, content)) if is_newest && path.exists() => write(path, content),
                Some(_) => Ok(()),
            };
            taken = taken.and(written);
        }
        set.files.retain(|_, stack| !stack.contents.is_empty());
        taken
    }

    fn record(&self, undo: Undo) -> Result<Entry, String> {
        self.journal()?.record(undo).map_err(|error| error.to_string())
    }

    fn journal(&self) -> Result<&Journal, String> {
        self.journal.as_deref().ok_or_else(|| "limits need the program tenbin-verify".to_owned())
    }

    /// The group in which groups of the run are made, with its controllers on.
    fn parent(&self, own: &Group, is_root: bool) -> Result<Group, String> {
        let Home { directory, must_leave } = own.home(is_root)?;
        if must_leave {
            // The group and its processes end with the delegated one.
            let tool = directory.join(TOOL);
            let _ = fs::create_dir(&tool);
            let to = tool.join("cgroup.procs");
            for process in read(&directory.join("cgroup.procs"))?.lines() {
                match fs::write(&to, process) {
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                    moved => moved.map_err(|error| format!("cannot move process {process}: {error}"))?,
                }
            }
        }
        let file = directory.join(SUBTREE);
        let enabled = read(&file)?;
        for controller in CONTROLLERS.into_iter().filter(|name| !enabled.split_whitespace().any(|one| one == *name)) {
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
        // A hierarchy as files: a group with this program in it.
        let root = directory.path().join("cgroup");
        let own = root.join("scope");
        fs::create_dir_all(&own).unwrap();
        for group in [&root, &own] {
            fs::write(group.join("cgroup.subtree_control"), "memory\n").unwrap();
            fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        }
        let group = Group { root: root.clone(), directory: own.clone() };
        assert_eq!(limits.parent(&group, true).unwrap().directory, root);
        let parent = limits.parent(&group, false).unwrap();
        assert_eq!(parent.directory, own);
        assert_eq!(read(&own.join("cgroup.subtree_control")).unwrap(), "+cpu");
        assert_eq!(read(&own.join(TOOL).join("cgroup.procs")).unwrap(), std::process::id().to_string());
        let made = Group { directory: parent.directory.join("run-broker"), ..parent.clone() };
        fs::create_dir(&made.directory).unwrap();
        let (cpu, memory) = (made.directory.join("cpu.max"), made.directory.join("memory.max"));
        fs::write(&cpu, "max 100000\n").unwrap();
        let group = || Some(made.clone());
        let number = limits.set("broker", group(), Limit::Cpu(0.5)).unwrap();
        assert_eq!(read(&cpu).unwrap(), "50000 100000");
        limits.lift(number).unwrap();
        assert_eq!(read(&cpu).unwrap(), "max 100000\n");
        // Limits that overlap: the newest one in effect holds.
        let set = |share| limits.set("broker", group(), Limit::Cpu(share)).unwrap();
        let (first, second, third) = (set(0.5), set(0.25), set(0.125));
        for (ended, now) in [(second, "12500 100000"), (third, "50000 100000"), (first, "max 100000\n")] {
            limits.lift(ended).unwrap();
            assert_eq!(read(&cpu).unwrap(), now);
        }
        let error = limits.set("broker", group(), Limit::Memory(1)).unwrap_err();
        assert!(error.contains("memory.max"), "{error}");
        assert!(limits.set("other", None, Limit::Memory(1)).unwrap_err().contains("other has no control group"));
        // Left to the journal: both limits, then the controller.
        fs::write(&memory, "max\n").unwrap();
        limits.set("broker", group(), Limit::Cpu(0.5)).unwrap();
        limits.set("broker", group(), Limit::Memory(1)).unwrap();
        assert!(limits.journal().unwrap().undo_all().is_empty());
        assert_eq!((read(&cpu).unwrap().as_str(), read(&memory).unwrap().as_str()), ("max 100000\n", "max\n"));
        assert_eq!(read(&parent.directory.join("cgroup.subtree_control")).unwrap(), "-cpu");
    }
}
