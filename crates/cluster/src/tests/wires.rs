//! Links and mirrors between the nodes of the simulation.

use super::bits::Bits;
use super::plant::{Event, Link, MS, Mirror, NODES, Plant, node};
use crate::event::{Action, Input, LinkEnd};
use crate::machine::{Machine, Step};

impl Plant {
    fn delay(&mut self) -> u64 {
        if self.is_lossy && self.random.percent(2) {
            self.random.below(400 * MS)
        } else {
            self.random.between(MS / 10, 3 * MS)
        }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts[a][b] || self.cuts[b][a]
    }

    /// Sends over the link of the standby `n`, if packets pass.
    fn send_to_leader(&mut self, n: usize, input: Input) {
        if let Some(Link { to, generation, is_up: true }) = self.nodes[n].link
            && !self.cuts[n][to]
        {
            let delay = self.delay();
            self.after(delay, Event::ToLeader(to, n, generation, input));
        }
    }

    /// Asks all other nodes for their record, and tells them this node's.
    pub(super) fn exchange_records(&mut self, n: usize) {
        let records: Vec<_> = self.nodes.iter().map(|host| host.machine.as_ref().and_then(Machine::record)).collect();
        for other in 0..NODES {
            if other == n || self.is_cut(n, other) {
                continue;
            }
            for (to, from) in [(n, other), (other, n)] {
                if let Some(record) = records[from] {
                    let delay = self.delay();
                    self.input(to, delay, Input::PeerRecord(record));
                }
            }
        }
    }

    /// The links of a process that ends.
    pub(super) fn break_links(&mut self, n: usize) {
        for other in 0..NODES {
            let link = self.nodes[other].link.filter(|link| link.to == n && link.is_up);
            if let Some(link) = link {
                let delay = self.delay();
                self.after(delay, Event::BreakLink(other, link.generation));
            }
        }
        let Some(Link { to, generation, is_up: true }) = self.nodes[n].link.take() else { return };
        let is_refused = !self.nodes[n].is_off && !self.is_cut(n, to);
        let end = if is_refused { LinkEnd::Refused } else { LinkEnd::Broken };
        let delay = self.delay();
        self.after(delay, Event::ToLeader(to, n, generation, Input::PeerDown { node: node(n), end }));
    }

    /// Links between two nodes break some time after they were cut.
    pub(super) fn break_later(&mut self, a: usize, b: usize) {
        for (n, to) in [(a, b), (b, a)] {
            if let Some(link) = self.nodes[n].link.filter(|link| link.to == to && link.is_up)
                && self.random.percent(60)
            {
                let delay = self.random.below(1_500 * MS);
                self.after(delay, Event::BreakLink(n, link.generation));
            }
        }
    }

    pub(super) fn perform_between(&mut self, n: usize, action: Action) {
        let host = &mut self.nodes[n];
        match action {
            Action::Connect { leader } => {
                host.links += 1;
                let generation = host.links;
                host.link = Some(Link { to: usize::from(leader.0), generation, is_up: false });
                let delay = self.delay();
                self.after(delay, Event::Dial(n, generation));
            }
            Action::Disconnect => {
                if let Some(Link { to, generation, is_up: true }) = host.link.take() {
                    let down = Input::PeerDown { node: node(n), end: LinkEnd::Broken };
                    let delay = self.delay();
                    self.after(delay, Event::ToLeader(to, n, generation, down));
                }
            }
            Action::StartCopy { leader, session } => {
                host.copy = Some((usize::from(leader.0), session, false));
                let delay = self.delay();
                self.after(delay, Event::DialCopy(n, session));
            }
            Action::Seal => host.copy = None,
            Action::AnswerBeacon { number, is_marked } => {
                self.send_to_leader(n, Input::Answer { node: node(n), number, is_marked });
            }
            Action::AcceptCopy { node, session } => {
                host.mirror = Some(Mirror { node: usize::from(node.0), session, ..Mirror::default() });
            }
            Action::Require { session } => {
                let messages = host.messages.clone();
                if let Some(mirror) = host.mirror.as_mut().filter(|mirror| mirror.session == session) {
                    (mirror.is_required, mirror.must_confirm) = (true, Some(messages));
                }
            }
            Action::Release { .. } => host.mirror = None,
            Action::SendBeacon { number, record } => self.send_to_standbys(n, Input::Beacon { number, record }),
            Action::SendHandover { record } => self.send_to_standbys(n, Input::HandedOver { record }),
            Action::Farewell => {
                self.send_to_standbys(n, Input::LinkDown { leader: node(n), end: LinkEnd::Farewell });
                for other in 0..NODES {
                    let generation = std::mem::take(&mut self.nodes[n].peers[other]);
                    if let Some(link) = self.nodes[other].link.as_mut().filter(|link| link.generation == generation) {
                        link.is_up = false;
                        self.after(100 * MS, Event::Dial(other, generation));
                    }
                }
            }
            _ => {}
        }
    }

