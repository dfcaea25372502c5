//! Command line of `tenbin explain`.

use std::net::Ipv6Addr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tenbin_client::TopicFilter;

/// Shows to which members a share group gave its last messages, why, and the state of its members.
///
/// Asks the broker's admin HTTP, or with --broker its topics below $SYS/share/ by MQTT. The broker records decisions as
/// `[explain]` of its configuration says. With an ACL a user of MQTT needs a rule that allows "subscribe" for $SYS/share/#.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Share name of the group, as in $share/NAME/FILTER
    #[arg(long, value_name = "NAME", value_parser = group)]
    pub(crate) group: String,

    /// Filter of the group [default: all filters of that share name]
    #[arg(long, value_name = "FILTER", value_parser = filter)]
    pub(crate) filter: Option<TopicFilter>,

    /// Address of the broker for MQTT, instead of its admin HTTP; without a port, 1883, or 8883 with --tls
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) broker: Option<String>,

    /// TLS for MQTT: --ca names the authorities, else the system's count
    #[arg(long, requires = "broker")]
    pub(crate) tls: bool,

    /// User Name for MQTT
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

    /// Seconds to wait for the broker's reports on the group by MQTT
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) wait: NonZeroU32,
}

impl ExplainArgs {
    /// Whether the reports come by MQTT.
    pub fn is_by_mqtt(&self) -> bool {
        self.broker.is_some() || self.user.is_some()
    }

    /// Whether MQTT is spoken over TLS.
    pub fn is_over_tls(&self) -> bool {
        self.tls
    }

    /// Host and port of the broker for MQTT.
    pub fn address(&self) -> String {
        let broker = self.broker.as_deref().unwrap_or(HOST);
        let port = if self.tls { 8883 } else { 1883 };
        let (is_bracketed, has_port) = (broker.ends_with(']'), broker.contains(':'));
        match broker.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:{port}"),
            Err(_) if has_port && !is_bracketed => broker.to_owned(),
            Err(_) => format!("{broker}:{port}"),
        }
    }

    /// Share name of the group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Filter of the group; `None` = all of that name.
    pub fn filter(&self) -> Option<&str> {
        self.filter.as_ref().map(|filter| filter.text().as_str())
    }

    /// Whether new decisions are printed until stopped.
    pub fn follows(&self) -> bool {
        self.follow
    }
}

/// Host of a broker, if none is named.
const HOST: &str = "127.0.0.1";

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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        wanted: ExplainArgs,
    }

    #[test]
    fn address_has_the_usual_port() {
        for (arguments, expected) in [
            (&["--broker", "localhost"][..], "localhost:1883"),
            (&["--broker", "localhost", "--tls"], "localhost:8883"),
            (&["--broker", "localhost:1", "--tls"], "localhost:1"),
            (&["--broker", "::1"], "[::1]:1883"),
            (&["--broker", "[::1]"], "[::1]:1883"),
            (&["--broker", "[::1]:7"], "[::1]:7"),
            (&[], "127.0.0.1:1883"),
        ] {
            let command = Command::parse_from([&["explain", "--group", "g"], arguments].concat());
            assert_eq!(command.wanted.address(), expected, "{arguments:?}");
        }
    }
}
