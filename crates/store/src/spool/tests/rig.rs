//! A spool with its committer, its disk and a model, under a test's control.

use std::sync::Arc;

use super::{
    memory_disk::{Faults, MemoryDisk},
    model::{Call, Model},
};
use crate::Sync;
use crate::spool::{
    Disk, Options, Position, Spool,
    committer::{CommitStep, Committer},
    reclaim::Pieces,
    recovery::OpenError,
};

pub(crate) struct Rig {
    pub(crate) disk: MemoryDisk,
    pub(crate) options: Options,
    pieces: Option<Pieces>,
    pub(crate) spool: Spool,
    committer: Committer,
    /// Content after each call and the end of the log then, from the last confirmed one on.
    history: Vec<(Position, Model)>,
}

/// How a process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Closed,
    Killed,
    PowerCut(u64),
    /// Killed, and the last writes may look as if they were never confirmed.
    Doubted,
}

impl Rig {
    pub(crate) fn new(options: Options) -> Self {
        Self::on(MemoryDisk::default(), options)
    }

    /// A rig whose disk has `space` bytes.
    pub(crate) fn with_space(options: Options, space: usize) -> Self {
        let disk = MemoryDisk::default();
        disk.set_faults(|faults| faults.space = Some(space));
        Self::on(disk, options)
    }

    fn on(disk: MemoryDisk, options: Options) -> Self {
        let (spool, committer, _) = Spool::open_on(Arc::new(disk.clone()), options).unwrap();
        let history = vec![(Position::default(), Model::default())];
        Self { disk, options, pieces: None, spool, committer, history }
    }

    /// A rig on `disk` as `through` shows it. It continues a rig that had these contents since its last confirmed one.
    pub(crate) fn through(disk: MemoryDisk, through: Arc<dyn Disk>, options: Options, before: &[Model]) -> Self {
        let (spool, committer, _) = Spool::open_on(through, options).unwrap();
        let model = before[found(&spool, before, End::Killed)].clone();
        Self { disk, options, pieces: None, spool, committer, history: vec![(Position::default(), model)] }
    }

    /// Kills the process. Returns its disk, and the contents since the last confirmed one.
    pub(crate) fn kill(self) -> (MemoryDisk, Vec<Model>) {
        let Self { disk, spool, committer, mut history, .. } = self;
        forget_before(&mut history, spool.durable());
        drop((committer, spool));
        (disk, history.into_iter().map(|(_, model)| model).collect())
    }

    /// Sets the amounts of copying, also for later openings.
    pub(in crate::spool) fn copying_in(mut self, pieces: Pieces) -> Self {
        self.committer.reclaim().set_pieces(pieces);
        Self { pieces: Some(pieces), ..self }
    }

    pub(crate) fn model(&self) -> &Model {
        &self.history.last().expect("there is always one").1
    }

    pub(crate) fn call(&mut self, call: &Call) {
        let mut model = self.model().clone();
        let mut batch = self.spool.begin();
        call.apply(&mut batch, &mut model);
        let end = batch.end();
        drop(batch);
        self.history.push((end, model));
    }

    /// Runs the committer until it is idle. True if everything is confirmed.
    pub(crate) fn commit(&mut self) -> bool {
        self.work(1_000) == CommitStep::Idle
    }

    /// As [`work`](Self::work), for other modules.
    pub(crate) fn work_some(&mut self, steps: usize) {
        self.work(steps);
    }

    /// Runs at most `steps` steps, with all postponed actions due.
    pub(in crate::spool) fn work(&mut self, steps: usize) -> CommitStep {
        self.committer.pass_time();
        let mut step = CommitStep::More;
        for _ in 0..steps {
            step = self.committer.step();
            if step != CommitStep::More {
                break;
            }
        }
        self.forget_history();
        step
    }

    pub(crate) fn is_copying(&mut self) -> bool {
        self.committer.reclaim().is_copying()
    }

    pub(crate) fn oldest(&self) -> u32 {
        self.spool.shared.log().index.segments.oldest()
    }

