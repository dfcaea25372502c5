//! The task that owns one Network Connection: a driver that calls its parts in a fixed order.
//!
//! ```text
//!  socket ─► Inbound ─► protocol ─┬─► Publishing ─► queues of other clients
//!                                 ├─► Member, Reauthentication, Departure
//!                                 │ answers
//!                                 ▼
//!  socket ◄─ Output ◄─── DurabilityGate ◄─ Outbound ◄─ queue of this client, its on-disk backlog, retained messages
//! ```
//!
//! Each part keeps its fields to itself. Their methods take everything else as arguments, above all [`Core`]: the broker, the
//! client's lease, the protocol state and the output. Only the socket and this driver know the kind of stream.
//!
//! A lap of the task is one [`ConnectionTask::poll_ready`], which moves bytes and gathers events, and one
//! [`ConnectionTask::handle`], which applies them. `poll_ready` asks every part in each lap, since any of them may have
//! been the one that was woken. Its order:
//!
//! 1. **Gate, release.** Packets whose changes have become durable join the output. First, since they count in the room
//!    that is left.
//! 2. **Write.** Output of the last lap leaves. Packets that the socket has taken are reported to the balancer.
//! 3. **Room.** Send quota and free output bound everything that follows. The queue learns whether the socket is full.
//! 4. **Read**, unless the output is full, the gate waits for the disk, or the packet's memory is lacking. Before sending,
//!    so that messages queued before a packet came are sent before its answer.
//! 5. **Refill.** A page of the on-disk backlog joins the queue, if there is quota for it.
//! 6. **Send.** A control request comes first and ends the step. Changed permissions are applied, and sending goes on.
//! 7. **Write again.** If all has left, one more look at the queue: usually it is empty, and the task can sleep at once.
//! 8. **Refill again.** The last message in memory may just have left. At QoS 0 no acknowledgement triggers another lap.
//! 9. **Probes**: the slow-consumer monitor, and work stealing.
//! 10. **Re-authentication**, **keep-alive timer**, and the **end** of a connection that cannot be told a refusal.
//! 11. Only if nothing of this is ready: the gate registers for its commit points, the deadline of a partly received
//!     packet is checked, and buffers go back to the thread.
//!
//! A lap begins only while the broker may act. That is looked at again before step 7 and before input is applied.
//!
//! `handle` applies: control request, end without answer, re-authentication, overdue packet, input, look for messages that
//! the client did not acknowledge in time, keep-alive. A control
//! request that ends the connection drops input of the same lap. Input is applied although a write has failed: the next
//! write returns the error again.

mod ending;
mod ends;
mod input;
mod leaving;
mod moving;
mod output;
mod pause;
mod requests;
mod rights;
mod turn;
mod work;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use self::leaving::Leaving;
use self::turn::{ReceiversFirst, Turn};
use super::core::{Core, OpenConnection};
use super::departure::Departure;
use super::end::End;
use super::filters::Filters;
use super::gate::DurabilityGate;
use super::handshake::{self, Accepted};
use super::inbound::{Inbound, Input};
use super::member::Member;
use super::outbound::{Outbound, Progress};
use super::output::OUT_FULL;
use super::probes::Probes;
use super::publishing::Publishing;
use super::reauthentication::Reauthentication;
use super::stream::Stream;
use super::transport::{Socket, Transport};
use crate::auth::Answer;
use crate::hooks::HookSet;
use crate::outbox::Control;
use crate::slices::in_turn;
use crate::threads::Home;
use crate::values::Rate;

/// Accepted socket; nothing read yet.
pub(super) struct AcceptedSocket<S> {
    pub(super) open: OpenConnection,
    pub(super) stream: S,
    /// Name of the listener that accepted it.
    pub(super) listener: Arc<str>,
    /// Worker thread that serves the connection, if one does.
    pub(super) home: Option<Home>,
    /// Whether the stream is registered with another runtime than the one that serves the connection.
    pub(super) is_elsewhere: bool,
    /// Deadline of CONNECT.
    pub(super) deadline: tokio::time::Instant,
}

