//! Connection of a publisher or a subscriber, which may be cut or lost and made again.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenbin_codec::ConnAck;
use tenbin_simulator::Rng;
use tokio::time::Instant;

use super::back_off::BackOff;
use super::control::Control;
use super::driver_thread::DriverThread;
use super::handshake::{Client, Connected};
use super::link::Link;
use super::shared::Phase;
use crate::LoadgenError;
use crate::run::CutWhose;

/// A client's place among the connections of its thread.
pub(super) struct Connection {
    pub(super) driver: Rc<DriverThread>,
    pub(super) client: Client,
    control: Rc<Control>,
    back_off: BackOff,
    /// Its number among the connections of the thread.
    pub(super) number: usize,
}

/// Packets that a client sends and receives.
pub(super) trait Traffic {
    fn connection(&self) -> &Connection;

    /// Reads once and writes once; returns whether to do so again at once. Else a wake-up is registered.
    fn exchange(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<bool, String>;

    /// The server that DISCONNECT 0x9C has named, if the broker has sent one.
    fn referred(&mut self) -> Option<String> {
        None
    }

    /// The connection is gone, and with it all that was to be written.
    fn lost(&mut self);

    /// Goes on over a new connection.
    fn resume(&mut self, link: &mut Link, connack: &ConnAck);
}

/// Why a connection ends.
enum ConnectionEnd {
    /// It is cut; its client stays away for this time.
    Cut(Duration),
    /// The run is over.
    Over,
}

impl Connection {
    /// Registers a connection of this kind; `number` is its number among them in all processes.
    pub(super) fn new(driver: Rc<DriverThread>, client: Client, whose: CutWhose, number: u32) -> Self {
        let back_off = BackOff::new(driver.plan().on_lost, Instant::now());
        let (control, number) = driver.enter(whose, number);
        Self { driver, client, control, back_off, number }
    }

    /// Makes the connection again after `end`; `None` if the run is over or fails.
    async fn reconnect(&self, end: Result<ConnectionEnd, String>, referred: Option<String>) -> Option<Connected> {
        let driver = &self.driver;
        let begun = Instant::now();
        let is_switch = referred.is_some_and(|server| self.client.switch_to(&server));
        let away = match end {
            Ok(ConnectionEnd::Over) => return None,
            Ok(ConnectionEnd::Cut(away)) => {
                driver.recorder().cut();
                away
            }
            Err(_) if driver.phase() == Phase::Ended => return None,
            Err(_) if is_switch && driver.plan().on_lost.reconnects() => Duration::ZERO,
            Err(reason) => {
                driver.recorder().lost(driver.now_ns());
                if !driver.plan().reconnects(self.control.whose) {
                    driver.shared().fail(LoadgenError::lost(&self.client.id, reason));
                    return None;
                }
                self.client.turn();
                self.back_off.pause_after_loss(Instant::now(), self.random())
            }
        };
        driver.counters().connecting.add(1);
        let connected = tokio::select! {
            connected = self.try_until_accepted(away) => connected,
            () = driver.is_over() => None,
        };
        driver.counters().connecting.sub(1);
        if is_switch && connected.as_ref().is_some_and(|connected| connected.connack.session_present) {
            driver.recorder().switched(begun.elapsed(), self.client.is_home(), driver.now_ns());
        }
        // Ignore a cut that was requested while the client was away.
        self.control.take_cut();
        connected
    }

    async fn try_until_accepted(&self, away: Duration) -> Option<Connected> {
        tokio::time::sleep(away).await;
        let until = Instant::now() + REFUSED_MAX;
        loop {
            match self.driver.reopen(&self.client).await {
                Ok(connected) => {
                    self.back_off.connected(Instant::now());
                    return Some(connected);
                }
                Err(error) if !self.driver.plan().on_lost.reconnects() && Instant::now() > until => {
                    self.driver.shared().fail(error);
                    return None;
                }
                Err(_) => {
                    self.client.turn();
                    tokio::time::sleep(self.back_off.next_pause(self.random())).await;
                }
            }
        }
    }

    /// A random number, different for each client and attempt.
    fn random(&self) -> u64 {
        Rng::new(self.driver.now_ns() ^ (self.number as u64) << 48).next_u64()
    }
}

/// Keeps the connection until the run is over. A lost connection is an error, unless [`Plan::reconnects`] says otherwise.
///
/// [`Plan::reconnects`]: crate::run::Plan::reconnects
///
/// Returns the last connection, if there is one at the end.
pub(super) async fn keep(traffic: &mut impl Traffic, mut link: Link) -> Option<Link> {
    loop {
        let end = poll_fn(|cx| poll(traffic, &mut link, cx)).await;
        if let Ok(ConnectionEnd::Over) = end {
            return Some(link);
        }
        drop(link);
        let referred = traffic.referred();
        traffic.lost();
        let mut connected = traffic.connection().reconnect(end, referred).await?;
        traffic.resume(&mut connected.link, &connected.connack);
        link = connected.link;
    }
}

fn poll(traffic: &mut impl Traffic, link: &mut Link, cx: &mut Context<'_>) -> Poll<Result<ConnectionEnd, String>> {
    traffic.connection().control.follow(cx);
    for _ in 0..ROUNDS {
        let Connection { driver, control, .. } = traffic.connection();
        if driver.phase() == Phase::Ended {
            return Poll::Ready(Ok(ConnectionEnd::Over));
        }
        if let Some(away) = control.take_cut() {
            return Poll::Ready(Ok(ConnectionEnd::Cut(away)));
        }
        if !traffic.exchange(link, cx)? {
            return Poll::Pending;
        }
    }
    // Let the other connections run, so that a busy one does not starve them.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// How long a broker may refuse a client that reconnects.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Reads and writes before other connections run.
const ROUNDS: usize = 4;
