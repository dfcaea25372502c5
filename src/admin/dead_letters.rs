//! `tenbin admin dead-letters`.

use clap::Subcommand;
use tenbin_kit::digits::segment;

use super::{AdminError, Session};

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
            Self::List { limit } => session.show(session.items(&path, &[], most(limit)).await?),
            Self::Replay { limit } => session.repeat("POST", &format!("{path}/replay"), "replayed", most(limit)).await,
            Self::Purge { limit } => session.repeat("DELETE", &path, "removed", most(limit)).await,
        }
    }
}
