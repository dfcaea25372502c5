//! A watched share group: its members from look to look.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_admin::ScaleView;

use super::{Finding, Held, Kind};
use crate::lifecycle::Chronicle;
use crate::router::{GroupLoad, MemberFigures};

/// A share group from look to look.
#[derive(Debug)]
pub(super) struct WatchedGroup {
    /// Share name and Topic Filter.
    key: (String, String),
    members: HashMap<u64, WatchedMember>,
    /// Predicted waits of a new message in milliseconds, the oldest first.
    waits: VecDeque<f32>,
    fewer: Held,
    letters_refused: Held,
    /// Groups whose dead letters wait here, as the group stands for them and has no member.
    letters_of: Vec<String>,
    present: Option<Present>,
    /// Median of the members' processing times.
    median: Option<Duration>,
    gone: VecDeque<Gone>,
    looked_at: Instant,
}

/// Figures of the last look.
#[derive(Debug, Clone, Copy)]
struct Present {
    members: usize,
    desired: Option<u64>,
    backlog: u64,
    messages: u64,
    letters_refused: u64,
}

#[derive(Debug)]
struct WatchedMember {
    figures: MemberFigures,
    slower: Held,
}

/// A member that has gone.
#[derive(Debug)]
struct Gone {
    client: Box<str>,
    at: Instant,
    why: String,
    is_normal: bool,
}

impl Gone {
    /// Whether it is still told.
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < if self.is_normal { LEFT_FOR } else { GONE_FOR }
    }
}

impl WatchedGroup {
    pub(super) fn new(key: (String, String)) -> Self {
        Self {
            key,
            members: HashMap::new(),
            waits: VecDeque::new(),
            fewer: Held::default(),
            letters_refused: Held::default(),
            letters_of: Vec::new(),
            present: None,
            median: None,
            gone: VecDeque::new(),
            looked_at: Instant::now(),
        }
    }

    /// Takes the present figures.
    pub(super) fn look(
        &mut self,
        members: &[MemberFigures],
        load: &GroupLoad,
        scale: &ScaleView,
        letters_of: Vec<String>,
        chronicle: &Chronicle,
        now: Instant,
    ) {
        self.letters_of = letters_of;
        self.find_gone(members, chronicle, now);
        let mut speeds: Vec<_> = connected(members).filter_map(|member| member.processing_time).collect();
        speeds.sort_unstable();
        // The lower one of two, so that the slower of two members is found.
        self.median = speeds.get(speeds.len().saturating_sub(1) / 2).copied();
        let mut before = std::mem::take(&mut self.members);
        for figures in members {
            let mut slower = before.remove(&figures.number).map_or(Held::default(), |member| member.slower);
            let is_slow = figures.is_connected && figures.stalled.is_none() && is_slower(figures, self.median);
            slower.look(is_slow, LOOKS);
            self.members.insert(figures.number, WatchedMember { figures: figures.clone(), slower });
        }
        let messages = members.iter().map(|member| member.messages).sum();
        let is_empty = load.members == 0 && load.backlog > 0;
        let is_fewer = scale.desired.is_some_and(|desired| desired > load.members as u64) && load.backlog > 0;
        self.fewer.look(is_empty || is_fewer, LOOKS);
        let GroupLoad { members, backlog, letters_refused, .. } = *load;
        self.letters_refused.look(letters_refused > 0, LOOKS);
        self.present = Some(Present { members, desired: scale.desired, backlog, messages, letters_refused });
        if let Some(least) = load.predicted_wait {
            let queued = if load.per_second > 0.0 { load.waiting as f64 / load.per_second } else { 0.0 };
            if self.waits.len() >= WAITS_MAX {
                self.waits.pop_front();
            }
            self.waits.push_back(((least.as_secs_f64() + queued) * 1e3) as f32);
        }
        self.looked_at = now;
    }

    /// Takes note that the group is over, or that others are busier.
    pub(super) fn unwatched(&mut self, is_over: bool, chronicle: &Chronicle, now: Instant) {
        if is_over {
            self.find_gone(&[], chronicle, now);
        }
        self.members.clear();
        (self.fewer, self.letters_refused) = Default::default();
        (self.present, self.median) = (None, None);
    }

    /// Whether there is something to tell.
    pub(super) fn is_remembered(&self, now: Instant) -> bool {
        self.present.is_some() || self.gone.iter().any(|gone| gone.is_recent(now))
    }

