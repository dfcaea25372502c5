//! `tenbin admin dead-letters`.

use std::io::Write as _;

use clap::Subcommand;
use serde_json::Value;
use tenbin_kit::{cli, digits::segment};

use super::{AdminError, OutputFormat, Session, table};

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// Lists dead letters, the oldest first.
    List {
        /// Letters to list; without it, all.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Publishes the originals to their topics again, the oldest first. A letter ends once its original is durable.
    Replay {
        /// Letters to replay; without it, all.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Removes dead letters, the oldest first.
    Purge {
        /// Letters to remove; without it, all.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
}

impl Action {
    pub(super) async fn run(self, session: &Session, group: &str) -> Result<(), AdminError> {
        let path = format!("dead-letters/{}", segment(group));
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        match self {
            Self::List { limit } => match (session.format, session.items(&path, &[], most(limit)).await?) {
                (OutputFormat::Table, Value::Array(items)) => {
                    Ok(cli::out().write_all(table::fitted(&items, &COLUMNS).as_bytes())?)
                }
                (_, found) => session.show(found),
            },
            Self::Replay { limit } => session.repeat("POST", &format!("{path}/replay"), "replayed", most(limit)).await,
            Self::Purge { limit } => session.repeat("DELETE", &path, "removed", most(limit)).await,
        }
    }
}

/// Columns of a list that fits a terminal.
const COLUMNS: [&str; 6] = ["topic", "reason", "deliveries", "client", "age_seconds", "waits_in"];
