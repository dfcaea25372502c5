//! Deadlines of a peer.

use std::time::{Duration, Instant};

use tenbin_sn_codec::v1_2::ReturnCode;

use super::upstream::Upstream;
use super::{Action, Awake, End, GatewayPeer, PeerState};
use crate::output::Io;
use crate::settings::with_tolerance;

impl GatewayPeer {
    /// When [`GatewayPeer::handle_timeout`] must be called; `None` if only input changes the state.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_client = match &self.state {
            PeerState::AskingWillTopic(retry) | PeerState::AskingWillMessage(_, retry) => Some(retry.at),
            PeerState::Active | PeerState::Awake(_) => earlier(self.outbox.retry_at(), self.paced_until),
            PeerState::AwaitingCredentials(until) => Some(*until),
            PeerState::Connecting(_) | PeerState::Asleep(_) => None,
            PeerState::Ended => return None,
        };
        let of_client = earlier(of_client, self.lost_at().map(|(at, _)| at));
        let of_client = earlier(of_client, self.exchanges.answer_at());
        earlier(earlier(of_client, self.silent_at()), self.upstream_timeout())
    }

    /// Handles the passage of time. A call before the deadline changes nothing.
    pub fn handle_timeout(&mut self, io: &mut Io<'_>) -> Action {
        if let Some((at, end)) = self.lost_at()
            && at <= io.now
        {
            return self.lose(end, io);
        }
        if self.silent_at().is_some_and(|at| at <= io.now) {
            if self.silent_pings > self.settings().retries {
                return self.lose(End::KeepAlive, io);
            }
            self.silent_pings += 1;
            self.send_ping(io); // [SN-KEEPALIVE-3]
        }
        let action = match &self.state {
            PeerState::Ended => return Action::Continue,
            PeerState::AwaitingCredentials(until) if *until <= io.now => {
                self.refuse_connection(ReturnCode::NotSupported, io) // [SN-AUTH-1]
            }
            PeerState::AskingWillTopic(_) | PeerState::AskingWillMessage(..) => self.repeat_will_request(io),
            // A sleeping client gets no repetitions. [SN-SLEEP-2]
            PeerState::AwaitingCredentials(_) | PeerState::Connecting(_) | PeerState::Asleep(_) => Action::Continue,
            PeerState::Active | PeerState::Awake(_) => self.repeat_overdue(io),
        };
        if action != Action::Continue {
            return action;
        }
        if self.paced_until.is_some_and(|at| at <= io.now) {
            self.deliver_waiting(io);
        }
        self.answer_doubtful(io);
        self.finish_wake(io);
        self.handle_upstream_timeout(io)
    }

    /// When a silent client counts as lost, and why.
    fn lost_at(&self) -> Option<(Instant, End)> {
        match self.state {
            PeerState::Active if self.terms.duration > 0 => {
                let keep_alive = Duration::from_secs(self.terms.duration.into());
                Some((self.alive_at + with_tolerance(keep_alive), End::KeepAlive))
            }
            PeerState::Asleep(duration) | PeerState::Awake(Awake { duration, .. }) => {
                Some((self.alive_at + with_tolerance(duration), End::Overslept)) // [SN-WAKE-4]
            }
            _ => None,
        }
    }

    /// When a client without Duration is asked whether it is there, or counts as lost.
    fn silent_at(&self) -> Option<Instant> {
        let is_watched = matches!(self.state, PeerState::Active) && self.terms.duration == 0 && !self.is_local;
        let settings = self.settings();
        is_watched.then(|| self.alive_at + settings.silence + settings.retry * u32::from(self.silent_pings))
    }

    fn upstream_timeout(&self) -> Option<Instant> {
        let timeout = self.settings().upstream_timeout;
        match &self.upstream {
            Upstream::Closed => None,
            Upstream::Opening { since } | Upstream::Connecting { since } => Some(*since + timeout),
            Upstream::Open(link) => earlier(link.pinged_at.map(|at| at + timeout), link.ping_due()),
        }
    }

    fn handle_upstream_timeout(&mut self, io: &mut Io<'_>) -> Action {
        if self.upstream_timeout().is_none_or(|at| at > io.now) {
            return Action::Continue;
        }
        match &self.upstream {
            Upstream::Open(link) if link.pinged_at.is_none() => {
                self.write_ping(io);
                Action::Continue
            }
            _ => self.end_by_broker(None, io),
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
