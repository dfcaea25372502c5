//! The engine that keeps the cluster's record: a linearizable read, and compare-and-swap on the epoch.

mod endpoint;
pub(crate) mod etcd;
pub(crate) mod kubernetes;
#[cfg(test)]
pub(crate) mod memory;

use std::time::Duration;

use tenbin_broker::config::{self, Cluster};

use super::tls;
pub(crate) use etcd::Etcd;
pub(crate) use kubernetes::Kubernetes;
pub(crate) use tenbin_cluster::StoredRecord;

/// Result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    Record(StoredRecord),
    /// The engine has answered, and has no record.
    Absent,
    /// The engine has not answered in time, or with an error. The text has one line.
    Unreachable(String),
}

/// Result of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Swapped {
    Done,
    /// The record has another epoch, and this swap will never happen.
    Refused,
    /// The swap has happened, will happen, or will never happen. The text has one line.
    ///
    /// A read right afterwards may precede the swap. Only a record with another epoch, or the outcome of a further swap
    /// from the same epoch, tells that this swap can no longer happen.
    Unknown(String),
}

/// An engine.
#[derive(Debug, Clone)]
pub(crate) enum Agreement {
    Etcd(Etcd),
    Kubernetes(Kubernetes),
    #[cfg(test)]
    Memory(memory::Memory),
}

impl Agreement {
    /// The engine of a configuration; `None` with manual agreement. It connects when it is used.
    ///
    /// # Errors
    /// A file or an URL cannot be used. The text names the key.
    pub(crate) fn open(cluster: &Cluster) -> Result<Option<Self>, String> {
        match cluster.agreement {
            config::Agreement::Manual => Ok(None),
            config::Agreement::Kubernetes => {
                let url = Some(&cluster.kubernetes_url[..]).filter(|url| !url.is_empty());
                Kubernetes::open(url, &cluster.kubernetes_directory, &cluster.name, DEADLINE)
                    .map(|kubernetes| Some(Self::Kubernetes(kubernetes)))
            }
            _ => {
                let identity = cluster.etcd_identity().map(|[certificate, key]| {
                    let key = ("etcd_key", key);
                    tls::identity(("etcd_certificate", certificate), key).map(|identity| (identity, key))
                });
                let identity = identity.transpose()?;
                let tls =
                    cluster.etcd_ca().map(|ca| endpoint::engine_tls(tls::authorities(("etcd_ca", ca))?, identity));
                let endpoints: Vec<String> = cluster.etcd.iter().map(|url| url.expose().to_owned()).collect();
                let etcd = Etcd::new(&endpoints, tls.transpose()?.as_ref(), &cluster.name, DEADLINE);
                etcd.map(|etcd| Some(Self::Etcd(etcd))).map_err(|error| format!("cluster: etcd: {error}"))
            }
        }
    }

    /// Checks the files and URLs of a configuration. It connects to nothing.
    ///
    /// # Errors
    /// One cannot be used, or the certificate for etcd is not valid now. The text names the key.
    pub(crate) fn check(cluster: &Cluster) -> Result<(), String> {
        if cluster.agreement == config::Agreement::Kubernetes && cluster.kubernetes_url.is_empty() {
            // The address of the API is in the environment of a pod alone.
            let url = Some("https://kubernetes.default.svc:443");
            return Kubernetes::open(url, &cluster.kubernetes_directory, &cluster.name, DEADLINE).map(drop);
        }
        Self::open(cluster)?;
        let Some([certificate, _]) = cluster.etcd_identity().filter(|_| cluster.agreement == config::Agreement::Etcd)
        else {
            return Ok(());
        };
        let file = ("etcd_certificate", certificate);
        let fault = tls::certificates(file)?.first().and_then(|own| tenbin_broker::certificate_fault(own));
        fault.map_or(Ok(()), |fault| Err(tls::in_file(file, &format_args!("etcd refuses it: it {fault}"))))
    }

    /// The kind, as in the configuration.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Kubernetes(_) => "kubernetes",
            #[cfg(test)]
            Self::Memory(_) => "memory",
        }
    }

    /// Reads the record: at least as new as every swap that was done before the call.
    pub(crate) async fn read(&self) -> Read {
        match self {
            Self::Etcd(etcd) => etcd.read().await,
            Self::Kubernetes(kubernetes) => kubernetes.read().await,
            #[cfg(test)]
            Self::Memory(memory) => memory.read(),
        }
    }

    /// Replaces the record if its epoch is `expected_epoch`; 0 = creates the record if there is none.
    pub(crate) async fn swap(&self, expected_epoch: u64, new: &StoredRecord) -> Swapped {
        match self {
            Self::Etcd(etcd) => etcd.swap(expected_epoch, new).await,
            Self::Kubernetes(kubernetes) => kubernetes.swap(expected_epoch, new).await,
            #[cfg(test)]
            Self::Memory(memory) => memory.swap(expected_epoch, new),
        }
    }
}

/// Longest time of a read or a swap.
const DEADLINE: Duration = Duration::from_secs(1);
