//! Control groups of the kernel, version 1 or 2: where they are, and the files of limits.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

/// Controllers that limits need.
const CONTROLLERS: [&str; 2] = ["cpu", "memory"];
/// Time in which a group gets its share of a processor, in microseconds.
const PERIOD: u64 = 100_000;

/// Group into which this program moves, because a delegated group must contain no processes.
pub(crate) const TOOL: &str = "tenbin-verify";

/// Version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// A control group, as one controller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) version: Version,
    /// Where its hierarchy is mounted.
    pub(crate) root: PathBuf,
    /// Its directory.
    pub(crate) directory: PathBuf,
}

/// Control groups of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    pub(crate) cpu: Group,
    pub(crate) memory: Group,
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

impl Groups {
    /// Groups of a process: its number, or `self`.
    ///
    /// # Errors
    /// The process is absent, or a controller is not mounted. The text names it.
    pub(crate) fn of(process: &str) -> Result<Self, String> {
        let read = |path: String| fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"));
        let mounts = read("/proc/self/mountinfo".to_owned())?;
        let groups = read(format!("/proc/{process}/cgroup"))?;
        let offers = |root: &Path, controller: &str| {
            let offered = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            offered.split_whitespace().any(|offered| offered == controller)
        };
        let [cpu, memory] = CONTROLLERS.map(|controller| {
            let found = Group::find(&mounts, &groups, controller, |root| offers(root, controller));
            found.ok_or_else(|| format!("the controller {controller} of control groups is not mounted here"))
        });
        Ok(Self { cpu: cpu?, memory: memory? })
    }

    /// Files of a limit and their content, in the order in which they are written.
    pub(crate) fn files(&self, limit: Limit) -> Vec<(PathBuf, String)> {
        let file = |group: &Group, name: &str, content: String| (group.directory.join(name), content);
        match limit {
            Limit::Cpu(processors) => {
                // The kernel takes no less than 1 ms.
                let quota = ((processors * PERIOD as f64) as u64).max(1_000);
                match self.cpu.version {
                    Version::One => vec![
                        file(&self.cpu, "cpu.cfs_period_us", PERIOD.to_string()),
                        file(&self.cpu, "cpu.cfs_quota_us", quota.to_string()),
                    ],
                    Version::Two => vec![file(&self.cpu, "cpu.max", format!("{quota} {PERIOD}"))],
                }
            }
            Limit::Memory(bytes) => {
                let name = match self.memory.version {
                    Version::One => "memory.limit_in_bytes",
                    Version::Two => "memory.max",
                };
                vec![file(&self.memory, name, bytes.to_string())]
            }
        }
    }

    /// Checks that groups for limits can be made here.
    ///
    /// # Errors
    /// Reason why they cannot.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_root = rustix::process::geteuid().is_root();
        [&self.cpu, &self.memory].into_iter().try_for_each(|group| group.home(is_root).map(|_| ()))
    }

    /// The versions, for people.
    pub(crate) fn description(&self) -> String {
        let version = |group: &Group| if group.version == Version::One { 1 } else { 2 };
        format!("version {} for cpu, {} for memory", version(&self.cpu), version(&self.memory))
    }
}

