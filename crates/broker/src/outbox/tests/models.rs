//! Models of concurrent use of the outbox, run through interleavings and through every value that a relaxed load may
//! return:
//!
//! ```text
//! RUSTFLAGS="--cfg tenbin_model" cargo test -p tenbin-broker --lib outbox::tests::models
//! ```
//!
//! The models run the product's code. Lock and atomics of the outbox and of the balancer are loom's. Each operation on
//! other atomics (budget, metrics, the queue on disk) happens at once and in one order. The receivers have no disk.

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

/// Explores all interleavings with at most three forced switches; bugs of this kind need few.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Runs `act` in another thread.
fn spawn<T: 'static>(outbox: &Arc<Outbox>, act: impl FnOnce(&Outbox) -> T + 'static) -> thread::JoinHandle<T> {
    let outbox = Arc::clone(outbox);
    thread::spawn(move || act(&outbox))
}

/// Waker of a thread.
#[derive(Debug)]
struct Alarm {
    is_due: Mutex<bool>,
    rings: Condvar,
}

impl Alarm {
    /// Sleeps until it rings. If no thread will ring it, loom reports a deadlock.
    fn wait(&self) {
        let mut is_due = self.is_due.lock().unwrap();
        while !std::mem::take(&mut *is_due) {
            is_due = self.rings.wait(is_due).unwrap();
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        *self.is_due.lock().unwrap() = true;
        self.rings.notify_one();
    }
}

/// Stands for the task of a connection.
struct Receiver {
    outbox: Arc<Outbox>,
    /// Quota at the last look, if that found nothing to send.
    rested_at: Option<usize>,
    alarm: Arc<Alarm>,
    got: Vec<u32>,
    control: Option<Control>,
}

impl Receiver {
    /// Of a new connection that has found nothing to send.
    fn at_rest(outbox: Outbox, quota: usize) -> Self {
        let alarm = Arc::new(Alarm { is_due: Mutex::new(false), rings: Condvar::new() });
        let mut receiver = Self { outbox: Arc::new(outbox), rested_at: None, alarm, got: Vec::new(), control: None };
        assert!(!receiver.look(quota, ROOM));
        receiver
    }

    /// Takes messages, unless nothing has arrived, like `net::outbound`. Returns whether there was something.
    fn look(&mut self, quota: usize, room: usize) -> bool {
        if self.rested_at == Some(quota) && self.outbox.is_at_rest() {
            return false;
        }
        let (waker, mut batch) = (Arc::clone(&self.alarm).into(), Batch::default());
        match self.outbox.poll_take(&mut Context::from_waker(&waker), quota, room, &mut batch) {
            Poll::Ready(Taken::Control(control)) => self.control = Some(control),
            Poll::Ready(Taken::Deliveries) => self.got.extend(marks(&batch.into_singles())),
            Poll::Pending => {
                self.rested_at = Some(quota);
                return false;
            }
        }
        true
    }

    /// Looks and sleeps by turns until `is_done`. It looks twice, as another event may wake a task, too.
    fn run(&mut self, quota: usize, mut is_done: impl FnMut(&Self) -> bool) {
        loop {
            let has_more = self.look(quota, ROOM);
            if is_done(self) {
                return;
            }
            if !has_more && !self.look(quota, ROOM) {
                self.alarm.wait();
            }
        }
    }

    /// Like [`Receiver::run`], but looks once: no other event wakes the task.
    fn run_alone(&mut self, quota: usize, mut is_done: impl FnMut(&Self) -> bool) {
        loop {
            let has_more = self.look(quota, ROOM);
            if is_done(self) {
                return;
            }
            if !has_more {
                self.alarm.wait();
            }
        }
    }
}

/// More than all messages of a model need.
const ROOM: usize = 1 << 16;

#[test]
fn push_wakes_receiver_that_goes_to_rest() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        let publishers = [QoS::AtMostOnce, QoS::AtLeastOnce]
            .map(|qos| spawn(&receiver.outbox, move |outbox| push(outbox, [delivery(qos, 0)]).len()));
        receiver.run(9, |receiver| receiver.got.len() == 2);
        publishers.into_iter().for_each(|publisher| assert_eq!(publisher.join().unwrap(), 0));
    });
}

#[test]
fn control_wakes_receiver_that_goes_to_rest() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        let other = spawn(&receiver.outbox, |outbox| outbox.control(Control::ShuttingDown));
        receiver.run(9, |receiver| receiver.control == Some(Control::ShuttingDown));
        other.join().unwrap();
    });
}

#[test]
fn freed_quota_finds_a_message_pushed_meanwhile() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 0);
        let publisher = spawn(&receiver.outbox, |outbox| push(outbox, [delivery(QoS::AtLeastOnce, 7)]).len());
        receiver.look(0, ROOM);
        assert!(receiver.got.is_empty());
        // An acknowledgement arrives.
        receiver.run(1, |receiver| receiver.got == [7]);
        publisher.join().unwrap();
    });
}

