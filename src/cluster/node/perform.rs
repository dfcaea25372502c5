//! Events become inputs, and actions are performed.

use std::sync::{Arc, PoisonError};

use tenbin_broker::Lease;
use tenbin_cluster::{Action, Hello as NodeHello, Input, Notice, Record, Step, StoredMark, Swapped};
use tenbin_store::mirror::{self, JoinId, Mirror};

use super::super::agreement;
use super::super::control::{ControlAnswer, ControlRequest};
use super::super::link::listen::Accepted;
use super::super::link::{self, FromLeader, FromStandby, HelloKind};
use super::links::{self, StandbyLinkTask};
use super::serving::Serving;
use super::{CopyTask, Event, Node, NodeNumber, clock_ms, copies};

impl Node {
    /// Handles an event. True: the node has stopped.
    pub(super) async fn event(&mut self, event: Event) -> bool {
        let input = match event {
            Event::Accepted(Accepted::Relayed(stream)) => {
                // Without a broker the stream closes, and the client connects again.
                if let Some(broker) = self.serving.as_ref().and_then(Serving::broker) {
                    broker.serve_relayed(stream);
                }
                None
            }
            Event::Accepted(Accepted::Node(hello, stream)) => self.hello_of(hello, stream),
            Event::FromStandby { node, id, message } => {
                if !self.links.is_present(node, id) {
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
                    Swapped::Unknown
                }
            })),
            Event::PeerRecord(record) => self.record_of(&record).map(Input::PeerRecord),
            Event::MarkDone { input, result } => match result {
                Ok(()) => Some(input),
                Err(error) => {
                    tracing::error!(%error, directory = %self.directory.path().display(), "cannot sync the directory");
                    Some(Input::DiskFailed)
                }
            },
            Event::CopyBegun { session, copy } => self.copy_begun(session, copy),
            Event::CopyEnded { session, event } => {
                tracing::warn!(session, ?event, "the copy has ended");
                Some(Input::CopyBroken { session })
            }
            Event::NotJoined { session, error } => {
                tracing::warn!(session, %error, "the copy of a joiner cannot begin");
                Some(Input::CopyFailed { session })
            }
            Event::Mirror(event) => Some(mirror_event(event)),
            Event::BrokerStarted(started) => Some(self.broker_started(started)),
            Event::BrokerClosed => {
                self.serving = None;
                Some(Input::BrokerClosed)
            }
            Event::Command(request, answer) => match request {
                ControlRequest::Promote { accept_loss } => {
                    self.promotions.push(answer);
                    Some(Input::Promote { accept_loss })
                }
                ControlRequest::Status => {
                    let _ = answer.send(ControlAnswer::Status { status: Box::new(self.status()) });
                    None
                }
                ControlRequest::Unknown => None,
            },
            Event::Stop => Some(Input::Stop),
        };
        match input {
            Some(input) => self.input(input).await,
            None => false,
        }
    }

    fn copy_begun(&mut self, session: u64, copy: Result<mirror::Copy, String>) -> Option<Input> {
        if !matches!(self.copy, CopyTask::Beginning { session: begun, .. } if begun == session) {
            // The node has sealed it. Dropping it frees the directory.
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
                    return Input::BrokerOpened;
                }
                serving.close(None, &self.runtime, &self.events);
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
        match action {
            Action::Read => self.read(),
            Action::Swap { expected, record } => self.swap(expected, &record),
            Action::WriteMark(record) => {
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
                        std::thread::sleep(MARK_AGAIN_AFTER);
                    }
                    Ok(())
                });
            }
            Action::SyncDisk => self.on_disk(Input::Synced, |directory| directory.sync_all()),
            Action::SetAside => self.is_foreign = !self.set_aside(false).await,
            Action::Connect { leader } => self.connect(leader),
            Action::Disconnect => self.link = None,
            Action::StartCopy { leader, session } => {
                // A store that cannot be moved is not replaced either.
                if self.is_foreign && !self.set_aside(true).await {
                    return Some(Input::CopyBroken { session });
                }
                self.is_foreign = false;
                self.start_copy(leader, session);
            }
            Action::Seal => self.seal().await,
            Action::AnswerBeacon { number, is_marked } => {
                if let Some(link) = &self.link {
                    link.answer(FromStandby::Answer { number, is_marked, clock_ms: clock_ms() });
                }
            }
            Action::OpenBroker => return self.open_broker().await,
            Action::Serve => {
                if let Some(serving) = &mut self.serving {
                    serving.serve();
                }
                self.report.serves();
                let message = format!("{} leads", self.names.name(self.own));
                self.answer_promotions(&ControlAnswer::Done { message });
            }
            Action::Fence => {
                if self.machine.status(Lease::now()).step == Step::Fenced {
                    tracing::warn!("ending all clients: this node reaches neither its follower nor the engine");
                }
                let other = self.machine.record().and_then(|record| record.follower);
                let reference = other.and_then(|node| self.server_reference(node));
                if let Some(serving) = &self.serving {
                    serving.fence(reference);
                }
            }
            Action::StopBroker => self.stop_broker(),
            Action::SetLease { until } => {
                if let Some(serving) = &mut self.serving {
                    serving.set_lease(until);
                }
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
                self.links.send(&FromLeader::Beacon { number, record, clock_ms: clock_ms() });
            }
            Action::Farewell => self.links.say_farewell(),
            Action::Promotion(Ok(())) | Action::Stopped => {}
            Action::Promotion(Err(refused)) => {
                let error = self.refusal(refused);
                self.answer_promotions(&ControlAnswer::Failed { error });
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

    fn read(&self) {
        let events = self.events.clone();
        if let Some(engine) = self.engine.clone() {
            tokio::spawn(async move { events.send(Event::Read(engine.read().await)) });
            return;
        }
        for node in self.config.cluster.nodes.iter().filter(|node| node.name != self.names.name(self.own)) {
            let (address, events) = (node.address.clone(), events.clone());
            tokio::spawn(async move {
                let status = link::ask_status(&address, STATUS_TIMEOUT).await.ok();
                let record = status.and_then(|mut status| serde_json::from_value(status["record"].take()).ok());
                if let Some(record) = record {
                    events.send(Event::PeerRecord(record));
                }
            });
        }
    }

    fn swap(&self, expected: u64, record: &Record) {
        let Some(engine) = self.engine.clone() else { return };
        let (record, events) = (self.stored(record), self.events.clone());
        tokio::spawn(async move { events.send(Event::Swapped(engine.swap(expected, &record).await)) });
    }

    /// Does work on the directory in a thread, and tells its end as `input`.
    fn on_disk(&self, input: Input, work: impl FnOnce(&super::NodeDirectory) -> std::io::Result<()> + Send + 'static) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let result = work(&directory).map_err(|error| error.to_string());
            events.send(Event::MarkDone { input, result });
        });
    }

    /// Moves the store aside. The mark stays if the node has just written it for its copy.
    async fn set_aside(&mut self, keeps_mark: bool) -> bool {
        let epoch = self.machine.record().map_or(0, |record| record.epoch);
        let directory = Arc::clone(&self.directory);
        match tokio::task::spawn_blocking(move || directory.set_aside(epoch, keeps_mark)).await {
            Ok(Ok(aside)) => {
                tracing::warn!(directory = %aside.display(), "set the old store aside: it may have messages that no other node has");
                self.report.set_aside(aside);
                true
            }
            Ok(Err(error)) => {
                tracing::error!(%error, directory = %self.directory.path().display(), "cannot set the old store aside");
                false
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn connect(&mut self, leader: NodeNumber) {
        let (name, cluster) = (self.names.name(self.own).to_owned(), self.config.cluster.name.clone());
        let hello = Arc::clone(&self.hello);
        let make = move || {
            let NodeHello { epoch, may_take_over, .. } = *hello.lock().unwrap_or_else(PoisonError::into_inner);
            links::hello(&cluster, &name, HelloKind::Link, epoch, may_take_over)
        };
        self.last_link += 1;
        let address = self.address(leader);
        self.link = Some(StandbyLinkTask::start(self.last_link, leader, address, Arc::new(make), &self.events));
    }

    fn start_copy(&mut self, leader: NodeNumber, session: u64) {
        let (name, cluster) = (self.names.name(self.own).to_owned(), self.config.cluster.name.clone());
        let hello = move |kind| links::hello(&cluster, &name, kind, session, true);
        let (address, directory) = (self.address(leader), self.directory.path().to_owned());
        let (sync, events) = (self.config.store.sync(), self.events.clone());
        let task = tokio::spawn(async move {
            let copy = copies::begin(address, hello, directory, sync, session, events.clone()).await;
            events.send(Event::CopyBegun { session, copy });
        });
        self.copy = CopyTask::Beginning { session, _task: links::AbortOnDrop(task.abort_handle()) };
    }

    async fn seal(&mut self) {
        if let CopyTask::Present { copy, session } = std::mem::replace(&mut self.copy, CopyTask::None) {
            tracing::info!(session, "sealing the copy");
            if let Err(error) = tokio::task::spawn_blocking(move || copy.seal()).await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
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
        self.is_foreign = false;
        self.report.opens();
        self.copies.clear();
        let events = self.events.clone();
        let mirror = Mirror::new(move |event| events.send(Event::Mirror(event)));
        self.serving = Some(Serving::start(&self.make, mirror, sockets, &self.runtime, &self.events));
        None
    }

    fn stop_broker(&mut self) {
        let error = "another node leads, or this one stops".to_owned();
        self.answer_promotions(&ControlAnswer::Failed { error });
        self.copies.clear();
        self.confirmed = None;
        let other = self.machine.leader().or_else(|| self.machine.record().and_then(|record| record.follower));
        let reference = other.and_then(|node| self.server_reference(node));
        if let Some(serving) = &mut self.serving {
            serving.close(reference, &self.runtime, &self.events);
        }
    }

    /// Where clients of this node find another one: its host, with the port of this node's first listener. Nodes of one
    /// machine have other ports, so that there is no reference to them.
    fn server_reference(&self, node: NodeNumber) -> Option<String> {
        let cluster = &self.config.cluster;
        let name = self.names.name(node);
        let other = cluster.nodes.iter().find(|known| known.name == name)?;
        let own = cluster.own()?;
        let port = self.ports.first()?;
        (other.host() != own.host()).then(|| format!("{}:{port}", other.host()))
    }

    fn require(&mut self, session: u64) -> Option<Input> {
        let Some(serving) = &self.serving else { return Some(Input::CopyFailed { session }) };
        if let Err(error) = serving.mirror.require(JoinId(session)) {
            tracing::error!(%error, "cannot wait for the copy");
            return Some(Input::CopyFailed { session });
        }
        None
    }

    fn notice(&mut self, notice: Notice) {
        let text = self.words(notice);
        match notice {
            Notice::Leads { .. } | Notice::CopyComplete { .. } | Notice::TakingOver { .. } | Notice::EngineBack => {
                tracing::info!("{text}");
            }
            Notice::EngineAway | Notice::CopyLost { .. } | Notice::Deposed { .. } => tracing::warn!("{text}"),
            _ => tracing::error!("{text}"),
        }
    }
}

fn mirror_event(event: mirror::Event) -> Input {
    match event {
        mirror::Event::CaughtUp(JoinId(session)) => Input::CaughtUp { session },
        mirror::Event::Confirmed(JoinId(session)) => Input::Confirmed { session },
        mirror::Event::Lost(JoinId(session), reason) => {
            tracing::warn!(session, reason, "the copy at another node has ended");
            Input::CopyFailed { session }
        }
    }
}

const MARK_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
const STATUS_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(800);
