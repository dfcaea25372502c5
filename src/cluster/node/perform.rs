//! Events become inputs, and actions are performed.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tenbin_broker::Lease;
use tenbin_cluster::{Action, Input, Notice, PromotionRefused, Record, Step, Swapped};
use tenbin_store::mirror::{self, Full, JoinId, Mirror};

use super::super::agreement;
use super::super::control::{ControlAnswer, ControlRequest};
use super::super::link::listen::{Accepted, Refusal};
use super::super::link::{self, FromLeader, FromStandby, Hello, HelloKind};
use super::links::{self, StandbyLinkTask};
use super::serving::Serving;
use super::{CopyTask, Event, Node, NodeNumber, clock_ms, copies};

impl Node {
    /// Handles an event. True: the node has stopped.
    pub(super) async fn event(&mut self, event: Event) -> bool {
        self.links.turns(Instant::now());
        let input = match event {
            Event::Accepted(Accepted::Relayed(stream)) => {
                // Without a broker the stream closes, and the client connects again.
                match self.serving.as_ref().and_then(Serving::broker) {
                    Some(broker) => broker.serve_relayed(stream),
                    None => self.report.refusals.count(Refusal::NotLeading),
                }
                None
            }
            Event::Accepted(Accepted::Node(hello, stream)) => self.hello_of(hello, stream),
            Event::FromStandby { node, id, message } => {
                if !self.links.hears(node, id) {
                    return false;
                }
                self.standby_said(node, message)
            }
            Event::FromLeader { leader, id, message } => {
                if self.link.as_ref().is_none_or(|link| link.id != id) {
                    return false;
                }
                return self.leader_said(leader, message).await;
            }
            Event::Probed { node, end } => (!self.links.contains(node)).then_some(Input::PeerDown { node, end }),
            Event::Read(read) => Some(Input::RecordRead(self.record_read(read))),
            Event::Swapped(swapped) => Some(Input::Swapped(match swapped {
                agreement::Swapped::Done => Swapped::Done,
                agreement::Swapped::Refused => Swapped::Refused,
                agreement::Swapped::Unknown(error) => {
                    tracing::warn!(%error, "the outcome of a change of the record is unknown");
                    self.report.counts.agreement_errors += 1;
                    Swapped::Unknown
                }
            })),
            Event::Asked { node, record } => {
                self.report.asked(&node, record.as_ref().err());
                record.ok().flatten().and_then(|record| self.record_of(&record)).map(Input::PeerRecord)
            }
            Event::MarkAgain(record) => self.perform(Action::WriteMark(record)).await,
            Event::MarkDone { input, result } => match result {
                Ok(()) => Some(input),
                Err(error) => {
                    tracing::error!(%error, directory = %self.directory.path().display(), "cannot sync the directory");
                    Some(Input::DiskFailed)
                }
            },
            Event::CopyBegun { session, copy } => self.copy_begun(session, copy),
            Event::CopySaid { session, event } => self.copy_said(session, event),
            Event::NotJoined { session, error } => {
                tracing::warn!(session, %error, "the copy of a joiner cannot begin");
                Some(Input::CopyFailed { session })
            }
            Event::Mirror(mirror::Event::Damaged(damage)) => {
                self.leader_is_damaged(&damage);
                None
            }
            Event::Mirror(mirror::Event::CaughtUp(JoinId(session))) => Some(Input::CaughtUp { session }),
            Event::Mirror(mirror::Event::Confirmed(JoinId(session))) => Some(Input::Confirmed { session }),
            Event::Mirror(mirror::Event::Lost(JoinId(session), reason)) => {
                tracing::warn!(session, reason, "the copy at another node has ended");
                Some(Input::CopyFailed { session })
            }
            Event::BrokerStarted(started) => Some(self.broker_started(started)),
            Event::Sealed => return self.goes_on(None).await,
            Event::SetAside { result, then } => return self.was_set_aside(result, then).await,
            Event::BrokerClosed => {
                self.serving = None;
                Some(Input::BrokerClosed)
            }
            Event::Command(request, answer) => match request {
                // With an engine a follower takes over by itself. A promotion beside a leader that lives would end its copy.
                ControlRequest::Promote { .. } if self.engine.is_some() && self.report.is_linked() => {
                    let error = self.refusal(PromotionRefused::LeaderLives);
                    let _ = answer.send(ControlAnswer::Failed { error });
                    None
                }
                ControlRequest::Promote { accept_loss } => {
                    self.promotions.push(answer);
                    Some(Input::Promote { accept_loss })
                }
                ControlRequest::Switch { to } => self.switch(to, true, answer),
                ControlRequest::Status => {
                    let _ = answer.send(ControlAnswer::Status { status: Box::new(self.status()) });
                    None
                }
                ControlRequest::Backup => {
                    let _ = answer.send(self.backup());
                    None
                }
                ControlRequest::Adopt { .. } | ControlRequest::Force { .. } => {
                    self.ask_others(request, answer);
                    None
                }
                ControlRequest::Unknown => None,
            },
            Event::Namesake(address) => {
                self.namesakes.answers_at = Some(address);
                Some(Input::NamesakeFound)
            }
            Event::OthersAsked { request, others, answer } => self.others_asked(&request, &others, answer),
            Event::Stop => {
                self.is_stopping = true;
                Some(Input::Stop)
            }
            Event::View(answer) => {
                let _ = answer.send(self.view());
                None
            }
        };
        match input {
            Some(input) => self.input(input).await,
            None => false,
        }
    }

