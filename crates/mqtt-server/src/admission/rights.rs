//! Which sessions a user may resume, and what becomes of a session when users, rules or bans have changed.
//!
//! A change calls for action by itself: a client that may not be connected any more is disconnected, and its
//! memberships in groups and queue subscriptions end if they are no longer allowed. Ordinary subscriptions stay: what
//! they may not get is left out at delivery. The functions here compare a session with the newest users and rules; the
//! shard, which walks through all sessions, applies what they return.

use mainstem_mqtt::ReasonCode;
use mainstem_security::{Identity, Principal, SecurityState, SubscribeDecision};
use mainstem_topic::parse_subscription;

use super::Peer;
use crate::access::{Access, Security};
use crate::queue_consumers::SessionConsumers;
use crate::routes::Routes;
use crate::session::{Session, SessionExt};

/// What becomes of a session whose rights were renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Nothing: there are no users and no rules.
    Unchanged,
    /// Its subscriptions are checked.
    Narrow,
    /// It has no connection, and its user may have none now. The user may be enabled again, or the client return with
    /// another API key: it keeps what it has subscribed to, and gets nothing that it may not have.
    Withhold,
    /// Its connection ends.
    Disconnect(ReasonCode, &'static str),
}

/// Gives a session the rights of the newest users and rules. `peer` is that of its connection, if it has one.
pub(crate) fn renew(
    security: &Security,
    session: &mut Session,
    peer: Option<Peer<'_>>,
    unix_ms: u64,
) -> Renewal {
    let Some(state) = security.state() else { return Renewal::Unchanged };
    let renewed = if let Some(access) = session.access() {
        access.renewed(security, session.client_id())
    } else {
        let place = peer.map_or((None, None), |peer| peer.place(security));
        Access::new(security, Identity::default(), session.client_id(), place)
    };
    let Some(access) = renewed else { return Renewal::Unchanged };
    let identity = access.identity();
    let is_known = state.admits(&identity.principal, identity.proof.as_deref());
    let may_connect = access.may_connect();
    session.set_access(Some(access));
    let Some(peer) = peer else {
        return if is_known { Renewal::Narrow } else { Renewal::Withhold };
    };
    let client_id = session.client_id();
    let subject = (session.user().map(|user| &**user), Some(&**client_id), peer.address());
    if let Some(ban) = security.ban(subject, unix_ms) {
        log::info!("client {client_id:?} is disconnected: a ban of {ban}");
        security.note_banned(subject);
        return Renewal::Disconnect(ReasonCode::AdministrativeAction, "the client is banned");
    }
    if !(is_known && may_connect) {
        log::info!("client {client_id:?} is disconnected: its user may not be connected any more");
        let what = "the user may not be connected any more";
        return Renewal::Disconnect(ReasonCode::NotAuthorized, what);
    }
    Renewal::Narrow
}

/// What of the subscriptions of a session is not allowed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Narrowing {
    /// Its messages have to be checked at delivery.
    pub(crate) is_narrowed: bool,
    /// Filters of queue subscriptions that end.
    pub(crate) queues: Vec<String>,
    /// Groups that it leaves, by name and filter: a group must not give a message to a member that does not get it, so
    /// a member must be allowed to read the group as a whole.
    pub(crate) groups: Vec<(String, String)>,
}

/// Compares the subscriptions of a session with its rights. `None` if it may do everything.
pub(crate) fn narrowing(routes: &Routes, session: &Session) -> Option<Narrowing> {
    let access = session.access()?;
    let allows = |filter: &str| access.subscribe(filter) == SubscribeDecision::Allowed;
    let mut filters = session.subscriptions().iter();
    let is_narrowed = !filters.all(|known| routes.name(known.filter).is_some_and(|name| allows(&name)));
    let groups = session
        .groups()
        .iter()
        .filter(|group| !allows(&group.filter))
        .map(|group| (group.name.to_string(), group.filter.to_string()))
        .collect();
    let consumers = session.ext_ref().and_then(SessionExt::consumers);
    let queues = consumers
        .into_iter()
        .flat_map(SessionConsumers::subscriptions)
        .map(|known| known.filter().to_owned())
        .filter(|filter| !parse_subscription(filter).is_ok_and(|parsed| allows(parsed.filter)))
        .collect();
    Some(Narrowing { is_narrowed, queues, groups })
}

/// Whether a user may resume or end a session that has these rights: its own, one of nobody, or any for a super user.
/// With an API key that has roles, only sessions that were left with the same key: others may hold messages beyond the
/// roles.
pub(super) fn may_take_over(state: &SecurityState, owner: Option<&Access>, identity: &Identity) -> bool {
    let Identity { principal, proof } = identity;
    let is_own = match owner.map(Access::principal) {
        None | Some(Principal::Anonymous) => true,
        Some(owner) => owner == principal,
    };
    let key_of = |identity: &Identity| identity.proof.as_ref().and_then(|proof| proof.api_key);
    let is_of_same_key = owner.is_some_and(|owner| key_of(owner.identity()) == key_of(identity));
    let is_own = is_own && (is_of_same_key || !state.is_narrowed(proof.as_deref()));
    is_own || state.is_super_user(principal, proof.as_deref())
}
