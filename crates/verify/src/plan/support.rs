//! Support of faults by runtimes, and prerequisites of both.

use std::env;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::groups::Group;
use crate::kind::Kind;
use crate::template::{Fault, Runtime};
use tenbin_loadgen::drivers::installed;

/// A prerequisite of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// User namespaces for ordinary users, or root.
    UserNamespaces,
    /// The rights of root.
    Root,
    /// Root, or a control group that was delegated to the user.
    ControlGroup,
    /// A daemon that the program `docker` reaches.
    DockerDaemon,
    /// A program in `PATH`.
    Program(String),
    /// The library libfaketime.
    Libfaketime,
    /// An environment variable that the template names.
    Variable(String),
    /// The jars of Kafka.
    KafkaJars,
}

/// Prerequisites of `fault` on an instance of `kind` with `runtime`.
///
/// # Errors
/// Reason why the runtime cannot inject it, with a correction behind `; `.
pub fn support(fault: &Fault, runtime: Runtime, kind: Option<Kind>) -> Result<Vec<Need>, String> {
    let program = |name: &str| Need::Program(name.to_owned());
    let name = fault.name();
    if runtime == Runtime::Processes && (name.starts_with("net.") || *fault == Fault::Failover) {
        return Err(format!(
            "runtime processes has no network to break, so {name} is not supported; use runtime: namespaces"
        ));
    }
    match fault {
        Fault::CpuLimit { .. } | Fault::MemoryLimit { .. } => match runtime {
            Runtime::Docker => Ok(vec![]),
            Runtime::Processes => Err(format!(
                "runtime processes has no control groups, so {name} is not supported; use runtime: namespaces"
            )),
            _ => Ok(vec![Need::ControlGroup]),
        },
        Fault::PowerCut => match runtime {
            Runtime::Docker | Runtime::Processes => {
                Err(format!("runtime {} has no disk image to cut off; use runtime: namespaces", runtime.name()))
            }
            Runtime::Namespaces | Runtime::Ssh => Ok(vec![Need::Root, program("mount"), program("mkfs.ext4")]),
        },
        Fault::DiskFull { .. } if runtime == Runtime::Processes => {
            Err("runtime processes has no filesystem to fill; use runtime: namespaces".to_owned())
        }
        Fault::ClockSkew { .. } => match kind.filter(|kind| kind.is_static()) {
            Some(kind) => Err(format!(
                "{} is linked statically, so libfaketime cannot change the clock of {}; choose another target",
                kind.program().unwrap_or_default(),
                kind.name()
            )),
            None => Ok(vec![Need::Libfaketime]),
        },
        _ => Ok(vec![]),
    }
}

/// Prerequisites of a runtime.
pub fn need_of_runtime(runtime: Runtime) -> Vec<Need> {
    let program = |name: &str| Need::Program(name.to_owned());
    match runtime {
        Runtime::Namespaces => vec![Need::UserNamespaces, program("unshare"), program("ip")],
        Runtime::Docker => {
            let programs = ["unshare", "ip", "nsenter", "flock", "docker"].map(program);
            [Need::Root, Need::DockerDaemon].into_iter().chain(programs).collect()
        }
        Runtime::Ssh => vec![program("ssh"), program("sha256sum")],
        Runtime::Processes => vec![],
    }
}

/// Reason why this machine lacks `need`, and what to do; `None` if it is there.
pub fn missing(need: &Need) -> Option<String> {
    match need {
        Need::Root => (!is_root()).then(|| "run it as root".to_owned()),
        Need::UserNamespaces => {
            let is_allowed = is_root() || user_namespaces_are_allowed();
            (!is_allowed).then(|| {
                "allow them with sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns, or run it as root"
                    .to_owned()
            })
        }
        Need::ControlGroup => {
            let reason = Group::of("self").and_then(|group| group.home(is_root())).err()?;
            let hint = "run it in a delegated control group (systemd-run --user --scope -p Delegate=yes), or as root";
            Some(format!("{reason}; {hint}"))
        }
        Need::DockerDaemon => {
            let asked = Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]).output();
            let is_there = asked.is_ok_and(|output| output.status.success());
            (!is_there).then(|| "start the daemon of Docker, or name its socket by DOCKER_HOST".to_owned())
        }
        Need::Program(name) => {
            let how = match name.as_str() {
                "nats-server" => format!("fetch it with verifications/systems/install nats, or install {name}"),
                _ => format!("install {name}, or add its directory to PATH"),
            };
            (!installed::has(name)).then_some(how)
        }
        Need::KafkaJars => installed::kafka_jars().err(),
        Need::Variable(name) => env::var_os(name).is_none().then(|| format!("set it: {name}=… tenbin-verify …")),
        Need::Libfaketime => {
            let is_there = ["lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]
                .iter()
                .any(|directory| Path::new("/usr").join(directory).join("faketime/libfaketime.so.1").exists());
            (!is_there).then(|| "install libfaketime".to_owned())
        }
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

fn user_namespaces_are_allowed() -> bool {
    let value = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let most = value("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let is_restricted = value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1)
        || value("/proc/sys/kernel/unprivileged_userns_clone") == Some(0);
    most > 0 && !is_restricted
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserNamespaces => f.write_str("user namespaces"),
            Self::Root => f.write_str("root"),
            Self::ControlGroup => f.write_str("a control group"),
            Self::Program(name) => write!(f, "the program {name}"),
            Self::DockerDaemon => f.write_str("a Docker daemon"),
            Self::Libfaketime => f.write_str("libfaketime"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::KafkaJars => f.write_str("Kafka's jars"),
        }
    }
}
