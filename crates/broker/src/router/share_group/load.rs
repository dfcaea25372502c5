//! Figures of a share group for operators.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tenbin_balancer::{Availability, Candidate, Dispatch, Member, MemberId, Nanos, Rng};
use tenbin_codec::Text;
use tenbin_kit::digits::hexadecimal;

use super::{GroupMember, SharedGroup, beginning};
use crate::values::Moment;

/// Load of a share group, of which its scale follows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupLoad {
    /// Messages that have arrived so far, given or waiting.
    pub(crate) arrived: u64,
    /// Messages given to members.
    pub(crate) given: u64,
    /// Messages that no member has.
    pub(crate) waiting: u64,
    /// Messages that are not completed.
    pub(crate) backlog: u64,
    /// Connected members that do not drain.
    pub(crate) members: usize,
    /// Those of them without progress, see [`is_stalled`].
    pub(crate) stalled: usize,
    /// The others whose speed is known.
    pub(crate) known: usize,
    /// Messages a second that these complete.
    pub(crate) per_second: f64,
    /// Least predicted wait of these.
    pub(crate) predicted_wait: Option<Duration>,
    /// Messages that went from a present member to another one.
    pub(crate) redispatched: u64,
    /// Messages that members rejected, and those that they did not acknowledge in time.
    pub(crate) rejected: u64,
    pub(crate) overdue: u64,
    /// Messages that were to be delivered again, and those that became dead letters.
    pub(crate) retried: u64,
    pub(crate) dead_lettered: u64,
    /// Messages whose letters wait, as a receiver refused them.
    pub(crate) letters_refused: u64,
    /// Messages that wait for their next delivery, and for how long the first of them has waited.
    pub(crate) retries: usize,
    pub(crate) oldest_retry: Duration,
}

/// A member as operators compare it with the others.
#[derive(Debug, Clone)]
pub(crate) struct MemberFigures {
    /// Number of its session.
    pub(crate) number: u64,
    /// Client Identifier, cut if long.
    pub(crate) client_id: Box<str>,
    pub(crate) is_connected: bool,
    /// How long it has shown no progress with messages that it holds; `None` = it is not stalled.
    pub(crate) stalled: Option<Duration>,
    /// Its processing time; `None` = unknown.
    pub(crate) processing_time: Option<Duration>,
    /// Messages that it holds.
    pub(crate) held: u64,
    /// Messages that it did not acknowledge in time.
    pub(crate) overdue: u32,
    /// Messages that it got.
    pub(crate) messages: u64,
}

/// A name of bounded length.
fn label(name: &str) -> Cow<'_, str> {
    match beginning(name) {
        whole if whole.len() == name.len() => Cow::Borrowed(name),
        beginning => {
            let hash = hexadecimal(&Sha256::digest(name)[..6]);
            Cow::Owned(format!("{beginning}…{hash}"))
        }
    }
}

/// Whether a member holds messages and has shown no progress for three times its processing time, and for [`STALLED`] at
/// least. The first of the three was the time in which progress was due.
fn is_stalled(candidate: &Candidate) -> bool {
    let is_held = candidate.in_flight > 0 || candidate.pending > 0;
    is_held && candidate.late >= STALLED.max(2 * candidate.processing_time)
}

impl SharedGroup {
    pub(crate) fn load(&self, now: Nanos) -> GroupLoad {
        let members = self.members.members();
        let waiting = self.waiting() as u64;
        let given = self.given(&members);
        let (retries, oldest_retry) = self.retries(Instant::now());
        let figures = &*self.figures;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut load = GroupLoad {
            arrived: given + waiting,
            given,
            waiting,
            backlog: waiting,
            members: 0,
            stalled: 0,
            known: 0,
            per_second: 0.0,
            predicted_wait: None,
            redispatched: members.iter().map(|member| member.load().snapshot().taken_back).sum(),
            rejected: count(&figures.rejected),
            overdue: count(&figures.overdue),
            retried: count(&figures.retried),
            dead_lettered: count(&figures.dead_lettered),
            letters_refused: count(&figures.letters_refused),
            retries,
            oldest_retry,
        };
        for candidate in members.explain(&Dispatch { at: now, is_acknowledged: true, ..Dispatch::default() }) {
            // Without reports it is unknown which messages a member has completed: `pending` counts them all.
            let is_reporting = !candidate.reported_processing_time.is_zero();
            let pending = if is_reporting { candidate.pending } else { 0 };
            load.backlog += pending.max(candidate.in_flight);
            if candidate.availability == Availability::Offline || candidate.is_draining {
                continue;
            }
            load.members += 1;
            let wait = candidate.predicted_wait;
            load.predicted_wait = Some(load.predicted_wait.map_or(wait, |least| least.min(wait)));
            if is_stalled(&candidate) {
                load.stalled += 1;
            } else if !candidate.processing_time.is_zero() {
                load.known += 1;
                load.per_second += 1.0 / candidate.processing_time.as_secs_f64();
            }
        }
        load
    }

    /// The members, the first `most`.
    pub(crate) fn member_figures(&self, now: Nanos, most: usize) -> Vec<MemberFigures> {
        let members = self.members.members();
        let told = members.explain(&Dispatch { at: now, is_acknowledged: true, ..Dispatch::default() });
        let figures = |(member, candidate): (&Member<GroupMember>, Candidate)| MemberFigures {
            number: member.id().0,
            client_id: beginning(member.value().client_id.as_str()).into(),
            is_connected: candidate.availability != Availability::Offline,
            stalled: is_stalled(&candidate).then_some(candidate.late + candidate.processing_time),
            processing_time: candidate.is_speed_known.then_some(candidate.processing_time),
            held: candidate.in_flight,
            overdue: member.load().snapshot().overdue,
            messages: member.value().tally.get(),
        };
        members.iter().zip(told).take(most).map(figures).collect()
    }

    /// Share name and filter for labels. Long ones are cut, with a hash of the whole, so that no two become one.
    pub(crate) fn labels(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        let (name, filter) = self.names();
        (label(name), label(filter))
    }

    /// Share name and filter.
    pub(crate) fn names(&self) -> (&str, &str) {
        (self.name.share_name.text().as_str(), self.name.filter.text().as_str())
    }

    pub(crate) fn has_member(&self, number: u64) -> bool {
        self.client_of(number).is_some()
    }

    /// Client Identifier of the member of this number.
    pub(crate) fn client_of(&self, number: u64) -> Option<Text> {
        let members = self.members.members();
        let member = members.iter().find(|member| member.id() == MemberId(number))?;
        Some(member.value().client_id.clone())
    }

    /// Gives waiting messages to members that may have room.
    pub(crate) fn serve(self: &Arc<Self>, now: Moment) {
        self.dispatch_waiting(now, &mut Rng::new(self.number.get()));
    }
}

/// Least time without progress of a stalled member.
const STALLED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_long_names_differ() {
        let long = |end: &str| "ä".repeat(5000) + end;
        let (one, other) = (long("1"), long("2"));
        assert_ne!(label(&one), label(&other));
        assert_eq!(label(&one), label(&long("1")));
        assert!(label(&one).len() < 1000);
        assert_eq!(label("short"), "short");
    }
}
