//! Looks at the broker, the disks and the copy from time to time.

use std::time::{Duration, Instant};

use tenbin_broker::{Lease, OpenSockets};
use tenbin_cluster::{Input, Step};
use tenbin_store::mirror::Full;

use super::Node;

/// Confirmations of the copy that a leader waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confirmed {
    pub(super) session: u64,
    pub(super) numbers: [u64; 2],
    pub(super) at: Duration,
}

impl Node {
    /// Looks at disks, copies and peers from time to time. True: the node has stopped.
    pub(super) async fn look(&mut self) -> bool {
        self.links.turns(Instant::now());
        if self.serving.is_none() && self.relay.is_none() {
            if self.sockets.is_none() {
                match OpenSockets::open(&self.config).await {
                    Ok(sockets) => self.sockets = Some(sockets),
                    // The broker's sockets close when its last connection ends.
                    Err(error) => self.report.not_listening(&error.to_string()),
                }
            }
            self.start_relay();
        }
        self.probe_taking_follower();
        self.check_copy_if_due();
        if let Some(reason) = self.disk_trouble() {
            tracing::error!(reason, "the disk of this leader cannot be used: the follower is to lead");
            return self.input(Input::DiskUnusable).await;
        }
        let failed = match self.stuck_copy() {
            Some(session) => Some((session, "the copy confirms nothing, although its node answers")),
            None => self.copies.late().map(|session| (session, "the node does not begin its copy")),
        };
        match failed {
            Some((session, reason)) => {
                tracing::warn!(session, reason, "giving up a copy");
                self.input(Input::CopyFailed { session }).await
            }
            None => false,
        }
    }

    /// Why this leader's disk cannot be used while its follower's can, from time to time.
    fn disk_trouble(&mut self) -> Option<&'static str> {
        let (broker, mirror) = self.serving.as_ref().and_then(|serving| Some((serving.broker()?, &serving.mirror)))?;
        let has_failed = broker.store_has_failed_for().is_some_and(|time| time >= DISK_PATIENCE);
        // A full disk fails, too: the follower must be the better place.
        let reason = if has_failed && !mirror.are_both_full() {
            "it has failed"
        } else if mirror.disk_waits().is_some_and(|time| time >= HANGS_AFTER) {
            "it does not answer"
        } else if mirror.full_disk() == Some(Full::Leader) {
            "it is full"
        } else {
            return None;
        };
        let now = Lease::now();
        let status = self.machine.status(now);
        let is_possible = status.step == Step::Leading && status.copies > 1 && !status.is_engine_away;
        if !is_possible || now < self.next_handover {
            return None;
        }
        self.next_handover = now + HANDOVER_AGAIN_AFTER;
        Some(reason)
    }

    /// The session of a copy that owes confirmations and gives none.
    fn stuck_copy(&mut self) -> Option<u64> {
        let confirmed = self.confirmed.as_mut()?;
        let stats = self.serving.as_ref()?.mirror.stats();
        let now = Lease::now();
        let numbers = [stats.log_confirmed, stats.state_confirmed];
        let is_behind = stats.log_behind > 0 && numbers[0] == confirmed.numbers[0]
            || stats.state_behind > 0 && numbers[1] == confirmed.numbers[1];
        if !is_behind {
            (confirmed.numbers, confirmed.at) = (numbers, now);
        }
        let patience = if stats.is_required { STUCK_AFTER } else { JOIN_STUCK_AFTER };
        let is_stuck = now.saturating_sub(confirmed.at) > patience;
        // Once: the machine knows it then.
        self.confirmed.take_if(|_| is_stuck).map(|confirmed| confirmed.session)
    }
}

/// Failure of the leader's disk after which its follower is to lead.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// Time without an answer after which a disk hangs. A slow disk that others use takes seconds, too.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(5);
const HANDOVER_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Silence of a copy's disk after which the leader goes on without it.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// The same during a join, for which no commit waits. A busy disk may take seconds for one sync.
const JOIN_STUCK_AFTER: Duration = Duration::from_secs(10);