    fn send_to_standbys(&mut self, n: usize, input: Input) {
        for other in 0..NODES {
            let generation = self.nodes[n].peers[other];
            if generation != 0 && !self.cuts[n][other] {
                let at = (self.now + self.delay()).max(self.nodes[n].last_line[other]);
                self.nodes[n].last_line[other] = at;
                self.after(at - self.now, Event::ToStandby(other, generation, input));
            }
        }
    }

    pub(super) fn happen_between(&mut self, event: Event) {
        match event {
            Event::ToStandby(n, generation, input)
                if self.nodes[n].link.is_some_and(|link| link.generation == generation) =>
            {
                self.feed(n, input);
            }
            Event::ToLeader(leader, n, generation, input) => {
                let peers = &mut self.nodes[leader].peers;
                if peers[n] == generation {
                    if matches!(input, Input::PeerDown { .. }) {
                        peers[n] = 0;
                    }
                    self.feed(leader, input);
                }
            }
            Event::Dial(n, generation) => self.dial(n, generation),
            Event::BreakLink(n, generation) => {
                let link = self.nodes[n].link.as_mut().filter(|link| link.generation == generation && link.is_up);
                if let Some(link) = link {
                    link.is_up = false;
                    let to = link.to;
                    self.after(20 * MS, Event::Dial(n, generation));
                    self.feed(n, Input::LinkDown { leader: node(to), end: LinkEnd::Broken });
                    if self.nodes[to].peers[n] == generation {
                        self.nodes[to].peers[n] = 0;
                        self.feed(to, Input::PeerDown { node: node(n), end: LinkEnd::Broken });
                    }
                }
            }
            Event::DialCopy(n, session) => self.dial_copy(n, session),
            Event::CopyDone(n, session) => self.complete(n, session),
            Event::Confirm(n, session, messages) => {
                let mirror = self.nodes[n].mirror.as_mut().filter(|mirror| mirror.session == session);
                if let Some(mirror) = mirror {
                    mirror.confirmed.add(&messages);
                    if mirror.must_confirm.as_ref().is_some_and(|must| mirror.confirmed.has_all(must)) {
                        mirror.must_confirm = None;
                        self.feed(n, Input::Confirmed { session });
                    }
                }
            }
            _ => {}
        }
    }

    fn dial(&mut self, n: usize, dialled: u64) {
        let Some(Link { to, generation, is_up: false }) = self.nodes[n].link else { return };
        if generation != dialled || self.nodes[n].machine.is_none() {
            return;
        }
        let leader = node(to);
        if self.is_cut(n, to) || self.nodes[to].machine.is_none() {
            let is_silent = self.is_cut(n, to) || self.nodes[to].is_off;
            let end = if is_silent { LinkEnd::Broken } else { LinkEnd::Refused };
            self.after(100 * MS, Event::Dial(n, generation));
            return self.feed(n, Input::LinkDown { leader, end });
        }
        let Some(hello) = self.nodes[n].machine.as_ref().map(|machine| machine.hello()) else { return };
        // Each connection has its own generation.
        self.nodes[n].links += 1;
        let generation = self.nodes[n].links;
        self.nodes[n].link = Some(Link { to, generation, is_up: true });
        self.nodes[to].peers[n] = generation;
        self.send_to_leader(n, Input::PeerUp(hello));
        self.feed(n, Input::LinkUp { leader });
    }

