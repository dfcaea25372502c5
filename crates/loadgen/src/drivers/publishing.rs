//! Publishers.

use std::pin::pin;
use std::rc::Rc;

use crate::run::{DueTimes, Stamp, Unsent};
use bytes::Bytes;
use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::host::{DriverStage, Side};
use super::protocol::{Fate, Outlet};
use super::receiving::CLOSING;

/// Publishes until everything is sent or the run is over.
pub(super) async fn publish<O: Outlet>(side: Rc<Side>, number: u32, mut outlet: O) {
    let mut publisher = Publisher::new(&side, number);
    tokio::select! {
        biased;
        () = side.is_over() => {}
        () = publisher.run(&mut outlet) => {}
    }
    publisher.stop();
    let _ = tokio::time::timeout(CLOSING, outlet.close()).await;
}

/// A publisher's schedule and messages.
struct Publisher<'a> {
    side: &'a Side,
    first_stream: u32,
    topics: u32,
    /// Deliveries of a message, by topic.
    copies: Vec<u64>,
    /// Due times after the start; `None` without a schedule.
    schedule: Option<DueTimes>,
    /// Stamp and filler of the next payload.
    payload: Vec<u8>,
    /// Number of the next message, and of messages in all.
    next: u64,
    end: u64,
    is_publishing: bool,
}

/// A message that was handed over.
#[derive(Debug, Clone, Copy)]
struct Sent {
    message: u64,
    due_ns: u64,
}

impl<'a> Publisher<'a> {
    fn new(side: &'a Side, number: u32) -> Self {
        let publishers = &side.plan.publishers;
        let topics = publishers.topics;
        let first_stream = number * topics;
        let copies = (first_stream..first_stream + topics).map(|stream| side.layout.copies(stream)).collect();
        // A u32 cannot number more, which is as good as no end.
        let most = u64::from(topics).saturating_mul(u32::MAX.into());
        Self {
            side,
            first_stream,
            topics,
            copies,
            schedule: DueTimes::of(&side.plan, number),
            payload: vec![b'x'; publishers.payload as usize],
            next: 0,
            end: publishers.messages.map_or(most, |messages| messages.min(most)),
            is_publishing: true,
        }
    }

    async fn run<O: Outlet>(&mut self, outlet: &mut O) {
        let DriverStage::Run { start_ns } = self.side.reaches(DriverStage::Run { start_ns: 0 }).await else { return };
        let limit_ns = u64::try_from(self.side.plan.schedule.time_limit.as_nanos()).unwrap_or(u64::MAX);
        if let Some(schedule) = &mut self.schedule {
            schedule.start(start_ns);
            // Messages due at the end of the time limit or later are not sent.
            self.end = self.end.min(schedule.due_by(start_ns.saturating_add(limit_ns) - 1));
        }
        tokio::time::sleep_until(self.side.clock.instant(start_ns).into()).await;
        let mut receipts = Receipts::new();
        while self.is_publishing || !receipts.is_empty() {
            let is_draining = self.side.stage() >= DriverStage::Drain;
            let room = self.room(receipts.len() as u64);
            // Messages that became due before the end do not count as unsent.
            if room > 0 && (!is_draining || self.schedule.is_some()) {
                self.send_batch(outlet, room.min(MOST_AT_ONCE), &mut receipts).await;
            }
            if self.next == self.end || is_draining {
                self.stop();
            }
            let may_send_more = self.room(receipts.len() as u64) > 0;
            tokio::select! {
                biased;
                Some((sent, fate)) = receipts.next() => {
                    self.settle(sent, fate);
                    while let Some(Some((sent, fate))) = receipts.next().now_or_never() {
                        self.settle(sent, fate);
                    }
                }
                _ = self.side.reaches(DriverStage::Drain), if self.is_publishing && !is_draining => {}
                // Acknowledgements come in on this thread.
                () = tokio::task::yield_now(), if may_send_more => {}
                () = self.wait(), if self.is_publishing && self.has_place(receipts.len() as u64) => {}
                else => {}
            }
        }
    }

    /// Whether one more message may be without its end.
    fn has_place(&self, pending: u64) -> bool {
        pending < u64::from(self.side.plan.publishers.in_flight.max(1))
    }

    /// Number of messages that may be sent now.
    fn room(&self, pending: u64) -> u64 {
        if !self.is_publishing {
            return 0;
        }
        let places = u64::from(self.side.plan.publishers.in_flight.max(1)).saturating_sub(pending);
        let wanted = match (&self.schedule, self.side.window()) {
            (Some(schedule), _) => schedule.due_by(self.side.clock.now_ns()).saturating_sub(self.next),
            (None, Some(window)) => window.room(self.copies.iter().copied().max().unwrap_or(0)),
            (None, None) => u64::MAX,
        };
        // A late thread may find more messages due than the run has.
        wanted.min(places).min(self.end.saturating_sub(self.next))
    }

