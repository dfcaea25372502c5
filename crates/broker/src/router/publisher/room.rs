//! Room on the disk for a publisher's messages.

use super::*;

impl Origin {
    /// Returns whether the disk has room for a message that must be stored. A Will was accepted with its client's
    /// CONNECT, so it takes precedence over clients' messages.
    pub(super) fn takes_room(
        &self,
        router: &Router,
        matches: &MatchSet,
        message: &RoutedMessage<'_>,
        fanout: &mut Fanout,
    ) -> bool {
        let places = matches.targets.len() + matches.groups.len();
        let bytes = RECORD_BYTES + message.packet_bytes as usize + PLACE_BYTES * places;
        fanout.take_room(router.durable(), bytes, self.own.is_none())
    }

    /// Returns whether the disk has no room for a message of `bytes` bytes, and the publisher cannot be informed of a
    /// refusal: it sends the message again, so no receiver may get it before.
    #[inline]
    pub(super) fn may_wait_for_disk(&self, router: &Router, matches: &MatchSet, qos: QoS, bytes: usize) -> bool {
        if self.tells_refusals || !qos.is_acknowledged() {
            return false;
        }
        let Some(durable) = router.durable() else { return false };
        let places = matches.targets.len() + matches.groups.len();
        !durable.has_room(RECORD_BYTES + bytes + PLACE_BYTES * places)
    }

    /// Returns whether a receiver's stored queue would keep a message of QoS 1 or 2. Counts a refusal there.
    #[cold]
    pub(super) fn is_kept_by_any(&self, matches: &MatchSet) -> bool {
        let is_kept = |target: &Target| {
            let is_wanted = target.terms_for(self.number).is_some_and(|terms| terms.qos.is_acknowledged());
            is_wanted && target.outbox.collects_in(true).is_some()
        };
        let mut targets = matches.targets.iter().filter(|target| is_kept(target));
        let target = targets.next().inspect(|target| target.outbox.refuse(target.number));
        let mut groups = matches.groups.iter().filter(|route| route.group.stored().is_some());
        let group = groups.next().inspect(|route| route.group.refuse());
        target.is_some() || group.is_some()
    }
}
