//! Share groups as work queues: messages that members reject, do not acknowledge in time, or lose with their connection.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::Text;
use tenbin_session::Delivery;

use super::Router;
use super::dead_letters::{DeadLetters, Doomed, Fate};
use super::share_group::{SharedGroup, beginning};
use crate::durable::{DUE_MOST, Location, Place, Sequence};
use crate::outbox::Control;
use crate::values::{Moment, OnReject, WorkQueue};

/// A message that a member did not process.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) delivery: Delivery,
    /// Its entry on disk, in the group's queue or the member's.
    pub(crate) place: Option<Place>,
    /// Number of the member's session.
    pub(crate) receiver: u64,
    pub(crate) client: Text,
    pub(crate) cause: Cause,
}

/// Why a member did not process a message.
#[derive(Debug)]
pub(crate) enum Cause {
    /// It has rejected it.
    Rejected {
        /// The pause that it asks for.
        retry_after: Option<Duration>,
        /// The reason for which no member should get the message again.
        dead_letter: Option<Text>,
    },
    /// It has not acknowledged it in time.
    Overdue,
}

impl Router {
    /// Returns a share group and its rules; `None` if the group has ended, or has no rules of a work queue.
    #[cold]
    pub(crate) fn work_queue(&self, group: NonZeroU64) -> Option<(Arc<SharedGroup>, Arc<WorkQueue>)> {
        let group = self.index.group_by_number(group)?;
        let rules = group.work.load_full()?;
        Some((group, rules))
    }

    /// Gives a group's backlog to its members, which waited for the dead letters.
    pub(crate) fn go_on(&self, group: NonZeroU64, now: Instant) {
        if let Some(group) = self.index.group_by_number(group) {
            let now = self.clock.moment(now);
            group.dispatch_waiting(now, &mut Rng::new(now.nanos.0));
        }
    }

    /// Puts a dead letter back into its group, as its original cannot be published now. A group that has ended drops it.
    pub(crate) fn put_letter_back(&self, letter: Doomed) {
        let (group, letter) = letter.into_letter();
        if let Some(group) = self.index.group_by_number(group) {
            group.put_letter_back(letter);
        }
    }

    /// Puts the messages aside that the last run left in their pause: see [`SharedGroup::find_paused`].
    pub(crate) async fn find_paused(&self) {
        let groups: Vec<_> = self.index.groups().collect();
        for group in groups {
            group.find_paused().await;
        }
    }

