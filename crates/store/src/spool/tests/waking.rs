//! Tests of wakers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use super::{
    MemoryDisk, SMALL,
    model::Call,
    place,
    rig::{End, Rig},
    untagged,
};
use crate::spool::{Health, Origin, QueueId, Spool, log::CommitterState};

#[derive(Default)]
pub(crate) struct Counted(AtomicU32);

impl Counted {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn message(sequence: u64) -> Call {
    Call::Message { places: vec![untagged(place(1, sequence))], origin: None, body: vec![1; 100] }
}

#[test]
fn task_is_woken_once_its_position_is_durable() {
    let mut rig = Rig::new(SMALL);
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&counted));
    rig.call(&message(1));
    let ticket = rig.spool.begin().end();
    rig.spool.wake_at(ticket, &waker);
    assert_eq!(counted.count(), 0);
    assert!(rig.commit());
    assert_eq!(counted.count(), 1);
    rig.spool.wake_at(ticket, &waker);
    assert_eq!(counted.count(), 2);
}

#[test]
fn task_is_woken_at_each_log_failure_and_at_recovery() {
    let mut rig = Rig::new(SMALL);
    assert!(rig.commit());
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&counted));
    rig.disk.set_faults(|faults| faults.failing_syncs = 3);
    rig.call(&message(1));
    let ticket = rig.spool.begin().end();
    rig.spool.wake_at(ticket, &waker);
    assert!(!rig.commit());
    assert_eq!(counted.count(), 1);
    let Health::Failed { error, .. } = rig.spool.health() else { panic!("{:?}", rig.spool.health()) };
    assert!(error.contains("0000000001.log") && error.contains("input/output error"), "{error}");
    assert!(rig.spool.durable() < ticket && rig.spool.wait(ticket).is_err());
    (0..100).for_each(|_| rig.spool.wake_at(ticket, &waker));
    assert_eq!((rig.spool.shared.wakers.len(), counted.count()), (1, 1), "however often it asks");
    assert!(!rig.commit());
    assert_eq!((rig.spool.shared.wakers.len(), counted.count()), (0, 2), "who does not ask again is forgotten");
    rig.spool.wake_at(ticket, &waker);
    assert!(!rig.commit());
    assert_eq!(counted.count(), 3);
    rig.spool.wake_at(ticket.next(), &waker);
    rig.spool.wake_at(ticket, &waker);
    assert!(rig.commit());
    assert_eq!((rig.spool.shared.wakers.len(), counted.count()), (0, 4));
    assert_eq!(rig.spool.health(), Health::Writing);
    assert!(rig.spool.durable() >= ticket && rig.spool.wait(ticket).is_ok());
    assert_eq!(rig.spool.stats().failures, 3);
}

#[test]
fn panic_of_writing_thread_wakes_waiting_tasks() {
    let disk = MemoryDisk::default();
    let (spool, committer, _) = Spool::open_on(Arc::new(disk.clone()), SMALL).unwrap();
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&counted));
    let ticket = spool.begin().end().next();
    spool.wake_at(ticket, &waker);
    disk.set_faults(|faults| faults.panics = true);
    let thread = thread::spawn(|| committer.run());
    let error = spool.wait(ticket).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    assert!(thread.join().is_err());
    assert!(matches!(spool.health(), Health::Failed { .. }));
    assert_eq!(counted.count(), 1);
}

#[test]
fn watcher_is_woken_at_each_change_of_health_only() {
    let mut rig = Rig::new(SMALL);
    assert!(rig.commit());
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&counted));
    let mut context = Context::from_waker(&waker);
    let writing = Health::Writing;
    assert!(rig.spool.poll_health(&writing, &mut context).is_pending());
    assert!(rig.spool.poll_health(&writing, &mut context).is_pending());
    rig.call(&message(1));
    assert!(rig.commit());
    assert_eq!(counted.count(), 0);

    rig.disk.set_faults(|faults| faults.failing_syncs = 3);
    rig.call(&message(2));
    assert!(!rig.commit());
    assert_eq!(counted.count(), 1);
    let Poll::Ready(failed) = rig.spool.poll_health(&writing, &mut context) else { panic!("it is another one") };
    assert_eq!(failed, rig.spool.health());
    assert!(rig.spool.poll_health(&failed, &mut context).is_pending());
    assert!(!rig.commit());
    assert_eq!(counted.count(), 1, "a failure that goes on is no change");
    assert!(!rig.commit());
    assert!(rig.commit());
    assert_eq!(counted.count(), 2);
    assert_eq!(rig.spool.poll_health(&failed, &mut context), Poll::Ready(Health::Writing));

    assert!(rig.spool.poll_health(&writing, &mut context).is_pending());
    drop(rig.end(End::Closed));
    assert_eq!(counted.count(), 3, "nothing changes any more");
}

#[test]
fn full_disk_keeps_records_and_is_congested() {
    let mut rig = Rig::new(SMALL);
    rig.disk.set_faults(|faults| faults.is_full = true);
    (1..200).for_each(|sequence| rig.call(&message(sequence)));
    assert!(!rig.commit());
    assert!(rig.spool.is_congested());
    rig.assert_as_model();
    rig.disk.set_faults(|faults| faults.is_full = false);
    while !rig.commit() {}
    assert!(!rig.spool.is_congested());
    rig.assert_as_model();
    rig.end(End::PowerCut(1)).assert_as_model();
}

#[test]
fn only_records_that_are_waited_for_wake_a_dozing_committer() {
    use CommitterState::{Dozes, Sleeps, Works};
    for (before, is_waited_for, after) in [
        (Dozes, false, Dozes),
        (Dozes, true, Works),
        (Sleeps, false, Works),
        (Sleeps, true, Works),
        (Works, true, Works),
    ] {
        let rig = Rig::new(SMALL);
        rig.spool.shared.log().committer = before;
        let mut batch = rig.spool.begin();
        batch.hold(Origin { queue: QueueId(1), identifier: 1 });
        if !is_waited_for {
            batch.without_hurry();
        }
        drop(batch);
        assert_eq!(rig.spool.shared.log().committer, after, "{before:?}, {is_waited_for}");
    }
}
