use std::ops::Range;
use std::time::Duration;

use tenbin_codec::QoS;

use super::Schedule;
use crate::{LoadgenError, ScenarioArgs};

/// What is run: the arguments with everything filled in.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// 1 or 2.
    pub(crate) scenario: u8,
    /// Time that each worker takes for a message, in the order in which they connect.
    pub(crate) services: [Duration; 3],
    pub(crate) schedule: Schedule,
    pub(crate) qos: QoS,
    pub(crate) ping_interval: Duration,
    /// Reports come early where much has changed.
    pub(crate) eager_pings: bool,
    /// Names of the policies, one of which a given broker has already.
    pub(crate) policies: Vec<String>,
    pub(crate) runs: u32,
}

impl Plan {
    /// # Errors
    /// Arguments that contradict each other.
    pub(crate) fn new(args: &ScenarioArgs) -> Result<Self, LoadgenError> {
        if args.all && args.broker.is_some() {
            let text = "--all needs a broker of its own for each policy; with --broker, --policy names the one it has";
            return Err(LoadgenError::Arguments(text.to_owned()));
        }
        let messages = match args.duration {
            Some(duration) => Schedule::messages_in(duration, args.interval),
            None => DEFAULT_MESSAGES,
        };
        if messages > MAXIMUM_MESSAGES {
            let text = format!("{messages} messages are too many; at most {MAXIMUM_MESSAGES} are recorded");
            return Err(LoadgenError::Arguments(text));
        }
        let policies = match (&args.policy, args.all) {
            (_, true) => ALL_POLICIES.map(str::to_owned).to_vec(),
            (Some(policy), false) => vec![policy.clone()],
            (None, false) if args.broker.is_some() => vec![UNNAMED_POLICY.to_owned()],
            (None, false) => vec![DEFAULT_POLICY.to_owned()],
        };
        Ok(Self {
            scenario: args.number,
            services: if args.number == 1 { [FAST, FAST, FAST] } else { [FAST, FAST, SLOW] },
            schedule: Schedule { interval: args.interval, messages },
            qos: args.qos,
            ping_interval: args.ping_interval,
            eager_pings: args.eager_pings,
            policies,
            runs: args.runs,
        })
    }

    /// Name of the subscriber that connects as number `index`, from 0.
    pub(crate) fn subscriber_name(index: usize) -> String {
        format!("sub-{index}")
    }
}

/// The messages that the published tables call the stable phase, by sequence number.
pub(crate) const STABLE_PHASE: Range<u64> = 500..1000;

const FAST: Duration = Duration::from_millis(25);
const SLOW: Duration = Duration::from_millis(50);

const DEFAULT_MESSAGES: u64 = 1500;

/// Every message is recorded, at about a hundred bytes.
const MAXIMUM_MESSAGES: u64 = 10_000_000;

/// The baselines first, as in the published tables.
const ALL_POLICIES: [&str; 3] = ["random", "round_robin", "thesis_score"];
const DEFAULT_POLICY: &str = "thesis_score";

/// Label of a given broker whose policy nobody has named.
const UNNAMED_POLICY: &str = "broker";

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn plan(line: &str) -> Result<Plan, LoadgenError> {
        let command = ScenarioArgs::augment_args(clap::Command::new("scenario"));
        let matches = command.try_get_matches_from(line.split(' ')).expect("arguments are well-formed");
        Plan::new(&ScenarioArgs::from_arg_matches(&matches).expect("arguments have been checked"))
    }

    #[test]
    fn the_defaults_are_the_published_experiment() {
        let plan = plan("scenario 2").unwrap();
        assert_eq!(plan.services.map(|service| service.as_millis()), [25, 25, 50]);
        assert_eq!(plan.schedule, Schedule { interval: Duration::from_millis(10), messages: 1500 });
        assert_eq!((plan.qos, plan.ping_interval, plan.runs), (QoS::AtMostOnce, Duration::from_secs(1), 1));
        assert_eq!(plan.policies, ["thesis_score"]);
        assert!(!plan.eager_pings);
    }

    #[test]
    fn a_duration_replaces_the_number_of_messages() {
        assert_eq!(plan("scenario 1 --interval 10.7ms").unwrap().schedule.messages, 1500);
        assert_eq!(plan("scenario 1 --interval 10.7ms --duration 15s").unwrap().schedule.messages, 1402);
        assert!(plan("scenario 1 --interval 1us --duration 1m").is_err());
    }

    #[test]
    fn a_given_broker_has_one_policy() {
        assert!(plan("scenario 2 --all --broker localhost:1883").is_err());
        assert_eq!(plan("scenario 2 --broker localhost:1883").unwrap().policies, ["broker"]);
        assert_eq!(plan("scenario 2 --broker localhost:1883 --policy x").unwrap().policies, ["x"]);
        assert_eq!(plan("scenario 2 --all").unwrap().policies, ["random", "round_robin", "thesis_score"]);
    }
}
