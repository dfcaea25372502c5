//! The command line.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tenbin_client::TopicFilter;

/// Shows whom a share group gave its last messages to, why, and how its members are.
///
/// With an ACL the user needs a rule that allows "subscribe" for $SYS/share/#. The last decisions are kept as
/// `[explain]` of the broker's configuration says; it tells of them once a second.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The group: what stands between the slashes of $share/GROUP/FILTER
    #[arg(long, value_name = "NAME", value_parser = group)]
    pub(crate) group: String,

    /// Its filter, if it has several; without it all of them are shown
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    pub(crate) filter: Option<TopicFilter>,

    /// Where the broker listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:1883")]
    pub(crate) broker: String,

    /// User Name
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// How it is printed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,

    /// Goes on with what is new, until it is stopped
    #[arg(long)]
    pub(crate) follow: bool,

    /// Seconds to wait for the broker to tell of the group
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) wait: NonZeroU32,
}

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// A JSON document for each filter, on a line of its own; with --follow one each second.
    Json,
}

fn group(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains(['/', '+', '#']) {
        return Err("is no share name: it is not empty and without /, + and #".into());
    }
    Ok(name.to_owned())
}

fn filter(text: &str) -> Result<TopicFilter, String> {
    TopicFilter::try_from(text).map_err(|error| error.to_string())
}
