//! What looks wrong, in words, with what to do and where to look.
//!
//! ```text
//!   each tick:  watched groups ─► member figures ─► stalled, slower, gone, fewer than wanted ─┐
//!               denials, bounds ─────────────────────────────────────────────────────────────┼─► findings, events
//! ```

mod group;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_admin::{Check, FindingView};
use tenbin_kit::digits::segment;

use super::Control;
use super::groups::BusyGroup;
use crate::lifecycle::chronicle::now_ms;
use group::WatchedGroup;

/// Kinds of findings, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Stalled,
    /// A member that did not acknowledge messages in time.
    Overdue,
    Gone,
    /// Messages whose dead letters a receiver refuses.
    LettersRefused,
    Fewer,
    Slower,
    /// Dead letters that wait in a standing group.
    DeadLetters,
    Refused,
    Denied,
    /// A member that has gone as it should.
    Left,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Overdue => "overdue",
            Self::Gone => "gone",
            Self::LettersRefused => "letters_refused",
            Self::Fewer => "fewer_than_wanted",
            Self::Slower => "slower",
            Self::DeadLetters => "dead_letters",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Left => "left",
        }
    }
}

/// Something that looks wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    kind: Kind,
    /// Share name and Topic Filter.
    group: Option<(String, String)>,
    /// Client Identifier, or key of the configuration.
    subject: Option<String>,
    text: String,
    advice: String,
}

/// Identity of a finding, whose text changes.
type Identity = (Kind, Option<(String, String)>, Option<String>);

impl Finding {
    fn identity(&self) -> Identity {
        (self.kind, self.group.clone(), self.subject.clone())
    }

    fn view(&self, since_ms: u64) -> FindingView {
        let (group, filter) = self.group.clone().unzip();
        let link = match (&self.kind, &group, &filter) {
            (Kind::Gone | Kind::Left, ..) | (_, None, _) | (_, _, None) => "#events".to_owned(),
            (_, Some(group), Some(filter)) => format!("#group/{}/{}", segment(group), segment(filter)),
        };
        let is_key = self.kind == Kind::Refused;
        FindingView {
            kind: self.kind.name(),
            text: self.text.clone(),
            advice: self.advice.clone(),
            link,
            since_ms,
            group,
            filter,
            client: self.subject.clone().filter(|_| !is_key),
            key: self.subject.clone().filter(|_| is_key),
        }
    }
}

/// A condition that begins when it has held for some looks, and ends when it has not held for some.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    holds: bool,
    /// Looks that found otherwise.
    otherwise: u8,
}

impl Held {
    fn look(&mut self, is_so: bool, looks: u8) -> bool {
        self.otherwise = if is_so == self.holds { 0 } else { self.otherwise + 1 };
        if self.otherwise >= looks {
            *self = Self { holds: is_so, otherwise: 0 };
        }
        self.holds
    }
}

/// Watches share groups, and keeps the findings of the last look.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    groups: HashMap<NonZeroU64, WatchedGroup>,
    /// The present findings by identity, each with its begin in milliseconds since 1970.
    found: BTreeMap<Identity, (u64, Finding)>,
}

impl Watch {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present findings, the most urgent first.
    pub(super) fn list(&self) -> Vec<FindingView> {
        let watched = self.watched();
        watched.found.values().take(FINDINGS_MAX).map(|(since, finding)| finding.view(*since)).collect()
    }

    /// Figures of a watched group for its row; null for another group.
    pub(super) fn summary(&self, number: NonZeroU64) -> Value {
        self.watched().groups.get(&number).map_or(Value::Null, WatchedGroup::summary)
    }

    /// Warnings about members of share groups, without names.
    pub(super) fn checks(&self) -> Vec<Check> {
        let watched = self.watched();
        let count = |wanted| watched.found.keys().filter(|(kind, ..)| *kind == wanted).count();
        let [stalled, overdue, slower, gone, fewer, letters] =
            [Kind::Stalled, Kind::Overdue, Kind::Slower, Kind::Gone, Kind::Fewer, Kind::LettersRefused].map(count);
        let mut checks = Vec::new();
        if stalled + overdue + slower + gone > 0 {
            let problem = format!(
                "of share groups, {stalled} are stalled, {overdue} have overdue messages, {slower} are slower than \
                 others, and {gone} have gone; see \
                 /api/v1/findings"
            );
            checks.push(Check::warning("members", problem));
        }
        if fewer > 0 {
            let problem = format!("{fewer} share groups have fewer members than wanted; see /api/v1/findings");
            checks.push(Check::warning("wanted", problem));
        }
        if letters > 0 {
            let problem = format!("dead letters of {letters} share groups are refused; see /api/v1/findings");
            checks.push(Check::warning("dead_letters", problem));
        }
        checks
    }
}

