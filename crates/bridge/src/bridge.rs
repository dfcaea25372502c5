//! The bridge: connects to both brokers, relays between them, and begins again after a loss.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenbin_client::{Backoff, Reconnect};
use tenbin_codec::{Disconnect, Packet, ReasonCode, WriteBuffer};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep, timeout};

use crate::error::{Failure, FailureKind};
use crate::link::{self, Link};
use crate::relay::{Agreed, Relay};
use crate::settings::{Endpoint, Settings};
use crate::status::{Side, Status};
use crate::suspect::Suspect;

/// A running bridge, on a thread. Dropping it ends it in order, without waiting for that.
#[derive(Debug)]
pub struct Bridge {
    status: Arc<Status>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    stop: watch::Sender<bool>,
}

/// Pauses between attempts.
const PAUSES: Reconnect = Reconnect::Backoff { first: Duration::from_millis(100), most: LONGEST_PAUSE };
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pause after another client has taken a session over: otherwise two bridges with one Client Identifier would disconnect
/// each other all the time.
const TAKEN_OVER_PAUSE: Duration = Duration::from_secs(30);
/// Time in which both brokers are to answer the subscriptions.
const SUBSCRIBE_TIME: Duration = Duration::from_secs(10);
/// Time for the last packets to one broker.
const FINISH_TIME: Duration = Duration::from_secs(1);

