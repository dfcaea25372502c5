//! Command line of `tenbin explain`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tenbin_client::TopicFilter;

/// Shows to which members a share group gave its last messages, why, and the state of its members.
///
/// With an ACL the user needs a rule that allows "subscribe" for $SYS/share/#. The broker records decisions as
/// `[explain]` of its configuration says, and publishes them once a second.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Share name of the group, as in $share/NAME/FILTER
    #[arg(long, value_name = "NAME", value_parser = group)]
    pub(crate) group: String,

    /// Filter of the group [default: all filters of that share name]
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    pub(crate) filter: Option<TopicFilter>,

    /// Address of the broker
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:1883")]
    pub(crate) broker: String,

    /// User Name
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// Output format
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,

    /// Keep running and print new decisions until stopped
    #[arg(long)]
    pub(crate) follow: bool,

    /// Seconds to wait for the broker's reports on the group
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) wait: NonZeroU32,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Table for people.
    Table,
    /// A JSON document for each filter, each on one line; with --follow one each second.
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
