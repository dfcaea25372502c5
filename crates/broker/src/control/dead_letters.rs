//! Dead letters that wait in standing groups: lists them, publishes their originals, removes them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenbin_admin::{
    Answer, ControlError, DeadLetterView, LettersQuery, Page, PageQuery, ReceiverView, RemovedView, ReplayedView,
};
use tenbin_session::Delivery;
use tokio::sync::mpsc;

use super::{Control, LIMIT, LIMIT_MAX, page_of};
use crate::durable::Ended;
use crate::router::{LetterProperties, SharedGroup, WaitingAt, original};

/// A dead letter, and where it waits.
struct Letter {
    group: Arc<SharedGroup>,
    at: WaitingAt,
    delivery: Delivery,
    properties: LetterProperties,
}

/// A place among the dead letters of a share name.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// Number of the standing group.
    group: u64,
    at: WaitingAt,
}

impl Position {
    const BEGIN: Self = Self { group: 0, at: WaitingAt::Memory(0) };

    fn parse(cursor: &str) -> Option<Self> {
        let (group, place) = cursor.split_once('.')?;
        let at = match place.split_at_checked(1)? {
            ("m", number) => WaitingAt::Memory(number.parse().ok()?),
            ("d", offset) => WaitingAt::Disk(offset.parse().ok()?),
            _ => return None,
        };
        Some(Self { group: group.parse().ok()?, at })
    }

    fn cursor(self) -> String {
        match self.at {
            WaitingAt::Memory(number) => format!("{}.m{number}", self.group),
            WaitingAt::Disk(offset) => format!("{}.d{offset}", self.group),
        }
    }
}

impl Control {
    pub(super) async fn list_letters(&self, share_name: String, query: LettersQuery) -> Answer<Page<DeadLetterView>> {
        let wrong = |cursor: String| ControlError::Invalid(format!("cursor: {cursor:?} is none of this list"));
        let from = match query.cursor {
            Some(cursor) => Position::parse(&cursor).ok_or_else(|| wrong(cursor))?,
            None => Position::BEGIN,
        };
        let (letters, next) = self.letters(&share_name, from, limit_of(query.limit, LIMIT)?).await?;
        let now = SystemTime::now();
        let items = letters.iter().map(|letter| letter.view(now)).collect();
        Ok(Page { items, cursor: next.map(Position::cursor) })
    }

    /// Publishes the originals of dead letters, the oldest first. A letter ends once its original is durable.
    pub(super) async fn replay_letters(&self, share_name: String, query: LettersQuery) -> Answer<ReplayedView> {
        let most = most_of(&query)?;
        let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let before_ms = query.before_ms.unwrap_or_else(now_ms);
        let before = UNIX_EPOCH.checked_add(Duration::from_millis(before_ms));
        let (ended, mut ends) = mpsc::channel(TOGETHER);
        let deadline = tokio::time::Instant::now() + REPLAY_WITHIN;
        let (mut from, mut replayed, mut refused, mut skipped) = (Some(Position::BEGIN), 0, 0, 0);
        let is_time = || tokio::time::Instant::now() < deadline;
        while let Some(position) = from.filter(|_| replayed < most && refused == 0 && is_time()) {
            let (letters, next) = match self.letters(&share_name, position, TOGETHER).await {
                Ok(page) => page,
                Err(error) if replayed == 0 => return Err(error),
                Err(_) => break, // the next request tells it
            };
            from = next;
            let is_old =
                |letter: &Letter| letter.properties.time().zip(before).is_none_or(|(time, before)| time <= before);
            let letters = letters.into_iter().filter(is_old);
            let (mut fit, unfit) = letters.partition::<Vec<_>, _>(|letter| self.may_replay(letter));
            skipped += unfit.len();
            fit.truncate(most - replayed);
            let mut taken = 0;
            for letter in self.take_letters(fit) {
                letter.group.replay(letter.delivery, ended.clone());
                taken += 1;
            }
            // The next ones only then, so that few are in memory.
            while taken > 0
                && let Ok(Some(is_published)) = tokio::time::timeout_at(deadline, ends.recv()).await
            {
                taken -= 1;
                *(if is_published { &mut replayed } else { &mut refused }) += 1;
            }
            refused += taken; // too slow, as of a disk that hangs
        }
        self.finish_letters(&share_name).await;
        self.note_operator(&format!("dead letters of {share_name}: {replayed} replayed"));
        tracing::info!(share_name, replayed, refused, skipped, "an operator replayed dead letters");
        Ok(ReplayedView { replayed, refused, skipped, more: from.is_some() || replayed > 0, before_ms })
    }

    pub(super) async fn purge_letters(&self, share_name: String, query: LettersQuery) -> Answer<RemovedView> {
        let most = most_of(&query)?;
        let (mut from, mut removed) = (Some(Position::BEGIN), 0);
        while let Some(position) = from.filter(|_| removed < most) {
            let (letters, next) = match self.letters(&share_name, position, TOGETHER.min(most - removed)).await {
                Ok(page) => page,
                Err(error) if removed == 0 => return Err(error),
                Err(_) => break, // the next request tells it
            };
            from = next;
            for letter in self.take_letters(letters) {
                letter.group.end_waiting(Ended::Pruned, &letter.delivery);
                removed += 1;
            }
        }
        self.finish_letters(&share_name).await;
        self.note_operator(&format!("dead letters of {share_name}: {removed} removed"));
        tracing::info!(share_name, removed, "an operator removed dead letters");
        Ok(RemovedView { removed, more: from.is_some() || removed > 0 })
    }