impl Bridge {
    /// Starts a bridge. It connects as soon as both brokers can be reached.
    ///
    /// `renew` makes the settings anew for each later connection, as passwords and certificates in files may have changed.
    /// After an error, which it returns in words, those of before stay. Name and rules must stay in any case.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn start(
        settings: Settings,
        renew: impl Fn() -> Result<Settings, String> + Send + 'static,
    ) -> io::Result<Self> {
        let status = Arc::<Status>::default();
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut running = Running {
            settings: Arc::new(settings),
            renew: Box::new(renew),
            status: Arc::clone(&status),
            refused: RefCell::default(),
        };
        let name = format!("bridge-{}", running.settings.name.as_str());
        let main = move || {
            while catch_unwind(AssertUnwindSafe(|| runtime.block_on(running.run(stopped.clone())))).is_err() {
                running.recover();
                let mut stopped = stopped.clone();
                let _ = runtime.block_on(timeout(LONGEST_PAUSE, stopped.wait_for(|is_stopped| *is_stopped)));
            }
            runtime.shutdown_background(); // The look-up of a name may take long.
        };
        let thread = std::thread::Builder::new().name(name).spawn(main)?;
        Ok(Self { status, thread: Mutex::new(Some(thread)), stop })
    }

    /// State and counters.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Tells the bridge to end, as [`Bridge::finish`] does, without waiting for that.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Ends the bridge in order: both brokers get DISCONNECT, and keep their sessions. Blocks for two seconds at most.
    pub fn finish(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

struct Running {
    settings: Arc<Settings>,
    renew: Box<dyn Fn() -> Result<Settings, String> + Send>,
    status: Arc<Status>,
    /// Codes by which the remote broker has refused a part of CONNECT. The bridge can do without that part.
    refused: RefCell<HashSet<ReasonCode>>,
}

/// Both connections.
struct Connected {
    links: [Link; 2],
    relay: Relay,
}

impl Running {
    async fn run(&mut self, mut stopped: watch::Receiver<bool>) {
        let mut backoff = Backoff::new(PAUSES).expect("it has pauses");
        // An error says that the bridge was dropped.
        let mut stopped = std::pin::pin!(async move { drop(stopped.wait_for(|is_stopped| *is_stopped).await) });
        let (mut suspect, mut unread) = (None, None);
        loop {
            let connected = tokio::select! {
                connected = self.connect(suspect.as_ref()) => connected,
                () = &mut stopped => return,
            };
            let failure = match connected {
                Err(failure) => failure,
                Ok(mut connected) => {
                    let since = Instant::now();
                    let failure = tokio::select! {
                        failure = self.relay(&mut connected) => Some(failure),
                        () = &mut stopped => None,
                    };
                    suspect = failure.as_ref().and_then(|failure| connected.relay.suspect_after(failure));
                    self.end(connected, failure.as_ref()).await;
                    backoff.lost_after(since.elapsed());
                    let Some(failure) = failure else { return };
                    failure
                }
            };
            let pause = if failure.kind.is_taken_over() { TAKEN_OVER_PAUSE } else { backoff.next_pause() };
            let error = failure.to_string();
            // Once for each reason, as the pauses may go on for days.
            if self.status.error().as_ref() != Some(&error) {
                tracing::warn!(bridge = self.name(), error, "bridge not connected");
            }
            self.status.set_error(Some(error));
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut stopped => return,
            }
            let before = unread.take();
            match (self.renew)() {
                Ok(settings) => self.settings = Arc::new(settings),
                Err(error) => {
                    if before.as_ref() != Some(&error) {
                        tracing::warn!(
                            bridge = self.name(),
                            error,
                            "files cannot be read again, their last content stays"
                        );
                    }
                    unread = Some(error);
                }
            }
        }
    }

    /// Tells of a fault in the bridge, which has ended its connections.
    fn recover(&self) {
        tracing::error!(bridge = self.name(), "a fault in the bridge, which begins again");
        Side::BOTH.iter().for_each(|&side| {
            self.status.set_connected(side, false);
            self.status.set_in_flight(side, 0);
        });
        self.status.set_error(Some("a fault in the bridge, which begins again".to_owned()));
    }

    fn name(&self) -> &str {
        self.settings.name.as_str()
    }

    fn endpoint(&self, side: Side) -> &Endpoint {
        match side {
            Side::Local => &self.settings.local,
            Side::Remote => &self.settings.remote,
        }
    }

    fn failed(&self, side: Side) -> impl Fn(FailureKind) -> Failure {
        move |kind| Failure { side, address: self.endpoint(side).address.clone(), kind }
    }

    /// Connects to both brokers.
    ///
    /// The stream to the remote broker comes first: while it cannot be reached, the local one is left alone. But CONNECT goes
    /// to the local broker first: a node of a cluster that may not act must not take the remote session from its successor.
    async fn connect(&self, suspect: Option<&Suspect>) -> Result<Connected, Failure> {
        let [at_local, at_remote] = Side::BOTH.map(|side| self.failed(side));
        let Settings { local, remote, receive_maximum, .. } = &*self.settings;
        let remote_stream = link::open(remote).await.map_err(&at_remote)?;
        let local_stream = link::open(local).await.map_err(&at_local)?;
        let connect = link::connect(local, receive_maximum.get(), None);
        let (mut local_link, connack) = link::introduce(local_stream, connect).await.map_err(&at_local)?;
        let local_agreed = Agreed::new(local.version, local.keep_alive, &connack);

        let mut connect = link::connect(remote, receive_maximum.get(), self.settings.state_topic.as_ref());
        if remote.version.is_v5() {
            connect.properties.maximum_packet_size = local_agreed.packet_size_from_other();
        }
        link::leave_out(&mut connect, &self.refused.borrow());
        let introduced = link::introduce(remote_stream, connect).await;
        let (remote_link, connack) = match introduced {
            Ok(introduced) => introduced,
            Err(kind) => {
                if let FailureKind::Refused { reason, .. } = kind {
                    self.refused.borrow_mut().insert(reason);
                }
                let mut out = WriteBuffer::new();
                Packet::Disconnect(Disconnect::new(ReasonCode::Success)).encode(local.version, &mut out);
                let _ = timeout(FINISH_TIME, local_link.writer.finish(&mut out)).await;
                return Err(at_remote(kind));
            }
        };
        let agreed = [local_agreed, Agreed::new(remote.version, remote.keep_alive, &connack)];
        let relay = Relay::new(Arc::clone(&self.settings), Arc::clone(&self.status), agreed, suspect.cloned());
        Ok(Connected { links: [local_link, remote_link], relay })
    }

    /// Relays until a connection ends.
    async fn relay(&self, Connected { links: [local, remote], relay }: &mut Connected) -> Failure {
        let [at_local, at_remote] = Side::BOTH.map(|side| self.failed(side));
        let mut pings = relay.halves.each_ref().map(|half| half.agreed.keep_alive.map(pings));
        // Packets that came with CONNACK.
        let mut received = [true, true];
        let mut is_told = false;
        let mut late = std::pin::pin!(sleep(SUBSCRIBE_TIME));
        let mut is_late = false;
        loop {
            for (side, link, at) in [
                (Side::Local, &mut *local, &at_local as &dyn Fn(FailureKind) -> Failure),
                (Side::Remote, &mut *remote, &at_remote),
            ] {
                if std::mem::take(&mut received[side as usize])
                    && let Err(kind) = take_packets(relay, side, link)
                {
                    return at(kind);
                }
            }
            if !is_told && relay.is_subscribed() {
                is_told = true;
                self.begins(relay);
            }
            let is_read = Side::BOTH.map(|side| relay.is_read(side));
            let mut heard = None;
            let [to_local, to_remote] = relay.halves.each_mut().map(|half| &mut half.out);
            let writes = [!local.writer.is_idle(to_local), !remote.writer.is_idle(to_remote)];
            let [local_pings, remote_pings] = &mut pings;
            let (done, at): (_, &dyn Fn(FailureKind) -> Failure) = tokio::select! {
                done = local.reader.read(), if is_read[0] => {
                    heard = Some(Side::Local);
                    (done, &at_local)
                }
                done = remote.reader.read(), if is_read[1] => {
                    heard = Some(Side::Remote);
                    (done, &at_remote)
                }
                done = local.writer.write(to_local), if writes[0] => (done, &at_local),
                done = remote.writer.write(to_remote), if writes[1] => (done, &at_remote),
                () = &mut late, if !is_told && !is_late => {
                    is_late = true;
                    self.tell_late(relay);
                    continue;
                }
                seconds = tick(local_pings) => (relay.ping(Side::Local, seconds), &at_local),
                seconds = tick(remote_pings) => (relay.ping(Side::Remote, seconds), &at_remote),
            };
            if let Err(kind) = done {
                return at(kind);
            }
            if let Some(side) = heard {
                relay.hear(side);
                received[side as usize] = true;
            }
            // Output that has left makes room.
            let now = Instant::now();
            Side::BOTH.iter().for_each(|&side| relay.send_waiting(side, now));
            // Messages that waited may be read again.
            Side::BOTH.iter().for_each(|&side| received[side as usize] |= !is_read[side as usize]);
        }
    }

    /// Tells that a broker has not answered its subscriptions. Messages pass already.
    fn tell_late(&self, relay: &Relay) {
        let sides = Side::BOTH.into_iter().filter(|&side| !relay.is_subscribed_at(side));
        let sides: Vec<_> = sides.map(Side::name).collect();
        let seconds = SUBSCRIBE_TIME.as_secs();
        let error = format!("{} broker: no answer to the subscriptions within {seconds} s", sides.join(" and "));
        tracing::warn!(bridge = self.name(), error, "bridge not subscribed");
        self.status.set_error(Some(error));
    }

    /// Tells that both brokers have accepted the connections, and answered the subscriptions.
    fn begins(&self, relay: &mut Relay) {
        relay.tell_state(true);
        Side::BOTH.iter().for_each(|&side| self.status.set_connected(side, true));
        self.status.set_error(relay.refusals());
        tracing::info!(bridge = self.name(), remote = self.settings.remote.address, "bridge connected");
    }

    /// Ends the connections that are left. After a failure the remote broker publishes the Will.
    async fn end(&self, connected: Connected, failure: Option<&Failure>) {
        let Connected { links: [mut local, mut remote], mut relay } = connected;
        Side::BOTH.iter().for_each(|&side| self.status.set_connected(side, false));
        if failure.is_none() {
            relay.tell_state(false);
        }
        for (side, link) in [(Side::Local, &mut local), (Side::Remote, &mut remote)] {
            let reason = match failure {
                None => ReasonCode::Success,
                Some(Failure { side: at, kind: FailureKind::TooMany(_), .. }) if *at == side => {
                    ReasonCode::ReceiveMaximumExceeded
                }
                Some(failure) if failure.side == Side::Remote && side == Side::Local => ReasonCode::Success,
                Some(_) => continue,
            };
            relay.disconnect(side, reason);
            let _ = timeout(FINISH_TIME, link.writer.finish(&mut relay.half(side).out)).await;
        }
        Side::BOTH.iter().for_each(|&side| self.status.set_in_flight(side, 0));
    }
}

fn pings(keep_alive: NonZeroU16) -> Interval {
    let period = Duration::from_secs(keep_alive.get().into());
    let mut pings = interval_at(tokio::time::Instant::now() + period, period);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}

/// Waits for the next PINGREQ of one side, and returns its Keep Alive in seconds. Cancel safe.
async fn tick(pings: &mut Option<Interval>) -> u64 {
    let Some(pings) = pings else { return std::future::pending().await };
    pings.tick().await;
    pings.period().as_secs()
}

/// Handles the packets of one side that were read.
fn take_packets(relay: &mut Relay, side: Side, link: &mut Link) -> Result<(), FailureKind> {
    let now = Instant::now();
    while relay.is_read(side)
        && let Some(packet) = link.reader.next()?
    {
        relay.receive(side, packet, now)?;
    }
    Ok(())
}