    /// Finds members that were connected at the last look. One that is back has not gone.
    fn find_gone(&mut self, members: &[MemberFigures], chronicle: &Chronicle, now: Instant) {
        let is_back = |gone: &Gone| connected(members).any(|member| member.client_id == gone.client);
        self.gone.retain(|gone| gone.is_recent(now) && !is_back(gone));
        for WatchedMember { figures: before, .. } in self.members.values() {
            let is_there = connected(members).any(|member| member.number == before.number);
            if is_there || !before.is_connected {
                continue;
            }
            let since = self.looked_at.checked_sub(LOOKED_EARLIER).unwrap_or(self.looked_at);
            let departure = chronicle.departure(&before.client_id, since);
            let (at, why, is_normal) = match departure {
                Some(departure) => (departure.at, departure.why, departure.is_normal),
                None => (now, "unsubscribed".to_owned(), true),
            };
            if self.gone.len() >= GONE_MAX {
                self.gone.pop_front();
            }
            self.gone.push_back(Gone { client: before.client_id.clone(), at, why, is_normal });
        }
    }

    /// Adds what looks wrong.
    pub(super) fn findings(&self, found: &mut Vec<Finding>, now: Instant) {
        let mut members: Vec<_> = self.members.values().collect();
        members.sort_by(|a, b| a.figures.client_id.cmp(&b.figures.client_id));
        let stalled = members.iter().filter_map(|member| self.stalled(&member.figures));
        let overdue = members.iter().filter_map(|member| self.overdue(&member.figures));
        let slower = members.iter().filter(|member| member.slower.holds).filter_map(|member| self.slower(member));
        let gone = self.gone.iter().filter(|gone| gone.is_recent(now)).map(|gone| self.gone(gone));
        for (kind, all) in [
            (Kind::Stalled, stalled.collect::<Vec<_>>()),
            (Kind::Overdue, overdue.collect()),
            (Kind::Slower, slower.collect()),
            (Kind::Gone, gone.collect()),
        ] {
            let others = all.len().saturating_sub(OF_KIND_MAX);
            found.extend(all.into_iter().take(OF_KIND_MAX));
            if others > 0 {
                let text = format!("group {}: {others} more members: {}", self.key.0, kind.name());
                found.push(self.finding(kind, None, text, "The view of the group has all of them."));
            }
        }
        found.extend(self.letters_refused());
        found.extend(self.fewer());
    }

    fn finding(&self, kind: Kind, client: Option<&str>, text: String, advice: &str) -> Finding {
        let (group, subject) = (Some(self.key.clone()), client.map(str::to_owned));
        Finding { kind, group, subject, text, advice: advice.to_owned() }
    }

    fn stalled(&self, member: &MemberFigures) -> Option<Finding> {
        let (client, held) = (&member.client_id, member.held);
        let time = time(member.stalled.filter(|_| member.is_connected)?);
        let text = format!("group {}: {client} has made no progress for {time}, and holds {held} messages", self.key.0);
        let advice =
            "Look whether its process runs. Drain the member or end its connection, and others get its messages.";
        Some(self.finding(Kind::Stalled, Some(client), text, advice))
    }

    fn overdue(&self, member: &MemberFigures) -> Option<Finding> {
        let (client, overdue) = (&member.client_id, member.overdue);
        if overdue == 0 || !member.is_connected {
            return None;
        }
        let text = format!("group {}: {client} has not acknowledged {overdue} messages in time", self.key.0);
        let advice = "Others got them. Look whether its process hangs, or raise acknowledge_within_ms of the group.";
        Some(self.finding(Kind::Overdue, Some(client), text, advice))
    }

    fn slower(&self, WatchedMember { figures, .. }: &WatchedMember) -> Option<Finding> {
        let (own, median, client) = (figures.processing_time?, self.median?, &figures.client_id);
        let times = own.as_secs_f64() / median.as_secs_f64();
        let messages = self.present.map_or(0, |present| present.messages).max(1);
        let share = 100.0 * figures.messages as f64 / messages as f64;
        let text = format!(
            "group {}: the processing time of {client} is {}, {times:.1} × the median of {}; it gets {share:.0} % of the \
             messages",
            self.key.0,
            time(own),
            time(median)
        );
        let advice = "Compare its machine and version with the others'. It gets fewer messages by itself.";
        Some(self.finding(Kind::Slower, Some(client), text, advice))
    }

    fn gone(&self, gone: &Gone) -> Finding {
        let Gone { client, why, is_normal, .. } = gone;
        let text = format!("group {}: {client} has gone: {why}", self.key.0);
        let (kind, advice) = match is_normal {
            true => (Kind::Left, "Nothing, if it was meant to end. Its messages went to other members."),
            false => (Kind::Gone, "Look into its log, and start it again. Its messages went to other members."),
        };
        self.finding(kind, Some(client), text, advice)
    }

