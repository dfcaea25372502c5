//! Reports on one share group, as JSON: its members, its last decisions, its shadow policy.
//!
//! They contain names that clients chose, cut if long. The ACL decides which clients may read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tenbin_balancer::{Availability, Candidate, Choosers, Dispatch, Member, Nanos};
use tenbin_codec::{Text, TopicName};

use super::dead_letters::WorkFigures;
use super::decisions::Decision;
use super::share_group::{GroupMember, SharedGroup, beginning};
use crate::values::Clock;

/// The kinds of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShareReport {
    /// `members`
    Members,
    /// `shadow`; absent without a shadow policy.
    Shadow,
    /// `decisions`
    Decisions,
}

impl ShareReport {
    /// In the order of publication: a client that has the last report has all.
    pub(crate) const ALL: [Self; 3] = [Self::Members, Self::Shadow, Self::Decisions];

    fn level(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::Shadow => "shadow",
            Self::Decisions => "decisions",
        }
    }
}

impl SharedGroup {
    /// Returns the report's topic, `$SYS/share/<ShareName>/<filter, encoded>/<report>`; `None` if that is too long.
    pub(crate) fn report_topic(&self, report: ShareReport) -> Option<TopicName> {
        let (name, filter) = (&self.name().share_name, self.name().filter.to_level());
        TopicName::try_from(&format!("$SYS/share/{name}/{filter}/{}", report.level())[..]).ok()
    }

    /// Returns the report at `now`; `None` if there is none.
    pub(crate) fn report(&self, report: ShareReport, clock: Clock, now: Instant) -> Option<String> {
        self.report_value(report, clock, now).map(|value| value.to_string())
    }

    /// As [`SharedGroup::report`], before it is a text.
    pub(crate) fn report_value(&self, report: ShareReport, clock: Clock, now: Instant) -> Option<Value> {
        match report {
            ShareReport::Members => Some(self.members_report(clock.nanos(now))),
            ShareReport::Shadow => self.shadow_report(),
            ShareReport::Decisions => Some(self.decisions_report(clock.nanos(now))),
        }
    }

    fn members_report(&self, now: Nanos) -> Value {
        let members = self.members.members();
        let dispatch = Dispatch { at: now, is_acknowledged: true, ..Dispatch::default() };
        let given: u64 = members.iter().map(|member| member.value().tally.get()).sum();
        let mut told: Vec<_> = members.iter().zip(members.explain(&dispatch)).collect();
        if told.len() > MEMBERS_MAX {
            told.sort_by_key(|(member, _)| std::cmp::Reverse(member.value().tally.get()));
            told.truncate(MEMBERS_MAX);
        }
        let member = |(member, candidate): &(&Member<GroupMember>, Candidate)| {
            let load = member.load().snapshot();
            let messages = member.value().tally.get();
            let queued = member.value().outbox.queued_messages() as u64;
            let WaitParts { at_client, in_flight, queued: here } = WaitParts::of(candidate, queued);
            json!({
                "client": beginning(member.value().client_id.as_str()),
                "state": state(candidate),
                "weight": member.standing().weight,
                "messages": messages,
                "share": if given == 0 { 0.0 } else { rounded(messages as f64 / given as f64) },
                "predicted_wait_ms": ms(candidate.predicted_wait),
                "wait_at_client_ms": ms(at_client),
                "wait_in_flight_ms": ms(in_flight),
                "wait_queued_ms": ms(here),
                "pending": candidate.pending,
                "in_flight": candidate.in_flight,
                "queued": queued,
                "in_flight_bytes": load.outstanding_bytes,
                "reported_processing_time_ms": ms(candidate.reported_processing_time),
                "processing_time_ms": ms(candidate.processing_time),
                "is_speed_known": candidate.is_speed_known,
                "times_faster": candidate.times_faster,
                "late_ms": ms(candidate.late),
                "late_reports": load.late_reports,
                "redispatches": load.taken_back,
                "rejected_of_20": load.rejected_lately,
                "overdue": load.overdue,
                "round_trip_ms": ms(load.round_trip),
                "concurrency": load.concurrency,
                "in_flight_maximum": member.load().limit(&members.rules()),
                "service": load.lesson.service.name(),
                "alone_ms": ms(load.lesson.alone),
                "busy_ms": ms(load.lesson.busy),
                "tries": load.lesson.tries,
                "last_try_ms": ms(load.lesson.last_try),
                "idle_ms": ms(since(candidate.sent_at, now)),
            })
        };
        let (rules, waiting, per_second) = (members.rules(), self.waiting(), members.messages_per_second());
        // Unknown while no connected member has a known speed.
        let drain = (per_second > 0.0).then(|| ms(Duration::from_secs_f64(waiting as f64 / per_second)));
        json!({
            "group": self.name().share_name.text().as_str(),
            "filter": beginning(self.name().filter.text().as_str()),
            "policy": self.queues.hooks.choosers().name_of(rules.policy),
            "is_ordered": rules.is_ordered,
            "messages": self.given(&members),
            "waiting": waiting,
            "waiting_ms": drain,
            "keep_seconds": self.keep_seconds(),
            "failures": self.failures_report(),
            "members_total": members.len(),
            "members": told.iter().map(member).collect::<Vec<_>>(),
        })
    }

