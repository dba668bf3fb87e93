//! The newest state, as all threads see it, and the token buckets that clients share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use mainstem_quota::{Buckets, ClientQuotas, QuotaKey};

use crate::api_key_uses::ApiKeyUses;
use crate::audit_events::AuditEvents;
use crate::state::{Anonymous, SecurityState, Settings};

/// The newest [`SecurityState`]. Reading the epoch costs one load; the lock is taken after a change only.
#[derive(Debug)]
pub struct Published {
    epoch: AtomicU64,
    state: RwLock<Arc<SecurityState>>,
    buckets: Buckets,
    api_key_uses: ApiKeyUses,
    audit_events: AuditEvents,
    /// Connections and requests of banned clients that were refused.
    bans_refused: AtomicU64,
}

impl Published {
    /// Publishes a first state.
    pub fn new(state: SecurityState) -> Self {
        Self {
            epoch: AtomicU64::new(state.epoch()),
            state: RwLock::new(Arc::new(state)),
            buckets: Buckets::default(),
            api_key_uses: ApiKeyUses::default(),
            audit_events: AuditEvents::default(),
            bans_refused: AtomicU64::new(0),
        }
    }

    /// The epoch of the newest state.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The token buckets of quotas.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// When API keys were last used.
    pub fn api_key_uses(&self) -> &ApiKeyUses {
        &self.api_key_uses
    }

    /// Events of the audit log that wait to be appended to its topic; none without such a topic.
    pub fn audit_events(&self) -> &AuditEvents {
        &self.audit_events
    }

    /// A banned client is refused.
    pub fn note_ban_refused(&self) {
        self.bans_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections and requests of banned clients were refused.
    pub fn bans_refused(&self) -> u64 {
        self.bans_refused.load(Ordering::Relaxed)
    }

    /// The buckets of a client for quotas of these kinds; `None` if it has none. Clients without a user have none as
    /// user name.
    pub fn client_quotas(
        &self,
        state: &SecurityState,
        (user, client_id): (Option<&str>, &str),
        keys: &[QuotaKey],
        now_ms: u64,
    ) -> Option<Arc<ClientQuotas>> {
        let user = user.unwrap_or(mainstem_quota::ANONYMOUS);
        self.buckets.resolve(state.quotas(), (user, client_id), keys, now_ms)
    }

    /// The newest state.
    pub fn state(&self) -> Arc<SecurityState> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the state. A reader that sees its epoch also sees the state.
    pub fn publish(&self, state: Arc<SecurityState>) {
        let epoch = state.epoch();
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.epoch.store(epoch, Ordering::Release);
    }
}

impl Default for Published {
    /// Everyone may do everything.
    fn default() -> Self {
        let settings = Settings { anonymous: Anonymous::Allowed, ..Settings::default() };
        Self::new(SecurityState::new(settings))
    }
}
