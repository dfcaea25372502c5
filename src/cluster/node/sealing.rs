//! Long work on the directory: ends of copies at this node, and stores that are set aside. A disk that hangs may keep its
//! threads: the node goes on in that time.

use std::mem;
use std::time::Duration;

use tenbin_cluster::Action;
use tenbin_store::mirror::Copy;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{CopyTask, Event, Node};

/// Copies that end and stores that are set aside, and further work on the directory, which waits for that.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    tasks: JoinSet<()>,
    /// Tasks whose event has not come.
    running: usize,
    waiting: Vec<Action>,
}

impl Sealing {
    /// Begins `work` on the directory, which may block. Its event tells the end.
    pub(super) fn begin(&mut self, work: impl FnOnce() + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn_blocking(work);
        self.running += 1;
    }

    /// Returns an action that can be performed now. `None`: it waits for the directory.
    pub(super) fn now(&mut self, action: Action) -> Option<Action> {
        let needs_directory = matches!(
            action,
            Action::WriteMark(_) | Action::SyncDisk | Action::SetAside | Action::StartCopy { .. } | Action::OpenBroker
        );
        if self.running == 0 || !needs_directory {
            return Some(action);
        }
        self.waiting.push(action);
        None
    }

    /// Forgets the start of a broker that waits for the directory. True: one did.
    pub(super) fn opens_no_broker(&mut self) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|action| *action != Action::OpenBroker);
        self.waiting.len() < before
    }

    /// Forgets the start of a copy that waits for the directory.
    fn starts_no_copy(&mut self) {
        self.waiting.retain(|action| !matches!(action, Action::StartCopy { .. }));
    }

    /// Notes the end of work. Returns actions that can be performed now, in their order.
    fn ended(&mut self) -> Vec<Action> {
        self.running = self.running.saturating_sub(1);
        if self.running == 0 { mem::take(&mut self.waiting) } else { Vec::new() }
    }

    /// Waits for the end of all work, if their disk answers.
    pub(super) async fn finish(&mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(SEALED_WITHIN, all).await.is_err() {
            tracing::warn!("work on the data directory has not ended: its disk does not answer");
        }
    }
}

impl Node {
    /// Ends the copy at this node. From here on it confirms nothing, and [`Event::Sealed`] tells that its directory is free.
    pub(super) fn seal(&mut self) {
        self.sealing.starts_no_copy();
        if let CopyTask::Present { copy, session } = mem::replace(&mut self.copy, CopyTask::None) {
            tracing::info!(session, "sealing the copy");
            self.end_copy(copy);
        }
    }

    pub(super) fn end_copy(&mut self, copy: Copy) {
        copy.hang_up();
        let events = self.events.clone();
        self.sealing.begin(move || {
            copy.seal();
            events.send(Event::Sealed);
        });
    }

    /// Work on the directory has ended: `first` is performed, and then the actions that have waited for it. True: the node has
    /// stopped.
    pub(super) async fn goes_on(&mut self, first: Option<Action>) -> bool {
        let mut inputs = Vec::new();
        let waiting = self.sealing.ended();
        for action in first.into_iter().chain(waiting) {
            inputs.extend(self.perform(action).await);
        }
        let mut is_stopped = false;
        for input in inputs {
            is_stopped |= self.input(input).await;
        }
        is_stopped
    }
}

/// How long the node waits for its copy before its process ends.
const SEALED_WITHIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn work_on_the_directory_waits_for_the_copys_end() {
        let mut sealing = Sealing::default();
        assert_eq!(sealing.now(Action::OpenBroker), Some(Action::OpenBroker));
        let (free, is_free) = mpsc::sync_channel::<()>(1);
        sealing.begin(move || _ = is_free.recv());
        assert_eq!(sealing.now(Action::Farewell), Some(Action::Farewell));
        let start = Action::StartCopy { leader: tenbin_cluster::Node(1), session: 7 };
        for action in [Action::SetAside, Action::OpenBroker, start, Action::SyncDisk] {
            assert_eq!(sealing.now(action), None);
        }
        sealing.starts_no_copy();
        assert!(sealing.opens_no_broker() && !sealing.opens_no_broker());
        let began = Instant::now();
        sealing.finish().await;
        assert!(began.elapsed() < 3 * SEALED_WITHIN, "a disk that hangs keeps no process");
        drop(free);
        assert_eq!(sealing.ended(), [Action::SetAside, Action::SyncDisk]);
        assert_eq!(sealing.now(Action::SyncDisk), Some(Action::SyncDisk));
        sealing.finish().await;
    }
}