    /// Waits until the ends of letters are durable, and gives the other messages of the groups to their members.
    async fn finish_letters(&self, share_name: &str) {
        if let Some(durable) = &self.shared.storage.durable {
            durable.safe(durable.all_messages()).await;
        }
        let now = self.shared.clock.moment(Instant::now());
        let groups = self.groups_of_letters(share_name).unwrap_or_default();
        groups.iter().for_each(|group| group.serve(now));
    }

    fn groups_of_letters(&self, share_name: &str) -> Answer<Vec<Arc<SharedGroup>>> {
        let groups = self.shared.routing.router.groups_of_letters(share_name);
        let groups = groups.ok_or_else(|| {
            ControlError::NotFound(format!("no [[share]] rule with dead_letter is about groups named {share_name:?}"))
        })?;
        match groups.is_empty() {
            true => Err(ControlError::Conflict(format!(
                "no standing group gets the dead letters of {share_name:?}: it needs a [[share]] rule with group, filter and \
                 keep_seconds, whose filter matches the topics of dead_letter"
            ))),
            false => Ok(groups),
        }
    }

    /// Dead letters from a place on, at most `most`, and where the next ones begin. There may be fewer before the end.
    async fn letters(&self, share_name: &str, from: Position, most: usize) -> Answer<(Vec<Letter>, Option<Position>)> {
        let (mut found, mut looked_at, mut bytes) = (Vec::new(), 0, 0);
        for group in self.groups_of_letters(share_name)? {
            let number = group.number().get();
            if number < from.group {
                continue;
            }
            let mut next = Some(if number == from.group { from.at } else { Position::BEGIN.at });
            while let Some(at) = next {
                if looked_at >= LOOKED_AT_MOST {
                    return Ok((found, Some(Position { group: number, at })));
                }
                let page = group.waiting_page(at).await.ok_or_else(|| {
                    ControlError::Unavailable("messages on disk cannot be read now; see the log".to_owned())
                })?;
                next = page.next;
                for (at, delivery) in page.messages {
                    if found.len() >= most || bytes >= BYTES_MOST {
                        return Ok((found, Some(Position { group: number, at })));
                    }
                    looked_at += 1;
                    let properties = LetterProperties::of(&delivery).filter(|found| found.group() == share_name);
                    if let Some(properties) = properties.filter(|_| !delivery.is_expired(Instant::now())) {
                        bytes += delivery.queued_bytes();
                        found.push(Letter { group: Arc::clone(&group), at, delivery, properties });
                    }
                }
            }
        }
        Ok((found, None))
    }

    /// Whether the original has a legal topic, and a receiver that keeps it: a share group of its name, or a client at QoS 1 or 2.
    fn may_replay(&self, letter: &Letter) -> bool {
        let share_name = letter.properties.group();
        original(&letter.delivery, letter.properties.clone(), Instant::now()).is_some_and(|publication| {
            let (receivers, _) = self.shared.routing.router.receivers(&publication.topic, 0, LIMIT_MAX);
            let keeps = |receiver: &ReceiverView| match &receiver.group {
                Some(group) => group == share_name,
                None => receiver.allowed && receiver.qos > Some(0),
            };
            self.shared.routing.checks.letter(&publication.topic) && receivers.iter().any(keeps)
        })
    }

    /// Takes letters out of their groups. Those that a member got since are left out.
    fn take_letters(&self, letters: Vec<Letter>) -> Vec<Letter> {
        let mut taken = Vec::new();
        for letters in letters.chunk_by(|one, other| one.group.number() == other.group.number()) {
            let places: Vec<_> =
                letters.iter().map(|letter| (letter.at, letter.delivery.template.whole_len())).collect();
            let number = letters[0].group.number();
            taken.extend(letters[0].group.take_waiting(&places).into_iter().map(|at| (number, at)));
        }
        let is_taken = |letter: &Letter| taken.contains(&(letter.group.number(), letter.at));
        letters.into_iter().filter(is_taken).collect()
    }
}

impl Letter {
    fn view(&self, now: SystemTime) -> DeadLetterView {
        let Self { group, delivery, properties, .. } = self;
        let age = properties.time().map(|time| now.duration_since(time).unwrap_or_default().as_secs());
        let (name, filter) = group.names();
        DeadLetterView {
            topic: properties.topic().to_owned(),
            reason: properties.reason().to_owned(),
            deliveries: properties.deliveries(),
            client: properties.client().to_owned(),
            age_seconds: age,
            qos: delivery.published_qos.bits(),
            bytes: delivery.template.payload().len(),
            waits_in: format!("$share/{name}/{filter}"),
        }
    }
}

/// Letters of one change. A change has no cursor, and begins with the oldest.
fn most_of(query: &LettersQuery) -> Answer<usize> {
    match query.cursor {
        Some(_) => Err(ControlError::Invalid("cursor: only for the list".to_owned())),
        None => limit_of(query.limit, LIMIT_MAX),
    }
}

fn limit_of(limit: Option<usize>, default: usize) -> Answer<usize> {
    page_of(&PageQuery { cursor: None, limit: limit.or(Some(default)) }).map(|(_, limit)| limit)
}

/// Letters that are taken together.
const TOGETHER: usize = 64;
/// Bytes of letters, from which on a page has no more.
const BYTES_MOST: usize = 1 << 20;
/// Messages looked at for one page.
const LOOKED_AT_MOST: usize = 4096;
/// Time for a replay.
const REPLAY_WITHIN: Duration = Duration::from_secs(10);
