//! Comparisons of the copy with the leader's data from time to time.

use tenbin_broker::Lease;
use tenbin_cluster::{Input, Step};
use tenbin_store::mirror::CopyEvent;

use super::Node;

impl Node {
    /// Lets the follower's copy be compared, if it is time. A join compares, too, so the time begins at its end.
    pub(super) fn check_copy_if_due(&mut self) {
        let cluster = &self.config.cluster;
        let (now, rate) = (Lease::now(), cluster.copy_bytes_per_second() / CHECK_SHARE);
        let status = self.machine.status(now);
        let has_copy = status.step == Step::Leading && status.copies == 2;
        let (true, Some(every), Some(serving)) = (has_copy, cluster.check_interval(), &self.serving) else {
            self.next_check = None;
            return;
        };
        if now >= *self.next_check.get_or_insert(now + every) {
            self.next_check = Some(now + every);
            if let Err(error) = serving.mirror.check(rate) {
                tracing::warn!(%error, "cannot compare the copy");
            }
        }
    }

    /// Handles news of the copy at this node.
    pub(super) fn copy_said(&mut self, session: u64, event: CopyEvent) -> Option<Input> {
        match event {
            CopyEvent::Checked => {
                tracing::info!(session, "the copy equals the leader's data");
                self.report.counts.checks += 1;
                return None;
            }
            CopyEvent::Damaged(damage) => {
                tracing::error!(session, damage, "the copy is damaged, and is compared and copied again");
                self.report.damaged(format!("The copy at this node was damaged, and was copied again: {damage}."));
            }
            CopyEvent::Ended(_) | CopyEvent::Failed(_) => tracing::warn!(session, ?event, "the copy has ended"),
        }
        Some(Input::CopyBroken { session })
    }

    /// Notes damage of the data of this leader.
    pub(super) fn leader_is_damaged(&mut self, damage: &str) {
        tracing::error!(damage, "the data of this leader is damaged: let the follower lead");
        self.report.damaged(format!("The data of this node is damaged: {damage}. Let the other node lead."));
    }
}

/// Part of the rate of a join that a comparison has: it is to keep no client waiting.
const CHECK_SHARE: u64 = 8;