    fn dial_copy(&mut self, n: usize, session: u64) {
        let Some((leader, current, false)) = self.nodes[n].copy else { return };
        if current != session {
            return;
        }
        let is_cut = self.is_cut(n, leader);
        let mirror = self.nodes[leader].mirror.as_mut();
        let mirror = mirror.filter(|mirror| mirror.node == n && mirror.session == session && !mirror.is_used);
        let is_full = self.nodes[n].is_full;
        let Some(mirror) = mirror.filter(|_| !is_cut && !is_full) else {
            self.nodes[n].copy = None;
            return self.feed(n, Input::CopyBroken { session });
        };
        mirror.is_used = true;
        self.nodes[n].copy = Some((leader, session, true));
        // The directory is between two states from now on.
        self.nodes[n].messages = Bits::default();
        self.nodes[n].durable = Bits::default();
        let delay = self.random.between(20 * MS, 400 * MS);
        self.after(delay, Event::CopyDone(leader, session));
    }

    fn receive(&mut self, n: usize, messages: &Bits) {
        self.nodes[n].messages.add(messages);
        if self.settings.is_sync_always {
            self.nodes[n].durable.add(messages);
        }
    }

    /// The node at the other end of a mirror, if the copy is there.
    fn copy_of(&self, n: usize) -> Option<usize> {
        let mirror = self.nodes[n].mirror.as_ref()?;
        (self.nodes[mirror.node].copy == Some((n, mirror.session, true))).then_some(mirror.node)
    }

    fn complete(&mut self, n: usize, session: u64) {
        let Some(other) = self.copy_of(n) else { return };
        if self.is_cut(n, other) {
            return self.after(50 * MS, Event::CopyDone(n, session));
        }
        if self.nodes[n].mirror.as_ref().is_some_and(|mirror| mirror.session == session) {
            let messages = self.nodes[n].messages.clone();
            self.receive(other, &messages);
            self.nodes[n].mirror.iter_mut().for_each(|mirror| mirror.is_live = true);
            self.feed(n, Input::CaughtUp { session });
        }
    }

    /// A leader whose follower takes over looks at its port.
    fn probe(&mut self, n: usize) {
        let host = &self.nodes[n];
        let is_handing_over = |machine: &Machine| machine.status(self.clock(n)).step == Step::HandingOver;
        if host.is_frozen || !host.machine.as_ref().is_some_and(is_handing_over) || self.random.below(12) != 0 {
            return;
        }
        let follower = host.machine.as_ref().and_then(Machine::record).and_then(|record| record.follower);
        let Some(follower) = follower.map(|node| usize::from(node.0)) else { return };
        let there = &self.nodes[follower];
        if there.machine.is_none() && !there.is_off && !self.is_cut(n, follower) {
            self.feed(n, Input::PeerDown { node: node(follower), end: LinkEnd::Refused });
        }
    }

    /// Operations and confirmations go through the mirror of a leader, and the ends of connections are seen.
    pub(super) fn pump(&mut self, n: usize) {
        self.probe(n);
        if let Some((leader, session, true)) = self.nodes[n].copy
            && self.copy_of(leader) != Some(n)
            && self.random.percent(20)
        {
            self.nodes[n].copy = None;
            self.feed(n, Input::CopyBroken { session });
        }
        let Some(mirror) = self.nodes[n].mirror.as_ref() else { return self.acknowledge(n) };
        let (other, session, is_live) = (mirror.node, mirror.session, mirror.is_live);
        let is_broken = mirror.is_used && self.copy_of(n).is_none();
        let is_cut = self.is_cut(n, other);
        if is_broken && !mirror.is_failed && self.random.percent(20)
            || is_cut && mirror.is_used && self.random.below(200) == 0
        {
            self.nodes[n].mirror.iter_mut().for_each(|mirror| mirror.is_failed = true);
            if !is_broken {
                self.nodes[other].copy = None;
                self.feed(other, Input::CopyBroken { session });
            }
            self.feed(n, Input::CopyFailed { session });
        } else if is_live && !is_broken && !self.cuts[n][other] && !self.nodes[n].is_frozen {
            if self.nodes[other].is_frozen {
                return;
            }
            if !self.nodes[other].messages.has_all(&self.nodes[n].messages) {
                let messages = self.nodes[n].messages.clone();
                self.receive(other, &messages);
            }
            let has = self.nodes[other].messages.clone();
            let is_new = self.nodes[n]
                .mirror
                .as_ref()
                .is_some_and(|mirror| mirror.must_confirm.is_some() || !mirror.confirmed.has_all(&has));
            if is_new && !self.cuts[other][n] {
                let delay = self.random.between(MS / 10, 3 * MS);
                self.after(delay, Event::Confirm(n, session, has));
            }
        }
        self.acknowledge(n);
    }
}