#[test]
fn free_socket_finds_a_message_pushed_meanwhile() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        let publisher = spawn(&receiver.outbox, |outbox| push(outbox, [delivery(QoS::AtMostOnce, 7)]).len());
        receiver.outbox.set_socket_blocked(true, 1);
        receiver.look(9, 0);
        receiver.outbox.set_socket_blocked(false, 0);
        receiver.run(9, |receiver| receiver.got == [7]);
        publisher.join().unwrap();
    });
}

/// Gives a group's backlog to its member, as far as the member has room. The caller holds the group's lock.
fn dispatch(backlog: &mut Vec<Delivery>, outbox: &Outbox) {
    if outbox.load.availability() == Availability::Ready {
        *backlog = push(outbox, backlog.drain(..));
    }
}

#[test]
fn full_member_gets_the_group_backlog_once_it_has_room() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(1, WhenFull::DropOldest), 9);
        receiver.outbox.join_group(GROUP, Arc::default());
        let backlog = Arc::new(Mutex::new(Vec::new()));
        let publisher = {
            let backlog = Arc::clone(&backlog);
            spawn(&receiver.outbox, move |outbox| {
                for number in 0..2 {
                    let mut backlog = backlog.lock().unwrap();
                    backlog.push(shared(QoS::AtLeastOnce, number));
                    dispatch(&mut backlog, outbox);
                }
            })
        };
        receiver.run(9, |receiver| {
            if receiver.outbox.take_room_again() {
                dispatch(&mut backlog.lock().unwrap(), &receiver.outbox);
            }
            receiver.got == [0, 1]
        });
        publisher.join().unwrap();
    });
}

#[test]
fn member_that_keeps_up_again_learns_of_its_room() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        assert!(receiver.outbox.set_pace(1, Pace::Watch, 0));
        let monitor = spawn(&receiver.outbox, |outbox| outbox.set_pace(1, Pace::Normal, 0));
        receiver.run(9, |receiver| receiver.outbox.take_room_again());
        assert!(monitor.join().unwrap());
        assert_eq!(receiver.outbox.load.availability(), Availability::Ready);
    });
}

#[test]
fn watch_begins_once() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        // A connection and its successor.
        let other = spawn(&outbox, Outbox::begin_watch);
        assert_ne!(outbox.begin_watch(), other.join().unwrap());
    });
}

#[test]
fn receiver_blocked_while_its_watch_ends_is_watched() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        assert!(outbox.begin_watch());
        let monitor = spawn(&outbox, Outbox::end_watch);
        outbox.set_socket_blocked(true, 1);
        let begins = outbox.begin_watch();
        assert_eq!(monitor.join().unwrap(), begins, "it is in the monitor's list exactly once");
    });
}

#[test]
fn receiver_that_lags_while_its_watch_ends_is_watched() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        assert!(outbox.begin_watch());
        let monitor = spawn(&outbox, Outbox::end_watch);
        push(&outbox, [sized(QoS::AtMostOnce, 0, 0), sized(QoS::AtMostOnce, 1, 40_000)]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(outbox.poll_take(&mut context, 9, 1, &mut Batch::default()).is_ready());
        assert!(outbox.lags());
        let begins = outbox.begin_watch();
        assert_eq!(monitor.join().unwrap(), begins, "it is in the monitor's list exactly once");
    });
}

#[test]
fn publisher_that_sees_a_connection_knows_its_packet_size() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        let connection = spawn(&outbox, |outbox| outbox.attach(100, Some(ProtocolVersion::V5)));
        if outbox.wire().is_some() {
            assert!(!outbox.takes(101));
        }
        if outbox.connection() == 2 {
            assert!(!outbox.takes(101));
        }
        connection.join().unwrap();
    });
}

/// As above, but the publisher runs last at first. If a thread loads a word before it writes it, loom 0.7 does not try the
/// write before earlier loads of other threads (its issue 392).
#[test]
fn connection_seen_by_a_publisher_has_its_packet_size() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        let publisher = spawn(&outbox, |outbox| {
            assert!(outbox.wire().is_none() || !outbox.takes(101));
            assert!(outbox.connection() == 1 || !outbox.takes(101));
        });
        outbox.attach(100, Some(ProtocolVersion::V5));
        publisher.join().unwrap();
    });
}

#[test]
fn watch_that_begins_while_a_message_comes_stays() {
    model(|| {
        let receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        let watch = spawn(&receiver.outbox, Outbox::begin_watch);
        assert!(push(&receiver.outbox, [delivery(QoS::AtMostOnce, 7)]).is_empty());
        assert!(watch.join().unwrap());
        assert!(!receiver.outbox.begin_watch(), "it is in the monitor's list exactly once");
        assert!(!receiver.outbox.is_at_rest());
    });
}

#[test]
fn push_wakes_receiver_that_looked_only_once() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 9);
        let publishers = [QoS::AtMostOnce, QoS::AtLeastOnce]
            .map(|qos| spawn(&receiver.outbox, move |outbox| push(outbox, [delivery(qos, 0)]).len()));
        receiver.run_alone(9, |receiver| receiver.got.len() == 2);
        publishers.into_iter().for_each(|publisher| assert_eq!(publisher.join().unwrap(), 0));
    });
}

