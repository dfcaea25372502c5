use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tenbin_codec::{TopicFilter, TopicName};

use crate::LoadgenError;
use crate::values::{positive_duration, positive_number};

/// Arguments of `scenario slow`.
#[derive(Debug, Clone, Args)]
pub struct SlowArgs {
    /// Use a running broker instead of starting one with a data directory for each size
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) broker: Option<String>,

    /// Start a leader and a follower of a cluster, with etcd: slow receivers are moved to the follower, and back; receivers
    /// follow Server References. Needs the package etcd-server
    #[arg(long, conflicts_with_all = ["broker", "config"])]
    pub(crate) pair: bool,

    /// Configuration file of the started brokers
    #[arg(long, value_name = "FILE", conflicts_with = "broker")]
    pub(crate) config: Option<PathBuf>,

    /// Directory for the data of the started brokers, each in a subdirectory that is removed after its run; use a disk,
    /// not memory [default: the directory of temporary files]
    #[arg(long, value_name = "DIR", conflicts_with = "broker")]
    pub(crate) data: Option<PathBuf>,

    /// Payload sizes to run one after the other, in bytes, or in KiB with a k, each with its publishing rate; the
    /// default rate is 5 MiB a second, but at most 400 messages
    #[arg(long, value_name = "BYTES[:MSG/S],…", value_delimiter = ',', default_value = "4k,16k,64k,256k")]
    pub(crate) sizes: Vec<SizeLoad>,

    /// Receivers that read everything at once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) normal: u16,

    /// Receivers that become slow
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) slow: u16,

    /// Share of the messages that slow receivers then read: 0.1 is a tenth of the rate, 0 nothing at all
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub(crate) slow_reads: f64,

    /// Time in which all receivers read everything
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub(crate) before: Duration,

    /// Time after receivers become slow that counts as the switch phase
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    pub(crate) switch: Duration,

    /// Time after the switch phase that is measured
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = positive_duration)]
    pub(crate) after: Duration,

    /// With --pair: time in which publishing goes on after that, while slow receivers read everything again and are to come
    /// back to the leader
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = positive_duration, requires = "pair")]
    pub(crate) back: Duration,

    /// Time limit for slow receivers to read their backlog, once they read everything again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = positive_duration)]
    pub(crate) drain: Duration,

    /// Topic on which the broker publishes the number of receivers it spools for
    #[arg(long, value_name = "TOPIC", default_value = "$SYS/broker/clients/spooling")]
    pub(crate) spooling_topic: String,

    /// Write normal-SIZE.csv (a row for each message and normal receiver), summary.json, report.html and its figures
    /// into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Payload size and publishing rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SizeLoad {
    pub(crate) bytes: usize,
    pub(crate) messages_per_second: f64,
}

impl SlowArgs {
    /// Checks the arguments.
    ///
    /// # Errors
    /// The topic is invalid, or there are too many messages to tell them apart.
    pub(super) fn check(&self) -> Result<(), LoadgenError> {
        self.spooling_filter()?;
        let most = self.sizes.iter().map(|size| size.messages_per_second).fold(0.0, f64::max);
        if most * self.published_for().as_secs_f64() > MESSAGES_MAX {
            let text = format!("{most} messages a second for {:?} are more than {MESSAGES_MAX}", self.published_for());
            return Err(LoadgenError::Arguments(text));
        }
        Ok(())
    }

    /// Topic Filter of the spooling topic.
    ///
    /// # Errors
    /// It is not a topic name.
    pub(super) fn spooling_filter(&self) -> Result<TopicFilter, LoadgenError> {
        let wrong = || LoadgenError::Arguments(format!("--spooling-topic {:?} is no topic", self.spooling_topic));
        TopicName::try_from(self.spooling_topic.as_str()).map_err(|_| wrong())?;
        TopicFilter::try_from(self.spooling_topic.as_str()).map_err(|_| wrong())
    }