    /// Waits for the next due time, or for the window.
    async fn wait(&self) {
        match (&self.schedule, self.side.window()) {
            (Some(schedule), _) => {
                let due = self.side.clock.instant(schedule.due_ns(self.next));
                tokio::time::sleep_until(due.into()).await;
            }
            (None, Some(window)) => window.opened().await,
            (None, None) => {}
        }
    }

    async fn send_batch<O: Outlet>(&mut self, outlet: &mut O, count: u64, receipts: &mut Receipts) {
        let mut unflushed = Vec::new();
        for _ in 0..count {
            let (sent, taken) = self.send(outlet, receipts).await;
            match taken {
                Ok(_) if O::FLUSHES => unflushed.push(sent),
                Ok(receipt) => receipts.push(receipt.map(move |fate| (sent, fate)).boxed_local()),
                Err(fate) => self.settle(sent, fate),
            }
        }
        if !unflushed.is_empty() {
            let fate = outlet.flush().await;
            unflushed.into_iter().for_each(|sent| self.settle(sent, fate));
        }
    }

    /// Hands over the next message, and sees to acknowledgements while the library makes it wait.
    async fn send<O: Outlet>(&mut self, outlet: &mut O, receipts: &mut Receipts) -> (Sent, Result<O::Receipt, Fate>) {
        let side = self.side;
        let now_ns = side.clock.now_ns();
        let due_ns = self.schedule.as_ref().map_or(now_ns, |schedule| schedule.due_ns(self.next));
        let sent = Sent { message: self.next, due_ns };
        self.next += 1;
        let (topic, stream, sequence) = self.place(sent);
        let late_us = u32::try_from(now_ns.saturating_sub(due_ns) / 1_000).unwrap_or(u32::MAX);
        Stamp { due_ns, tag: side.plan.tag, stream, sequence, late_us }.encode(&mut self.payload);
        {
            let mut recorder = side.recorder();
            recorder.attempted(stream, sequence..sequence + 1, due_ns);
            if self.schedule.is_some() {
                recorder.sent_late(late_us);
            }
        }
        side.counters().in_flight.add(1);
        if let Some(window) = side.window() {
            window.claim(self.copies[topic as usize]);
        }
        let mut sending = pin!(outlet.send(topic, Bytes::copy_from_slice(&self.payload)));
        loop {
            tokio::select! {
                biased;
                taken = &mut sending => return (sent, taken),
                Some((earlier, fate)) = receipts.next() => self.settle(earlier, fate),
            }
        }
    }

    /// Counts the end of a message.
    fn settle(&self, sent: Sent, fate: Fate) {
        let (topic, stream, sequence) = self.place(sent);
        let copies = self.copies[topic as usize];
        let (counters, now_ns) = (self.side.counters(), self.side.clock.now_ns());
        match fate {
            Fate::Written | Fate::Acknowledged => {
                let mut recorder = self.side.recorder();
                if fate == Fate::Acknowledged {
                    recorder.acknowledged(sent.due_ns, now_ns);
                }
                recorder.published(stream, sequence..sequence + 1, now_ns);
                counters.published.add(1);
                counters.expected.add(copies);
            }
            Fate::Refused => {
                self.side.recorder().not_taken(stream, sequence, now_ns);
                counters.not_taken.add(1);
                if let Some(window) = self.side.window() {
                    window.receive(copies);
                }
            }
            Fate::Unconfirmed => counters.doubtful.add(copies),
        }
        counters.in_flight.sub(1);
    }

    /// Topic of the publisher, stream, and sequence number of a message.
    fn place(&self, sent: Sent) -> (u32, u32, u32) {
        let topics = u64::from(self.topics);
        let topic = (sent.message % topics) as u32;
        (topic, self.first_stream + topic, (sent.message / topics) as u32)
    }

    /// Ends publishing: all messages are sent, or the time is over.
    fn stop(&mut self) {
        if !std::mem::take(&mut self.is_publishing) {
            return;
        }
        self.side.counters().publishing.sub(1);
        let Some(schedule) = self.schedule.as_ref().filter(|_| self.side.start_ns() < u64::MAX) else { return };
        let now_ns = self.side.clock.now_ns();
        let due = schedule.due_by(now_ns).min(self.end);
        if due > self.next {
            let topics = self.copies.len().max(1) as u64;
            // If topics have different numbers of subscribers, the mean counts.
            let deliveries = self.copies.iter().sum::<u64>().div_ceil(topics);
            self.side.recorder().unsent(Unsent {
                messages: due - self.next,
                deliveries: u32::try_from(deliveries).unwrap_or(u32::MAX),
                first_due_ns: schedule.due_ns(self.next),
                step_ns: schedule.interval_ns(),
                now_ns,
            });
        }
    }
}

/// Messages without their end.
type Receipts = FuturesUnordered<LocalBoxFuture<'static, (Sent, Fate)>>;

/// Most messages between two looks at acknowledgements.
const MOST_AT_ONCE: u64 = 256;
