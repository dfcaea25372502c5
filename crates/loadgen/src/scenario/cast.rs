//! The participants of a run: their connections, and when they join, pause and leave.

use std::time::Duration;

use tenbin_client::{Client, ClientOptions, Events, Reconnect};
use tenbin_simulator::{Rng, Span};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::member::{self, Member};
use super::program::Program;
use super::publisher::{Publisher, PublisherRecord};
use super::role::{Exit, Role};
use super::stage::Stage;
use super::worker::WorkerRecord;
use crate::LoadgenError;

/// All participants of a run.
pub(super) struct Cast<'a> {
    stage: &'a Stage<'a>,
    roles: Vec<Role>,
    /// State of each worker, by role.
    parts: Vec<Part>,
    /// Pending events, the latest first.
    cues: Vec<(u64, Cue)>,
    publisher: Client,
    /// Kept open as long as the publisher; its events are not read.
    _publisher_events: Events,
    /// Due time of the first message, by the run's clock.
    start_ns: u64,
}

/// State of one worker.
enum Part {
    /// It has not joined yet.
    Ahead,
    Playing(Member),
    PlayingElsewhere(Program),
    /// It has left or died; if it left, it finishes its messages.
    Leaving(JoinHandle<WorkerRecord>),
}

/// An event of a role's worker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cue {
    Joins(usize),
    /// The end of the pause, by the run's clock.
    StandsStill(usize, u64),
    Exits(usize),
}

impl<'a> Cast<'a> {
    /// Connects the publisher and the initial workers, then waits for the scenario's idle time.
    ///
    /// Workers connect at random times, so that their reports are not aligned with the messages.
    pub(super) async fn assemble(stage: &'a Stage<'a>, roles: Vec<Role>) -> Result<Self, LoadgenError> {
        let plan = stage.plan;
        let options = ClientOptions::new(stage.address, stage.publisher_id()).reconnect(Reconnect::Never);
        let (publisher, publisher_events) = member::connect(stage.address.to_owned(), options).await?;

        let mut parts: Vec<_> = roles.iter().map(|_| Part::Ahead).collect();
        let begin_ns = stage.clock.now_ns();
        for (delay_ns, index) in entrances(&roles, plan.ping_interval(), stage.seed) {
            sleep_until(stage, begin_ns + delay_ns).await;
            parts[index] = match &plan.worker_command {
                None => Part::Playing(Member::join(stage, &roles[index]).await?),
                Some(command) => Part::PlayingElsewhere(Program::start(stage, &roles[index], command).await?),
            };
        }
        let idle = plan.ping_interval() + plan.scenario.idle.duration();
        let start_ns = (begin_ns + idle.as_nanos() as u64).max(stage.clock.now_ns()) + LEAD.as_nanos() as u64;
        for (part, role) in parts.iter_mut().zip(&roles) {
            if let Part::Playing(member) = part {
                member.work(stage, role, start_ns);
            }
        }
        let cues = cues(&roles, start_ns);
        Ok(Self { stage, roles, parts, cues, publisher, _publisher_events: publisher_events, start_ns })
    }

    /// Starts the publisher in its own thread.
    pub(super) fn publish(&self) -> JoinHandle<Result<PublisherRecord, LoadgenError>> {
        let publisher = Publisher {
            schedule: self.stage.schedule.clone(),
            start_ns: self.start_ns,
            run: self.stage.run,
            topic: self.stage.topic.clone(),
            qos: self.stage.plan.qos,
            clock: self.stage.clock,
            client: self.publisher.clone(),
            runtime: Handle::current(),
        };
        let shared = std::sync::Arc::clone(&self.stage.shared);
        tokio::task::spawn_blocking(move || publisher.publish(&shared))
    }

    /// Runs for `time` and applies the events due in it, each at its time.
    pub(super) async fn play_for(&mut self, time: Duration) -> Result<(), LoadgenError> {
        let until_ns = self.stage.clock.now_ns() + time.as_nanos() as u64;
        while let Some(&(at_ns, cue)) = self.cues.last().filter(|(at_ns, _)| *at_ns <= until_ns) {
            self.cues.pop();
            sleep_until(self.stage, at_ns).await;
            self.play(cue).await?;
        }
        sleep_until(self.stage, until_ns).await;
        Ok(())
    }

    /// Role of a worker that ended unexpectedly.
    pub(super) fn lost(&self) -> Option<&Role> {
        let has_ended = |part: &Part| match part {
            Part::Ahead | Part::Leaving(_) => false,
            Part::Playing(member) => member.has_ended(),
            Part::PlayingElsewhere(program) => program.has_ended(),
        };
        let index = self.parts.iter().position(has_ended);
        index.map(|index| &self.roles[index])
    }

    /// Due time of the first message, by the run's clock.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Ends the connections, and thereby the workers' queues; returns each worker's record, by role.
    pub(super) async fn end(self) -> Vec<(Role, WorkerRecord)> {
        member::disconnect(self.publisher).await;
        let mut records = Vec::new();
        for (role, part) in self.roles.into_iter().zip(self.parts) {
            let record = match part {
                Part::Ahead => WorkerRecord::default(),
                Part::Playing(member) => member.end(self.stage.clock).await,
                Part::PlayingElsewhere(program) => program.end().await,
                Part::Leaving(leaving) => leaving.await.expect("a worker does not panic"),
            };
            records.push((role, record));
        }
        records
    }