/// Serves one connection from its first byte to its last.
///
/// A future is as large as the largest future that it awaits, and also stores each argument. So the handshake and
/// the closing are boxed: their memory is freed while the connection lasts.
pub(super) async fn serve<S: Stream>(socket: Box<AcceptedSocket<S>>) {
    let Some(mut task) = in_turn(Box::pin(begin(socket))).await else { return };
    let ended = task.run().await;
    if let Some(end) = task.leave(ended) {
        end.await;
    }
}

/// Performs the handshake, and handles input behind it. `None`: the connection is closed.
async fn begin<S: Stream>(socket: Box<AcceptedSocket<S>>) -> Option<ConnectionTask<S>> {
    let AcceptedSocket { mut open, stream, listener, home, is_elsewhere, deadline } = *socket;
    let mut transport = Transport::new(stream);
    if is_elsewhere && let Err(error) = transport.socket.stream().register_again() {
        tracing::debug!(peer = %open.peer, %error, "its socket stays with the thread that accepted it");
    }
    let publish_rate = open.shared.admission.connection_settings.publish_rate(&listener);
    let origin = open.origin(transport.socket.stream());
    match handshake::accept(&open, &mut transport, origin, listener, deadline).await {
        Some(accepted) => {
            open.is_logged_in();
            let mut task = ConnectionTask::new(open, accepted, transport, publish_rate, home);
            match task.start() {
                Ok(()) => Some(task),
                Err(end) => {
                    task.finish(end).await;
                    None
                }
            }
        }
        None => {
            if open.shared.may_act().await || open.shared.operations.leadership.deposed().is_none() {
                transport.close().await;
            }
            None
        }
    }
}

/// One connection.
struct ConnectionTask<S> {
    core: Core,
    /// Worker thread that serves the connection, if one does.
    home: Option<Home>,
    socket: Socket<S>,
    inbound: Inbound,
    outbound: Outbound,
    gate: DurabilityGate,
    publishing: Publishing,
    member: Member,
    probes: Probes,
    reauthentication: Reauthentication,
    departure: Departure,
    /// Present while a slow receiver is to go to another node.
    leaving: Option<Box<Leaving>>,
    /// Timer of Keep Alive and of expiring credentials.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Events that are ready at the same time; the task handles all of them.
#[derive(Default)]
struct Ready {
    input: Option<Input>,
    control: Option<Control>,
    progress: Progress,
    answer: Option<Answer>,
    timer: bool,
    /// A partly received packet is overdue.
    overdue: bool,
    /// A message without room has been unacknowledged for too long.
    unanswered: bool,
    /// A hook has panicked.
    has_panicked: bool,
    /// The client is to be told that it uses another node.
    leaves: bool,
    /// A share group or an operator asks for something.
    is_asked: bool,
}

impl Ready {
    fn is_anything(&self) -> bool {
        let Self { input, control, progress, answer, timer, overdue, unanswered, has_panicked, leaves, is_asked } =
            self;
        let Progress { sent, more_retained } = progress;
        let is_request = input.is_some() || control.is_some() || answer.is_some();
        is_request
            || *sent
            || *more_retained
            || *timer
            || *overdue
            || *unanswered
            || *has_panicked
            || *leaves
            || *is_asked
    }
}

impl<S: Stream> ConnectionTask<S> {
    fn new(
        open: OpenConnection,
        accepted: Accepted,
        transport: Transport<S>,
        publish_rate: Option<Rate>,
        home: Option<Home>,
    ) -> Self {
        let Accepted { lease, connection, decoder, is_bridge, counted, departure, reauthentication, member, hooks } =
            accepted;
        let Transport { socket, input, out } = transport;
        let core = Core { open, lease, connection, out, hooks, _counted: counted };
        Self {
            home,
            socket,
            inbound: Inbound::new(decoder, input, publish_rate, Filters::new(is_bridge)),
            outbound: Outbound::default(),
            gate: DurabilityGate::default(),
            publishing: Publishing::new(&core),
            member,
            probes: Probes::default(),
            reauthentication,
            departure,
            leaving: None,
            timer: None,
            core,
        }
    }