    /// Messages that members did not process.
    fn failures_report(&self) -> Value {
        let (retries, oldest) = self.retries(Instant::now());
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let WorkFigures { rejected, overdue, retried, dead_lettered, letters_refused, .. } = &*self.figures;
        json!({
            "rejected": count(rejected),
            "overdue": count(overdue),
            "retried": count(retried),
            "dead_lettered": count(dead_lettered),
            "letters_refused": count(letters_refused),
            "retries": retries,
            "oldest_retry_ms": ms(oldest),
        })
    }

    fn shadow_report(&self) -> Option<Value> {
        let members = self.members.members();
        let figures = members.shadow()?;
        let names = self.queues.hooks.choosers();
        let sum_ms = figures.wait_difference_ns as f64 / 1e6;
        let part = |sum: f64| if figures.compared == 0 { 0.0 } else { rounded(sum / figures.compared as f64) };
        Some(json!({
            "policy": names.name_of(members.rules().policy),
            "shadow": names.name_of(figures.policy),
            "compared": figures.compared,
            "agreed": figures.agreed,
            "agreement": part(figures.agreed as f64),
            "wait_difference_ms_sum": rounded(sum_ms),
            "wait_difference_ms_mean": part(sum_ms),
        }))
    }

    /// Reports the newest decisions that fit in [`DECISIONS_BYTES_MAX`], newest last.
    fn decisions_report(&self, now: Nanos) -> Value {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (mut decisions, mut bytes) = (Vec::new(), 0);
        for decision in self.decisions.copy().iter().rev() {
            let names = self.queues.hooks.choosers();
            let value = told(decision, names, wall.saturating_sub(since(decision.at, now)), now);
            bytes += value.to_string().len();
            if bytes > DECISIONS_BYTES_MAX {
                break;
            }
            decisions.push(value);
        }
        decisions.reverse();
        Value::Array(decisions)
    }
}

/// Predicted wait of a member, by where the messages are that come first.
#[derive(Debug, PartialEq, Eq)]
struct WaitParts {
    /// At the client, by its last report.
    at_client: Duration,
    /// On their way, or not acknowledged.
    in_flight: Duration,
    /// In its queue here.
    queued: Duration,
}

impl WaitParts {
    /// Splits the predicted wait in proportion to the messages in each place; the parts add up to it.
    fn of(candidate: &Candidate, queued: u64) -> Self {
        let queued = queued.min(candidate.in_flight);
        let in_flight = candidate.in_flight - queued;
        let all = candidate.pending.max(candidate.in_flight);
        let part = |messages: u64| match all {
            0 => Duration::ZERO,
            all => Duration::from_secs_f64(candidate.predicted_wait.as_secs_f64() * messages as f64 / all as f64),
        };
        let (in_flight, queued) = (part(in_flight), part(queued));
        let at_client = candidate.predicted_wait.saturating_sub(in_flight).saturating_sub(queued);
        Self { at_client, in_flight, queued }
    }
}

fn told(decision: &Decision, names: &Choosers, wall: Duration, now: Nanos) -> Value {
    let candidate = |(client_id, candidate): &(Text, Candidate)| {
        json!({
            "client": beginning(client_id.as_str()),
            "state": state(candidate),
            "predicted_wait_ms": ms(candidate.predicted_wait),
            "penalty_ms": ms(candidate.penalty),
            "processing_time_ms": ms(candidate.processing_time),
            "is_speed_known": candidate.is_speed_known,
            "late_ms": ms(candidate.late),
            "pending": candidate.pending,
            "in_flight": candidate.in_flight,
            "reported_processing_time_ms": ms(candidate.reported_processing_time),
            "idle_ms": ms(since(candidate.sent_at, decision.at)),
        })
    };
    json!({
        "number": decision.number,
        "time_ms": u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        "age_ms": ms(since(decision.at, now)),
        "topic": decision.topic,
        "bytes": decision.bytes,
        "policy": names.name_of(decision.policy),
        "chosen": decision.chosen.as_ref().map(|client_id| beginning(client_id.as_str())),
        "reason": decision.reason,
        "unrecorded": decision.unrecorded,
        "members_total": decision.members,
        "candidates": decision.candidates.iter().map(candidate).collect::<Vec<_>>(),
    })
}

fn state(candidate: &Candidate) -> &'static str {
    match candidate.availability {
        Availability::Offline => "offline",
        _ if candidate.is_draining => "draining",
        Availability::Full => "full",
        Availability::Ready if candidate.is_stuck => "overdue",
        Availability::Ready if candidate.is_suspect => "suspect",
        Availability::Ready => "ready",
    }
}

fn since(then: Nanos, now: Nanos) -> Duration {
    Duration::from_nanos(now.0.saturating_sub(then.0))
}

/// Milliseconds with three decimals.
fn ms(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

/// Maximum number of members in a report; of more, those with the most messages.
const MEMBERS_MAX: usize = 64;
/// Approximate maximum size in bytes of a report of decisions.
const DECISIONS_BYTES_MAX: usize = 128 << 10;
