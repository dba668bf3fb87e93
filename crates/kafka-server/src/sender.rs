//! Who sends the requests of a connection: what they may do, and who they are in the audit log.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use mainstem_security::{Action, Actor, Denial, Grants, Identity, Origin, ResourceKind, SecurityHost};

/// Name of the protocol in the audit log.
const PROTOCOL: &str = "kafka";

/// Who sends the requests of a connection, and what they may do.
pub(crate) struct Sender {
    pub(crate) grants: Grants,
    pub(crate) identity: Identity,
    pub(crate) listener: Option<Arc<str>>,
    pub(crate) address: Option<IpAddr>,
    /// Where denials and changes are noted.
    pub(crate) host: Arc<dyn SecurityHost>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("principal", &self.identity.principal)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// The sender by the users, rules and bans of now; `None` if it may not be connected any more.
    pub(crate) fn renewed(&self, client_id: &str, unix_ms: u64) -> Option<Self> {
        let state = self.host.published().state();
        let Identity { principal, proof } = &self.identity;
        let user = principal.user().map(|user| &**user);
        let is_banned = state.bans().find(user, Some(client_id), self.address, unix_ms).is_some();
        if is_banned || !state.admits(principal, proof.as_deref()) {
            return None;
        }
        let origin = Origin {
            principal,
            proof: proof.as_deref(),
            client_id: None,
            listener: self.listener.as_deref(),
            address: self.address,
        };
        let grants = Grants::compile(&state, &origin);
        (!grants.denies_connection()).then(|| Self {
            grants,
            identity: self.identity.clone(),
            listener: self.listener.clone(),
            address: self.address,
            host: Arc::clone(&self.host),
        })
    }

    pub(crate) fn actor(&self) -> Actor {
        Actor { principal: self.identity.principal.clone(), address: self.address, protocol: PROTOCOL }
    }

    #[cold]
    pub(crate) fn denied(&self, client_id: &str, action: Action, kind: ResourceKind, name: &str) {
        let origin = Origin {
            principal: &self.identity.principal,
            proof: self.identity.proof.as_deref(),
            client_id: Some(client_id),
            listener: self.listener.as_deref(),
            address: self.address,
        };
        self.host.denied(&Denial { origin, protocol: PROTOCOL, action, kind, name });
    }
}