    /// Runs until the connection ends or has to migrate to another thread.
    async fn run(&mut self) -> Result<Home, End> {
        loop {
            let ready = std::future::poll_fn(|context| self.poll_ready(context)).await;
            let turn = ready.map_err(End::Closed).and_then(|ready| self.handle(ready, Instant::now()))?;
            match turn {
                Turn::GoesOn => {}
                Turn::ReceiversFirst => {
                    self.inbound.rest();
                    ReceiversFirst::default().await;
                }
                Turn::Over => tokio::task::yield_now().await,
            }
            if let Some(home) = self.leaves() {
                return Ok(home);
            }
        }
    }

    /// Handles changes since CONNECT and packets that arrived right behind it.
    fn start(&mut self) -> Result<(), End> {
        self.set_timer();
        self.core.take_traces(self.core.out.written());
        let told = self.tell_established();
        let now = Instant::now();
        // Do this first in any case: no other code completes these messages.
        self.count_dropped_resends(now);
        self.gate.settle(&self.core);
        told?;
        if self.core.lease.is_superseded() {
            return Err(End::Control(Control::TakenOver));
        }
        self.take_rights_over()?;
        if self.core.lease.client.outbox.is_in_groups() {
            self.measure_round_trip();
        }
        self.handle_input_if_held(now)?;
        if self.has_panicked() { Err(End::HOOK_PANICKED) } else { Ok(()) }
    }

    /// Tells hooks that the connection begins.
    fn tell_established(&mut self) -> Result<(), End> {
        let Core { hooks: Some(hooks), out, .. } = &mut self.core else { return Ok(()) };
        HookSet::forget_panic();
        if hooks.session_established(out.written()) { Ok(()) } else { Err(End::HOOK_PANICKED) }
    }

    /// Whether a hook of this connection has panicked in this lap.
    #[inline(always)] // looked at in each lap
    fn has_panicked(&self) -> bool {
        self.core.hooks.is_some() && HookSet::take_panic()
    }

    /// Tells hooks which packets the socket has taken.
    #[cold]
    fn tell_hooks_written(&mut self) {
        if let Some(hooks) = &mut self.core.hooks {
            hooks.written(self.socket.written(&self.core.out));
        }
    }

    /// Moves bytes and messages, and gathers all events that are ready: see the module's documentation for the order.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Ready>> {
        if !self.core.open.shared.operations.leadership.holds() {
            return self.poll_paused(context);
        }
        let mut ready = Ready::default();
        if self.core.hooks.is_some() {
            HookSet::forget_panic();
        }
        ready.progress.sent = self.gate.release(&mut self.core, context);
        if let Err(error) = self.write(context)
            && !self.has_input_to_apply()
        {
            return Poll::Ready(Err(error));
        }
        let quota = self.core.quota();
        let room = self.room();
        self.outbound.tell_socket_blocked(&self.core, room == 0);
        if room > 0 && !self.gate.waits(&self.core) {
            ready.input = self.inbound.poll_read(&self.core, &mut self.socket, context);
        }
        let is_leaving = self.leaving.is_some();
        if quota > 0 && self.core.has_backlog() && !is_leaving {
            self.outbound.poll_refill(&self.core, context);
        }
        let room = if is_leaving { 0 } else { room };
        self.send(context, quota, room, &mut ready);
        let may_act = || self.core.open.shared.operations.leadership.holds();
        if ready.progress.sent && ready.control.is_none() && room > 0 && may_act() {
            let written = self.write_at_once(context, &mut ready);
            if ready.input.is_none() {
                written?;
            }
        }
        if !ready.progress.sent && room > 0 && self.core.has_backlog() && self.core.quota() > 0 {
            ready.progress.sent = self.outbound.poll_refill(&self.core, context);
        }
        self.outbound.announce_slowness(&self.core, quota);
        self.probes.relieve(&self.core, context);
        if let Poll::Ready(answer) = self.reauthentication.poll(context) {
            ready.answer = Some(answer);
        }
        if let Some(timer) = &mut self.timer {
            ready.timer = timer.as_mut().poll(context).is_ready();
        }
        ready.unanswered = self.gate.poll_unanswered(context);
        if self.core.hooks.is_some() {
            self.tell_hooks_written();
            ready.has_panicked = self.has_panicked();
        }
        if is_leaving {
            ready.leaves = self.poll_leaving(context);
        }
        if !ready.is_anything() {
            self.gate.register(&self.core, context);
            ready.overdue = self.inbound.is_overdue(&self.core, || self.gate.waits(&self.core), context);
        }
        if ready.is_anything() {
            return Poll::Ready(Ok(ready));
        }
        self.inbound.rest();
        self.core.out.rest();
        self.publishing.rest();
        Poll::Pending
    }

