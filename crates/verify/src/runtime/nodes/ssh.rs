//! Command lines of the system's `ssh`, and the copy of this program on a node.

use std::fs::{File, OpenOptions};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tenbin_kit::programs::Program;

use crate::plan::{self, Plan};

/// Variable with the path of a private key.
const KEY: &str = "VERIFY_SSH_KEY";
/// Directory of copied programs, by their hashes.
const CACHE: &str = r#"d="${XDG_CACHE_HOME:-$HOME/.cache}/tenbin/verify""#;
/// Programs of the system that an ordinary user's PATH may lack.
const PATH: &str = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin";

/// Options of each connection. A shared one would outlive the end of its `ssh`, and with it what runs on the node.
const OPTIONS: [&str; 6] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=3",
    "ServerAliveCountMax=3",
    "ControlMaster=no",
    "ControlPath=none",
];

/// Access to a node by `ssh`, with the user's configuration, agent and jump hosts.
#[derive(Debug, Clone)]
pub(crate) struct Ssh {
    name: String,
    address: IpAddr,
    user: Option<String>,
    key: Option<PathBuf>,
}

impl Ssh {
    /// Access to `node` as the plan and the environment want it.
    pub(crate) fn new(plan: &Plan, node: &plan::Node) -> Self {
        let key = std::env::var_os(KEY).filter(|key| !key.is_empty()).map(PathBuf::from);
        Self { name: node.name.clone(), address: node.address, user: plan.user.clone(), key }
    }

    /// Command that copies a program to the node, for display.
    pub(crate) fn shown_copy(&self, program: Program, hash: &str) -> String {
        format!("ssh {}", self.arguments(&copying(program, hash)).join(" "))
    }

    /// Command that starts the remote end, for display.
    pub(crate) fn shown_start(&self, hash: &str) -> String {
        format!("ssh {}", self.arguments(&starting(hash, &[])).join(" "))
    }

    /// Copies a program to the node, unless it is there.
    ///
    /// # Errors
    /// The node cannot be reached, or lacks space. The text names it.
    pub(super) fn copy(&self, program: Program, file: &Path, hash: &str) -> Result<(), String> {
        let opened = File::open(file).map_err(|error| format!("cannot open {}: {error}", file.display()))?;
        let is_there = self.command(&looking(program, hash)).stdin(Stdio::null()).output();
        // A login may print more before it.
        let is_there = self.succeeded(is_there)?.lines().last() == Some("present");
        if !is_there {
            self.succeeded(self.command(&copying(program, hash)).stdin(opened).output())?;
        }
        Ok(())
    }

    /// Starts the copied program as `tenbin-verify node` with further arguments. Its errors, and those of `ssh`, are
    /// appended to `log`.
    pub(super) fn start(
        &self,
        hash: &str,
        arguments: &[String],
        log: &Path,
        streams: (Stdio, Stdio),
    ) -> Result<Child, String> {
        let log = OpenOptions::new().create(true).append(true).open(log);
        let log = log.map_err(|error| format!("{self}: cannot open its log: {error}"))?;
        let mut command = self.command(&starting(hash, arguments));
        let child = command.stdin(streams.0).stdout(streams.1).stderr(log).spawn();
        child.map_err(|error| format!("{self}: cannot start ssh: {error}"))
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("ssh");
        // Signals of the terminal are for the controller, which ends the run in its own way.
        command.args(self.arguments(script)).process_group(0);
        command
    }

    fn arguments(&self, script: &str) -> Vec<String> {
        let mut line: Vec<String> = OPTIONS.iter().flat_map(|option| ["-o", option]).map(str::to_owned).collect();
        line.push("-T".to_owned());
        if let Some(key) = &self.key {
            line.extend(["-o".to_owned(), "IdentitiesOnly=yes".to_owned(), "-i".to_owned(), key.display().to_string()]);
        }
        if let Some(user) = &self.user {
            line.extend(["-l".to_owned(), user.clone()]);
        }
        // The user's login shell on the node may be any: it only starts another.
        line.extend([self.address.to_string(), format!("exec sh -c '{script}'")]);
        line
    }

