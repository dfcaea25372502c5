//! Sessions: lists, figures, and ends.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_admin::{
    Answer, ClientDetailView, ClientQuery, ClientView, ConnectionView, ControlError, KickQuery, KickedView, Page,
    PageQuery, SubscriptionView,
};
use tenbin_codec::{PacketType, ReasonCode, Text};
use tenbin_session::Session;

use super::{Control, page_of};
use crate::lifecycle;
use crate::outbox;
use crate::registry::{Client, ConnectionInfo, SessionFigures};

impl Control {
    pub(super) fn list_clients(&self, query: &ClientQuery) -> Answer<Page<ClientView>> {
        let page = PageQuery { cursor: query.cursor.clone(), limit: query.limit };
        let (mut after, limit) = page_of(&page)?;
        let (mut items, mut visits) = (Vec::new(), 0);
        let Some(roster) = self.shared.sessions.registry.roster() else { return Ok(Page { items, cursor: None }) };
        let now = Instant::now();
        while visits < PAGES_MAX {
            visits += 1;
            let last = roster.page(after, |client, link| {
                if matches_names(client, link, query) {
                    let view = view(client, link, now);
                    if matches_state(&view, query) {
                        items.push(view);
                    }
                }
                if items.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let Some(last) = last else { return Ok(Page { items, cursor: None }) };
            after = last;
            if items.len() >= limit {
                break;
            }
        }
        Ok(Page { items, cursor: Some(after.to_string()) })
    }

    /// Visits all sessions, page by page.
    pub(super) fn for_each_client(&self, mut visit: impl FnMut(&Arc<Client>)) {
        let Some(roster) = self.shared.sessions.registry.roster() else { return };
        let mut after = Some(0);
        while let Some(last) = after {
            after = roster.page(last, |client, _| {
                visit(client);
                ControlFlow::Continue(())
            });
        }
    }

    pub(super) fn find(&self, id: &str) -> Answer<Arc<Client>> {
        let missing = || ControlError::NotFound(format!("there is no session of client {id:?}"));
        let text = Text::try_from(id.to_owned()).map_err(|_| missing())?;
        self.shared.sessions.registry.find(&text).ok_or_else(missing)
    }

    pub(super) fn view_of(&self, client: &Arc<Client>) -> ClientView {
        let link = self.shared.sessions.registry.roster().and_then(|roster| roster.link(client.number));
        view(client, link.as_ref(), Instant::now())
    }

    pub(super) async fn client_details(&self, id: String) -> Answer<ClientDetailView> {
        let client = self.find(&id)?;
        let figures = self.figures(&client).await?;
        let left = figures.expires_at.map(|at| at.saturating_duration_since(Instant::now()).as_secs());
        Ok(ClientDetailView {
            client: self.view_of(&client),
            subscriptions: figures.subscriptions.len(),
            in_flight_messages: figures.in_flight,
            in_flight_bytes: figures.in_flight_bytes,
            durable: figures.is_durable,
            expires_in_seconds: left,
        })
    }

    pub(super) async fn subscriptions_of(&self, id: String, page: PageQuery) -> Answer<Page<SubscriptionView>> {
        let (after, limit) = page_of(&page)?;
        let client = self.find(&id)?;
        let mut all = self.figures(&client).await?.subscriptions;
        all.sort_by(|(one, _), (other, _)| one.as_bytes().cmp(other.as_bytes()));
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(all.len());
        let end = from.saturating_add(limit).min(all.len());
        let items = all[from..end].iter().map(|(filter, grant)| SubscriptionView {
            filter: filter.text().as_str().to_owned(),
            qos: grant.options.qos as u8,
            no_local: grant.options.no_local,
            retain_as_published: grant.options.retain_as_published,
            identifier: grant.identifier,
        });
        Ok(Page { items: items.collect(), cursor: (end < all.len()).then(|| end.to_string()) })
    }

    /// Asks the owner of a session for its figures.
    async fn figures(&self, client: &Arc<Client>) -> Answer<SessionFigures> {
        for _ in 0..ATTEMPTS {
            if let Some(lease) = client.try_lease() {
                if lease.state.ended {
                    break;
                }
                let none = Session::new();
                let figures = lease.figures(lease.state.session.as_deref().unwrap_or(&none));
                lifecycle::put_down(&self.shared, lease, Instant::now());
                return Ok(figures);
            }
            match self.shared.sessions.registry.roster().and_then(|roster| roster.ask(client.number)) {
                Some(answer) => {
                    client.outbox.control(outbox::Control::Asked);
                    if let Ok(Ok(figures)) = tokio::time::timeout(ASK_AGAIN, answer).await {
                        return Ok(figures);
                    }
                }
                // The connection begins or ends.
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(ControlError::Unavailable(format!("the connection of client {:?} does not answer", client.id.as_str())))
    }

    pub(super) async fn kick_client(&self, id: String, query: KickQuery) -> Answer<KickedView> {
        let reason = match query.reason {
            None => ReasonCode::AdministrativeAction,
            Some(code) => ReasonCode::from_byte(code)
                .filter(|reason| reason.is_error() && reason.is_valid_in(PacketType::Disconnect))
                .ok_or_else(|| {
                    ControlError::Invalid(format!("reason: {code} is no Reason Code of DISCONNECT from 128 on"))
                })?,
        };
        let client = self.find(&id)?;
        self.note_operator(&format!("{id} was disconnected"));
        let is_connected = || client.outbox.view().state != "offline";
        let (connected, connection) = (is_connected(), client.outbox.connection());
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience {
            let is_gone = !is_connected();
            // The client may be back already; only a session that is to end keeps it away.
            if !query.session && (is_gone || client.outbox.connection() != connection) {
                return Ok(KickedView { connected, session_ended: false });
            }
            if !is_gone {
                client.outbox.control(outbox::Control::Kicked(reason));
            } else if let Some(mut lease) = client.try_lease() {
                if !lease.state.ended {
                    // Ends as if it had expired with its last connection.
                    let now = Instant::now();
                    (lease.state.left_at, lease.state.expires_at) = (Some(now), Some(now));
                    drop(lease);
                    let _ = self.shared.sessions.long_ends.end(Arc::clone(&client)).await;
                }
                let is_over =
                    self.shared.sessions.registry.find(&client.id).is_none_or(|found| found.number != client.number);
                if is_over {
                    return Ok(KickedView { connected, session_ended: true });
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(ControlError::Unavailable(format!("the session of client {id:?} does not end")))
    }
}

/// Whether the names of a client are as wanted.
fn matches_names(client: &Client, link: Option<&ConnectionInfo>, query: &ClientQuery) -> bool {
    let principal = client.rights.principal();
    let user = principal.identity.user.as_ref().map_or("", Text::as_str);
    query.client.as_ref().is_none_or(|part| client.id.as_str().contains(&part[..]))
        && query.user.as_ref().is_none_or(|wanted| user == wanted)
        && query
            .address
            .as_ref()
            .is_none_or(|wanted| link.is_some_and(|link| link.peer.address().to_string() == *wanted))
}

fn matches_state(view: &ClientView, query: &ClientQuery) -> bool {
    let is_state = |wanted: &String| match &wanted[..] {
        "connected" => view.state != "offline",
        wanted => view.state == wanted,
    };
    query.state.as_ref().is_none_or(is_state) && query.slow.is_none_or(|slow| view.slow == slow)
}

fn view(client: &Client, link: Option<&ConnectionInfo>, now: Instant) -> ClientView {
    let queue = client.outbox.view();
    let principal = client.rights.principal();
    let connection = link.filter(|_| queue.state != "offline").map(|link| ConnectionView {
        peer: link.peer.to_string(),
        transport: link.transport.name(),
        version: version_name(link.version),
        keep_alive_seconds: link.keep_alive,
        seconds: now.saturating_duration_since(link.since).as_secs(),
    });
    ClientView {
        client: client.id.as_str().to_owned(),
        user: principal.identity.user.as_ref().map(|user| user.as_str().to_owned()),
        listener: principal.listener.to_string(),
        state: queue.state,
        slow: queue.is_slow,
        connection,
        queued_messages: queue.messages,
        queued_bytes: queue.bytes,
        disk_messages: queue.tail_messages,
        disk_bytes: queue.tail_bytes,
        groups: queue.groups,
    }
}

fn version_name(version: tenbin_codec::ProtocolVersion) -> &'static str {
    match version {
        tenbin_codec::ProtocolVersion::V31 => "3.1",
        tenbin_codec::ProtocolVersion::V311 => "3.1.1",
        tenbin_codec::ProtocolVersion::V5 => "5.0",
    }
}

/// Locks of the roster for one list, which bounds the time of a request that finds little.
const PAGES_MAX: usize = 20;
/// Attempts to reach the owner of a session.
const ATTEMPTS: usize = 20;
/// Time after which a question is repeated: another request may have taken its place.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(5);
/// Time for a session to end.
const PATIENCE: Duration = Duration::from_secs(5);