    /// Time until slow receivers read everything again.
    pub(super) fn slow_until(&self) -> Duration {
        self.before + self.switch + self.after
    }

    pub(super) fn published_for(&self) -> Duration {
        self.slow_until() + if self.pair { self.back } else { Duration::ZERO }
    }
}

impl SizeLoad {
    /// Number of messages of a run.
    pub(super) fn messages(self, args: &SlowArgs) -> u64 {
        ((self.messages_per_second * args.published_for().as_secs_f64()).floor() as u64).max(1)
    }

    /// Interval between two messages.
    pub(super) fn interval_ns(self) -> f64 {
        1e9 / self.messages_per_second
    }
}

/// `4 KiB`.
impl fmt::Display for SizeLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes.is_multiple_of(1024) {
            write!(f, "{} KiB", self.bytes / 1024)
        } else {
            write!(f, "{} B", self.bytes)
        }
    }
}

impl FromStr for SizeLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, rate) = text.split_once(':').map_or((text, None), |(size, rate)| (size, Some(rate)));
        let (number, unit) = size.strip_suffix(['k', 'K']).map_or((size, 1), |number| (number, 1024));
        let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
        let is_size = |bytes: &usize| (BYTES_MIN..=BYTES_MAX).contains(bytes);
        let bytes = bytes
            .filter(is_size)
            .ok_or_else(|| format!("{size:?}: want a size from {BYTES_MIN} bytes to {}k", BYTES_MAX / 1024))?;
        let messages_per_second = match rate {
            Some(rate) => positive_number(rate)?,
            None => (BYTES_PER_SECOND / bytes as f64).min(MESSAGES_PER_SECOND),
        };
        Ok(Self { bytes, messages_per_second })
    }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "want a number from 0 to 1".to_owned())
}

/// Default publishing rate, in bytes a second.
///
/// Twenty receivers get 100 MiB a second, a third of the capacity of two processors that broker and receivers share. So
/// slow receivers cause any queue.
const BYTES_PER_SECOND: f64 = 5.0 * 1024.0 * 1024.0;
const MESSAGES_PER_SECOND: f64 = 400.0;

/// The size of a scenario's message.
const BYTES_MIN: usize = 100;

/// Far below the default limit of a broker's packet size.
const BYTES_MAX: usize = 2 << 20;

/// Each arrival is kept in memory.
const MESSAGES_MAX: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::parsed;

    fn args(line: &str) -> Result<SlowArgs, clap::Error> {
        parsed(&format!("slow {line}"))
    }

    #[test]
    fn default_sizes_are_published_ones_at_low_rates() {
        let sizes = args("").unwrap().sizes;
        let pairs: Vec<_> = sizes.iter().map(|size| (size.bytes, size.messages_per_second)).collect();
        assert_eq!(pairs, [(4096, 400.0), (16_384, 320.0), (65_536, 80.0), (262_144, 20.0)]);
    }

    #[test]
    fn a_size_may_have_a_rate() {
        assert_eq!("100:2.5".parse(), Ok(SizeLoad { bytes: 100, messages_per_second: 2.5 }));
        assert_eq!("1K:1e3".parse(), Ok(SizeLoad { bytes: 1024, messages_per_second: 1e3 }));
        for text in ["", "k", "99", "3000k", "4k:", "4k:0", "4k:x", "4kb", "-4k", "99999999999999999999k"] {
            assert!(text.parse::<SizeLoad>().is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_slow_arguments_are_refused() {
        assert!(args("").unwrap().check().is_ok());
        for line in ["--spooling-topic a/#", "--sizes 4k:1e5 --after 24m"] {
            assert!(args(line).unwrap().check().is_err(), "{line}");
        }
        for line in ["--slow-reads 1.1", "--slow-reads -0.1", "--normal 0", "--broker a:1 --data b"] {
            assert!(args(line).is_err(), "{line}");
        }
    }
}