    /// Runs `work`, and keeps all earlier states as possible results.
    pub(crate) fn keep_history<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let history = self.history.clone();
        let result = work(self);
        self.history = history;
        result
    }

    /// Drops states before the last confirmed one: they are no possible results any more.
    fn forget_history(&mut self) {
        let synced = self.spool.shared.log().synced;
        forget_before(&mut self.history, synced);
    }

    pub(crate) fn assert_as_model(&self) {
        assert_eq!(&Model::of(&self.spool), self.model());
    }

    /// Ends the process and opens the spool again. Its content must equal that after a call since the last confirmed
    /// one.
    pub(crate) fn end(self, end: End) -> Self {
        self.leave(end).open().unwrap()
    }

    /// As `end`, with a change of the disk in between.
    pub(crate) fn try_end(self, end: End, change: impl FnOnce(&MemoryDisk)) -> Result<Self, OpenError> {
        let left = self.leave(end);
        change(&left.disk);
        left.open()
    }

    pub(crate) fn leave(self, end: End) -> Left {
        let Self { mut disk, options, pieces, spool, committer, mut history } = self;
        if matches!((end, options.sync), (End::Killed, _) | (End::PowerCut(_), Sync::Always)) {
            forget_before(&mut history, spool.durable());
        }
        match end {
            End::Closed => {
                disk.set_faults(|faults| *faults = Default::default());
                committer.close();
                history.drain(..history.len() - 1);
            }
            End::Killed | End::Doubted => drop(committer),
            End::PowerCut(seed) => {
                drop(committer);
                disk = disk.after_power_cut(seed);
            }
        }
        drop(spool);
        disk.set_faults(|faults| *faults = Default::default());
        let models = history.into_iter().map(|(_, model)| model).collect();
        Left { disk, options, pieces, end, models }
    }
}

/// Files that a process left behind.
pub(crate) struct Left {
    pub(crate) disk: MemoryDisk,
    options: Options,
    pieces: Option<Pieces>,
    end: End,
    /// Allowed contents.
    models: Vec<Model>,
}

impl Left {
    pub(crate) fn open(self) -> Result<Rig, OpenError> {
        let Self { disk, options, pieces, end, mut models } = self;
        let (spool, mut committer, recovered) = Spool::open_on(Arc::new(disk.clone()), options)?;
        assert!(recovered.was_closed || !matches!(end, End::Closed), "{recovered:?}");
        let model = models.swap_remove(found(&spool, &models, end));
        pieces.into_iter().for_each(|pieces| committer.reclaim().set_pieces(pieces));
        Ok(Rig { disk, options, pieces, spool, committer, history: vec![(Position::default(), model)] })
    }

    /// Opens the spool with these faults, and then ends the process. True if it opened.
    pub(crate) fn try_open(&mut self, faults: Faults) -> bool {
        self.disk.set_faults(|all| *all = faults);
        let opened = Spool::open_on(Arc::new(self.disk.clone()), self.options);
        self.disk.set_faults(|all| *all = Default::default());
        if let Ok((spool, ..)) = &opened {
            // Once opened, the content is fixed.
            let model = self.models.swap_remove(found(spool, &self.models, self.end));
            self.models = vec![model];
        }
        opened.is_ok()
    }

    pub(crate) fn cut_power(&mut self, seed: u64) {
        self.disk = self.disk.after_power_cut(seed);
    }
}

fn found(spool: &Spool, models: &[Model], end: End) -> usize {
    let found = Model::of(spool);
    let index = models.iter().position(|model| *model == found);
    index.unwrap_or_else(|| {
        panic!("{end:?}: found {found:?}\nneither {:?}\nnor one of {} later ones", models[0], models.len() - 1)
    })
}

fn forget_before(history: &mut Vec<(Position, Model)>, safe: Position) {
    let safe = history.iter().rposition(|(end, _)| *end <= safe).unwrap_or(0);
    history.drain(..safe);
}
