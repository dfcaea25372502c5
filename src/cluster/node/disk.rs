//! Work of a node on its data directory: marks, syncs, and stores that are set aside.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenbin_cluster::{Action, Input, Record, Role, StoredMark};

use super::{Event, Node, NodeDirectory};

impl Node {
    /// Writes the mark, and tells its end as [`Input::MarkWritten`].
    pub(super) fn write_mark(&mut self, record: Record) {
        // First: a store beside a joiner's mark is a copy, and the next copy replaces it.
        if self.is_foreign && record.role_of(self.own) == Role::Joiner {
            return self.set_aside(Some(record));
        }
        let mark = StoredMark {
            cluster: self.config.cluster.name.clone(),
            node: self.names.name(self.own).to_owned(),
            record: self.stored(&record),
            boot_id: self.boot_id.clone(),
        };
        // Again and again: the machine waits for its mark.
        self.on_disk(Input::MarkWritten, move |directory| {
            while let Err(error) = directory.write_mark(&mark) {
                tracing::error!(%error, directory = %directory.path().display(), "cannot write the node's mark");
                std::thread::sleep(AGAIN_AFTER);
            }
            Ok(())
        });
    }

    /// Does work on the directory in a thread, and tells its end as `input`.
    pub(super) fn on_disk(&self, input: Input, work: impl FnOnce(&NodeDirectory) -> io::Result<()> + Send + 'static) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let result = work(&directory).map_err(|error| error.to_string());
            events.send(Event::MarkDone { input, result });
        });
    }

    /// Moves the store and the mark aside, in a thread: a slow disk must not keep beacons waiting. Further work on the
    /// directory waits for that. `then`: the mark that is written next.
    pub(super) fn set_aside(&mut self, then: Option<Record>) {
        let epoch = self.machine.record().map_or(0, |record| record.epoch);
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        self.sealing.begin(move || {
            let result = directory.set_aside(epoch).map_err(|error| error.to_string());
            events.send(Event::SetAside { result, then });
        });
    }

    /// Goes on after [`Node::set_aside`]. True: the node has stopped.
    pub(super) async fn was_set_aside(&mut self, result: Result<PathBuf, String>, then: Option<Record>) -> bool {
        self.is_foreign = result.is_err();
        let next = match result {
            Ok(aside) => {
                tracing::warn!(directory = %aside.display(), "set the old store aside: it may have messages that no other node has");
                self.report.set_aside(aside);
                then.map(Action::WriteMark)
            }
            Err(error) => {
                tracing::error!(error, directory = %self.directory.path().display(), "cannot set the old store aside");
                if let Some(record) = then {
                    let events = self.events.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(AGAIN_AFTER).await;
                        events.send(Event::MarkAgain(record));
                    });
                }
                None
            }
        };
        self.goes_on(next).await
    }
}

/// Pause before work on a directory that cannot be written is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