impl Control {
    /// Looks at the busiest groups, at denials and at bounds.
    pub(super) fn look_for_findings(&self, now: Instant) {
        let busiest = self.busiest_groups(GROUPS_MAX, now);
        let mut found = self.refusals(now);
        let chronicle = &self.shared.operations.chronicle;
        {
            let mut watched = self.watch.watched();
            let mut room = MEMBERS_MAX;
            for BusyGroup { group, load, scale, .. } in &busiest {
                let members = group.member_figures(self.shared.clock.nanos(now), room.min(MEMBERS_OF_GROUP_MAX));
                room -= members.len();
                let key = super::groups::key_of(group);
                let watched = watched.groups.entry(group.number()).or_insert_with(|| WatchedGroup::new(key));
                let has_letters = load.members == 0 && load.backlog > 0;
                let letters_of =
                    if has_letters { self.shared.routing.router.senders_of_letters(group) } else { Vec::new() };
                watched.look(&members, load, scale, letters_of, chronicle, now);
            }
            let number_of = |busy: &BusyGroup| busy.group.number();
            watched.groups.retain(|number, group| {
                if !busiest.iter().any(|busy| number_of(busy) == *number) {
                    // Over, or not watched any more.
                    let is_over = self.shared.routing.router.group_numbered(*number).is_none();
                    group.unwatched(is_over, chronicle, now);
                }
                group.is_remembered(now)
            });
            watched.groups.values().for_each(|group| group.findings(&mut found, now));
        }
        self.replace_findings(found);
    }

    /// Takes new findings, and notes those that begin and end as events.
    fn replace_findings(&self, found: Vec<Finding>) {
        let chronicle = &self.shared.operations.chronicle;
        let mut watched = self.watch.watched();
        let mut before = std::mem::take(&mut watched.found);
        for finding in found {
            let identity = finding.identity();
            let since = match before.remove(&identity) {
                Some((since, _)) => since,
                None => {
                    // Each denial is an event already.
                    if finding.kind != Kind::Denied {
                        chronicle.note(finding.kind.name(), &finding.text);
                    }
                    now_ms()
                }
            };
            watched.found.insert(identity, (since, finding));
        }
        // The others last for a while by themselves.
        let ended = before.values().filter(|(_, finding)| {
            matches!(finding.kind, Kind::Stalled | Kind::Fewer | Kind::LettersRefused | Kind::DeadLetters)
        });
        ended.for_each(|(_, finding)| chronicle.note("over", &finding.text));
    }

    /// Findings on denied actions and hit bounds.
    fn refusals(&self, now: Instant) -> Vec<Finding> {
        let minutes = |since: Duration| since.as_secs().div_ceil(60).max(1);
        let operations = &self.shared.operations;
        let mut found = Vec::new();
        if let Some((count, since)) = operations.denials.recent(now) {
            found.push(Finding {
                kind: Kind::Denied,
                group: None,
                subject: None,
                text: format!("rules denied {count} actions of clients in the last {} min", minutes(since)),
                advice: "The events name clients and topics. Change the rules ([[acl]]) or the clients.".to_owned(),
            });
        }
        for (bound, count, since) in operations.metrics.bounds.recent(now) {
            let key = bound.key();
            found.push(Finding {
                kind: Kind::Refused,
                group: None,
                subject: Some(key.to_owned()),
                text: format!("refused by {key}: {count} times in the last {} min", minutes(since)),
                advice: format!(
                    "The log names the clients (limit={key:?}). Raise the key, or look why they need more."
                ),
            });
        }
        found
    }

    /// The present findings and the last events.
    pub(super) fn show_events(&self) -> Value {
        let events = self.shared.operations.chronicle.all();
        events.iter().rev().map(|event| json!(event)).collect()
    }
}

/// Groups that are watched: those named by rules, then the busiest.
const GROUPS_MAX: usize = 128;
const MEMBERS_OF_GROUP_MAX: usize = 512;
/// Members of all watched groups together.
const MEMBERS_MAX: usize = 8192;
const FINDINGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_begins_and_ends_after_some_looks() {
        let mut held = Held::default();
        let seen = [true, false, true, true, false, true, false, false].map(|is_so| held.look(is_so, 2));
        assert_eq!(seen, [false, false, false, true, true, true, true, false]);
    }

    #[test]
    fn finding_links_to_its_place() {
        let group = Some(("pool".to_owned(), "jobs/#".to_owned()));
        let finding = |kind, subject: &str| Finding {
            kind,
            group: group.clone(),
            subject: Some(subject.to_owned()),
            text: String::new(),
            advice: String::new(),
        };
        let view = finding(Kind::Slower, "anna").view(5);
        assert_eq!((&view.link[..], view.client.as_deref(), view.key), ("#group/pool/jobs%2F%23", Some("anna"), None));
        let view = Finding { group: None, ..finding(Kind::Refused, "sessions.maximum") }.view(5);
        assert_eq!((&view.link[..], view.client, view.key.as_deref()), ("#events", None, Some("sessions.maximum")));
    }
}
