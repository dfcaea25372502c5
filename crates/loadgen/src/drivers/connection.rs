//! Connections to servers of NATS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::LoadgenError;
use crate::run::OnLost;
use async_nats::{Client, ConnectOptions, Event};

use super::host::Side;

/// Connects client `name` to the first of the plan's servers from number `broker` on that accepts it.
///
/// The library connects again after a loss, which the recorder counts.
///
/// # Errors
/// No server accepts the connection.
pub(super) async fn connect(side: &Side, name: &str, broker: usize) -> Result<Client, LoadgenError> {
    let (events, client_name) = (side.events.clone(), name.to_owned());
    let is_lost = Arc::new(AtomicBool::new(false));
    let mut options = ConnectOptions::new()
        .name(name)
        .ignore_discovered_servers()
        .retain_servers_order()
        .max_reconnects(None)
        .event_callback(move |event| {
            match event {
                Event::Disconnected if !is_lost.swap(true, Ordering::Relaxed) => {
                    events.lost(&client_name, "the server closed it or does not answer");
                }
                Event::Connected if is_lost.swap(false, Ordering::Relaxed) => events.reconnected(),
                _ => {}
            }
            std::future::ready(())
        });
    if let OnLost::Reconnect { first, most } = side.plan.on_lost {
        options = options.reconnect_delay_callback(move |attempts| pause(first, most, attempts));
    }
    let connection = &side.plan.connection;
    if connection.keep_alive > 0 {
        options = options.ping_interval(Duration::from_secs(connection.keep_alive.into()));
    }
    if let Some(user) = &connection.user_name {
        options = options.user_and_password(
            user.clone(),
            connection.password.as_ref().map(|password| password.expose().clone()).unwrap_or_default(),
        );
    }
    options.connect(side.doors(broker)).await.map_err(|error| side.refused(name, error))
}

/// Pause before an attempt to connect again; the first attempt has number 1.
fn pause(first: Duration, most: Duration, attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
    first.saturating_mul(1 << doublings).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = [0, 1, 2, 3, 9, usize::MAX];
        let pause = |attempt| pause(Duration::from_millis(100), Duration::from_secs(1), attempt).as_millis();
        assert_eq!(pauses.map(pause), [100, 100, 200, 400, 1000, 1000]);
    }
}
