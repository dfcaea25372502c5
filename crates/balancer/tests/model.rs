//! Compares two groups that share their clients with a naive model. After any sequence of events, a pick returns the
//! member given by the formulas of the thesis, and the loads are as in its Table 3.

#![cfg(not(loom))]

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use tenbin_balancer::{
    Acknowledged, Availability, Dispatch, Group, LoadReport, LoadSnapshot, Member, MemberId, MemberLoad, Nanos, Policy,
    Rng,
};

const CLIENTS: usize = 6;
const GROUPS: usize = 2;
const FULL: u32 = 1;

#[derive(Clone, Debug)]
enum Event {
    Advance(u64),
    Join { group: usize, client: usize },
    Leave { group: usize, client: usize },
    Connected { client: usize },
    Report { client: usize, messages_in_queue: u64, processing_ns: u64, draining: bool },
    Acknowledged { client: usize, after_ns: u64 },
    Written { client: usize, messages: u32, is_backlogged: bool },
    PlainPing { client: usize },
    SetAvailability { client: usize, availability: Availability },
    Pick { group: usize, publisher: u64, bytes: u32 },
}

fn event() -> impl Strategy<Value = Event> {
    // Few distinct values, so that scores are often equal.
    let messages = prop_oneof![4 => 0..4_u64, 1 => 0..1_000_u64, 1 => Just(1 << 31)];
    let processing_ns = prop_oneof![
        3 => Just(0_u64),
        3 => Just(25_000_000),
        2 => Just(50_000_000),
        2 => 0..2_000_000_000_u64,
        1 => Just(3_600_000_000_000),
    ];
    let availability = prop_oneof![
        3 => Just(Availability::Ready),
        1 => Just(Availability::Full),
        1 => Just(Availability::Offline),
    ];
    prop_oneof![
        4 => prop_oneof![Just(1_000_000), 0..200_000_000_u64].prop_map(Event::Advance),
        3 => (0..GROUPS, 0..CLIENTS).prop_map(|(group, client)| Event::Join { group, client }),
        1 => (0..GROUPS, 0..CLIENTS).prop_map(|(group, client)| Event::Leave { group, client }),
        1 => (0..CLIENTS).prop_map(|client| Event::Connected { client }),
        5 => (0..CLIENTS, messages, processing_ns.clone(), prop::bool::weighted(0.1)).prop_map(
            |(client, messages_in_queue, processing_ns, draining)| {
                Event::Report { client, messages_in_queue, processing_ns, draining }
            },
        ),
        4 => (0..CLIENTS, processing_ns).prop_map(|(client, after_ns)| Event::Acknowledged { client, after_ns }),
        2 => (0..CLIENTS, 0..4_u32, any::<bool>()).prop_map(|(client, messages, is_backlogged)| {
            Event::Written { client, messages, is_backlogged }
        }),
        1 => (0..CLIENTS).prop_map(|client| Event::PlainPing { client }),
        2 => (0..CLIENTS, availability).prop_map(|(client, availability)| {
            Event::SetAvailability { client, availability }
        }),
        12 => (0..GROUPS, 0..3_u64, 0..200_u32).prop_map(|(group, publisher, bytes)| {
            // Spread like a caller's hash.
            let publisher = Rng::new(publisher).next_u64();
            Event::Pick { group, publisher, bytes }
        }),
    ]
}

#[derive(Clone, Debug, Default)]
struct ModelClient {
    means: Vec<u64>,
    m_q: u64,
    m_s: u64,
    t_r: u64,
    t_s: u64,
    draining: bool,
    availability: Availability,
    /// Messages and bytes.
    outstanding: (u64, u64),
}

impl ModelClient {
    fn done(&mut self, messages: u64, bytes: u64) {
        let left = self.outstanding.0.saturating_sub(messages);
        self.outstanding = (left, if left == 0 { 0 } else { self.outstanding.1.saturating_sub(bytes) });
    }

    /// Smaller is better.
    fn rank(&self) -> u32 {
        match (self.availability, self.draining) {
            (Availability::Ready, false) => 0,
            (Availability::Full, false) => 1,
            (Availability::Ready | Availability::Full, true) => 2,
            (Availability::Offline, _) => 3,
        }
    }

    fn t_p(&self) -> i128 {
        let last = &self.means[self.means.len().saturating_sub(5)..];
        if last.is_empty() { 0 } else { i128::from(last.iter().sum::<u64>()) / last.len() as i128 }
    }

