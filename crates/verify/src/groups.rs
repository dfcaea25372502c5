//! Control groups of the kernel, version 2: where they are, and the files of limits.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

/// Controllers that limits need.
pub(crate) const CONTROLLERS: [&str; 2] = ["cpu", "memory"];
/// Time in which a group gets its share of a processor, in microseconds.
const PERIOD: u64 = 100_000;

/// Group into which this program moves, because a delegated group must contain no processes.
pub(crate) const TOOL: &str = "tenbin-verify";

/// A control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// Where its hierarchy is mounted.
    pub(crate) root: PathBuf,
    /// Its directory.
    pub(crate) directory: PathBuf,
}

/// Limit of a group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Limit {
    /// Processors, as 0.5.
    Cpu(f64),
    /// Bytes of memory.
    Memory(u64),
}

/// Where the groups of a run are made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) directory: PathBuf,
    /// True if this program must move out of it, into [`TOOL`].
    pub(crate) must_leave: bool,
}

impl Group {
    /// Group of a process: its number, or `self`.
    ///
    /// # Errors
    /// The process is absent, or a hierarchy with the controllers is not mounted. The text says so.
    pub(crate) fn of(process: &str) -> Result<Self, String> {
        let read = |path: String| fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"));
        let mounts = read("/proc/self/mountinfo".to_owned())?;
        let groups = read(format!("/proc/{process}/cgroup"))?;
        Self::find(&mounts, &groups, |root| has_controllers(&root.join("cgroup.controllers"))).ok_or_else(|| {
            "control groups of version 2 with the controllers cpu and memory are not mounted here".to_owned()
        })
    }

    /// File of a limit and its content.
    pub(crate) fn file(&self, limit: Limit) -> (PathBuf, String) {
        match limit {
            Limit::Cpu(processors) => {
                // The kernel takes no less than 1 ms.
                let quota = ((processors * PERIOD as f64) as u64).max(1_000);
                (self.directory.join("cpu.max"), format!("{quota} {PERIOD}"))
            }
            Limit::Memory(bytes) => (self.directory.join("memory.max"), bytes.to_string()),
        }
    }

    /// Where a program in this group makes groups: in this group, or as root at the top of the hierarchy. A group has
    /// processes or groups for limits, so that a program in a delegated group moves out of the way, which is possible if
    /// all processes in it are its own.
    ///
    /// # Errors
    /// Reason why it cannot.
    pub(crate) fn home(&self, is_root: bool) -> Result<Home, String> {
        let Self { root, directory } = self;
        let home = |directory: &Path, must_leave| {
            let written = directory.join(SUBTREE);
            let home = Home { directory: directory.to_owned(), must_leave };
            let is_writable = access(&written, Access::WRITE_OK);
            is_writable.map(|()| home).map_err(|error| format!("cannot write to {}: {error}", written.display()))
        };
        if is_root && is_free(root) {
            return home(root, false);
        }
        if directory.ends_with(TOOL) {
            return home(directory.parent().unwrap_or(root), false);
        }
        let processes = directory.join("cgroup.procs");
        let list = fs::read_to_string(&processes);
        let list = list.map_err(|error| format!("cannot read {}: {error}", processes.display()))?;
        match list.lines().find(|process| !is_own(process)) {
            Some(other) => Err(format!("{} has process {other}, which is not this program's", directory.display())),
            None => home(directory, true),
        }
    }

    /// The group in `groups`, the content of `/proc/PID/cgroup`. `mounts` is that of `/proc/self/mountinfo`; `offers`
    /// tells whether a hierarchy has the controllers.
    fn find(mounts: &str, groups: &str, offers: impl Fn(&Path) -> bool) -> Option<Self> {
        let mut hierarchies = mounts.lines().filter_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (top, root) = (mount.next()?, PathBuf::from(mount.next()?));
            (filesystem.starts_with("cgroup2 ") && offers(&root)).then_some((top, root))
        });
        let (top, root) = hierarchies.next()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        // A mount may show a part of the hierarchy only.
        let path = path.strip_prefix(top).unwrap_or(path).trim_start_matches('/');
        let directory = if path.is_empty() { root.clone() } else { root.join(path) };
        Some(Self { root, directory })
    }
}

