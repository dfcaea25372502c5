//! Commands of `docs/cluster.md`, taken from the page.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Cluster;
use crate::page::Page;
use crate::{root, said};

/// Programs of the page that these tests do not run: services, and clusters of Kubernetes.
const SKIPPED: [&str; 3] = ["sudo", "helm", "kubectl"];
/// First words of blocks that tests run as a whole: certificates and files of etcd.
const WHOLE: [&str; 2] = ["openssl req -x509", "ETCD_NAME="];

/// Commands of some parts of the page. A test runs all of them, in their order.
pub(crate) struct Commands {
    lines: VecDeque<String>,
    changes: Vec<(&'static str, String)>,
}

impl Commands {
    /// Commands of the parts with these titles.
    pub(crate) fn of(titles: &[&str]) -> Self {
        Self { lines: titles.iter().flat_map(|title| commands(part(title))).collect(), changes: Vec::new() }
    }

    /// Titles of all parts that have commands.
    pub(crate) fn titles() -> Vec<String> {
        parts().into_iter().filter_map(|(title, page)| (!commands(page).is_empty()).then_some(title)).collect()
    }

    /// Replaces a text of the further commands.
    pub(crate) fn replace(&mut self, from: &'static str, to: impl Into<String>) {
        self.changes.push((from, to.into()));
    }

    /// Takes the next command, which has to be this one, with the replaced texts.
    pub(crate) fn next(&mut self, command: &str) -> String {
        assert_eq!(self.lines.pop_front().as_deref(), Some(command), "the next command of docs/cluster.md");
        self.changes.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Runs the next command at a node, with the node's address and directories. Returns whether it has succeeded, and its
    /// output.
    pub(crate) fn attempt(&mut self, cluster: &Cluster, at: usize, command: &str) -> (bool, String) {
        let node = &cluster.nodes[at];
        let backups = cluster.directory().join("backup");
        std::fs::create_dir_all(&backups).expect("ours to write");
        let mut text = self.next(command);
        for (from, to) in [
            ("/var/lib/tenbin", node.data.display().to_string()),
            ("/etc/tenbin/tenbin.toml", node.config_path().to_owned()),
            ("10.0.0.2:7883", cluster.nodes[1].cluster.to_string()),
            ("/backup/", format!("{}/", backups.display())),
        ] {
            text = text.replace(from, &to);
        }
        let mut shell = shell(&text, cluster.directory());
        shell.env("TENBIN_DATA", &node.data).env("TENBIN_URL", format!("http://{}", node.admin));
        let output = shell.output().expect("a shell");
        (output.status.success(), said(&output))
    }

    /// As [`Commands::attempt`], for a command that has to succeed. Returns its output.
    pub(crate) fn run(&mut self, cluster: &Cluster, at: usize, command: &str) -> String {
        let (is_done, said) = self.attempt(cluster, at, command);
        assert!(is_done, "{command}: {said}");
        said
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        assert!(self.lines.is_empty() || std::thread::panicking(), "no test runs these commands: {:?}", self.lines);
    }
}

/// A shell that runs `text`, with the built program in its PATH.
pub(crate) fn shell(text: &str, directory: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tenbin")).parent().expect("a directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(program.to_owned()).chain(std::env::split_paths(&path)));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", text]).current_dir(directory).env("PATH", path.expect("readable names"));
    shell
}

/// The part of the page with this title.
pub(crate) fn part(title: &str) -> Page {
    let found = parts().into_iter().find(|(found, _)| found == title);
    found.unwrap_or_else(|| panic!("docs/cluster.md has no part {title}")).1
}

/// Parts of the page with their titles.
fn parts() -> Vec<(String, Page)> {
    let path = PathBuf::from("docs/cluster.md");
    let content = std::fs::read_to_string(root().join(&path)).expect("a page");
    let parts = content.split("\n## ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.map(|(title, text)| (title.to_owned(), Page::parse(path.clone(), text))).collect()
}

fn commands(mut page: Page) -> Vec<String> {
    page.blocks.retain(|(_, lines)| WHOLE.iter().all(|words| !lines[0].starts_with(words)));
    let is_skipped = |line: &String| SKIPPED.contains(&line.split(' ').next().unwrap_or_default());
    page.shell_lines().into_iter().filter(|line| !is_skipped(line)).collect()
}