    fn letters_refused(&self) -> Option<Finding> {
        let letters = self.present.filter(|_| self.letters_refused.holds)?.letters_refused;
        let group = &self.key.0;
        let text = format!("group {group}: a receiver has no room for the dead letters of {letters} messages");
        let advice = format!(
            "Each is tried again within a minute. Let the receiver take letters, or replay or purge some: tenbin admin \
             dead-letters {group} list."
        );
        (letters > 0).then(|| self.finding(Kind::LettersRefused, None, text, &advice))
    }

    fn fewer(&self) -> Option<Finding> {
        let Present { members, desired, backlog, .. } = self.present.filter(|_| self.fewer.holds)?;
        let group = &self.key.0;
        if !self.letters_of.is_empty() {
            let of = self.letters_of.join(", ");
            let text = format!("group {group}: {backlog} messages wait: dead letters of {of}");
            let sender = match &self.letters_of[..] {
                [sender] if !sender.contains('*') => sender,
                _ => "GROUP",
            };
            let advice = format!(
                "Look at them: tenbin admin dead-letters {sender} list. Then replay or purge them. A new member gets them, too."
            );
            return Some(self.finding(Kind::DeadLetters, None, text, &advice));
        }
        let text = match (members, desired) {
            (0, None | Some(0)) => format!("group {group}: no member is connected, and {backlog} messages wait"),
            (_, desired) => {
                let wanted = desired.unwrap_or_default();
                format!("group {group}: {members} members of {wanted} wanted; the backlog is {backlog} messages")
            }
        };
        let missing = desired.unwrap_or_default().saturating_sub(members as u64).max(1);
        Some(self.finding(Kind::Fewer, None, text, &format!("Start {missing} more, or let an autoscaler do it.")))
    }

    /// Waits of the last minutes, and how much slower the slowest member is than the median.
    pub(super) fn summary(&self) -> Value {
        let mut waits: Vec<_> = self.waits.iter().copied().collect();
        waits.sort_unstable_by(f32::total_cmp);
        let part = |part: f64| {
            let last = waits.len().checked_sub(1)?;
            let wait = f64::from(waits[(part * last as f64).round() as usize]);
            Some((wait * 1e3).round() / 1e3)
        };
        let speeds = self.members.values().map(|member| &member.figures).filter(|figures| figures.is_connected);
        let slowest = speeds.filter_map(|figures| figures.processing_time).max();
        let times = slowest.zip(self.median).map(|(slowest, median)| slowest.as_secs_f64() / median.as_secs_f64());
        json!({
            "wait_p50_ms": part(0.5),
            "wait_p99_ms": part(0.99),
            "slowest_over_median": times.map(|times| (times * 10.0).round() / 10.0),
        })
    }
}

fn connected(members: &[MemberFigures]) -> impl Iterator<Item = &MemberFigures> {
    members.iter().filter(|member| member.is_connected)
}

fn is_slower(member: &MemberFigures, median: Option<Duration>) -> bool {
    let Some((own, median)) = member.processing_time.zip(median) else { return false };
    own > 2 * median && own.saturating_sub(median) >= SLOWER_BY
}

