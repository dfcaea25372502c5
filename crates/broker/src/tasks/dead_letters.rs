//! Publishes dead letters, and ends the messages that they stand for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Text};
use tenbin_session::Publication;

use crate::durable::{CommitPoint, Ended};
use crate::hooks::{self, Events};
use crate::lifecycle::BrokerState;
use crate::router::{Collector, Doomed, Publisher};

/// Publishes dead letters as they come; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let letters = shared.routing.router.dead_letters();
    let mut again = Vec::new();
    loop {
        match again.is_empty() {
            true => letters.added().await,
            false => tokio::time::sleep(PAUSE).await,
        }
        shared.operations.leadership.held().await;
        let mut doomed = std::mem::take(&mut again);
        doomed.append(&mut letters.take());
        let mut doomed = doomed.into_iter().peekable();
        while doomed.peek().is_some() {
            let Batch { published, mut refused, commit_point } = publish(&shared, doomed.by_ref().take(TOGETHER));
            again.append(&mut refused);
            if let Some(durable) = &shared.storage.durable {
                // A receiver may refuse a letter after the batch, so that the original cannot end in the same commit.
                durable.safe(commit_point).await;
                durable.end(Ended::DeadLetter, published.iter().filter_map(Doomed::place));
            }
            published.into_iter().for_each(|message| tell(&shared, message));
            tokio::task::yield_now().await;
        }
    }
}

/// Some messages, whose letters were published together.
struct Batch {
    published: Vec<Doomed>,
    /// Messages whose letters a receiver refused. They wait for its room.
    refused: Vec<Doomed>,
    /// Commit point of all letters.
    commit_point: CommitPoint,
}

fn publish(shared: &BrokerState, doomed: impl Iterator<Item = Doomed>) -> Batch {
    let (router, now) = (&shared.routing.router, Instant::now());
    let mut publisher = Publisher::new(router, 0, &Text::EMPTY);
    let mut collector = Collector::new();
    let (mut numbered, mut commit_point) = (Vec::new(), CommitPoint::NOW);
    for message in doomed {
        let is_legal = |letter: &Publication| shared.routing.checks.own(letter).is_ok();
        let Some(letter) = message.letter(is_legal, now) else {
            if message.has_letter() {
                let group = message.group();
                let (share_name, topic) = (&group.share_name, message.topic());
                tracing::error!(%share_name, topic, "message dropped: its dead letter has no legal topic, or would come back to the group");
            }
            numbered.push((0, false, message));
            continue;
        };
        let published = publisher.publish(router, &mut collector, &letter, shared.clock.moment(now));
        if published.reason == ReasonCode::NoMatchingSubscribers {
            tracing::warn!(topic = ?letter.topic, "dead letter dropped: no subscription matches its topic");
        }
        commit_point = commit_point.and(published.commit_point);
        numbered.push((published.message, published.reason.is_error(), message));
    }
    let mut flushed = publisher.flush(router, &mut collector, now);
    flushed.append_until(commit_point);
    let is_refused =
        |(number, is_refused, _): &(u32, bool, Doomed)| *is_refused || *number != 0 && flushed.refused.contains(number);
    let (refused, published): (Vec<_>, Vec<_>) = numbered.into_iter().partition(is_refused);
    let messages = |numbered: Vec<(u32, bool, Doomed)>| numbered.into_iter().map(|(_, _, message)| message).collect();
    Batch { published: messages(published), refused: messages(refused), commit_point: flushed.commit_point }
}

/// Counts a message that has ended as a dead letter, and tells hooks.
fn tell(shared: &BrokerState, message: Doomed) {
    let operations = &shared.operations;
    operations.metrics.dead_letters.add(1);
    if operations.hooks.has(Events::DEAD_LETTER) {
        let (group, fate) = (message.group(), message.fate());
        let letter = hooks::DeadLetter {
            group: format!("$share/{}/{}", group.share_name, group.filter),
            topic: message.topic(),
            reason: fate.reason.as_str(),
            deliveries: message.deliveries(),
            client_id: &fate.client,
        };
        operations.hooks.tell(Events::DEAD_LETTER, |hooks| hooks.dead_letter(&letter));
    }
    message.ended();
}

/// Letters that are published together.
const TOGETHER: usize = 64;
/// Pause before a refused letter is published again.
const PAUSE: Duration = Duration::from_secs(1);
