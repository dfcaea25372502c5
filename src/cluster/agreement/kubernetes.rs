//! The record in a ConfigMap of Kubernetes, at the key `record`.
//!
//! Each change names the `resourceVersion` that it replaces, so that the API carries out one of several. A GET without a
//! `resourceVersion` is answered from a majority of the API's store.

#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tenbin_broker::config::Cluster;
use tenbin_kit::files;
use tokio::time::Instant;

use super::super::tls;
use super::endpoint::{CallError, Endpoint, EngineTls, engine_tls};
use super::{Read, StoredRecord, Swapped};

/// A client of the API. Clones share its connection.
#[derive(Debug, Clone)]
pub(crate) struct Kubernetes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    /// File and content of the API's authorities. `None` = there is no TLS.
    authorities: Option<(PathBuf, Mutex<Vec<u8>>)>,
    token: PathBuf,
    /// Path of all ConfigMaps of the namespace.
    path: String,
    /// Name of the record's one.
    name: String,
    /// The ConfigMap as it was read or written last, and the epoch in it. So a swap needs no read before it.
    known: Mutex<Option<(u64, Value)>>,
    /// Longest time of a read or a swap.
    deadline: Duration,
}

/// Answer of the API.
enum Answer {
    Map(Value),
    /// There is no such ConfigMap.
    Missing,
    /// The ConfigMap has another version, or exists already.
    Conflict,
}

impl Kubernetes {
    /// A client for the record of the cluster `name`. `directory`: token, `ca.crt` and namespace of a service account.
    /// `url`: the API; `None` = as the environment of a pod tells. `deadline` bounds each read and swap.
    ///
    /// # Errors
    /// The URL or a file cannot be used. The text names the key.
    pub(super) fn open(url: Option<&str>, directory: &Path, name: &str, deadline: Duration) -> Result<Self, String> {
        let url = url.map_or_else(url_of_pod, |url| Ok(url.to_owned()))?;
        let failed = |path: &Path, error: &dyn Display| tls::in_file(("kubernetes_directory", path), error);
        if !directory.is_dir() {
            return Err(failed(directory, &"there is no such directory"));
        }
        let text = |name: &str| {
            let path = directory.join(name);
            match files::read_text(&path) {
                Ok(text) if text.trim().is_empty() => Err(failed(&path, &"it is empty")),
                Ok(text) => Ok(text),
                Err(error) => Err(failed(&path, &error)),
            }
        };
        let namespace = text("namespace")?.trim().to_owned();
        text("token")?;
        let (tls, authorities) = if url.starts_with("https://") {
            let file = directory.join("ca.crt");
            let (tls, bytes) = trust_in(&file)?;
            (Some(tls), Some((file, Mutex::new(bytes))))
        } else {
            (None, None)
        };
        let endpoint =
            Endpoint::new(&url, tls.as_ref()).map_err(|error| format!("cluster: kubernetes_url: {error}"))?;
        Ok(Self(Arc::new(Inner {
            endpoint,
            authorities,
            token: directory.join("token"),
            path: format!("/api/v1/namespaces/{namespace}/configmaps"),
            name: format!("{name}-record"),
            known: Mutex::default(),
            deadline,
        })))
    }

    /// Reads the record.
    pub(crate) async fn read(&self) -> Read {
        match self.get(Instant::now() + self.0.deadline).await {
            Ok(Some(record)) => Read::Record(record),
            Ok(None) => Read::Absent,
            Err(error) => Read::Unreachable(self.explained(&error)),
        }
    }

    /// Replaces the record if its epoch is `expected_epoch`; 0 = creates the record if there is none.
    pub(crate) async fn swap(&self, expected_epoch: u64, new: &StoredRecord) -> Swapped {
        debug_assert!(new.epoch > expected_epoch, "epochs grow");
        let until = Instant::now() + self.0.deadline;
        // Another program may change the ConfigMap and not the record: the deadline ends the attempts.
        loop {
            let attempt = match self.attempt(expected_epoch, new, until).await {
                Ok(Answer::Map(_)) => return Swapped::Done,
                Ok(Answer::Missing) => return Swapped::Refused,
                // An answer may be to a request that a proxy has repeated: the record tells whose change it was.
                Ok(Answer::Conflict) => self.get(until).await,
                Err(error) => Err(error),
            };
            match attempt {
                Ok(Some(found)) if found == *new => return Swapped::Done,
                Ok(found) if found.as_ref().map_or(0, |found| found.epoch) != expected_epoch => {
                    return Swapped::Refused;
                }
                Ok(_) if Instant::now() < until => {}
                Ok(_) => return Swapped::Unknown(self.explained("the ConfigMap changes all the time")),
                Err(error) => return Swapped::Unknown(self.explained(&error)),
            }
        }
    }

