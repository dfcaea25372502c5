use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use crate::LoadgenError;
use crate::run::LoadArgs;
use crate::target::{TargetArg, TargetList};

/// Arguments of `compare`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct CompareArgs {
    /// Brokers: [NAME=]HOST[:PORT][,pid=PID],…, or tenbin or mosquitto to start one for each run
    #[arg(long, value_name = "BROKER,…", group = "what")]
    brokers: Option<TargetList>,

    /// Policies of this program's broker, which is started for each run
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', group = "what")]
    policies: Vec<String>,

    /// Runs on each broker, taking turns; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,

    /// Write all figures of all runs into compare.json in this directory
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    #[command(flatten)]
    pub(super) load: LoadArgs,
}

impl CompareArgs {
    /// The brokers to compare.
    ///
    /// # Errors
    ///
    /// Two have the same name.
    pub(super) fn targets(&self) -> Result<Vec<TargetArg>, LoadgenError> {
        let targets: Vec<_> = match &self.brokers {
            Some(TargetList(brokers)) => brokers.clone(),
            None => self.policies.iter().cloned().map(TargetArg::Policy).collect(),
        };
        for (index, target) in targets.iter().enumerate() {
            if targets[..index].iter().any(|other| other.name() == target.name()) {
                let name = target.name();
                return Err(LoadgenError::Arguments(format!("{name} is there twice: give it a name of its own")));
            }
        }
        Ok(targets)
    }

    /// The load; it lasts for [`TIME`] if no option limits messages or time.
    pub(super) fn load(&self) -> LoadArgs {
        let mut load = self.load.clone();
        if load.conf.is_none() && load.messages.is_none() {
            load.time.get_or_insert(TIME);
        }
        load
    }
}

const TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn args(line: &str) -> Result<CompareArgs, clap::Error> {
        Cli::try_parse_from(std::iter::once("compare").chain(line.split_whitespace())).map(|cli| cli.args)
    }

    #[test]
    fn brokers_or_policies_are_compared() {
        let names = |line: &str| {
            let targets = args(line).unwrap().targets().unwrap();
            targets.iter().map(|target| target.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("--brokers a=h:1,pid=3,tenbin,mosquitto"), ["a", "tenbin", "mosquitto"]);
        assert_eq!(names("--policies adaptive,round_robin --shared --service 25ms"), ["adaptive", "round_robin"]);
        assert!(args("").is_err() && args("--brokers tenbin --policies random").is_err());
        assert!(args("--policies a,a").unwrap().targets().is_err());
    }

    #[test]
    fn load_has_default_time_unless_messages_are_given() {
        let load = |line: &str| args(&format!("--brokers tenbin {line}")).unwrap().load();
        assert_eq!(load("").time, Some(TIME));
        assert_eq!(load("--time 9").time, Some(Duration::from_secs(9)));
        assert_eq!(load("--messages 9").time, None);
        assert_eq!(load("--conf f").time, None);
    }
}