    fn copy_begun(&mut self, session: u64, copy: Result<mirror::Copy, String>) -> Option<Input> {
        if !matches!(self.copy, CopyTask::Beginning { session: begun, .. } if begun == session) {
            // The node has sealed it.
            copy.into_iter().for_each(|copy| self.end_copy(copy));
            return None;
        }
        match copy {
            Ok(copy) => {
                tracing::info!(session, "copying from the leader");
                self.copy = CopyTask::Present { session, copy };
                None
            }
            Err(error) => {
                tracing::warn!(session, %error, "cannot copy from the leader");
                self.copy = CopyTask::None;
                Some(Input::CopyBroken { session })
            }
        }
    }

    fn broker_started(&mut self, started: Result<Arc<tenbin_broker::Broker>, String>) -> Input {
        match (started, &mut self.serving) {
            (Ok(broker), Some(serving)) => {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&broker);
                if serving.started(broker) {
                    self.moves_to = None;
                    return Input::BrokerOpened;
                }
                serving.close(BTreeMap::new(), &self.runtime, &self.events);
                Input::Tick
            }
            (Ok(_), None) => Input::Tick,
            (Err(error), serving) => {
                tracing::error!(%error, "the broker cannot start");
                let is_closing = serving.as_ref().is_some_and(Serving::is_closing);
                *serving = None;
                self.answer_promotions(&ControlAnswer::Failed { error: error.clone() });
                self.report.note_error(error);
                if is_closing { Input::BrokerClosed } else { Input::BrokerFailed }
            }
        }
    }

    /// Performs an action. Returns the inputs that follow at once.
    pub(super) async fn perform(&mut self, action: Action) -> Option<Input> {
        match self.sealing.now(action)? {
            Action::Read => self.read(),
            Action::Swap { expected, record } => self.swap(expected, &record),
            Action::WriteMark(record) => self.write_mark(record),
            Action::SyncDisk => self.on_disk(Input::Synced, |directory| directory.sync_all()),
            Action::SetAside => self.set_aside(None),
            Action::Connect { leader } => self.connect(leader),
            Action::Disconnect => self.link = None,
            Action::StartCopy { leader, session } => self.start_copy(leader, session),
            Action::Seal => self.seal(),
            Action::AnswerBeacon { number, is_marked } => {
                if let Some(link) = &self.link {
                    link.answer(FromStandby::Answer { number, is_marked, clock_ms: clock_ms() });
                }
            }
            Action::OpenBroker => return self.open_broker().await,
            Action::Serve => {
                // Its mark is written. Before, the store may be one that another node's record knows nothing of.
                self.is_foreign = false;
                if let Some(serving) = &mut self.serving {
                    serving.serve();
                }
                self.tell_begin();
                let message = format!("{} leads", self.names.name(self.own));
                self.answer_promotions(&ControlAnswer::Done { message });
            }
            Action::Fence => {
                if self.machine.status(Lease::now()).step == Step::Fenced {
                    tracing::warn!("ending all clients: this node reaches neither its follower nor the engine");
                }
                let servers = self.other_servers();
                if let Some(serving) = &self.serving {
                    serving.fence(servers);
                }
            }
            Action::StopBroker => self.stop_broker(),
            Action::SetLease { until } => {
                let pause = self.serving.as_mut().and_then(|serving| serving.set_lease(until));
                pause.into_iter().for_each(|time| self.report.paused(time));
            }
            Action::Hold => self.with_mirror(Mirror::hold),
            Action::Unhold => self.with_mirror(Mirror::unhold),
            Action::AcceptCopy { node, session } => {
                self.copies.accept(node, session);
                self.join_if_complete();
            }
            Action::Require { session } => return self.require(session),
            Action::Release { session } => {
                self.copies.release(session);
                self.confirmed = None;
                self.with_mirror(|mirror| mirror.release(JoinId(session)));
            }
            Action::SendBeacon { number, record } => {
                let record = self.stored(&record);
                let takes_clients = self.no_clients(&self.machine.status(self.last_input)).is_none();
                self.links.send(&FromLeader::Beacon { number, record, clock_ms: clock_ms(), takes_clients });
            }
            Action::SendHandover { record } => {
                let record = self.stored(&record);
                self.links.send(&FromLeader::Handover { record });
            }
            Action::Farewell => self.links.say_farewell(),
            Action::Promotion(Ok(())) | Action::Stopped => {}
            Action::Promotion(Err(refused)) => {
                let error = self.refusal(refused);
                self.answer_promotions(&ControlAnswer::Failed { error });
            }
            Action::Switched(switched) => {
                let answer = match switched {
                    Ok(()) => ControlAnswer::Done { message: format!("{} leads", self.leader_name()) },
                    Err(refused) => ControlAnswer::Failed { error: self.switch_refusal(refused) },
                };
                self.answer_switches(&answer);
            }
            Action::Notice(notice) => self.notice(notice),
        }
        None
    }

    fn with_mirror(&self, work: impl FnOnce(&Mirror)) {
        if let Some(serving) = &self.serving {
            work(&serving.mirror);
        }
    }

    fn answer_promotions(&mut self, answer: &ControlAnswer) {
        for waiting in self.promotions.drain(..) {
            // The operator may have left.
            let _ = waiting.send(answer.clone());
        }
    }

    fn answer_switches(&mut self, answer: &ControlAnswer) {
        for waiting in self.switches.drain(..) {
            let _ = waiting.send(answer.clone());
        }
    }

    fn leader_name(&self) -> &str {
        self.machine.record().map_or("no node", |record| self.names.name(record.leader))
    }

    fn read(&mut self) {
        self.look_for_namesake();
        let events = self.events.clone();
        if let Some(engine) = self.engine.clone() {
            tokio::spawn(async move { events.send(Event::Read(engine.read().await)) });
            return;
        }
        for node in self.config.cluster.nodes.iter().filter(|node| node.name != self.names.name(self.own)) {
            let (node, address) = (node.name.clone(), node.address.clone());
            let (tls, events) = (self.tls.clone(), events.clone());
            tokio::spawn(async move {
                let asked = link::ask_status(&address, tls.as_deref(), STATUS_TIMEOUT).await;
                let record = asked.map_err(|error| error.to_string());
                let record = record.map(|mut status| serde_json::from_value(status["record"].take()).ok());
                events.send(Event::Asked { node, record });
            });
        }
    }

    fn swap(&self, expected: u64, record: &Record) {
        let Some(engine) = self.engine.clone() else { return };
        let (record, events) = (self.stored(record), self.events.clone());
        tokio::spawn(async move { events.send(Event::Swapped(engine.swap(expected, &record).await)) });
    }

    fn connect(&mut self, leader: NodeNumber) {
        let identity = self.identity();
        let (hello, ports) = (Arc::clone(&self.hello), self.ports_by_name());
        let make = move || {
            let own = *hello.lock().unwrap_or_else(PoisonError::into_inner);
            let made = Hello { kind: HelloKind::Link, epoch: own.epoch, ..identity.clone() };
            let may_take_over = own.may_take_over;
            Hello { ports: ports.clone(), may_join: own.may_join, is_first: own.is_first, may_take_over, ..made }
        };
        self.report.connects();
        self.last_link += 1;
        let address = (self.address(leader), self.tls.clone());
        self.link = Some(StandbyLinkTask::start(self.last_link, leader, address, Arc::new(make), &self.events));
    }

    /// Hello of this process, without what its purpose needs.
    fn identity(&self) -> Hello {
        let own = link::question(HelloKind::Unknown, &self.config.cluster.name, self.names.name(self.own), None);
        Hello { directory: self.namesakes.directory, process: self.namesakes.process, ..own }
    }

    fn start_copy(&mut self, leader: NodeNumber, session: u64) {
        let identity = self.identity();
        let hello = move |kind| Hello { kind, epoch: session, ..identity.clone() };
        let (address, directory) = ((self.address(leader), self.tls.clone()), self.directory.path().to_owned());
        let (sync, events) = (self.config.store.sync(), self.events.clone());
        let task = tokio::spawn(async move {
            let copy = copies::begin(address, hello, directory, sync, session, events.clone()).await;
            events.send(Event::CopyBegun { session, copy });
        });
        self.copy = CopyTask::Beginning { session, _task: links::AbortOnDrop(task.abort_handle()) };
    }

    async fn open_broker(&mut self) -> Option<Input> {
        if let Some(relay) = self.relay.take() {
            drop(relay.stop().await);
        }
        let sockets = match self.sockets.take() {
            Some(sockets) => sockets,
            None => match tenbin_broker::OpenSockets::open(&self.config).await {
                Ok(sockets) => sockets,
                Err(error) => {
                    tracing::error!(%error, "the broker cannot start");
                    self.report.note_error(error.to_string());
                    return Some(Input::BrokerFailed);
                }
            },
        };
        self.report.opens(self.machine.record().map(|record| self.names.name(record.leader).to_owned()));
        self.copies.clear();
        let events = self.events.clone();
        let mirror = Mirror::new(move |event| events.send(Event::Mirror(event)));
        self.serving =
            Some(Serving::start(&self.make, mirror, sockets, self.admin.clone(), &self.runtime, &self.events));
        None
    }

    fn stop_broker(&mut self) {
        let error = "another node leads, or this one stops".to_owned();
        let failed = ControlAnswer::Failed { error };
        self.answer_promotions(&failed);
        self.answer_switches(&failed);
        self.copies.clear();
        self.confirmed = None;
        let servers = self.other_servers();
        let Some(serving) = &mut self.serving else {
            if self.sealing.opens_no_broker() {
                self.events.send(Event::BrokerClosed);
            }
            return;
        };
        // Clients that connect from here on go to the new leader.
        let sockets = serving.broker().filter(|_| !self.is_stopping).and_then(|broker| broker.open_sockets());
        serving.close(servers, &self.runtime, &self.events);
        if sockets.is_some() {
            self.sockets = sockets;
            self.start_relay();
        }
    }

    fn require(&mut self, session: u64) -> Option<Input> {
        let Some(serving) = &self.serving else { return Some(Input::CopyFailed { session }) };
        let is_handover = self.machine.status(Lease::now()).step == Step::HandingOver;
        if !is_handover && serving.mirror.full_disk() == Some(Full::Copy) {
            tracing::warn!(session, "not waiting for a copy whose disk is full");
            return Some(Input::CopyFailed { session });
        }
        if let Err(error) = serving.mirror.require(JoinId(session)) {
            tracing::error!(%error, "cannot wait for the copy");
            return Some(Input::CopyFailed { session });
        }
        None
    }

    fn notice(&mut self, notice: Notice) {
        let text = self.words(notice);
        self.report.note(&notice);
        self.tell_copies(&notice);
        match notice {
            Notice::Leads { .. }
            | Notice::CopyComplete { .. }
            | Notice::TakingOver { .. }
            | Notice::HandingOver { .. }
            | Notice::EngineBack => {
                tracing::info!("{text}");
            }
            Notice::EngineAway | Notice::CopyLost { .. } | Notice::Deposed { .. } | Notice::HandoverFailed => {
                tracing::warn!("{text}");
            }
            _ => tracing::error!("{text}"),
        }
    }
}

const STATUS_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(800);
