//! What sessions may publish and subscribe to, with the current users and rules.
//!
//! Rights are compiled once per session. Each check compares an epoch first and compiles them anew if users or rules
//! have changed, so a change counts from the next check on, without a message to each session.

use std::sync::Arc;

use mainstem_security::SubscribeDecision;

use super::SessionHost;
use crate::access::Access;

impl SessionHost {
    /// The rights of a session, renewed if users or rules have changed.
    fn current_access(&mut self, slot: u32) -> Option<&Access> {
        let security = &self.shared.security;
        let session = self.sessions.at(slot);
        let is_old = session.access().is_some_and(|access| access.epoch() != self.renewal.epoch());
        if is_old
            && let Some(access) =
                session.access().and_then(|access| access.renewed(security, session.client_id()))
        {
            session.set_access(Some(access));
        }
        self.sessions.at(slot).access()
    }

    /// Whether a session may publish to a topic. A denial is noted.
    pub(crate) fn may_publish(&mut self, slot: u32, topic: &str) -> bool {
        let Some(access) = self.sessions.at(slot).access() else { return true };
        let is_current = access.epoch() == self.renewal.epoch();
        if is_current && access.may_publish(topic) {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let client_id = Arc::clone(self.sessions.at(slot).client_id());
        let Some(access) = self.current_access(slot) else { return true };
        let is_allowed = access.may_publish(topic);
        if !is_allowed {
            access.publish_denied(&shared.security, &client_id, topic);
            log::debug!("client {client_id:?} may not publish to {topic:?}");
        }
        is_allowed
    }

    /// Whether the will of a session may be published now, perhaps long after its client was there: its user may have
    /// been disabled or deleted since, or its rights taken away. A denial is noted.
    pub(crate) fn may_publish_will(&mut self, slot: u32, topic: &str) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(state) = shared.security.state() else { return true };
        let session = self.sessions.at(slot);
        let identity = session.access().map(Access::identity).cloned().unwrap_or_default();
        if state.admits_absent(&identity.principal, identity.proof.as_deref()) {
            return self.may_publish(slot, topic);
        }
        let client_id = Arc::clone(session.client_id());
        log::debug!("the will of client {client_id:?} is dropped: its user was disabled or deleted");
        if let Some(access) = session.access() {
            access.publish_denied(&shared.security, &client_id, topic);
        }
        false
    }

    /// Decides a subscription of a session. A refusal is noted.
    pub(super) fn may_subscribe(&mut self, slot: u32, filter: &str) -> SubscribeDecision {
        let shared = Arc::clone(&self.shared);
        let client_id = Arc::clone(self.sessions.at(slot).client_id());
        let Some(access) = self.current_access(slot) else { return SubscribeDecision::Allowed };
        let decision = access.subscribe(filter);
        if decision == SubscribeDecision::Refused {
            access.subscribe_denied(&shared.security, &client_id, filter);
            log::debug!("client {client_id:?} may not subscribe to {filter:?}");
        }
        decision
    }

    /// Begins to renew the rights of all sessions if users or rules have changed. Returns the slot to begin with, or to
    /// continue at.
    pub(crate) fn begin_renewal(&mut self, epoch: u64) -> Option<u32> {
        self.renewal.begin(epoch)
    }

    /// The renewal continues at this slot in the next turn.
    pub(crate) fn continue_renewal_at(&mut self, slot: u32) {
        self.renewal.continue_at(slot);
    }
}
