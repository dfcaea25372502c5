use std::time::Duration;

use tokio::time::Instant;

use super::driver::Driver;
use super::handshake::{Client, Connected};
use super::shared::Phase;
use super::sink::End;
use crate::LoadgenError;
use crate::run::CutWhose;

/// Reconnects a client whose connection ended for the reason `end`; `None` if the run is over or fails.
pub(super) async fn reconnect(
    driver: &Driver,
    client: &Client,
    whose: CutWhose,
    end: Result<End, String>,
) -> Option<Connected> {
    let away = match end {
        Ok(End::Over) => return None,
        Ok(End::Cut(away)) => {
            driver.recorder().cut();
            away
        }
        Err(_) if driver.phase() == Phase::Ended => return None,
        Err(reason) => {
            driver.recorder().lost();
            if driver.plan().cuts.is_none_or(|cuts| cuts.whose != whose) {
                driver.shared().fail(LoadgenError::lost(&client.id, reason));
                return None;
            }
            Duration::ZERO
        }
    };
    driver.counters().connecting.add(1);
    let connected = tokio::select! {
        connected = try_until_accepted(driver, client, away) => connected,
        () = driver.is_over() => None,
    };
    driver.counters().connecting.sub(1);
    connected
}

async fn try_until_accepted(driver: &Driver, client: &Client, away: Duration) -> Option<Connected> {
    tokio::time::sleep(away).await;
    let until = Instant::now() + REFUSED_MAX;
    loop {
        match driver.reopen(client).await {
            Ok(connected) => return Some(connected),
            Err(error) if Instant::now() > until => {
                driver.shared().fail(error);
                return None;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// How long a broker may refuse a client that reconnects.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
