//! Several nodes as one broker, and `tenbin cluster`.

pub(crate) mod agreement;
mod backup;
mod backups;
mod commands;
pub(crate) mod control;
mod dev;
pub(crate) mod etcd_server;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod relay;
pub(crate) mod status;
mod tls;

use std::time::Duration;

use tenbin_broker::config::{self, Config};

use agreement::Agreement;
pub(crate) use backup::{words, write_closed};
pub(crate) use commands::{ClusterCommand, ClusterError, run};
use link::secure::NodeTls;

/// Results of a check of `[cluster]`.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) errors: Vec<String>,
    /// Files that could not be checked here.
    pub(crate) warnings: Vec<String>,
}

/// Checks the files that `[cluster]` names, and whether the data directory belongs to the cluster and the node.
pub(crate) fn check(config: &Config) -> Found {
    let (cluster, mut found) = (&config.cluster, Found::default());
    if !cluster.is_on() {
        return found;
    }
    match NodeTls::load(cluster) {
        Ok(tls) => found.errors.extend(tls.and_then(|tls| tls.refusal(Duration::ZERO))),
        Err(error) => found.errors.push(error),
    }
    let is_elsewhere =
        cluster.agreement == config::Agreement::Kubernetes && agreement::kubernetes::is_elsewhere(cluster);
    if is_elsewhere {
        let directory = cluster.kubernetes_directory.display();
        found
            .warnings
            .push(format!("cluster: kubernetes_directory: {directory} was not read: it is there in a pod alone"));
    } else {
        found.errors.extend(Agreement::check(cluster).err());
    }
    if let Some(own) = cluster.own() {
        match node::check_directory(&config.store.directory, &cluster.name, &own.name) {
            Ok(warning) => found.warnings.extend(warning),
            Err(error) => found.errors.push(error),
        }
    }
    found.errors.iter_mut().for_each(|error| *error = placed(config, error));
    found
}

/// An error of a key of `[cluster]`, with file and line. Other errors stay as they are.
pub(crate) fn placed(config: &Config, error: &str) -> String {
    let message = error.strip_prefix("cluster: ");
    message.map_or_else(|| error.to_owned(), |message| config.error_in_cluster(message).to_string())
}

#[cfg(test)]
mod tests;
