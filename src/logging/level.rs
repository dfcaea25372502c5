//! The level of log lines, which operators may change while the broker runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// Level of all lines, and of the lines about one client.
pub(crate) struct LogLevel {
    state: Mutex<LevelState>,
    /// Lets events of this level and more severe ones in.
    let_in: OnceLock<Box<dyn Fn(Level) + Send + Sync>>,
}

struct LevelState {
    /// Level by the arguments, to which a change for a time returns.
    given: Level,
    all: Level,
    /// A Client Identifier as lines show it, and its level.
    client: Option<(String, Level)>,
    /// Ends the last change for a time.
    back: Option<AbortHandle>,
    /// Counts changes, so that the end of one leaves later ones alone.
    changes: u64,
}

impl LogLevel {
    pub(super) fn new(given: Level) -> Self {
        let state = LevelState { given, all: given, client: None, back: None, changes: 0 };
        Self { state: Mutex::new(state), let_in: OnceLock::new() }
    }

    pub(super) fn let_in_by(&self, let_in: impl Fn(Level) + Send + Sync + 'static) {
        let _ = self.let_in.set(Box::new(let_in));
    }

    /// Changes the level of all lines, or of those about `client`, perhaps only for a time, which needs a runtime.
    pub(crate) fn set(self: &Arc<Self>, level: Level, client: Option<&str>, span: Option<Duration>) {
        let number = self.change(|state| match client {
            Some(client) => state.client = Some((format!("{client:?}"), level)),
            None => state.all = level,
        });
        tracing::info!(%level, client, "log level changed by an operator");
        let Some(span) = span else { return };
        let Ok(runtime) = Handle::try_current() else {
            tracing::error!(%level, reason = "no runtime to end it", "log level changed without an end");
            return;
        };
        let this = Arc::clone(self);
        let back = runtime.spawn(async move {
            tokio::time::sleep(span).await;
            if this.state().changes == number {
                this.change(|state| (state.all, state.client) = (state.given, None));
                tracing::info!("log level restored");
            }
        });
        let before = self.state().back.replace(back.abort_handle());
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Returns the number of the change.
    fn change(&self, change: impl FnOnce(&mut LevelState)) -> u64 {
        let (level, number) = {
            let mut state = self.state();
            change(&mut state);
            state.changes += 1;
            let of_client = state.client.as_ref().map(|(_, level)| *level);
            (of_client.map_or(state.all, |level| level.max(state.all)), state.changes)
        };
        if let Some(let_in) = self.let_in.get() {
            let_in(level);
        }
        number
    }

    /// Whether an event that was let in is to be written.
    pub(super) fn allows(&self, event: &Event<'_>) -> bool {
        let state = self.state();
        let Some((client, of_client)) = &state.client else { return true };
        let level = *event.metadata().level();
        level <= state.all || level <= *of_client && is_about(event, client)
    }

    fn state(&self) -> MutexGuard<'_, LevelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the field `client` of an event has this value.
fn is_about(event: &Event<'_>, client: &str) -> bool {
    struct Client<'a>(&'a str, bool);

    impl Visit for Client<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.1 |= field.name() == "client" && format!("{value:?}") == self.0;
        }
    }

    let mut found = Client(client, false);
    event.record(&mut found);
    found.1
}
