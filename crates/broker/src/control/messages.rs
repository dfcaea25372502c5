//! Messages: receivers of a topic, retained messages, publication.

use std::time::Instant;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use tenbin_admin::{
    Answer, BoxFuture, ControlError, Page, PageQuery, PublishRequest, PublishedView, ReceiverView, RemovedView,
    RetainedQuery, RetainedView, TopicQuery,
};
use tenbin_codec::{MessageProperties, QoS, ReasonCode, Text, TopicFilter, TopicName, UserProperty};
use tenbin_session::Publication;

use super::{Control, LIMIT_MAX, page_of};
use crate::router::{Collector, Publisher};

impl Control {
    pub(super) fn receivers_of(&self, query: &TopicQuery) -> Answer<Page<ReceiverView>> {
        let topic = topic_name(&query.topic)?;
        let (from, limit) = page_of(&PageQuery { cursor: query.cursor.clone(), limit: query.limit })?;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let (items, has_more) = self.shared.routing.router.receivers(&topic, from, limit);
        let next = from.saturating_add(items.len());
        Ok(Page { items, cursor: has_more.then(|| next.to_string()) })
    }

    pub(super) fn list_retained(&self, query: &RetainedQuery) -> Answer<Page<RetainedView>> {
        let filter = topic_filter(query.filter.as_deref().unwrap_or("#"))?;
        let (_, limit) = page_of(&PageQuery { cursor: None, limit: query.limit })?;
        let (items, cursor) = self.shared.routing.router.retained_page(&filter, query.cursor.as_deref(), limit);
        Ok(Page { items, cursor })
    }

    pub(super) async fn remove_retained_at(&self, filter: String) -> Answer<RemovedView> {
        let filter = topic_filter(&filter)?;
        if filter.as_bytes().starts_with(b"$SYS") {
            return Err(ControlError::Invalid("filter: messages below $SYS are the broker's own".to_owned()));
        }
        let (messages, cursor) = self.shared.routing.router.retained_page(&filter, None, LIMIT_MAX);
        let commit_point =
            self.shared.routing.router.remove_retained(messages.iter().map(|message| &message.topic[..]));
        self.shared.storage.safe(commit_point).await;
        tracing::info!(%filter, messages = messages.len(), "an operator removed retained messages");
        Ok(RemovedView { removed: messages.len(), more: cursor.is_some() })
    }

    pub(super) fn publish_message(&self, request: PublishRequest) -> BoxFuture<'_, Answer<PublishedView>> {
        // Routed before the first wait: collected deliveries are in a buffer of the thread.
        let published = self.route(request);
        Box::pin(async {
            let (view, commit_point) = published?;
            self.shared.storage.safe(commit_point).await;
            Ok(view)
        })
    }

    fn route(&self, request: PublishRequest) -> Answer<(PublishedView, crate::durable::CommitPoint)> {
        let publication = publication(request)?;
        if !self.shared.operations.leadership.holds() {
            return Err(ControlError::Unavailable(
                "this node may not act now: it is not sure to be the leader".to_owned(),
            ));
        }
        let refused = |reason: ReasonCode| ControlError::Invalid(format!("topic: {}", reason.name()));
        self.shared.routing.checks.publish(&publication).map_err(refused)?;
        let now = Instant::now();
        let mut publisher = Publisher::new(&self.shared.routing.router, 0, &Text::EMPTY);
        let mut collector = Collector::new();
        let published =
            publisher.publish(&self.shared.routing.router, &mut collector, &publication, self.shared.clock.moment(now));
        let flushed = publisher.flush(&self.shared.routing.router, &mut collector, now);
        let is_refused = published.message != 0 && flushed.refused.contains(&published.message);
        let reason = if is_refused { ReasonCode::QuotaExceeded } else { published.reason };
        let view = PublishedView {
            reason_code: reason.byte(),
            reason: reason.name().to_owned(),
            receivers: published.receivers,
        };
        Ok((view, published.commit_point.and(flushed.commit_point)))
    }
}

fn publication(request: PublishRequest) -> Answer<Publication> {
    let invalid = |key: &str, reason: &dyn std::fmt::Display| ControlError::Invalid(format!("{key}: {reason}"));
    let topic = topic_name(&request.topic)?;
    let payload = match (&request.payload, &request.payload_base64) {
        (Some(_), Some(_)) => return Err(invalid("payload", &"not beside payload_base64")),
        (_, Some(encoded)) => Base64::decode_vec(encoded).map_err(|error| invalid("payload_base64", &error))?,
        (text, None) => text.clone().unwrap_or_default().into_bytes(),
    };
    let qos = QoS::from_bits(request.qos).ok_or_else(|| invalid("qos", &"needs to be 0, 1 or 2"))?;
    let text = |key: &str, text: String| Text::try_from(text).map_err(|error| invalid(key, &error));
    let properties = MessageProperties {
        payload_format_indicator: request.payload.is_some().then_some(true),
        message_expiry_interval: request.expiry_seconds,
        content_type: request.content_type.map(|content| text("content_type", content)).transpose()?,
        user_properties: request
            .user_properties
            .into_iter()
            .map(|(name, value)| {
                Ok(UserProperty { name: text("user_properties", name)?, value: text("user_properties", value)? })
            })
            .collect::<Answer<_>>()?,
        ..MessageProperties::default()
    };
    let now = Instant::now();
    Ok(Publication {
        qos,
        retain: request.retain,
        expires_at: Publication::expiry(Some(&properties), now),
        properties: Some(Box::new(properties)),
        ..Publication::new(topic, Bytes::from(payload))
    })
}

fn topic_name(text: &str) -> Answer<TopicName> {
    TopicName::try_from(text).map_err(|error| ControlError::Invalid(format!("topic: {error}")))
}

fn topic_filter(text: &str) -> Answer<TopicFilter> {
    match TopicFilter::try_from(text) {
        Ok(filter) if !filter.is_shared() => Ok(filter),
        Ok(_) => Err(ControlError::Invalid("filter: needs to be without $share".to_owned())),
        Err(error) => Err(ControlError::Invalid(format!("filter: {error}"))),
    }
}