    /// Bytes that may be encoded for the client.
    #[inline]
    fn room(&self) -> usize {
        OUT_FULL.saturating_sub(self.core.out.len() + self.gate.held_bytes())
    }

    /// Whether packets that were read come before the end of a connection that cannot be written to: the client may have
    /// sent DISCONNECT behind them, and gone.
    #[cold]
    fn has_input_to_apply(&self) -> bool {
        self.inbound.has_more() && self.room() > 0
    }

    /// Handles the events of one lap.
    fn handle(&mut self, ready: Ready, now: Instant) -> Result<Turn, End> {
        match ready.control {
            // A connection that lost against a newer one may still request a takeover, although this one is the newer.
            // Its request may have replaced others.
            Some(Control::TakenOver) if !self.core.lease.is_superseded() => self.take_replaced_requests()?,
            Some(Control::Moved) => self.begin_leaving(),
            Some(Control::RightsChanged) => return Err(End::Revoked), // applied by `send`: access is lost
            Some(control) => return Err(End::Control(control)),
            None => {}
        }
        if ready.has_panicked {
            return Err(End::HOOK_PANICKED);
        }
        if ready.leaves {
            return Err(End::Control(Control::Moved));
        }
        if ready.unanswered {
            return Err(End::Unanswered);
        }
        if let Some(answer) = ready.answer {
            self.reauthentication.answered(&mut self.core, &mut self.gate, &self.departure, answer, now)?;
            self.take_rights_over()?;
            self.set_timer();
        }
        if ready.overdue {
            return Err(self.inbound.arrival.overdue());
        }
        let has_input = match ready.input {
            Some(Input::Read(0)) => return Err(End::Closed(std::io::ErrorKind::UnexpectedEof.into())),
            Some(Input::Failed(error)) => return Err(End::Closed(error)),
            Some(Input::Read(_) | Input::Resumed) => true,
            None => false,
        };
        let mut turn = if has_input { self.handle_input_if_held(now)? } else { Turn::GoesOn };
        if ready.is_asked {
            self.look_for_overdue(now)?; // behind the PUBACKs of this lap
        }
        if ready.progress.more_retained || self.inbound.ends_turn(has_input) {
            turn = Turn::Over;
        }
        self.count_traffic();
        if turn == Turn::Over {
            self.inbound.begin_turn();
        }
        if ready.timer {
            if self.core.lease.client.rights.expires_at().is_some_and(|at| at <= now) {
                return Err(End::Expired);
            }
            if self.has_not_read() {
                self.core.connection.not_read(now);
            }
            self.core.connection.handle_timeout(now, &mut self.core.out).map_err(End::Violation)?;
            self.rearm();
        }
        if self.has_panicked() {
            return Err(End::HOOK_PANICKED);
        }
        Ok(turn)
    }

    /// Sets the timer on the current runtime.
    fn set_timer(&mut self) {
        self.timer = self.next_timeout().map(|at| Box::pin(tokio::time::sleep_until(at.into())));
    }

    fn rearm(&mut self) {
        if let (Some(at), Some(timer)) = (self.next_timeout(), &mut self.timer) {
            timer.as_mut().reset(at.into());
        }
    }

    /// When Keep Alive is to be looked at, or the client's credentials expire.
    fn next_timeout(&self) -> Option<Instant> {
        let expiry = self.core.lease.client.rights.expires_at();
        self.core.connection.poll_timeout().into_iter().chain(expiry).min()
    }
}
