use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tenbin_balancer::Choosers;

use super::{Events, Hooks, ReasonCode, Verdict};
#[cfg(feature = "otel")]
use crate::telemetry::Telemetry;

/// The hooks of a broker, in order.
#[derive(Default)]
pub(crate) struct HookSet {
    hooks: Vec<(Events, Box<dyn Hooks>)>,
    events: Events,
    choosers: Arc<Choosers>,
    #[cfg(feature = "otel")]
    telemetry: Option<Arc<Telemetry>>,
}

thread_local! {
    /// A hook has panicked since the last [`HookSet::forget_panic`].
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
    /// A hook runs on this thread.
    static IS_IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl HookSet {
    pub(crate) fn add(&mut self, hooks: Box<dyn Hooks>) {
        let wants = hooks.wants();
        self.events = self.events | wants;
        self.hooks.push((wants, hooks));
    }

    /// Replaces the policies of the program's own.
    pub(crate) fn set_choosers(&mut self, choosers: Choosers) {
        self.choosers = Arc::new(choosers);
    }

    /// Policies of the program's own.
    pub(crate) fn choosers(&self) -> &Arc<Choosers> {
        &self.choosers
    }

    #[cfg(feature = "otel")]
    pub(crate) fn set_telemetry(&mut self, telemetry: Arc<Telemetry>) {
        self.telemetry = Some(telemetry);
    }

    /// Spans for a collector; `None` = there is none.
    #[cfg(feature = "otel")]
    #[inline]
    pub(crate) fn telemetry(&self) -> Option<&Arc<Telemetry>> {
        self.telemetry.as_ref()
    }

    /// Whether a connection has nothing to tell: no hook wants an event, and there are no spans.
    pub(crate) fn is_idle(&self) -> bool {
        #[cfg(feature = "otel")]
        if self.telemetry.is_some() {
            return false;
        }
        self.events.is_empty()
    }

    /// Events that a hook wants.
    #[inline]
    pub(crate) fn events(&self) -> Events {
        self.events
    }

    /// Whether a hook wants one of these events.
    #[inline]
    pub(crate) fn has(&self, events: Events) -> bool {
        self.events.has(events)
    }

    /// Calls the hooks that want `event`.
    #[cold]
    pub(crate) fn tell(&self, event: Events, mut call: impl FnMut(&dyn Hooks)) {
        for (wants, hooks) in &self.hooks {
            if wants.has(event) {
                caught(event, || call(&**hooks));
            }
        }
    }

    /// Asks the hooks that want `event`, up to the first that does not let it go on. A panic refuses.
    #[cold]
    pub(crate) fn ask(&self, event: Events, mut call: impl FnMut(&dyn Hooks) -> Verdict) -> Verdict {
        for (wants, hooks) in &self.hooks {
            if wants.has(event) {
                match caught(event, || call(&**hooks)).unwrap_or(Verdict::Refuse(PANICKED)) {
                    Verdict::Go => {}
                    verdict => return verdict,
                }
            }
        }
        Verdict::Go
    }

    /// Forgets panics of hooks on this thread. A connection calls it before its own hooks may run.
    pub(crate) fn forget_panic() {
        HAS_PANICKED.set(false);
    }

    /// Whether a hook runs on this thread: a batch of its connection may be under way.
    pub(crate) fn is_in_hook() -> bool {
        IS_IN_HOOK.get()
    }

    /// Whether a hook has panicked on this thread since [`forget_panic`](Self::forget_panic). Forgets it.
    pub(crate) fn take_panic() -> bool {
        HAS_PANICKED.replace(false)
    }
}

fn caught<T>(event: Events, call: impl FnOnce() -> T) -> Option<T> {
    let was_in_hook = IS_IN_HOOK.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IS_IN_HOOK.set(was_in_hook);
    if called.is_err() {
        tracing::error!(?event, "hook panicked");
        HAS_PANICKED.set(true);
    }
    called.ok()
}

impl fmt::Debug for HookSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookSet").field("hooks", &self.hooks.len()).field("events", &self.events).finish()
    }
}

/// Reason Code of connections whose hook has panicked.
pub(super) const PANICKED: ReasonCode = ReasonCode::ImplementationSpecificError;

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    impl Hooks for Panics {
        fn wants(&self) -> Events {
            Events::STOPPED | Events::CONNECT
        }

        fn stopped(&self) {
            panic!("as the test wants");
        }
    }

    #[test]
    fn panic_is_noticed_once_and_reaches_no_caller() {
        let mut set = HookSet::default();
        set.add(Box::new(Panics));
        HookSet::forget_panic();
        set.tell(Events::STARTED, |hooks| hooks.stopped());
        assert!(!HookSet::take_panic(), "the event is not wanted");
        set.tell(Events::STOPPED, |hooks| hooks.stopped());
        assert!(HookSet::take_panic(), "the hook has panicked");
        assert!(!HookSet::take_panic(), "told before");
        let verdict = set.ask(Events::CONNECT, |_| panic!("as the test wants"));
        assert_eq!(verdict, Verdict::Refuse(ReasonCode::ImplementationSpecificError));
    }
}
