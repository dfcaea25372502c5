//! A plugin in a separate crate: counts the messages of each tenant, by the first level of their topics.
//!
//! It tells the counts of a tenant in a retained message on `tenants/NAME/messages`, each time that the broker publishes
//! its own figures (`[sys] interval_seconds`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tenbin_broker::{Client, Events, Handle, Hooks, Message, MetricsSnapshot, Publication};

/// Counts messages by tenant. Clones count together.
#[derive(Clone, Default)]
pub struct Tenants(Arc<Counts>);

#[derive(Default)]
struct Counts {
    messages: Mutex<BTreeMap<String, u64>>,
    broker: OnceLock<Handle>,
}

impl Tenants {
    /// Messages of a tenant so far.
    pub fn messages_of(&self, tenant: &str) -> u64 {
        self.counts().get(tenant).copied().unwrap_or(0)
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hooks for Tenants {
    fn wants(&self) -> Events {
        Events::STARTED | Events::PUBLISHED | Events::SYS_TICK
    }

    fn started(&self, broker: &Handle) {
        let _ = self.0.broker.set(broker.clone());
    }

    fn published(&self, _client: &Client, message: &Publication, _receivers: usize) {
        let topic = message.topic.text().as_str();
        let tenant = topic.split('/').next().unwrap_or(topic);
        let mut counts = self.counts();
        // A topic that was counted before needs no copy of its name.
        match counts.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(counts.insert(tenant.to_owned(), 1)),
        }
    }

    fn sys_tick(&self, _metrics: &MetricsSnapshot) {
        let Some(broker) = self.0.broker.get().cloned() else { return };
        let counts = self.counts().clone();
        // Hooks must not wait, so the messages leave from a task.
        tokio::spawn(async move {
            for (tenant, messages) in counts {
                let topic = format!("tenants/{tenant}/messages");
                let Ok(message) = Message::new(&topic, messages.to_string()) else { continue };
                if broker.publish(message.retain(true)).await.is_err() {
                    return; // the broker has stopped
                }
            }
        });
    }
}