impl Group {
    /// Where a program in this group makes groups: in this group, or as root at the top of the hierarchy. In version 2 a
    /// group has processes or groups for limits, so that a program in a delegated group moves out of the way, which is
    /// possible if all processes in it are its own.
    ///
    /// # Errors
    /// Reason why it cannot.
    pub(crate) fn home(&self, is_root: bool) -> Result<Home, String> {
        let Self { version, root, directory } = self;
        let home = |directory: &Path, must_leave| {
            let written = if *version == Version::One { directory } else { &directory.join(SUBTREE) };
            let home = Home { directory: directory.to_owned(), must_leave };
            let is_writable = access(written, Access::WRITE_OK);
            is_writable.map(|()| home).map_err(|error| format!("cannot write to {}: {error}", written.display()))
        };
        if *version == Version::One {
            return home(directory, false);
        }
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

    /// The group with `controller` in `groups`, the content of `/proc/PID/cgroup`. `mounts` is that of
    /// `/proc/self/mountinfo`; `offers` tells whether a hierarchy of version 2 has the controller.
    fn find(mounts: &str, groups: &str, controller: &str, offers: impl Fn(&Path) -> bool) -> Option<Self> {
        let mut hierarchies = mounts.lines().filter_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (top, root) = (mount.next()?, PathBuf::from(mount.next()?));
            let mut filesystem = filesystem.split(' ');
            let version = match filesystem.next()? {
                "cgroup" if filesystem.nth(1)?.split(',').any(|option| option == controller) => Version::One,
                "cgroup2" if offers(&root) => Version::Two,
                _ => return None,
            };
            Some((version, top, root))
        });
        let (version, top, root) = hierarchies.next()?;
        let mut lines = groups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_it = match version {
                Version::One => controllers.split(',').any(|name| name == controller),
                Version::Two => controllers.is_empty(),
            };
            is_it.then_some(path)
        });
        let path = lines.next()?;
        // A mount may show a part of the hierarchy only.
        let path = path.strip_prefix(top).unwrap_or(path).trim_start_matches('/');
        let directory = if path.is_empty() { root.clone() } else { root.join(path) };
        Some(Self { version, root, directory })
    }
}

/// File of version 2 with the controllers of the groups in a group.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";

/// True for a top of version 2 in which groups with limits can be made although it has processes: the kernel's own top,
/// which has no type, or one in which all controllers are on. A container sees another group as the top.
fn is_free(top: &Path) -> bool {
    let enabled = fs::read_to_string(top.join(SUBTREE)).unwrap_or_default();
    let is_on = |controller: &&str| enabled.split_whitespace().any(|enabled| enabled == *controller);
    !top.join("cgroup.type").exists() || CONTROLLERS.iter().all(is_on)
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
        let group = Group { version: Version::Two, root: root.clone(), directory: own.clone() };
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

    const ONE: &str = "\
31 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:28 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const TWO: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn found(mounts: &str, groups: &str) -> Groups {
        let find = |controller: &str| {
            let offers = |root: &Path| root == Path::new("/sys/fs/cgroup");
            Group::find(mounts, groups, controller, offers).unwrap()
        };
        Groups { cpu: find("cpu"), memory: find("memory") }
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        let one = found(ONE, "9:memory:/docker/x/a\n4:cpu,cpuacct:/b\n1:name=systemd:/\n0::/c\n");
        assert_eq!(one.cpu.directory, Path::new("/sys/fs/cgroup/cpu,cpuacct/b"));
        assert_eq!(one.memory.directory, Path::new("/sys/fs/cgroup/memory/a"));
        assert_eq!(one.description(), "version 1 for cpu, 1 for memory");
        let two = found(TWO, "0::/user.slice/a.scope\n");
        assert_eq!(two.cpu.directory, Path::new("/sys/fs/cgroup/user.slice/a.scope"));
        assert_eq!((two.cpu.version, &two.memory), (Version::Two, &two.cpu));
        assert_eq!(Group::find(TWO, "0::/\n", "cpu", |_| false), None, "a hierarchy without the controller");
    }

    #[test]
    fn limits_are_files_of_the_version() {
        let files = |groups: &Groups, limit| {
            let files = groups.files(limit).into_iter();
            files.map(|(path, content)| format!("{}={content}", path.display())).collect::<Vec<_>>().join(" ")
        };
        let one = found(ONE, "9:memory:/docker/x\n4:cpu,cpuacct:/b\n");
        let cpu = "/sys/fs/cgroup/cpu,cpuacct/b/cpu.cfs";
        assert_eq!(files(&one, Limit::Cpu(0.25)), format!("{cpu}_period_us=100000 {cpu}_quota_us=25000"));
        assert_eq!(files(&one, Limit::Memory(5)), "/sys/fs/cgroup/memory/memory.limit_in_bytes=5");
        let two = found(TWO, "0::/\n");
        assert_eq!(files(&two, Limit::Cpu(0.0)), "/sys/fs/cgroup/cpu.max=1000 100000");
        assert_eq!(files(&two, Limit::Memory(5)), "/sys/fs/cgroup/memory.max=5");
    }
}