    fn score(&self, mean: i128, now: u64) -> i128 {
        let (t1, t2) = (i128::from(now - self.t_s), i128::from(now - self.t_r));
        let t_p = if self.t_p() == 0 { mean } else { self.t_p() };
        // The crate treats backlogs of more than 2^60 ns (36 years) as equal.
        t1 - (i128::from(self.m_q + self.m_s) * t_p - t2).clamp(0, 1 << 60)
    }

    /// Returns the fields of Table 3 and the outstanding messages; `others` supplies the remaining fields.
    fn snapshot(&self, others: LoadSnapshot) -> LoadSnapshot {
        LoadSnapshot {
            messages_in_queue: self.m_q,
            sent_since_report: self.m_s,
            processing_time: Duration::from_nanos(self.t_p() as u64),
            reported_at: Nanos(self.t_r),
            sent_at: Nanos(self.t_s),
            outstanding_messages: self.outstanding.0,
            outstanding_bytes: self.outstanding.1,
            ..others
        }
    }
}

#[derive(Debug, Default)]
struct Model {
    clients: Vec<ModelClient>,
    /// Members in the order of their turns, oldest first.
    groups: [Vec<usize>; GROUPS],
    /// The members of publishers, without temporary replacements.
    stuck: [HashMap<u64, usize>; GROUPS],
    now: u64,
}

impl Model {
    /// Returns all members that the policy allows for the next message.
    fn allowed(&self, policy: Policy, group: usize, publisher: u64) -> Vec<usize> {
        let members = &self.groups[group];
        let Some(best) = members.iter().map(|&member| self.clients[member].rank()).min() else { return Vec::new() };
        let mut candidates = members.clone();
        candidates.retain(|&member| self.clients[member].rank() == best);
        match policy {
            Policy::Random => candidates,
            // Other tests cover the preferences of these policies.
            Policy::Adaptive
            | Policy::WeightedRoundRobin
            | Policy::HashClientId
            | Policy::HashTopic
            | Policy::LeastResponseTime
            | Policy::Capacity
            | Policy::Custom(_) => candidates,
            Policy::Sticky => match self.stuck[group].get(&publisher) {
                Some(held) if candidates.contains(held) => vec![*held],
                _ => candidates,
            },
            // Excludes a member that is worse than all others.
            Policy::PowerOfTwo => {
                let outstanding = |member: &usize| self.clients[*member].outstanding.0;
                let most = candidates.iter().map(outstanding).max();
                let (worst, others): (Vec<_>, Vec<_>) =
                    candidates.iter().partition(|&member| Some(outstanding(member)) == most);
                if worst.len() == 1 && !others.is_empty() { others } else { candidates }
            }
            // Of equal minima `min_by_key` keeps the first, which has the oldest turn.
            Policy::LeastInflight => {
                candidates.into_iter().min_by_key(|&member| self.clients[member].outstanding.0).into_iter().collect()
            }
            Policy::LeastBytes => {
                candidates.into_iter().min_by_key(|&member| self.clients[member].outstanding.1).into_iter().collect()
            }
            Policy::RoundRobin => vec![candidates[0]],
            Policy::ThesisScore => {
                let known = members.iter().map(|&member| self.clients[member].t_p()).filter(|&t_p| t_p > 0);
                let mean = known.clone().sum::<i128>() / (known.count() as i128).max(1);
                let score = |member: usize| self.clients[member].score(mean, self.now);
                // `rev`: of equal maxima `max_by_key` keeps the last, which is then the oldest turn.
                candidates.into_iter().rev().max_by_key(|&member| score(member)).into_iter().collect()
            }
        }
    }

    fn book(&mut self, group: usize, member: usize, publisher: u64, bytes: u32) {
        let held = self.stuck[group].get(&publisher).filter(|held| self.groups[group].contains(held));
        if held.is_none_or(|&held| self.clients[held].rank() > FULL) {
            self.stuck[group].insert(publisher, member);
        }
        self.groups[group].retain(|&other| other != member);
        self.groups[group].push(member);
        self.clients[member].m_s += 1;
        self.clients[member].t_s = self.now;
        self.clients[member].outstanding.0 += 1;
        self.clients[member].outstanding.1 += u64::from(bytes);
    }
}

