//! The compiled rules of a connection, and the checks of its requests.
//!
//! Requests carry their sender with the compiled rules, also to the controller, so a check is a lookup and takes no
//! lock. `check_…` refuses a request, so what it denies goes to the audit log; `may_…` and `allows` filter what a
//! response shows, which is no refusal.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_security::{Action, AdminChange, ChangedSettings, ResourceKind};

use crate::acl::{OPERATIONS, READ};
use crate::environment::Environment;
use crate::security::Security;
use crate::sender::Sender;
use crate::shard_message::RequestContext;

/// The compiled rules of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnGrants {
    /// The state of users and rules that they come from; `None` before the first request.
    pub(crate) epoch: Option<u64>,
    /// `None` if there are no users and rules.
    pub(crate) sender: Option<Arc<Sender>>,
}

impl RequestContext {
    /// Whether the sender may do everything.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.sender.as_ref().is_none_or(|sender| sender.grants.is_unrestricted())
    }

    /// Whether the sender may do this.
    #[inline]
    pub(crate) fn allows(&self, action: Action, kind: ResourceKind, name: &str) -> bool {
        self.sender.as_ref().is_none_or(|sender| sender.grants.allows(action, kind, name))
    }

    /// Whether the sender may do this on a topic.
    #[inline]
    pub(crate) fn may_topic(&self, action: Action, name: &str) -> bool {
        self.allows(action, ResourceKind::Topic, name)
    }

    /// As [`Self::allows`], with a line in the audit log if not.
    #[inline]
    fn is_permitted(&self, action: Action, kind: ResourceKind, name: &str) -> bool {
        let is_allowed = self.allows(action, kind, name);
        if !is_allowed {
            self.note_denial(action, kind, name);
        }
        is_allowed
    }

    /// Notes in the audit log that the sender was refused something.
    #[cold]
    fn note_denial(&self, action: Action, kind: ResourceKind, name: &str) {
        if let Some(sender) = &self.sender {
            sender.denied(&self.client_id, action, kind, name);
        }
    }

    /// Notes in the audit log what the sender has changed; `before` and `after` are settings, `None` if the object did
    /// or does not exist.
    pub(crate) fn note_change(
        &self,
        change: &'static str,
        object: &str,
        before: Option<ChangedSettings>,
        after: Option<ChangedSettings>,
    ) {
        if let Some(sender) = &self.sender {
            sender
                .host
                .changed(&sender.actor(), AdminChange { change, object: object.into(), before, after });
        }
    }

    /// Checks an action on the work queue of this name. Topics that are queues need it besides Kafka's rights.
    ///
    /// # Errors
    /// The sender may not do it.
    pub(crate) fn check_queue(&self, action: Action, name: &str) -> Result<(), ErrorCode> {
        let is_allowed = self.is_permitted(action, ResourceKind::Queue, name);
        if is_allowed { Ok(()) } else { Err(ErrorCode::TopicAuthorizationFailed) }
    }

    /// Checks an action on a topic.
    ///
    /// # Errors
    /// The sender may not do it.
    #[inline]
    pub(crate) fn check_topic(&self, action: Action, name: &str) -> Result<(), ErrorCode> {
        let is_allowed = self.is_permitted(action, ResourceKind::Topic, name);
        if is_allowed { Ok(()) } else { Err(ErrorCode::TopicAuthorizationFailed) }
    }

    /// Checks that the sender may produce to a topic. Nobody may to the audit topic.
    ///
    /// # Errors
    /// The sender may not do it.
    #[inline]
    pub(crate) fn check_produce(&self, env: &Environment, topic: &str) -> Result<(), ErrorCode> {
        if env.is_audit_topic(topic) {
            self.note_denial(Action::Produce, ResourceKind::Topic, topic);
            return Err(ErrorCode::TopicAuthorizationFailed);
        }
        self.check_topic(Action::Produce, topic)
    }

    /// Checks an action on a consumer group.
    ///
    /// # Errors
    /// The sender may not do it.
    pub(crate) fn check_group(&self, action: Action, name: &str) -> Result<(), ErrorCode> {
        let is_allowed = self.is_permitted(action, ResourceKind::Group, name);
        if is_allowed { Ok(()) } else { Err(ErrorCode::GroupAuthorizationFailed) }
    }

    /// Checks an action on a transactional id.
    ///
    /// # Errors
    /// The sender may not do it.
    pub(crate) fn check_transactional_id(&self, action: Action, id: &str) -> Result<(), ErrorCode> {
        let is_allowed = self.is_permitted(action, ResourceKind::TransactionalId, id);
        if is_allowed { Ok(()) } else { Err(ErrorCode::TransactionalIdAuthorizationFailed) }
    }

    /// Checks an action on the cluster.
    ///
    /// # Errors
    /// The sender may not do it.
    pub(crate) fn check_cluster(&self, action: Action) -> Result<(), ErrorCode> {
        let is_allowed = self.is_permitted(action, ResourceKind::Cluster, "");
        if is_allowed { Ok(()) } else { Err(ErrorCode::ClusterAuthorizationFailed) }
    }

    /// Checks that the sender may change users and rules. As long as there are no users, only clients on this machine
    /// may, or the first stranger would be the administrator.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check_security_change(&self, security: Option<&Security>) -> Result<(), ErrorCode> {
        let is_remote = self.peer.is_some_and(|peer| !peer.to_canonical().is_loopback());
        let has_log_ins = security.is_none_or(|security| security.host.published().state().has_log_ins());
        if is_remote && !has_log_ins {
            return Err(ErrorCode::ClusterAuthorizationFailed);
        }
        self.check_cluster(Action::Alter)
    }

    /// Checks that the sender may create a topic: it may create all, or this one.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check_creation(&self, topic: &str) -> Result<(), ErrorCode> {
        if self.may_create(topic) { Ok(()) } else { self.check_topic(Action::Create, topic) }
    }

    /// Whether the sender may create a topic, as [`Self::check_creation`].
    pub(crate) fn may_create(&self, topic: &str) -> bool {
        self.allows(Action::Create, ResourceKind::Cluster, "") || self.may_topic(Action::Create, topic)
    }

    /// Checks that the sender may get a producer id without a transactional id (KIP-679).
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check_idempotent_producer(&self) -> Result<(), ErrorCode> {
        let may_produce =
            |sender: &Arc<Sender>| sender.grants.allows_any(Action::Produce, ResourceKind::Topic);
        let is_allowed = self.sender.as_ref().is_none_or(may_produce);
        if is_allowed { Ok(()) } else { self.check_cluster(Action::IdempotentWrite) }
    }

    /// Those operations of a bit set (KIP-430) that the sender may do on an object.
    pub(crate) fn operations(&self, all: i32, kind: ResourceKind, name: &str) -> i32 {
        let Some(Sender { grants, .. }) = self.sender.as_deref() else { return all };
        let read = if kind == ResourceKind::Group { Action::Group } else { Action::Consume };
        [(READ, read)]
            .into_iter()
            .chain(OPERATIONS)
            .filter(|(bit, action)| all & 1 << bit != 0 && !grants.allows(*action, kind, name))
            .fold(all, |left, (bit, _)| left & !(1 << bit))
    }
}
