//! Publishes dead letters, and ends the messages that they stand for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Text};
use tenbin_session::Publication;

use crate::durable::CommitPoint;
use crate::hooks::{self, Events};
use crate::lifecycle::{BrokerState, Operations};
use crate::router::{Collector, DeadLetters, Doomed, Fate, Published, Publisher};

/// Publishes dead letters as they come; never returns.
pub(crate) async fn run(shared: Arc<BrokerState>) {
    let letters = shared.routing.router.dead_letters();
    let mut queued = Queued { letters, doomed: VecDeque::new(), refused: Vec::new() };
    let (mut pause, mut next, mut lines) = (PAUSE, Instant::now(), Lines::default());
    loop {
        tokio::select! {
            () = letters.added() => {}
            () = tokio::time::sleep_until(next.into()), if !queued.refused.is_empty() => {}
        }
        shared.operations.leadership.held().await;
        queued.doomed = letters.take().into();
        let again = Instant::now() >= next;
        if again {
            queued.doomed.extend(queued.refused.drain(..));
        }
        while !queued.doomed.is_empty() {
            let together = queued.doomed.len().min(TOGETHER);
            let batch = publish(&shared, queued.doomed.drain(..together), &mut lines);
            let (replayed, mut others): (Vec<_>, Vec<_>) = batch.refused.into_iter().partition(Doomed::is_replayed);
            queued.refused.append(&mut others);
            replayed.into_iter().rev().for_each(|letter| shared.routing.router.put_letter_back(letter));
            if let Some(durable) = &shared.storage.durable {
                // A receiver may refuse a letter after the batch, so that the original cannot end in the same commit.
                durable.safe(batch.commit_point).await;
                for messages in batch.published.chunk_by(|one, other| one.cause() == other.cause()) {
                    durable.end(messages[0].cause(), messages.iter().filter_map(Doomed::place));
                }
            }
            batch.published.into_iter().for_each(|message| tell(&shared, message));
            tokio::task::yield_now().await;
        }
        shared.operations.metrics.letters_refused.set(queued.refused.len() as u64);
        if queued.refused.is_empty() {
            pause = PAUSE;
        } else if again {
            next = Instant::now() + pause;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }
}

/// Messages that are to become dead letters.
struct Queued<'a> {
    letters: &'a DeadLetters,
    /// Messages whose letters are published next.
    doomed: VecDeque<Doomed>,
    /// Messages whose letters a receiver refused. They wait for its room.
    refused: Vec<Doomed>,
}

impl Drop for Queued<'_> {
    /// Tells of messages that end with the broker. A message on disk is delivered again after its next start.
    fn drop(&mut self) {
        let new = self.letters.take();
        let all = new.iter().chain(&self.doomed).chain(&self.refused);
        let messages = all.filter(|message| message.place().is_none()).count();
        if messages > 0 {
            tracing::warn!(messages, "messages dropped: the broker ends before their dead letters were published");
        }
    }
}

/// Some messages, whose letters were published together.
struct Batch {
    published: Vec<Doomed>,
    /// Messages whose letters a receiver refused.
    refused: Vec<Doomed>,
    /// Commit point of all letters.
    commit_point: CommitPoint,
}

fn publish(shared: &BrokerState, doomed: impl Iterator<Item = Doomed>, lines: &mut Lines) -> Batch {
    let (router, now) = (&shared.routing.router, Instant::now());
    let mut publisher = Publisher::new(router, 0, &Text::EMPTY);
    let mut collector = Collector::new();
    let (mut numbered, mut commit_point) = (Vec::new(), CommitPoint::NOW);
    for message in doomed {
        // The rest of the message was legal when it was published.
        let is_legal = |letter: &Publication| shared.routing.checks.letter(&letter.topic);
        let Some(letter) = message.letter(is_legal, now) else {
            if message.has_letter() && lines.is_due(now) {
                let group = message.group();
                let (share_name, topic) = (&group.share_name, message.topic());
                tracing::error!(%share_name, topic, "message dropped: its dead letter has no legal topic, or would come back to the group");
            }
            numbered.push((None, message));
            continue;
        };
        let published = publisher.publish(router, &mut collector, &letter, shared.clock.moment(now));
        if published.reason == ReasonCode::NoMatchingSubscribers && !message.is_replayed() && lines.is_due(now) {
            tracing::warn!(topic = ?letter.topic, "dead letter dropped: no subscription matches its topic");
        }
        commit_point = commit_point.and(published.commit_point);
        numbered.push((Some(published), message));
    }
    let mut flushed = publisher.flush(router, &mut collector, now);
    flushed.append_until(commit_point);
    flushed.refused.sort_unstable();
    // Each attempt comes to the receivers with room, too. The one without may be a session that no client uses any more.
    let is_refused = |(published, message): &mut (Option<Published>, Doomed)| {
        published.is_some_and(|published| {
            let reached = published.reached(&flushed.refused);
            let is_everywhere = reached == published.receivers as usize;
            match message.is_replayed() {
                true => !is_everywhere || reached == 0,
                false => !is_everywhere && (message.tried() < ATTEMPTS || reached == 0),
            }
        })
    };
    let refused = numbered.extract_if(.., is_refused).map(|(_, message)| message).collect();
    let published = numbered.into_iter().map(|(_, message)| message).collect();
    Batch { published, refused, commit_point: flushed.commit_point }
}

/// Counts a message that has ended, and tells hooks of a dead letter.
fn tell(shared: &BrokerState, message: Doomed) {
    let operations = &shared.operations;
    if let Some(fate) = message.fate() {
        operations.metrics.dead_letters.add(1);
        tell_hooks(operations, &message, fate);
    }
    if let Some(group) = message.ended() {
        shared.routing.router.go_on(group, Instant::now());
    }
}

fn tell_hooks(operations: &Operations, message: &Doomed, fate: &Fate) {
    if operations.hooks.has(Events::DEAD_LETTER) {
        let group = message.group();
        let letter = hooks::DeadLetter {
            group: format!("$share/{}/{}", group.share_name, group.filter),
            topic: message.topic(),
            reason: fate.reason.as_str(),
            deliveries: message.deliveries(),
            client_id: &fate.client,
        };
        operations.hooks.tell(Events::DEAD_LETTER, |hooks| hooks.dead_letter(&letter));
    }
}

/// Bounds the lines of the log about dropped letters: any client may cause them.
#[derive(Default)]
struct Lines(Option<Instant>);

impl Lines {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|at| now.saturating_duration_since(at) >= LINE_EVERY);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// Letters that are published together.
const TOGETHER: usize = 64;
/// Pause before a refused letter is published again; it doubles up to a minute.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(60);
/// Attempts to give a letter to all its receivers, if some have it.
const ATTEMPTS: u8 = 8;
/// Time between two lines of the log.
const LINE_EVERY: Duration = Duration::from_secs(10);
