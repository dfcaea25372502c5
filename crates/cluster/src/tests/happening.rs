//! Everything that may happen in the small cluster of the search.

use super::world::{Call, Link, Member, NOW, Phase, STEP, World, node};
use crate::event::{Hello, Input, LinkEnd, Swapped, Unreachable};
use crate::node::Node;
use crate::record::{Mark, Role};

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Time,
    Tick(usize),
    Start(usize),
    Kill(usize),
    PowerCut(usize),
    Wipe(usize),
    Cut,
    Mend,
    /// The engine answers, loses its answer, or executes later and says nothing.
    Answer(usize),
    AnswerLost(usize),
    Late(usize),
    LateExecuted,
    MarkDone(usize),
    LinkOpens(usize),
    LinkRefused(usize),
    LinkEnds(usize),
    PeerEnds(usize),
    Beacon(usize),
    BeaconAnswer(usize),
    HandedOver(usize),
    Switch(usize),
    Stop(usize),
    Dial(usize),
    CopyComplete(usize),
    Deliver(usize),
    Confirmed(usize),
    MirrorBreaks(usize),
    CopyBreaks(usize),
    Publish(usize),
    Acknowledge(usize),
}

impl<const N: usize> World<N> {
    /// Everything that may happen next.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Time];
        let left = &self.left;
        if self.is_cut {
            events.push(Event::Mend);
        } else if left.cuts > 0 {
            events.push(Event::Cut);
        }
        if self.late.is_some() {
            events.push(Event::LateExecuted);
        }
        for n in 0..N {
            self.events_of(n, &mut events);
        }
        events
    }

    fn events_of(&self, n: usize, events: &mut Vec<Event>) {
        let left = &self.left;
        let member = &self.nodes[n];
        if member.machine.is_none() {
            events.push(Event::Start(n));
            return;
        }
        events.push(Event::Tick(n));
        if left.kills > 0 {
            events.push(Event::Kill(n));
        }
        if left.handovers > 0 {
            events.extend([Event::Switch(n), Event::Stop(n)]);
        }
        if left.losses > 0 {
            events.push(Event::PowerCut(n));
            if !self.is_only_copy(n) {
                events.push(Event::Wipe(n));
            }
        }
        if let Some(call) = member.call {
            let is_beyond = matches!(call, Call::Swap(_, record) if record.epoch > left.epochs);
            if !is_beyond {
                events.push(Event::Answer(n));
            }
            if left.answers > 0 && !is_beyond {
                events.push(Event::AnswerLost(n));
                if matches!(call, Call::Swap(..)) && self.late.is_none() {
                    events.push(Event::Late(n));
                }
            }
        }
        if member.mark_job.is_some() {
            events.push(Event::MarkDone(n));
        }
        let link = &member.link;
        if let Some(to) = link.to {
            let leader = &self.nodes[usize::from(to.0)];
            let is_there = leader.machine.is_some();
            if !link.is_up_here && !link.is_up_there && is_there && !self.is_cut {
                events.push(Event::LinkOpens(n));
            }
            if !link.is_up_here && (!is_there || self.is_cut) {
                events.push(Event::LinkRefused(n));
            }
            if link.is_up_here && (!link.is_up_there || self.is_cut) {
                events.push(Event::LinkEnds(n));
            }
            if link.is_up_here && link.beacon.is_some() && !self.is_cut {
                events.push(Event::Beacon(n));
            }
            if link.is_up_here && link.handover.is_some() && link.beacon.is_none() && !self.is_cut {
                events.push(Event::HandedOver(n));
            }
            if link.is_up_there && link.answer.is_some() && !self.is_cut {
                events.push(Event::BeaconAnswer(n));
            }
        }
        if link.is_up_there && (!link.is_up_here || self.is_cut) {
            events.push(Event::PeerEnds(n));
        }
        if let Some((leader, _, is_accepted)) = member.copy {
            let mirror = self.mirror_of(n).map(|(_, mirror)| mirror);
            let is_there = self.nodes[usize::from(leader.0)].machine.is_some();
            match mirror {
                Some(mirror) if !is_accepted && mirror.phase == Phase::Accepting && !self.is_cut => {
                    events.push(Event::Dial(n));
                }
                Some(mirror) if is_accepted && mirror.phase != Phase::Broken && !self.is_cut => {}
                _ if is_there || is_accepted => events.push(Event::CopyBreaks(n)),
                _ => {}
            }
        }
        if let Some(mirror) = member.mirror {
            let is_whole = self.follower_of(n).is_some();
            match mirror.phase {
                Phase::Copying if is_whole => events.push(Event::CopyComplete(n)),
                Phase::Live if is_whole && mirror.wire != 0 => events.push(Event::Deliver(n)),
                Phase::Live if mirror.must_confirm && mirror.wire == 0 => events.push(Event::Confirmed(n)),
                Phase::Copying | Phase::Live if !is_whole => events.push(Event::MirrorBreaks(n)),
                _ => {}
            }
        }
        if self.may_act(n) {
            if self.published < left.messages {
                events.push(Event::Publish(n));
            }
            if self.unacknowledged(n) != 0 {
                events.push(Event::Acknowledge(n));
            }
        }
    }

    /// True if no other node can show that it has a copy.
    fn is_only_copy(&self, n: usize) -> bool {
        let Some(record) = self.record else { return true };
        let marked = |m: Node| self.nodes[usize::from(m.0)].mark.is_some_and(|mark| mark.record == record);
        record.leader == node(n) && !record.follower.is_some_and(marked)
    }

    /// Messages that the leader may acknowledge.
    fn unacknowledged(&self, n: usize) -> u8 {
        let member = &self.nodes[n];
        let waits = match member.mirror {
            Some(mirror) if mirror.is_required => mirror.confirmed,
            _ => u8::MAX,
        };
        if member.is_held { 0 } else { member.messages & waits & !(self.acked_two | self.acked_one) }
    }

    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Time => self.pass_time(),
            Event::Tick(n) => self.feed(n, Input::Tick),
            Event::Start(n) => self.start(n),
            Event::Kill(n) => {
                self.left.kills -= 1;
                self.end(n);
            }
            Event::Switch(n) => {
                self.left.handovers -= 1;
                self.feed(n, Input::Switch { to: None });
            }
            Event::Stop(n) => {
                self.left.handovers -= 1;
                self.feed(n, Input::Stop);
            }
            Event::PowerCut(n) => {
                self.left.losses -= 1;
                self.end(n);
                let member = &mut self.nodes[n];
                member.messages = member.durable;
                member.mark.iter_mut().for_each(|mark| mark.is_same_boot = false);
                // With one copy, the disk's own rules hold.
                if self.is_only_copy(n) {
                    self.acked_one &= self.nodes[n].durable;
                }
            }
            Event::Wipe(n) => {
                self.left.losses -= 1;
                self.end(n);
                let Member { starts, link, .. } = self.nodes[n];
                self.nodes[n] = Member { starts, link, ..Member::default() };
            }
            Event::Cut => (self.is_cut, self.left.cuts) = (true, self.left.cuts - 1),
            Event::Mend => self.is_cut = false,
            Event::Answer(n) => {
                let input = match self.nodes[n].call.take() {
                    Some(Call::Read) => Input::RecordRead(Ok(self.record)),
                    Some(Call::Swap(expected, record)) => Input::Swapped(self.execute(expected, record)),
                    None => return,
                };
                self.feed(n, input);
            }
            Event::AnswerLost(n) => {
                self.left.answers -= 1;
                let input = match self.nodes[n].call.take() {
                    Some(Call::Read) => Input::RecordRead(Err(Unreachable)),
                    Some(Call::Swap(expected, record)) => {
                        self.execute(expected, record);
                        Input::Swapped(Swapped::Unknown)
                    }
                    None => return,
                };
                self.feed(n, input);
            }
            Event::Late(n) => {
                self.left.answers -= 1;
                if let Some(Call::Swap(expected, record)) = self.nodes[n].call.take() {
                    self.late = Some((expected, record));
                    self.feed(n, Input::Swapped(Swapped::Unknown));
                }
            }
            Event::LateExecuted => {
                if let Some((expected, record)) = self.late.take() {
                    self.execute(expected, record);
                }
            }
            Event::MarkDone(n) => {
                let Some(job) = self.nodes[n].mark_job.take() else { return };
                self.nodes[n].mark = Some(Mark { record: job, is_same_boot: true });
                self.feed(n, Input::MarkWritten);
            }
            _ => self.apply_between(event),
        }
    }

    fn pass_time(&mut self) {
        let earlier = |number: &mut u64| *number = number.saturating_sub(STEP.as_micros() as u64);
        for member in &mut self.nodes {
            member.machine.iter_mut().for_each(|machine| machine.shift(STEP));
            member.link.beacon.iter_mut().for_each(|(number, _)| earlier(number));
            member.link.answer.iter_mut().for_each(|(number, _)| earlier(number));
        }
    }

    /// Events between two nodes.
    fn apply_between(&mut self, event: Event) {
        match event {
            Event::LinkOpens(n) => {
                let (Some(to), Some(machine)) = (self.nodes[n].link.to, &self.nodes[n].machine) else { return };
                let hello: Hello = machine.hello();
                for other in 0..N {
                    // The newer link of a name replaces the older one.
                    if other != n && self.name(other) == self.name(n) && self.nodes[other].link.to == Some(to) {
                        self.nodes[other].link.ends_there();
                    }
                }
                let link = &mut self.nodes[n].link;
                *link = Link { to: Some(to), is_up_here: true, is_up_there: true, ..Link::default() };
                self.feed(n, Input::LinkUp { leader: to });
                self.feed(usize::from(to.0), Input::PeerUp(hello));
            }
            Event::LinkRefused(n) | Event::LinkEnds(n) => {
                let Some(leader) = self.nodes[n].link.to else { return };
                let end = if matches!(event, Event::LinkEnds(_)) { LinkEnd::Broken } else { LinkEnd::Refused };
                self.drop_link(n);
                self.feed(n, Input::LinkDown { leader, end });
            }
            Event::PeerEnds(n) => {
                self.nodes[n].link.ends_there();
                let name = self.name(n);
                let end = if self.nodes[n].machine.is_none() { LinkEnd::Refused } else { LinkEnd::Broken };
                for other in 0..N {
                    if other != n {
                        self.feed(other, Input::PeerDown { node: name, end });
                    }
                }
            }
            Event::Beacon(n) => {
                if let Some((number, record)) = self.nodes[n].link.beacon.take() {
                    self.feed(n, Input::Beacon { number, record });
                }
            }
            Event::HandedOver(n) => {
                if let Some(record) = self.nodes[n].link.handover.take() {
                    self.feed(n, Input::HandedOver { record });
                }
            }
            Event::BeaconAnswer(n) => {
                let (name, link) = (self.name(n), &mut self.nodes[n].link);
                if let (Some((number, is_marked)), Some(to)) = (link.answer.take(), link.to) {
                    self.feed(usize::from(to.0), Input::Answer { node: name, number, is_marked });
                }
            }
            _ => self.apply_mirror(event),
        }
    }

    fn apply_mirror(&mut self, event: Event) {
        let is_always = self.left.is_sync_always;
        match event {
            Event::Dial(n) => {
                let Some((leader, mut mirror)) = self.mirror_of(n) else { return };
                mirror.phase = Phase::Copying;
                self.nodes[leader].mirror = Some(mirror);
                let member = &mut self.nodes[n];
                member.copy.iter_mut().for_each(|copy| copy.2 = true);
                (member.messages, member.durable) = (0, 0);
            }
            Event::CopyComplete(n) | Event::Deliver(n) => {
                let Some((follower, mut mirror)) = self.follower_of(n) else { return };
                let messages = self.nodes[n].messages;
                let there = &mut self.nodes[follower];
                let is_complete = mirror.phase == Phase::Copying;
                there.messages |= if is_complete { messages } else { mirror.wire };
                if is_always {
                    there.durable = there.messages;
                }
                mirror.confirmed |= there.messages;
                (mirror.wire, mirror.phase) = (0, Phase::Live);
                self.nodes[n].mirror = Some(mirror);
                if is_complete {
                    self.feed(n, Input::CaughtUp { session: mirror.session });
                }
            }
            Event::Confirmed(n) => {
                if let Some(mirror) = &mut self.nodes[n].mirror {
                    mirror.must_confirm = false;
                    let session = mirror.session;
                    self.feed(n, Input::Confirmed { session });
                }
            }
            Event::MirrorBreaks(n) => {
                if let Some(mirror) = &mut self.nodes[n].mirror {
                    (mirror.phase, mirror.wire) = (Phase::Broken, 0);
                    let session = mirror.session;
                    self.feed(n, Input::CopyFailed { session });
                }
            }
            Event::CopyBreaks(n) => {
                if let Some((_, session, _)) = self.nodes[n].copy.take() {
                    self.feed(n, Input::CopyBroken { session });
                }
            }
            Event::Publish(n) => {
                let bit = 1 << self.published;
                self.published += 1;
                let member = &mut self.nodes[n];
                member.messages |= bit;
                if is_always {
                    member.durable |= bit;
                }
                if let Some(mirror) = member.mirror.as_mut().filter(|mirror| mirror.phase == Phase::Live) {
                    mirror.wire |= bit;
                }
            }
            Event::Acknowledge(n) => {
                let messages = self.unacknowledged(n);
                let copies = self.nodes[n].machine.as_ref().map_or(0, |machine| machine.status(NOW).copies);
                if copies > 1 {
                    self.acked_two |= messages;
                } else {
                    self.acked_one |= messages;
                }
                let (name, directory) = (self.name(n), Self::directory(n));
                if self.record.is_none_or(|record| record.role_in(name, directory) != Role::Leader) {
                    self.violation = Some("a stale leader acknowledges");
                }
            }
            _ => {}
        }
    }
}

impl Event {
    /// True for events that a healthy cluster does without.
    pub(super) fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Kill(_)
                | Self::PowerCut(_)
                | Self::Wipe(_)
                | Self::Cut
                | Self::Switch(_)
                | Self::Stop(_)
                | Self::AnswerLost(_)
                | Self::Late(_)
                | Self::LinkRefused(_)
                | Self::Publish(_)
        )
    }
}