    /// Counts a message that a member of a share group has rejected.
    pub(crate) fn count_rejected(&self, group: NonZeroU64) {
        if let Some(group) = self.index.group_by_number(group) {
            group.figures.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Messages that are to become dead letters.
    pub(crate) fn dead_letters(&self) -> &DeadLetters {
        self.index.dead_letters()
    }
}

impl WorkQueue {
    /// Whether a rejected message goes on, in place of its end.
    pub(crate) fn keeps_rejected(&self) -> bool {
        self.on_reject != OnReject::Discard
    }

    /// Why a message becomes a dead letter after this number of deliveries; `None`: it is delivered again.
    fn fate(&self, cause: &Cause, deliveries: u32) -> Option<Text> {
        let reason = match cause {
            Cause::Rejected { dead_letter: Some(reason), .. } => return Some(reason_of(reason)),
            Cause::Rejected { .. } if self.on_reject == OnReject::DeadLetter => REJECTED,
            Cause::Rejected { .. } if self.is_over(deliveries) => LIMIT,
            Cause::Overdue if self.is_over(deliveries) => "overdue",
            Cause::Rejected { .. } | Cause::Overdue => return None,
        };
        Some(Text::from_static(reason))
    }
}

impl SharedGroup {
    /// Delivers a message again that a member did not process, or makes it a dead letter. The member's booking has ended,
    /// or stays for an overdue message.
    pub(crate) fn process_failed(self: &Arc<Self>, rules: &Arc<WorkQueue>, failed: Failed, now: Moment) {
        let Failed { delivery, place, receiver, client, cause } = failed;
        let deliveries = delivery.deliveries().saturating_add(1);
        let pause = match &cause {
            Cause::Rejected { retry_after, .. } => retry_after.unwrap_or_else(|| rules.pause(deliveries)),
            Cause::Overdue => {
                self.figures.overdue.fetch_add(1, Ordering::Relaxed);
                Duration::ZERO
            }
        };
        if let Some(reason) = rules.fate(&cause, deliveries) {
            let fate = Fate { reason, client };
            let mut delivery = delivery.taken_back(receiver, None);
            if delivery.template.is_external() {
                return self.retry(delivery, place, Some(fate), now);
            }
            // The entry may be in the member's queue, which can end before the letter is durable.
            let moved = self.take_back(place, &delivery);
            delivery.stored = moved.map(|Sequence(sequence)| Location::Group(sequence).to_stored());
            let place = match moved {
                Some(_) => self.stored().and_then(|queue| queue.place_of(delivery.stored)),
                None => place,
            };
            return self.doom(Arc::clone(rules), delivery, place, fate);
        }
        self.figures.retried.fetch_add(1, Ordering::Relaxed);
        let due = (!pause.is_zero()).then(|| now.at + pause.min(DUE_MOST));
        self.retry(delivery.taken_back(receiver, due), place, None, now);
    }

    /// Counts the delivery of a message that was in flight to a member when its connection ended.
    pub(super) fn count_lost(&self, delivery: Delivery, receiver: u64) -> Delivery {
        if self.work.load().is_none() {
            return delivery;
        }
        // If it comes back to the same session, it is sent again with its Packet Identifier.
        let (message, share, qos) = (delivery.message, delivery.share, delivery.qos);
        Delivery { message, share, qos, ..delivery.taken_back(receiver, None) }
    }

    /// Makes a message a dead letter that was delivered as often as the rules permit. Returns it otherwise.
    pub(super) fn doom_spent(&self, delivery: Delivery) -> Option<Delivery> {
        let Some(rules) = self.work.load_full().filter(|rules| rules.is_over(delivery.deliveries())) else {
            return Some(delivery);
        };
        self.doom_waiting(rules, delivery, Text::from_static(LIMIT));
        None
    }

    /// Begins to look for messages that members do not acknowledge in time, if the rules limit that.
    pub(super) fn begin_to_look(self: &Arc<Self>) {
        self.look(Instant::now(), false);
    }

    /// Does what is due: see [`super::DueGroups`].
    pub(super) fn is_due(self: &Arc<Self>, now: Instant) {
        self.read_again(now);
        self.give_due(now);
        self.look(now, true);
    }

    /// Has members look for messages that they did not acknowledge in time, if that `is_due`, and schedules the next look.
    /// Former members have to look, too, while they are connected with messages.
    fn look(self: &Arc<Self>, now: Instant, is_due: bool) {
        let interval = self.work.load().as_ref().and_then(|rules| rules.look_interval());
        let members = self.members.members();
        let former = if interval.is_some() { self.former_members() } else { Vec::new() };
        let interval = interval.filter(|_| !members.is_empty() || !former.is_empty());
        let Some(next) = self.next_look(interval, now) else { return };
        if is_due {
            for member in members.iter().filter(|member| member.load().snapshot().outstanding_messages > 0) {
                member.value().outbox.control(Control::Asked);
            }
            former.iter().for_each(|outbox| outbox.control(Control::Asked));
        }
        self.queues.due.add(self, next);
    }
}

/// The worker's reason for a dead letter, short and without control characters.
fn reason_of(reason: &Text) -> Text {
    let printable: String = beginning(reason.as_str()).chars().filter(|char| !char.is_control()).collect();
    let text = Text::try_from(&printable[..]).ok().filter(|text| !text.as_str().trim().is_empty());
    text.unwrap_or_else(|| Text::from_static(REJECTED))
}

const REJECTED: &str = "rejected";
const LIMIT: &str = "limit";