/// A time in words: three digits at most.
fn time(time: Duration) -> String {
    match time.as_secs() {
        0 if time < Duration::from_millis(10) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

/// Looks for which a condition has to hold.
const LOOKS: u8 = 2;
/// Least difference of a slower member's processing time: below, the times say little.
const SLOWER_BY: Duration = Duration::from_millis(1);
/// Time for which a lost member is told.
const GONE_FOR: Duration = Duration::from_secs(600);
/// Time for which a member is told that left as it should.
const LEFT_FOR: Duration = Duration::from_secs(60);
const GONE_MAX: usize = 64;
/// A connection ends a moment before its group forgets the member.
const LOOKED_EARLIER: Duration = Duration::from_secs(1);
/// Findings of one kind and group that name a member.
const OF_KIND_MAX: usize = 5;
/// Waits of the last five minutes.
const WAITS_MAX: usize = 150;

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64, ms: u64) -> MemberFigures {
        MemberFigures {
            number,
            client_id: format!("worker-{number}").into(),
            is_connected: true,
            stalled: None,
            processing_time: Some(Duration::from_millis(ms)),
            held: 1,
            overdue: 0,
            messages: 10,
        }
    }

    fn scale(desired: Option<u64>, members: usize, backlog: u64) -> (GroupLoad, ScaleView) {
        let load = GroupLoad { members, backlog, ..GroupLoad::default() };
        let scale = ScaleView {
            desired,
            members,
            stalled: 0,
            arrivals_per_second: 1.0,
            completions_per_second: None,
            backlog,
            drain_seconds: None,
        };
        (load, scale)
    }

    struct Stage(WatchedGroup, Chronicle, Instant);

    impl Stage {
        fn new() -> Self {
            let begin = Instant::now().checked_sub(Duration::from_secs(5)).expect("the machine has run for longer");
            Self(WatchedGroup::new(("pool".into(), "jobs/#".into())), Chronicle::default(), begin)
        }

        /// Looks as often as a condition has to hold, and returns kinds and texts.
        fn look(&mut self, members: &[MemberFigures], desired: Option<u64>, backlog: u64) -> Vec<(Kind, String)> {
            let (load, scale) = scale(desired, connected(members).count(), backlog);
            for _ in 0..LOOKS {
                self.2 += Duration::from_secs(2);
                self.0.look(members, &load, &scale, Vec::new(), &self.1, self.2);
            }
            let mut found = Vec::new();
            self.0.findings(&mut found, self.2);
            found.into_iter().map(|finding| (finding.kind, finding.text)).collect()
        }
    }

    #[test]
    fn member_over_twice_the_median_is_slower() {
        let mut stage = Stage::new();
        assert_eq!(stage.look(&[member(1, 20), member(2, 20), member(3, 40)], Some(3), 0), []);
        let told = stage.look(&[member(1, 20), member(2, 20), member(3, 80)], Some(3), 0);
        let text = "group pool: the processing time of worker-3 is 80 ms, 4.0 × the median of 20 ms; it gets 33 % of the messages";
        assert_eq!(told, [(Kind::Slower, text.to_owned())]);
        assert_eq!(stage.0.summary()["slowest_over_median"], 4.0);
        // Of two, the slower one.
        let told = stage.look(&[member(1, 20), member(2, 80)], Some(2), 0);
        assert!(told.iter().any(|(kind, text)| *kind == Kind::Slower && text.contains("worker-2")), "{told:?}");
    }

    #[test]
    fn stalled_member_is_told_and_not_slower() {
        let stopped = MemberFigures { stalled: Some(Duration::from_secs(12)), held: 4, ..member(3, 80) };
        let told = Stage::new().look(&[member(1, 20), member(2, 20), stopped], Some(3), 0);
        let text = "group pool: worker-3 has made no progress for 12 s, and holds 4 messages";
        assert_eq!(told, [(Kind::Stalled, text.to_owned())]);
    }

    #[test]
    fn member_with_overdue_messages_is_told() {
        let hanging = MemberFigures { overdue: 2, ..member(2, 20) };
        let told = Stage::new().look(&[member(1, 20), hanging], Some(2), 0);
        let text = "group pool: worker-2 has not acknowledged 2 messages in time";
        assert_eq!(told, [(Kind::Overdue, text.to_owned())]);
    }

    #[test]
    fn gone_member_is_told_with_its_reason_until_it_is_back() {
        let mut stage = Stage::new();
        let both = [member(1, 20), member(2, 20)];
        assert_eq!(stage.look(&both, Some(2), 0), []);
        let client = tenbin_codec::Text::try_from("worker-2").expect("a text");
        stage.1.departed(&client, "connection lost".to_owned(), false);
        let told = stage.look(&both[..1], Some(1), 0);
        assert!(matches!(&told[..], [(Kind::Gone, text)] if text.ends_with("connection lost")), "{told:?}");
        assert_eq!(stage.look(&both, Some(2), 0), []);
        // Nobody knows why: it has unsubscribed. Its session stays.
        stage.2 += Duration::from_secs(60);
        let away = MemberFigures { is_connected: false, ..member(2, 20) };
        let told = stage.look(&[member(1, 20), away], Some(1), 0);
        assert!(matches!(&told[..], [(Kind::Left, text)] if text.ends_with("unsubscribed")), "{told:?}");
    }

    #[test]
    fn fewer_members_than_wanted_are_told_with_a_backlog() {
        let mut stage = Stage::new();
        let both = [member(1, 20), member(2, 20)];
        assert_eq!(stage.look(&both, Some(3), 0), []);
        let told = stage.look(&both, Some(3), 500);
        let text = "group pool: 2 members of 3 wanted; the backlog is 500 messages".to_owned();
        assert_eq!(told, [(Kind::Fewer, text)]);
        let mut empty = Stage::new();
        let text = "group pool: no member is connected, and 7 messages wait".to_owned();
        assert_eq!(empty.look(&[], None, 7), [(Kind::Fewer, text)]);
    }

    #[test]
    fn further_members_of_a_kind_are_counted() {
        let stopped = |number| MemberFigures { stalled: Some(Duration::from_secs(3)), ..member(number, 20) };
        let told = Stage::new().look(&(0..9).map(stopped).collect::<Vec<_>>(), Some(9), 0);
        assert_eq!((told.len(), &told[5].1[..]), (6, "group pool: 4 more members: stalled"));
    }
}
