//! The record in etcd 3.4 and later, over its JSON gateway.
//!
//! Two keys hold it, and each transaction writes both: `tenbin/NAME/epoch` has the epoch as digits, so that a transaction can
//! compare it, and `tenbin/NAME/record` has the record. Reads are linearizable: a server that has lost its majority answers
//! with an error.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::endpoint::{CallError, Endpoint, EndpointError, EngineTls};
use super::{Read, StoredRecord, Swapped};

/// A client of one or more etcd servers. Clones share its connections.
#[derive(Debug, Clone)]
pub(crate) struct Etcd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoints: Vec<Arc<Endpoint>>,
    /// Index of the endpoint that is asked first: the last one that answered.
    first: AtomicUsize,
    /// Longest time of a read or a swap.
    deadline: Duration,
    prefix: String,
}

impl Etcd {
    /// A client for the record of the cluster `name`. It connects when it is used. `deadline` bounds each read and swap.
    ///
    /// # Errors
    /// There is no endpoint, or an endpoint is no `http://HOST:PORT`, or `https://HOST:PORT` with `tls`.
    pub(crate) fn new(
        endpoints: &[String],
        tls: Option<&EngineTls>,
        name: &str,
        deadline: Duration,
    ) -> Result<Self, EndpointError> {
        let endpoints = endpoints.iter().map(|url| Endpoint::new(url, tls).map(Arc::new));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err(EndpointError::new("no endpoint is configured"));
        }
        Ok(Self(Arc::new(Inner { endpoints, first: AtomicUsize::new(0), deadline, prefix: format!("tenbin/{name}/") })))
    }

    /// Reads the record. Asks the next endpoint when one fails, or does not answer for [`NEXT_AFTER`].
    pub(crate) async fn read(&self) -> Read {
        let until = Instant::now() + self.0.deadline;
        let mut end = self.0.prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range =
            json!({ "key": Base64::encode_string(self.0.prefix.as_bytes()), "range_end": Base64::encode_string(&end) });
        let range = range.to_string();
        let mut waiting = self.order().into_iter();
        let (mut next_at, mut calls, mut errors) = (Instant::now(), JoinSet::new(), Vec::new());
        loop {
            tokio::select! {
                Some(done) = calls.join_next() => match done {
                    Ok((index, Ok(answer))) => {
                        self.0.first.store(index, Ordering::Relaxed);
                        return self.record_in(&answer);
                    }
                    Ok((index, Err(error))) => {
                        errors.push(format!("{}: {}", self.0.endpoints[index], CallError::into_text(error)));
                        next_at = Instant::now();
                    }
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = sleep_until(next_at), if waiting.len() > 0 => {
                    if let Some(index) = waiting.next() {
                        let (endpoint, range) = (Arc::clone(&self.0.endpoints[index]), range.clone());
                        calls.spawn(async move { (index, call(&endpoint, "/v3/kv/range", range, until).await) });
                    }
                    next_at = Instant::now() + NEXT_AFTER;
                }
                else => return Read::Unreachable(errors.join("; ")),
            }
        }
    }

    /// Replaces the record if its epoch is `expected_epoch`; 0 = creates the record if there is none.
    ///
    /// Sends the transaction to one endpoint at most: a second one could be carried out after the first one.
    pub(crate) async fn swap(&self, expected_epoch: u64, new: &StoredRecord) -> Swapped {
        debug_assert!(new.epoch > expected_epoch, "epochs grow");
        let transaction = match self.transaction(expected_epoch, new) {
            Ok(transaction) => transaction.to_string(),
            Err(error) => return Swapped::Unknown(error.to_string()),
        };
        let until = Instant::now() + self.0.deadline;
        let mut errors = Vec::new();
        for index in self.order() {
            let endpoint = &self.0.endpoints[index];
            match call(endpoint, "/v3/kv/txn", transaction.clone(), until).await {
                Ok(answer) => {
                    self.0.first.store(index, Ordering::Relaxed);
                    return if answer["succeeded"] == true { Swapped::Done } else { Swapped::Refused };
                }
                Err(CallError::NotSent(error)) => errors.push(format!("{endpoint}: {error}")),
                Err(CallError::Failed(error)) => {
                    // A frozen server would hold up the next call too.
                    self.0.first.store((index + 1) % self.0.endpoints.len(), Ordering::Relaxed);
                    return Swapped::Unknown(format!("{endpoint}: {error}"));
                }
            }
        }
        Swapped::Unknown(errors.join("; "))
    }

    /// Indices of the endpoints, in the order in which they are asked.
    fn order(&self) -> Vec<usize> {
        let (first, count) = (self.0.first.load(Ordering::Relaxed), self.0.endpoints.len());
        (0..count).map(|index| (first + index) % count).collect()
    }

    fn transaction(&self, expected_epoch: u64, new: &StoredRecord) -> serde_json::Result<Value> {
        let encode = |text: &str| Base64::encode_string(text.as_bytes());
        let key = |name: &str| encode(&format!("{}{name}", self.0.prefix));
        let put = |name: &str, value: &str| json!({ "request_put": { "key": key(name), "value": encode(value) } });
        let is_absent = |name: &str| json!({ "key": key(name), "target": "CREATE", "create_revision": "0" });
        let compare = if expected_epoch == 0 {
            json!([is_absent(EPOCH), is_absent(RECORD)])
        } else {
            json!([{ "key": key(EPOCH), "target": "VALUE", "value": encode(&expected_epoch.to_string()) }])
        };
        let success = [put(EPOCH, &new.epoch.to_string()), put(RECORD, &serde_json::to_string(new)?)];
        Ok(json!({ "compare": compare, "success": success }))
    }

    fn record_in(&self, answer: &Value) -> Read {
        let empty = Vec::new();
        let pairs = answer["kvs"].as_array().unwrap_or(&empty);
        let value = |name: &str| {
            let key = Base64::encode_string(format!("{}{name}", self.0.prefix).as_bytes());
            let pair = pairs.iter().find(|pair| pair["key"] == key[..])?;
            Base64::decode_vec(pair["value"].as_str().unwrap_or_default()).ok()
        };
        let prefix = &self.0.prefix;
        match (value(EPOCH), value(RECORD)) {
            (None, None) => Read::Absent,
            (Some(epoch), Some(record)) => match serde_json::from_slice::<StoredRecord>(&record) {
                Ok(record) if epoch == record.epoch.to_string().as_bytes() => Read::Record(record),
                Ok(_) => {
                    Read::Unreachable(format!("etcd: keys {prefix}epoch and {prefix}record have different epochs"))
                }
                Err(error) => Read::Unreachable(format!("etcd: key {prefix}record cannot be read: {error}")),
            },
            _ => Read::Unreachable(format!("etcd: one of the keys {prefix}epoch and {prefix}record is missing")),
        }
    }
}

/// Posts `body`, and returns the answer, which is JSON of an etcd server.
async fn call(endpoint: &Endpoint, path: &str, body: String, until: Instant) -> Result<Value, CallError> {
    let request = Request::post(path).body(Full::from(body)).map_err(|error| CallError::NotSent(error.to_string()))?;
    match endpoint.call(request, until).await? {
        (status, answer) if status.is_success() && answer["header"].is_object() => Ok(answer),
        (status, answer) => {
            let reason = answer["error"].as_str().unwrap_or("the answer is not from etcd");
            Err(CallError::Failed(format!("status {}: {reason:.200}", status.as_u16())))
        }
    }
}

const EPOCH: &str = "epoch";
const RECORD: &str = "record";
/// Time without an answer to a read after which the next endpoint is asked too.
const NEXT_AFTER: Duration = Duration::from_millis(150);
