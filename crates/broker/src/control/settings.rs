//! The broker as a whole: status, configuration, and the level of the log.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenbin_admin::{
    Answer, BridgeView, BridgeWayView, ConfigCheckView, ControlError, DifferenceView, LogRequest, ReloadView,
    StatusView, StoreView,
};

use super::Control;
use crate::config::SourceKind;
use crate::durable::Durable;
use crate::gateways::BridgeState;
use crate::lifecycle::BrokerState;

impl Control {
    pub(super) fn show_status(&self) -> StatusView {
        let BrokerState { admission, storage, routing, sessions, operations, .. } = &*self.shared;
        let (retained_messages, retained_bytes) = routing.router.retained_totals();
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: self.state(),
            process: std::process::id(),
            started_at: since(self.started_at),
            uptime_seconds: self.started.elapsed().as_secs(),
            listeners: self.reach.listening(),
            connections: admission.connections.load(Ordering::Relaxed),
            connections_maximum: admission.connections_maximum,
            sessions: sessions.registry.len(),
            groups: routing.router.groups_total(),
            retained_messages,
            retained_bytes,
            queued_messages: storage.budget.messages(),
            queued_bytes: storage.budget.used(),
            memory_bytes: storage.memory.used(),
            threads: operations.threads.as_ref().map(|threads| threads.active()),
            store: storage.durable.as_deref().map(store_view),
            counters: operations.metrics.snapshot().named().map(|(name, value)| (name, Value::from(value))).collect(),
        }
    }

    fn state(&self) -> &'static str {
        match () {
            () if self.shared.operations.is_stopping() => "stopping",
            () if self.reach.is_drained() => "draining",
            () if self.is_serving.load(Ordering::Relaxed) => "serving",
            () => "starting",
        }
    }

    /// The configuration, without passwords, keys, and the paths of their files.
    pub(super) fn show_config(&self) -> Value {
        let config = &self.shared.config;
        let listener = |listener: crate::config::Listener| {
            json!({
                "name": &*listener.name(),
                "address": listener.address.to_string(),
                "anonymous": listener.anonymous,
                "acl": listener.acl,
                "auth": listener.auth,
                "has_password_file": listener.password_file.is_some(),
                "tls": listener.tls.is_some(),
            })
        };
        let source = |source: &crate::config::AuthSource| {
            let kind = match source.kind {
                SourceKind::Passwords(_) => "passwords",
                SourceKind::Scram(_) => "scram",
                SourceKind::Certificate(_) => "certificate",
                SourceKind::Jwt(_) => "jwt",
                SourceKind::Http(_) => "http",
            };
            json!({ "name": source.name, "kind": kind })
        };
        let mut view = serde_json::to_value(config).unwrap_or_default();
        view["listeners"] = config.all_listeners().map(listener).collect();
        view["auth"] = config.auth.iter().map(source).collect();
        let webhook = |webhook: &crate::config::Webhook| json!({ "events": webhook.events, "filter": webhook.filter, "is_signed": webhook.secret_file.is_some() });
        view["webhook"] = config.webhook.iter().map(webhook).collect();
        let bridge = |bridge: &crate::config::Bridge| json!({ "name": bridge.name.as_str(), "remote": bridge.remote, "local": bridge.local });
        view["bridge"] = config.bridge.iter().map(bridge).collect();
        view["policy"] = config.policy.name().into();
        view["acl_rules"] = config.acl.len().into();
        view["share_rules"] = config.share.len().into();
        view
    }

    pub(super) fn check_text(&self, text: &str) -> ConfigCheckView {
        let (errors, differences) = self.reach.check(text);
        ConfigCheckView {
            ok: errors.is_empty(),
            errors,
            differences: differences.into_iter().map(difference).collect(),
        }
    }

    pub(super) fn reload_config(&self) -> Answer<ReloadView> {
        let no_file = || ControlError::Conflict("there is no configuration file to read".to_owned());
        let read = self.administration.configuration.as_ref().ok_or_else(no_file)?;
        let lists = self.reach.reload(read).map_err(|error| {
            tracing::error!(%error, "reload by an operator failed: nothing changes");
            ControlError::Invalid(error)
        })?;
        tracing::info!("reloaded by an operator");
        self.note_operator("the configuration was reloaded");
        let [taken, not_taken] = lists.map(|list| list.into_iter().map(difference).collect());
        Ok(ReloadView { taken, not_taken })
    }

    pub(super) fn change_log_level(&self, request: &LogRequest) -> Answer<()> {
        let fixed = || ControlError::Conflict("the log of this broker has a fixed level".to_owned());
        let change = self.administration.log.as_ref().ok_or_else(fixed)?;
        let level = request.level.parse().map_err(|_| {
            let detail = format!("level: {:?} is none of error, warn, info, debug and trace", request.level);
            ControlError::Invalid(detail)
        })?;
        change(level, request.client.as_deref(), request.r#for.map(Duration::from_secs));
        Ok(())
    }
}

fn difference([key, old, new]: [String; 3]) -> DifferenceView {
    DifferenceView { key, old, new }
}

pub(super) fn store_view(durable: &Durable) -> StoreView {
    let (log, messages_health) = durable.message_stats();
    let (state, messages) = durable.used_bytes();
    let mean = log.sync_time.as_secs_f64() * 1e3 / f64::from(u32::try_from(log.commits).unwrap_or(u32::MAX).max(1));
    StoreView {
        directory: durable.directory().display().to_string(),
        state_health: if durable.is_failing() { "failed" } else { "writing" },
        messages_health,
        waiting_messages: log.waiting,
        waiting_bytes: log.live_bytes,
        used_bytes: state + messages,
        maximum_bytes: durable.bytes_maximum(),
        free_bytes: durable.free_bytes(),
        commits: log.commits,
        commit_ms: (mean * 1e3).round() / 1e3,
    }
}

/// A running bridge, by name, URL of the other broker, and state.
pub(super) fn bridge_view((name, remote, state): (String, String, BridgeState)) -> BridgeView {
    let way = |at: usize| BridgeWayView { messages: state.messages[at], in_flight: state.in_flight[at] };
    BridgeView {
        name,
        remote,
        connected: state.connected == [true, true],
        out: way(0),
        r#in: way(1),
        dropped: state.dropped.iter().map(|&(reason, count)| (reason.to_owned(), count.into())).collect(),
        error: state.error,
    }
}
