//! Refusals and notices of the machine, in words.

use tenbin_broker::Lease;
use tenbin_cluster::{Loss, Notice, PromotionRefused, SwitchRefused};

use super::Node;

impl Node {
    /// Why a promotion is refused.
    pub(super) fn refusal(&self, refused: PromotionRefused) -> String {
        match refused {
            PromotionRefused::Leads => "this node leads already, or is about to".to_owned(),
            PromotionRefused::Unfit => {
                "the broker or the disk of this node has failed: mend it, and restart the node".to_owned()
            }
            PromotionRefused::Namesake => {
                "another process has the name of this node: look at `tenbin cluster status`".to_owned()
            }
            PromotionRefused::NoCopy => {
                "this node has no complete copy: if no other node has one, restore a backup into its directory, then force it"
                    .to_owned()
            }
            PromotionRefused::LeaderLives => {
                "the record's leader was heard a moment ago: it is not gone; `tenbin cluster switch` lets the follower lead"
                    .to_owned()
            }
            PromotionRefused::NoRecord => {
                "this node has read no record: if the engine has lost it, `tenbin cluster adopt`".to_owned()
            }
            PromotionRefused::MayBeBehind if self.engine.is_some() => {
                let record = self.machine.record();
                let others =
                    record.map(|record| [Some(record.leader), record.follower]).into_iter().flatten().flatten();
                let others = others.filter(|node| *node != self.own).map(|node| self.names.name(node));
                let others = others.collect::<Vec<_>>().join(" and ");
                format!(
                    "messages that {others} acknowledged and this node lacks are lost. If {others} is gone for ever, and no \
                     process of it runs: --accept-loss"
                )
            }
            PromotionRefused::MayBeBehind => {
                let behind = self.machine.status(Lease::now()).behind_for;
                let since = behind.map_or(String::new(), |behind| format!(" for {} s", behind.as_secs()));
                format!(
                    "the leader has not been heard{since}, and may have gone on alone: this copy may lack messages that it has \
                     acknowledged since; --accept-loss promotes the node nevertheless"
                )
            }
        }
    }

    /// Why this leader does not hand over.
    pub(super) fn switch_refusal(&self, refused: SwitchRefused) -> String {
        let name = |node| self.names.name(node);
        match refused {
            SwitchRefused::NotLeader => "the leader has just changed: look at `tenbin cluster status`".to_owned(),
            SwitchRefused::Leads => format!("node {} leads already", name(self.own)),
            SwitchRefused::Manual => {
                "agreement is \"manual\": end the leader, then run `tenbin cluster promote` at the follower".to_owned()
            }
            SwitchRefused::NoFollower => "there is no follower: start another node, and wait for `copies 2`".to_owned(),
            SwitchRefused::Incomplete(node) => {
                format!("the copy of node {} is not complete yet: wait for `copies 2`", name(node))
            }
            SwitchRefused::NotFollower(node) => {
                format!("only the follower can lead next, and that is node {}", name(node))
            }
            SwitchRefused::Silent(node) => format!("the follower, node {}, does not answer", name(node)),
            SwitchRefused::EngineAway => "the engine does not answer: no takeover is possible".to_owned(),
            SwitchRefused::UnderWay => "a handover is under way already".to_owned(),
            SwitchRefused::Failed => {
                format!("the follower has not taken over in time: node {} leads as before", name(self.own))
            }
        }
    }

    /// A notice as a sentence.
    pub(super) fn words(&self, notice: Notice) -> String {
        let name = |node| self.names.name(node);
        match notice {
            Notice::RecordMissing => "The engine has no record of this cluster, but this node has a mark.".to_owned(),
            Notice::RecordOlder { found, known } => {
                format!(
                    "The engine's record has epoch {found}, but this node knows epoch {known}: the engine has lost data."
                )
            }
            Notice::EngineAway => "The engine does not answer: no takeover is possible.".to_owned(),
            Notice::EngineBack => "The engine answers again.".to_owned(),
            Notice::Barred { follower: Some(_) } => {
                "This node may lack messages that its machine has lost: it waits for the follower to take over."
                    .to_owned()
            }
            Notice::Barred { follower: None } => {
                "This directory is not the one with which the node has led, and no other node has a copy.".to_owned()
            }
            Notice::Namesake(namesake) => self.namesake_words(namesake),
            Notice::TakingOver { epoch, is_handover } => {
                let why = if is_handover { "hands over" } else { "is lost" };
                format!("Taking over: the leader of epoch {epoch} {why}.")
            }
            Notice::Leads { epoch } => format!("This node leads in epoch {epoch}."),
            Notice::Deposed { epoch, leader } => format!("Node {} leads in epoch {epoch}.", name(leader)),
            Notice::CopyComplete { node } => format!("Node {} has a complete copy and may take over.", name(node)),
            Notice::CopyLost { node, loss } => {
                let why = match loss {
                    Loss::Silent => "it does not answer",
                    Loss::Refused => "its process has ended",
                    Loss::Failed => "its copy has ended",
                    Loss::Restarted => "it was restarted",
                };
                format!("Going on without the copy of node {}: {why}.", name(node))
            }
            Notice::HandingOver { node } => format!("Handing over to node {}.", name(node)),
            Notice::HandoverFailed => "The follower has not taken over: this node goes on.".to_owned(),
            Notice::BrokerFailed => {
                "The broker could not start: this node does not lead until it is restarted.".to_owned()
            }
            Notice::DiskFailed => "The disk has failed: this node does not lead until it is restarted.".to_owned(),
        }
    }
}