#[test]
fn publisher_knows_of_quota_freed_at_the_only_look() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 0);
        let publisher = spawn(&receiver.outbox, |outbox| push(outbox, [delivery(QoS::AtLeastOnce, 7)]).len());
        // An acknowledgement has arrived.
        receiver.run_alone(1, |receiver| receiver.got == [7]);
        publisher.join().unwrap();
    });
}

#[test]
fn member_without_quota_is_woken_for_a_shared_message() {
    model(|| {
        let mut receiver = Receiver::at_rest(outbox(9, WhenFull::DropOldest), 0);
        receiver.outbox.join_group(GROUP, Arc::default());
        // A first one was blocked, and went to another member.
        assert!(push(&receiver.outbox, [shared(QoS::AtLeastOnce, 0)]).is_empty());
        receiver.alarm.wait();
        assert!(!receiver.look(0, ROOM));
        assert_eq!(receiver.outbox.withdraw_newest(GROUP, 1).len(), 1);
        let publisher = spawn(&receiver.outbox, |outbox| push(outbox, [shared(QoS::AtLeastOnce, 1)]).len());
        // Once it knows of blocked messages, it offers them to others from time to time.
        receiver.run_alone(0, |receiver| receiver.outbox.keeps_back());
        publisher.join().unwrap();
    });
}

#[test]
fn verdict_on_an_earlier_connection_does_not_hold() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        let monitor = spawn(&outbox, |outbox| outbox.set_pace(1, Pace::Watch, 0));
        outbox.attach(u32::MAX, None);
        monitor.join().unwrap();
        assert_eq!(outbox.load.availability(), Availability::Ready);
    });
}

#[test]
fn watch_that_begins_as_a_client_reconnects_stays() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        let connection = spawn(&outbox, |outbox| outbox.attach(u32::MAX, Some(ProtocolVersion::V5)));
        assert!(outbox.begin_watch());
        connection.join().unwrap();
        assert!(!outbox.begin_watch(), "it is in the monitor's list exactly once");
        assert_eq!(outbox.connection(), 2);
    });
}

#[test]
fn message_for_an_earlier_connection_returns() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        outbox.join_group(GROUP, Arc::default());
        let connection = spawn(&outbox, |outbox| {
            outbox.attach(u32::MAX, None);
            outbox.queued_messages()
        });
        let (mut batch, mut returned) = (Batch::default(), Vec::new());
        batch.add(shared(QoS::AtLeastOnce, 0));
        outbox.push_batch(&mut batch, 1, &mut returned, Instant::now());
        let queued = connection.join().unwrap();
        assert_eq!((outbox.queued_messages(), returned.len()), (queued, 1 - queued));
    });
}

#[test]
fn message_pushed_while_its_member_leaves_returns() {
    model(|| {
        let outbox = Arc::new(outbox(1, WhenFull::DropOldest));
        outbox.join_group(GROUP, Arc::default());
        let publisher = spawn(&outbox, |outbox| push(outbox, [shared(QoS::AtLeastOnce, 7)]));
        let mut returned = outbox.detach_all();
        returned.extend(publisher.join().unwrap());
        assert_eq!(marks(&returned), [7]);
        assert_eq!(outbox.load.availability(), Availability::Offline);
    });
}

#[test]
fn message_pushed_while_its_session_ends_is_dropped() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        outbox.detach_all();
        let publisher = spawn(&outbox, |outbox| push(outbox, [delivery(QoS::AtLeastOnce, 7)]).len());
        outbox.close();
        assert_eq!(publisher.join().unwrap(), 0);
        assert_eq!((outbox.queued_messages(), outbox.common.budget.used()), (0, 0));
    });
}

#[test]
fn backlog_noted_while_its_member_forgets_it_is_known() {
    model(|| {
        let (outbox, tally) = (Arc::new(outbox(9, WhenFull::DropOldest)), Arc::new(Tally::default()));
        outbox.join_group(GROUP, Arc::clone(&tally));
        outbox.note_backlog(GROUP);
        assert!((1..FORGOTTEN_AFTER).all(|_| !outbox.found_no_backlog(GROUP)));
        let group = spawn(&outbox, |outbox| outbox.note_backlog(GROUP));
        assert!(outbox.found_no_backlog(GROUP));
        group.join().unwrap();
        let is_known = tally.knows_backlog();
        assert_eq!((outbox.known_backlogs().len(), outbox.may_have_backlogs()), (is_known.into(), is_known));
    });
}

#[test]
fn backlog_noted_while_its_member_leaves_another_is_known() {
    model(|| {
        let outbox = Arc::new(outbox(9, WhenFull::DropOldest));
        let other = NonZeroU64::MAX;
        [GROUP, other].into_iter().for_each(|group| outbox.join_group(group, Arc::default()));
        outbox.note_backlog(other);
        let group = spawn(&outbox, |outbox| outbox.note_backlog(GROUP));
        outbox.leave_group(other);
        group.join().unwrap();
        assert_eq!((outbox.known_backlogs(), outbox.may_have_backlogs()), (vec![GROUP], true));
    });
}