    async fn play(&mut self, cue: Cue) -> Result<(), LoadgenError> {
        let stage = self.stage;
        match cue {
            Cue::Joins(index) => {
                let mut member = Member::join(stage, &self.roles[index]).await?;
                member.work(stage, &self.roles[index], self.start_ns);
                self.parts[index] = Part::Playing(member);
            }
            Cue::StandsStill(index, until_ns) => {
                if let Part::Playing(member) = &self.parts[index] {
                    member.stand_still(stage, until_ns);
                }
            }
            Cue::Exits(index) => {
                // Placeholder, as the member has to be moved out.
                let part = std::mem::replace(&mut self.parts[index], Part::Ahead);
                let Part::Playing(member) = part else { return Ok(()) };
                let exit = match self.roles[index].exit {
                    Some(Exit::Dies(_)) => tokio::spawn(member.die(stage.clock)),
                    _ => tokio::spawn(member.leave(stage.filter.clone(), stage.clock)),
                };
                self.parts[index] = Part::Leaving(exit);
            }
        }
        Ok(())
    }
}

/// Connect times of the initial workers, in nanoseconds: random within one report interval.
///
/// Reports count from each connection on, so that the random times keep them unaligned.
fn entrances(roles: &[Role], ping_interval: Duration, seed: u64) -> Vec<(u64, usize)> {
    let mut rng = Rng::new(seed ^ ENTRANCES);
    let from_the_start = (0..roles.len()).filter(|&index| roles[index].joins == Span::ZERO);
    let interval_ns = (ping_interval.as_nanos() as u64).max(1);
    let mut entrances: Vec<_> = from_the_start.map(|index| (rng.next_u64() % interval_ns, index)).collect();
    entrances.sort_unstable();
    entrances
}

/// All events of the workers, the latest first.
fn cues(roles: &[Role], start_ns: u64) -> Vec<(u64, Cue)> {
    let mut cues = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let at = |span: Span| start_ns + span.ns();
        if role.joins > Span::ZERO {
            cues.push((at(role.joins), Cue::Joins(index)));
        }
        let is_there = |span: Span| span >= role.joins && role.exit.is_none_or(|exit| span < exit.at());
        for pause in role.kind.pauses.iter().filter(|pause| is_there(pause.at)) {
            cues.push((at(pause.at), Cue::StandsStill(index, at(pause.at) + pause.length.ns())));
        }
        cues.extend(role.exit.map(|exit| (at(exit.at()), Cue::Exits(index))));
    }
    cues.sort_by_key(|(at_ns, _)| std::cmp::Reverse(*at_ns));
    cues
}

async fn sleep_until(stage: &Stage<'_>, at_ns: u64) {
    let left = at_ns.saturating_sub(stage.clock.now_ns());
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

/// Time from the end of the preparations to the first message.
const LEAD: Duration = Duration::from_millis(1);

/// Separates these random numbers from others of the run's seed.
const ENTRANCES: u64 = 0x656e_7472_616e_6365;

#[cfg(test)]
mod tests {
    use tenbin_simulator::Scenario;

    use super::super::role;
    use super::*;

    #[test]
    fn cues_are_in_order_of_time() {
        let text = "messages = 1\narrivals = { fixed = \"1ms\" }\n[[workers]]\nservice = \"1ms\"\ndies = \"3s\"\n\
                    pauses = [{ at = \"1s\", for = \"500ms\" }, { at = \"4s\", for = \"1s\" }]\n\
                    [[workers]]\nservice = \"1ms\"\njoins = \"2s\"\nleaves = \"5s\"";
        let roles = role::cast(&Scenario::parse("test", text).unwrap(), Duration::from_secs(9), 0);
        let mut cues = cues(&roles, 7);
        cues.reverse();
        let s = |seconds: f64| (seconds * 1e9) as u64 + 7;
        // No event follows a worker's death.
        let expected = [
            (s(1.0), Cue::StandsStill(0, s(1.5))),
            (s(2.0), Cue::Joins(1)),
            (s(3.0), Cue::Exits(0)),
            (s(5.0), Cue::Exits(1)),
        ];
        assert_eq!(cues, expected);
    }

    #[test]
    fn workers_enter_within_one_interval_of_reports() {
        let text = "messages = 1\narrivals = { fixed = \"1ms\" }\n[[workers]]\nservice = \"1ms\"\ncount = 40";
        let roles = role::cast(&Scenario::parse("test", text).unwrap(), Duration::from_secs(1), 0);
        let at = |seed| entrances(&roles, Duration::from_secs(1), seed);
        assert!(at(1).is_sorted() && at(1).iter().all(|(at_ns, _)| *at_ns < 1_000_000_000));
        assert!(at(1)[0].0 < 500_000_000 && at(1)[39].0 > 500_000_000);
        let mut indices: Vec<_> = at(1).into_iter().map(|(_, index)| index).collect();
        indices.sort_unstable();
        assert!(indices.into_iter().eq(0..40));
        assert_eq!(at(1), at(1));
        assert_ne!(at(1), at(2));
    }
}