    /// Standard output of a command that must have succeeded.
    fn succeeded(&self, output: std::io::Result<std::process::Output>) -> Result<String, String> {
        let output = output.map_err(|error| format!("{self}: cannot start ssh: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{self}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl std::fmt::Display for Ssh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} ({})", self.name, self.address)
    }
}

/// Tells whether the node has the program already. No script contains a single quote.
fn looking(program: Program, hash: &str) -> String {
    let name = name(program, hash);
    format!(r#"{CACHE}; f="$d/{name}"; [ -x "$f" ] && [ "$({})" = {hash} ] && echo present || true"#, sum("$f"))
}

/// Copies standard input to the program's place, if it has the hash.
fn copying(program: Program, hash: &str) -> String {
    let name = name(program, hash);
    format!(
        r#"{CACHE}; umask 077; mkdir -p "$d" && t="$d/.$$" && trap "rm -f \"$t\"" EXIT && cat > "$t" && [ "$({})" = {hash} ] && chmod 700 "$t" && mv "$t" "$d/{name}""#,
        sum("$t")
    )
}

fn starting(hash: &str, arguments: &[String]) -> String {
    let arguments: String = arguments.iter().map(|argument| format!(" {argument}")).collect();
    let name = name(Program::Verify, hash);
    format!(r#"{CACHE}; {PATH} exec "$d/{name}" node{arguments}"#)
}

/// Name of a copied program's file.
pub(super) fn name(program: Program, hash: &str) -> String {
    format!("{}-{hash}", program.name())
}

fn sum(file: &str) -> String {
    format!(r#"sha256sum < "{file}" | cut -c 1-64"#)
}

/// SHA-256 of a program that is installed here.
///
/// # Errors
/// As [`hash`], or the program is not installed.
pub(crate) fn hash_of(program: Program) -> Result<String, String> {
    match program {
        Program::Verify => hash(&std::env::current_exe().map_err(|error| format!("cannot find the program: {error}"))?),
        other => hash(&other.find().map_err(|error| error.to_string())?),
    }
}

/// SHA-256 of a file, as hexadecimal digits.
///
/// # Errors
/// The file cannot be read, or the program `sha256sum` is missing.
pub(super) fn hash(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let output = Command::new("sha256sum").stdin(file).output();
    let output = output.map_err(|error| format!("cannot start sha256sum: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let hash = text.split_whitespace().next().filter(|hash| hash.len() == 64);
    hash.map(str::to_owned).ok_or_else(|| format!("sha256sum printed no hash of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_user_and_address() {
        let ssh = Ssh {
            name: "node-1".to_owned(),
            address: [192, 0, 2, 11].into(),
            user: Some("verify".to_owned()),
            key: Some("/keys/one".into()),
        };
        let [copy, start] = [ssh.shown_copy(Program::Verify, "0123"), ssh.shown_start("0123")];
        let begin = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=3 -o ServerAliveCountMax=3 \
                     -o ControlMaster=no -o ControlPath=none -T -o IdentitiesOnly=yes -i /keys/one -l verify 192.0.2.11 exec sh -c '";
        for line in [&copy, &start] {
            assert!(line.starts_with(begin) && line.matches('\'').count() == 2, "{line}");
        }
        assert!(start.contains("tenbin-verify-0123\" node'"), "{start}");
    }

    /// Runs a script as the node's shell would, with a separate cache.
    fn run(script: &str, cache: &Path, input: Stdio) -> std::process::Output {
        Command::new("sh").args(["-c", script]).env("XDG_CACHE_HOME", cache).stdin(input).output().unwrap()
    }

    #[test]
    fn program_is_copied_once_and_only_whole() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::write(&program, "#!/bin/sh\necho \"$@\"\n").unwrap();
        let (hash, cache) = (hash(&program).unwrap(), directory.path().join("cache"));
        let is_there = || run(&looking(Program::Verify, &hash), &cache, Stdio::null()).stdout == b"present\n";
        assert!(!is_there());
        // A connection that ends early.
        assert!(!run(&copying(Program::Verify, &hash), &cache, Stdio::null()).status.success());
        assert!(!is_there());
        assert!(run(&copying(Program::Verify, &hash), &cache, File::open(&program).unwrap().into()).status.success());
        assert!(is_there());
        let files = std::fs::read_dir(cache.join("tenbin/verify")).unwrap().count();
        assert_eq!(files, 1, "nothing but the program");
        let started = run(&starting(&hash, &["--attach".to_owned(), "/x".to_owned()]), &cache, Stdio::null());
        assert_eq!(String::from_utf8_lossy(&started.stdout), "node --attach /x\n");
    }
}