/// File with the controllers of the groups in a group.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";

/// True for a top in which groups with limits can be made although it has processes: the kernel's own top,
/// which has no type, or one in which all controllers are on. A container sees another group as the top.
fn is_free(top: &Path) -> bool {
    !top.join("cgroup.type").exists() || has_controllers(&top.join(SUBTREE))
}

/// True if a file of a group lists the controllers that limits need.
fn has_controllers(file: &Path) -> bool {
    let listed = fs::read_to_string(file).unwrap_or_default();
    CONTROLLERS.iter().all(|controller| listed.split_whitespace().any(|listed| listed == *controller))
}

/// True for this program, for a process that it started or one of those started, and for one that is gone.
fn is_own(process: &str) -> bool {
    let mut process = process.to_owned();
    loop {
        if process == std::process::id().to_string() {
            return true;
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) else { return process != "0" };
        process = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or("0").trim().to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_made_at_a_free_top_or_beside_own_processes() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let own = root.join("scope");
        fs::create_dir(&own).unwrap();
        let group = Group { root: root.clone(), directory: own.clone() };
        let at = |directory: &Path, must_leave| Ok(Home { directory: directory.to_owned(), must_leave });
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(own.join(SUBTREE), "").unwrap();
        fs::write(own.join("cgroup.procs"), format!("{}\n{}\n", std::process::id(), child.id())).unwrap();
        assert_eq!(group.home(false), at(&own, true));
        assert!(group.home(true).unwrap_err().contains(SUBTREE), "the top has no file to write to");
        fs::write(root.join(SUBTREE), "memory\n").unwrap();
        assert_eq!(group.home(true), at(&root, false));
        // As in a container, whose top is a group of its host.
        fs::write(root.join("cgroup.type"), "domain\n").unwrap();
        assert_eq!(group.home(true), at(&own, true));
        fs::write(root.join(SUBTREE), "cpu memory\n").unwrap();
        assert_eq!(group.home(true), at(&root, false));
        child.kill().unwrap();
        child.wait().unwrap();
        // Our parent is another program.
        fs::write(own.join("cgroup.procs"), format!("{}\n", std::os::unix::process::parent_id())).unwrap();
        let error = group.home(false).unwrap_err();
        assert!(error.contains("not this program's"), "{error}");
        let tool = Group { directory: own.join(TOOL), ..group };
        assert_eq!(tool.home(false), at(&own, false));
    }

    const MOUNTS: &str = "\
31 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:29 /docker/x /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn group_is_found_where_its_hierarchy_is_mounted() {
        let at = |groups: &str| {
            let found = Group::find(MOUNTS, groups, |root| root == Path::new("/sys/fs/cgroup/unified"));
            found.map(|group| group.directory.display().to_string())
        };
        assert_eq!(at("4:cpu,cpuacct:/b\n0::/docker/x/a\n").as_deref(), Some("/sys/fs/cgroup/unified/a"));
        assert_eq!(at("0::/docker/x\n").as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(at("4:cpu,cpuacct:/b\n"), None, "version 1");
        assert_eq!(Group::find(MOUNTS, "0::/\n", |_| false), None, "a hierarchy without the controllers");
    }

    #[test]
    fn limits_are_files_of_the_group() {
        let group = Group { root: "/g".into(), directory: "/g/a".into() };
        assert_eq!(group.file(Limit::Cpu(0.0)), ("/g/a/cpu.max".into(), "1000 100000".to_owned()));
        assert_eq!(group.file(Limit::Cpu(0.25)), ("/g/a/cpu.max".into(), "25000 100000".to_owned()));
        assert_eq!(group.file(Limit::Memory(5)), ("/g/a/memory.max".into(), "5".to_owned()));
    }
}
