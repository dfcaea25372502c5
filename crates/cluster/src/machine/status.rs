//! Views of a machine, for the driver and operators.

use std::time::Duration;

use super::agreement::{Call, Phase};
use super::standby::LinkState;
use super::{Machine, State};
use crate::event::{Namesake, Notice};
use crate::node::Node;
use crate::record::{Record, Role};
use crate::settings::Agreement;

/// State of a node, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Present step of the node.
    pub step: Step,
    /// Its role in the newest record that it knows.
    pub role: Option<Role>,
    /// The newest record that it knows.
    pub record: Option<Record>,
    /// True if this node leads and may act now.
    pub may_act: bool,
    /// Rest of the leader's lease; `None` without a limit, or if this node does not lead.
    pub lease_left: Option<Duration>,
    /// Number of copies. The leader counts its follower once the follower's mark is on its disk.
    pub copies: u8,
    /// Time since this leader has been the only copy.
    pub alone_for: Option<Duration>,
    /// A follower without a leader, or a spare: time since the leader was heard.
    pub behind_for: Option<Duration>,
    /// True while acknowledgements wait for a second copy.
    pub is_held: bool,
    /// True while a change of the record waits for its outcome.
    pub is_changing: bool,
    /// True while the engine does not answer.
    pub is_engine_away: bool,
    /// Another process with this node's name, if one is known or likely: this node does not act.
    pub namesake: Option<Namesake>,
    /// The newest trouble.
    pub last_error: Option<Notice>,
}

/// Present step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads the record.
    Starting,
    /// Relays.
    Spare,
    /// Is being copied to.
    Joining,
    /// Mirrors the leader.
    Following,
    /// Would lead, but its directory may lack data.
    Barred,
    /// Opens the broker, in order to lead.
    Opening,
    /// Runs the broker.
    Leading,
    /// Runs the broker, which pauses until the follower has taken over.
    HandingOver,
    /// Runs the broker, with neither follower nor engine in reach: its clients were ended.
    Fenced,
    /// Closes the broker.
    Closing,
    /// Has ended.
    Stopped,
}

impl Step {
    /// True if the node leads, whether or not it may act.
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading | Self::HandingOver | Self::Fenced)
    }
}

impl Machine {
    /// The next time at which the machine has something to do without any other input. `now` is the time of the last
    /// input.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let timing = &self.settings.timing;
        let read =
            (self.call == Call::None && self.state != State::Stopped).then(|| self.read_at + self.read_interval(now));
        let of_state = match self.state {
            State::Starting { until } if self.is_manual() => Some(until),
            State::Spare | State::Joiner { .. } | State::Follower { .. } => {
                Some(self.link.heard + timing.dead_after + timing.follower_later)
            }
            State::Opening(opening) => opening.waits_until.or(Some(self.promised)),
            State::Leader(leader) => Some(leader.next_beacon),
            _ => None,
        };
        // Everything earlier was done by the last input, or waits for another one.
        read.into_iter().chain(of_state).filter(|at| *at > now).min()
    }

    /// True if this node leads and may act at this time.
    pub fn may_act(&self, now: Duration) -> bool {
        matches!(self.state, State::Leader(leader) if leader.may_act(now))
    }

    /// The newest record that this node knows, or in which its directory has acted.
    pub fn known(&self) -> Option<Record> {
        let marked = self.mark.map(|mark| mark.record);
        let is_newer = |marked: &Record| self.record.is_none_or(|record| record.epoch < marked.epoch);
        marked.filter(is_newer).or(self.record)
    }

    /// The newest record that this node knows.
    pub fn record(&self) -> Option<Record> {
        self.record
    }

    /// The node to which clients are relayed, if it is another one. `None` while it is known not to serve: clients wait.
    pub fn leader(&self) -> Option<Node> {
        let leader = self.record.map(|record| record.leader).filter(|leader| *leader != self.settings.node);
        leader.filter(|leader| self.link.to != Some(*leader) || self.link.state != LinkState::Refused)
    }

    /// State of the node.
    pub fn status(&self, now: Duration) -> Status {
        let leader = match self.state {
            State::Leader(leader) => Some(leader),
            _ => None,
        };
        let is_standby = matches!(self.state, State::Spare | State::Follower { .. });
        let heard = self.link.to.filter(|_| is_standby).map(|_| self.link.heard);
        Status {
            step: match self.state {
                State::Starting { .. } | State::Creating => Step::Starting,
                State::Spare => Step::Spare,
                State::Joiner { .. } => Step::Joining,
                State::Follower { .. } => Step::Following,
                State::Barred => Step::Barred,
                State::Opening(_) => Step::Opening,
                State::Leader(leader) if leader.is_fenced() => Step::Fenced,
                State::Leader(leader) if leader.handover.is_some() => Step::HandingOver,
                State::Leader(_) => Step::Leading,
                State::Closing { .. } => Step::Closing,
                State::Stopped => Step::Stopped,
            },
            role: self.record.map(|record| self.role(record)),
            record: self.record,
            may_act: self.may_act(now),
            lease_left: leader.and_then(|leader| leader.lease()).map(|until| until.saturating_sub(now)),
            copies: leader.map_or(self.record.map_or(0, |record| record.copies()), |leader| leader.copies()),
            alone_for: leader.filter(|leader| leader.is_alone()).map(|l| now.saturating_sub(l.alone_since)),
            behind_for: heard.map(|heard| now.saturating_sub(heard)),
            is_held: leader.is_some_and(|leader| leader.is_held),
            is_changing: self.change.is_some_and(|change| change.phase != Phase::Marking),
            is_engine_away: self.is_engine_away && self.settings.agreement == Agreement::Engine,
            namesake: self.known_namesake(),
            last_error: self.last_error,
        }
    }
}
