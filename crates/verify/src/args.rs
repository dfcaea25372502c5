//! Arguments of `tenbin-verify`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::judge::assertion::help;

/// Verifies how a publish/subscribe system behaves under faults.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Start systems, break them under load, and judge the outcome
    Run(RunArgs),
    /// Print every process, address, change and its undo in order; start nothing
    Plan(PlanArgs),
    /// Check files; without files, list the faults that this machine supports and the missing prerequisites
    Check(CheckArgs),
    /// List the ready verifications
    List,
    /// Build the page of results anew; several directories give one comparison
    Report(ReportArgs),
    /// Undo the leftovers of runs that were killed
    Restore(RestoreArgs),
    /// Helper processes of a lab
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Exit with code 0 if a port accepts connections
    #[command(hide = true)]
    AwaitPort(AwaitPortArgs),
    /// Print the name of the leading instance, or nothing while there is none
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// Print the status of a node of a pair or cluster
    #[command(hide = true)]
    Status(StatusArgs),
    /// Load processes of faults
    #[command(hide = true)]
    Burden(BurdenArgs),
    /// Clients of a run, steered at standard input and output
    #[command(hide = true)]
    Agent(tenbin_loadgen::AgentArgs),
    /// A relay to a program outside of the lab
    #[command(hide = true)]
    Relay(RelayArgs),
    /// Remote end of runtime ssh, at standard input and output
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Arguments of `guard`, which only the lab itself gives.
#[derive(Debug, Clone, Args)]
pub struct GuardArgs {
    /// Role and settings.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// Arguments of `await-port`.
#[derive(Debug, Clone, Args)]
pub struct AwaitPortArgs {
    /// HOST:PORT
    pub address: String,
    /// Want the answer to a CONNECT packet of MQTT too
    #[arg(long)]
    pub mqtt: bool,
    /// Want `GET /health` to say that the server is healthy
    #[arg(long, conflicts_with = "mqtt")]
    pub health: bool,
}

/// Arguments of `status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Unix socket of the node
    pub socket: PathBuf,
    /// Ask once for each line of the standard input, and print "-" for a node that does not answer
    #[arg(long)]
    pub stream: bool,
}

/// Arguments of `burden`.
#[derive(Debug, Clone, Args)]
pub struct BurdenArgs {
    /// Directory for its files
    pub directory: PathBuf,
    /// cpu, memory or disk
    pub kind: String,
    /// Threads and share, bytes, or threads and bytes
    pub numbers: Vec<f64>,
}

/// Arguments of `relay`.
#[derive(Debug, Clone, Args)]
pub struct RelayArgs {
    /// Port on which it listens
    pub port: u16,
}

/// Arguments that choose files and variants.
#[derive(Debug, Clone, Args)]
pub struct FileArgs {
    /// Templates (YAML), or names of ready verifications, which `tenbin-verify list` shows
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Only this variant; may be given several times [default: all variants of the file]
    #[arg(long, value_name = "NAME")]
    pub variant: Vec<String>,

    /// Seed of all random choices: targets, starts, lost packets [default: the file's, or 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Give a key of the file another value, as measure.time=120 or actions.kill.times=5; may be given several times
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(path, value)| (path.trim().to_owned(), value.trim().to_owned()));
    parts.filter(|(path, _)| !path.is_empty()).ok_or_else(|| "give PATH=VALUE, as measure.time=120".to_owned())
}

/// Arguments of `plan`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = help())]
pub struct PlanArgs {
    /// Files and variants.
    #[command(flatten)]
    pub file: FileArgs,

    /// Print plan.json instead, one document for each variant
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `probe`.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    /// Kind of the system: kafka or jetstream
    #[arg(value_name = "KIND")]
    pub kind: String,

    /// All instances of the system, in order
    #[arg(value_name = "NAME=HOST:PORT", required = true)]
    pub instances: Vec<String>,
}

/// Arguments of `check`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = help())]
pub struct CheckArgs {
    /// Templates (YAML), or names of ready verifications
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = help())]
pub struct RunArgs {
    /// Files and variants.
    #[command(flatten)]
    pub file: FileArgs,

    /// Directory of the results [default: results/NAME-TIME-SEED]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Runs of each variant [default: the file's `repeat`, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: Option<u32>,

    /// Write the outcomes into expected.toml beside the file, where later runs compare with them
    #[arg(long)]
    pub record: bool,

    /// Remote nodes and external hosts of the file that may be used [default: this machine alone]
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub allow_hosts: Vec<String>,
}

/// Arguments of `report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Directories of results; several give one comparison
    #[arg(value_name = "DIR", required = true)]
    pub directories: Vec<PathBuf>,

    /// Write the page to this file [default: report.html in the first directory]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Arguments of `restore`.
#[derive(Debug, Clone, Args)]
pub struct RestoreArgs {
    /// Directory of the run's results [default: all in results]
    #[arg(value_name = "DIR")]
    pub run: Option<String>,
}

/// Arguments of `node`, the remote end of ssh.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Undo all changes when the standard input is silent for this time
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub silence: crate::units::Time,

    /// Join standard input and output to the stream of a process, instead
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct All {
        #[command(subcommand)]
        command: Command,
    }

    fn parse(line: &str) -> Result<Command, clap::Error> {
        All::try_parse_from(std::iter::once("verify").chain(line.split_whitespace())).map(|all| all.command)
    }

    #[test]
    fn keys_of_a_file_get_other_values() {
        let Ok(Command::Plan(plan)) = parse("plan a --set measure.time=9 --set systems.b.environment=") else {
            panic!()
        };
        let wanted = [("measure.time", "9"), ("systems.b.environment", "")];
        assert_eq!(plan.file.set, wanted.map(|(path, value)| (path.to_owned(), value.to_owned())));
        assert!(parse("plan a --set measure.time").is_err() && parse("plan a --set =9").is_err());
    }

    #[test]
    fn arguments_are_those_of_the_design() {
        let run = parse("run kill-qos1 a.yaml --variant x --variant y --out d --repeat 3 --seed 7 --allow-hosts a,b");
        let Ok(Command::Run(run)) = run else { panic!("{run:?}") };
        assert_eq!((run.file.files.len(), run.file.variant.len(), run.file.seed), (2, 2, Some(7)));
        assert_eq!((run.repeat, run.allow_hosts.join(" ")), (Some(3), "a b".to_owned()));
        for line in
            ["plan a.yaml --json", "check", "check a.yaml", "list", "report a b --out x", "restore", "restore r"]
        {
            assert!(parse(line).is_ok(), "{line}");
        }
        let Ok(Command::Node(node)) = parse("node") else { panic!("node has no required argument") };
        assert_eq!(node.silence, crate::units::Time::from_secs(5));
        for line in ["run", "plan", "report", "run a --repeat 0", "node --silence soon", "plan a --seed x"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
