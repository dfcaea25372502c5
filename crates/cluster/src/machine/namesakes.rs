//! Processes with the same name: an operator has copied a configuration file or a directory.
//!
//! A name alone does not tell who has written a record. The directory tells it: one process at a time has it, so a record
//! that names this directory is of this process, or of an earlier one that has ended.

use super::{After, Machine, State, Turn};
use crate::event::{Action, Hello, Namesake, Notice};
use crate::node::Node;
use crate::record::{Record, Role};
use crate::settings::Rule;

impl Machine {
    /// Role that a record gives to this process.
    pub(super) fn role(&self, record: Record) -> Role {
        let (node, directory) = (self.settings.node, self.settings.directory);
        // No node acts in epoch 1. It nominates a name, and the engine lets one process change it.
        let is_free = record.epoch == 1 && !self.is_manual();
        // Rule 11: a record that names another directory is not this node's, although it has the node's name.
        if is_free || !self.settings.has(Rule::OwnDirectory) {
            record.role_of(node)
        } else {
            record.role_in(node, directory)
        }
    }

    /// True if the newest record names this process as leader, and no other one is known to have written it.
    pub fn is_named(&self) -> bool {
        self.namesake.is_none() && self.record.is_some_and(|record| self.role(record) == Role::Leader)
    }

    /// True if neither a failure nor a namesake keeps this node from acting.
    pub(super) fn is_fit(&self) -> bool {
        !self.is_unfit && self.namesake.is_none()
    }

    /// Another process with this node's name, if one is known or likely.
    pub(super) fn known_namesake(&self) -> Option<Namesake> {
        let is_named = |record: Record| record.leader == self.settings.node && self.role(record) != Role::Leader;
        self.namesake.or(self.record.filter(|record| is_named(*record)).map(|_| Namesake::Named))
    }

    /// Another process with this node's name lives. An operator has to decide which one is right: until then this process does
    /// not act.
    pub(super) fn namesake_found(&mut self, namesake: Namesake, turn: &mut Turn<'_>) {
        if self.namesake.is_some() {
            return;
        }
        self.namesake = Some(namesake);
        self.notice(Notice::Namesake(namesake), turn);
        match self.state {
            State::Leader(_) | State::Opening(_) => self.close(After::Place, turn),
            State::Creating => {
                self.change = None;
                self.state = State::Starting { until: turn.now };
            }
            State::Joiner { .. } | State::Follower { .. } | State::Spare => {
                turn.act(Action::Seal);
                self.place(turn);
            }
            State::Starting { .. } | State::Barred | State::Closing { .. } | State::Stopped => {}
        }
    }

    /// True if the node of this hello is the record's follower or joiner, and its process has no copy of that session.
    pub(super) fn has_no_copy(&self, hello: Hello) -> bool {
        let Some(record) = self.record else { return false };
        match record.role_of(hello.node) {
            Role::Follower if !hello.may_take_over => true,
            // Rule 11: another directory has the copy.
            Role::Follower | Role::Joiner if self.settings.has(Rule::OwnDirectory) => {
                record.role_in(hello.node, hello.directory) == Role::Spare
            }
            _ => false,
        }
    }

    /// The record with the directories of its nodes.
    pub(super) fn with_directories(&self, record: Record) -> Record {
        let copy_directory = match (record.follower.or(record.joiner), self.record) {
            (None, _) => 0,
            (Some(node), before) => self.directory_of(node, before.filter(|_| record.follower.is_some())),
        };
        Record { leader_directory: self.settings.directory, copy_directory, ..record }
    }

    /// Directory of the node that is copied to: as the record before tells it, else as the node has told it.
    fn directory_of(&self, node: Node, before: Option<Record>) -> u64 {
        let of_record = |record: Record| record.follower.or(record.joiner) == Some(node);
        let told = self.peer_directories.get(&node).copied();
        let known = |record: Option<Record>| record.filter(|record| of_record(*record)).map(|r| r.copy_directory);
        known(before).or(told).or(known(self.record)).unwrap_or(0)
    }
}