fn check(policy: Policy, events: &[Event]) -> Result<(), TestCaseError> {
    let mut model = Model { clients: vec![ModelClient::default(); CLIENTS], ..Model::default() };
    let loads: Vec<_> = (0..CLIENTS).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
    let groups: [Group<usize>; GROUPS] = std::array::from_fn(|_| Group::new(policy));
    let mut rng = Rng::new(9);
    for event in events {
        let now = Nanos(model.now);
        match *event {
            Event::Advance(by) => model.now += by,
            Event::Join { group, client } => {
                groups[group].join(MemberId(client as u64), Arc::clone(&loads[client]), client as u32, client, now);
                if !model.groups[group].contains(&client) {
                    model.groups[group].push(client);
                }
            }
            Event::Leave { group, client } => {
                let was_member = model.groups[group].contains(&client);
                prop_assert_eq!(groups[group].leave(MemberId(client as u64)), was_member);
                model.groups[group].retain(|&member| member != client);
            }
            Event::Connected { client } => {
                loads[client].connected(now);
                let ModelClient { availability, outstanding, .. } = model.clients[client];
                let fresh = ModelClient { availability, outstanding, ..ModelClient::default() };
                model.clients[client] = ModelClient { t_r: now.0, t_s: now.0, ..fresh };
            }
            Event::Acknowledged { client, after_ns } => {
                let sent_at = Nanos(model.now.saturating_sub(after_ns));
                loads[client].acknowledged(&Acknowledged::one(sent_at, 100, now));
                model.clients[client].done(1, 100);
            }
            Event::Written { client, messages, is_backlogged } => {
                loads[client].written(messages, 100 * u64::from(messages), is_backlogged, now);
                model.clients[client].done(messages.into(), 100 * u64::from(messages));
            }
            Event::PlainPing { client } => loads[client].plain_ping(now),
            Event::Report { client, messages_in_queue, processing_ns, draining } => {
                let processing_time = Duration::from_nanos(processing_ns);
                loads[client].report(&LoadReport { messages_in_queue, processing_time, draining }, now);
                let client = &mut model.clients[client];
                client.draining = draining;
                client.means.push(processing_ns);
                (client.m_q, client.m_s, client.t_r) = (messages_in_queue, 0, now.0);
            }
            Event::SetAvailability { client, availability } => {
                loads[client].set_availability(availability);
                model.clients[client].availability = availability;
            }
            Event::Pick { group, publisher, bytes } => {
                let members = groups[group].members();
                let is_acknowledged = now.0.is_multiple_of(2);
                let dispatch =
                    Dispatch { at: now, bytes, is_acknowledged, publisher, topic: publisher, ..Dispatch::default() };
                let picked = members.pick(&dispatch, &mut rng).map(Member::value).copied();
                let allowed = model.allowed(policy, group, publisher);
                match picked {
                    Some(member) => {
                        prop_assert!(allowed.contains(&member), "{} picked, {:?} allowed", member, allowed);
                        model.book(group, member, publisher, bytes);
                    }
                    None => prop_assert!(allowed.is_empty()),
                }
            }
        }
        for (load, client) in loads.iter().zip(&model.clients) {
            let is = load.snapshot();
            prop_assert_eq!(is, client.snapshot(is));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn thesis_score_is_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::ThesisScore, &events)?;
    }

    #[test]
    fn round_robin_is_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::RoundRobin, &events)?;
    }

}

// These policies only have to choose an allowed member, so fewer cases are enough.
proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn least_inflight_is_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::LeastInflight, &events)?;
    }

    #[test]
    fn least_bytes_is_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::LeastBytes, &events)?;
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn adaptive_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::Adaptive, &events)?;
    }

    #[test]
    fn weighted_round_robin_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::WeightedRoundRobin, &events)?;
    }

    #[test]
    fn random_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::Random, &events)?;
    }

    #[test]
    fn sticky_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::Sticky, &events)?;
    }

    #[test]
    fn hash_client_id_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::HashClientId, &events)?;
    }

    #[test]
    fn hash_topic_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::HashTopic, &events)?;
    }

    #[test]
    fn least_response_time_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::LeastResponseTime, &events)?;
    }

    #[test]
    fn power_of_two_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::PowerOfTwo, &events)?;
    }

    #[test]
    fn capacity_stays_within_the_model(events in prop::collection::vec(event(), 0..200)) {
        check(Policy::Capacity, &events)?;
    }
}