    /// Sends one request for a swap: the map that it replaces is known, and has the expected epoch.
    async fn attempt(&self, expected_epoch: u64, new: &StoredRecord, until: Instant) -> Result<Answer, String> {
        let record = serde_json::to_string(new).map_err(|error| error.to_string())?;
        if expected_epoch == 0 {
            let labels = json!({ "app.kubernetes.io/managed-by": "tenbin" });
            let metadata = json!({ "name": self.0.name, "labels": labels });
            let map =
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { RECORD: record } });
            return self.call(Method::POST, &self.0.path, Some(&map), until).await;
        }
        let known = self.known(expected_epoch);
        let known = match known {
            None => {
                self.get(until).await?;
                self.known(expected_epoch)
            }
            known => known,
        };
        let Some(mut map) = known else { return Ok(Answer::Missing) };
        map["data"][RECORD] = record.into();
        self.call(Method::PUT, &self.path_of_record(), Some(&map), until).await
    }

    /// The map that is known with this epoch.
    fn known(&self, epoch: u64) -> Option<Value> {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(of, _)| *of == epoch).map(|(_, map)| map.clone())
    }

    async fn get(&self, until: Instant) -> Result<Option<StoredRecord>, String> {
        match self.call(Method::GET, &self.path_of_record(), None, until).await? {
            Answer::Map(map) => record_in(&map).map(Some),
            Answer::Missing => Ok(None),
            Answer::Conflict => Err("status 409".to_owned()),
        }
    }

    fn path_of_record(&self) -> String {
        format!("{}/{}", self.0.path, self.0.name)
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>, until: Instant) -> Result<Answer, String> {
        // The token changes each hour. It is on a file system in memory.
        let token = files::read_text(&self.0.token).map_err(|error| format!("{}: {error}", self.0.token.display()))?;
        let token = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let mut token = token.map_err(|_| format!("{}: it is no token", self.0.token.display()))?;
        token.set_sensitive(true);
        let body = body.map_or_else(String::new, Value::to_string);
        let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, token).body(Full::from(body));
        let request = request.map_err(|error| error.to_string())?;
        let called = match self.0.endpoint.call(request.clone(), until).await {
            Err(CallError::NotSent(_)) if self.renews_authorities() => self.0.endpoint.call(request, until).await,
            called => called,
        };
        let (status, answer) = called.map_err(CallError::into_text)?;
        let is = |kind: &str| answer["kind"] == kind;
        match status {
            StatusCode::OK | StatusCode::CREATED if is("ConfigMap") => {
                // An unreadable record has no epoch.
                let known = record_in(&answer).ok().map(|record| (record.epoch, answer.clone()));
                *self.0.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
                Ok(Answer::Map(answer))
            }
            StatusCode::NOT_FOUND if is("Status") && answer["reason"] == "NotFound" => Ok(Answer::Missing),
            StatusCode::CONFLICT if is("Status") => Ok(Answer::Conflict),
            status => {
                let reason = answer["message"].as_str().unwrap_or("the answer is not from Kubernetes");
                Err(format!("status {}: {reason:.200}", status.as_u16()))
            }
        }
    }

    /// Reads the API's authorities again. True: they are others than before.
    fn renews_authorities(&self) -> bool {
        let Some((file, known)) = &self.0.authorities else { return false };
        match trust_in(file) {
            Ok((tls, bytes)) => {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let is_other = *known != bytes;
                if is_other {
                    *known = bytes;
                    self.0.endpoint.trust(tls);
                    tracing::info!(file = %file.display(), "the API has other authorities");
                }
                is_other
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the API's authorities again");
                false
            }
        }
    }

    fn explained(&self, error: &str) -> String {
        format!("{}: ConfigMap {}: {error}", self.0.endpoint, self.0.name)
    }
}

/// Whether the service account is the one of pods, and this is no pod: its files are not to be expected here.
pub(crate) fn is_elsewhere(cluster: &Cluster) -> bool {
    let directory = &cluster.kubernetes_directory;
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    !is_pod && *directory == Cluster::default().kubernetes_directory && !directory.exists()
}

/// Settings of TLS with the authorities in a file, and the file's content.
fn trust_in(file: &Path) -> Result<(EngineTls, Vec<u8>), String> {
    let file = ("kubernetes_directory", file);
    let bytes = tls::bytes(file)?;
    Ok((engine_tls(tls::authorities_in(file, &bytes)?, None)?, bytes))
}

fn record_in(map: &Value) -> Result<StoredRecord, String> {
    let record = map["data"][RECORD].as_str().ok_or_else(|| format!("its key {RECORD} is missing"))?;
    serde_json::from_str(record).map_err(|error| format!("its key {RECORD} cannot be read: {error}"))
}

/// URL of the API, for a program in a pod.
fn url_of_pod() -> Result<String, String> {
    let variable =
        |name| std::env::var(name).map_err(|_| format!("cluster: kubernetes_url: empty, and {name} is not set"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(format!("https://{host}:{port}"))
}

const RECORD: &str = "record";
