//! Users and rules of MQTT clients: log-ins that are verified elsewhere, and what a session may do.
//!
//! A session keeps its user, because that outlives its connection: for its will, its queue, and the question of who may
//! resume it. Its rules are compiled once and hold until users or rules change. A subscription that is wider than the
//! rules makes its session *narrowed*: each message is checked at delivery. Only then does a delivery cost a check.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mainstem_quota::{ClientQuotas, QuotaKey};
use mainstem_runtime::{ConnId, Wake};
use mainstem_sasl::Mechanism;
use mainstem_security::{
    Action, Actor, Attempt, Ban, BanSubject, BannedClient, CertificateOutcome, Certified, ChangeError,
    Denial, Grants, Identity, LogIn, LogInResult, Origin, PeerCertificate, Presented, Principal,
    ResourceKind, ScramAlgorithm, ScramKeys, SecurityHost, SecurityState, SubscribeDecision, add_ban,
};

use crate::authentication;
use crate::journal::client_origin::ClientOrigin;
use crate::queue_consumers::{is_of_queue, queue_of};

const PROTOCOL: &str = "mqtt";
/// Reason of the ban of a client that connects too often.
const FLAPPING: &str = "connects too often";

/// Progress of a shard in giving its sessions the rights of the newest users and rules.
#[derive(Debug, Default)]
pub(crate) struct RightsRenewal {
    /// Epoch of the users and rules that the sessions have, or get.
    epoch: u64,
    /// Slot from which on sessions have rights of earlier ones.
    next: Option<u32>,
}

impl RightsRenewal {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins anew if users or rules have changed. Returns the slot from which on sessions are to be renewed.
    pub(crate) fn begin(&mut self, epoch: u64) -> Option<u32> {
        if epoch != self.epoch {
            *self = Self { epoch, next: Some(0) };
        }
        self.next.take()
    }

    /// The turn is over: the next one continues with this slot.
    pub(crate) fn continue_at(&mut self, slot: u32) {
        self.next = Some(slot);
    }
}

/// Users and rules, as all shards share them. Without a host, everyone may do everything.
#[derive(Default)]
pub(crate) struct Security {
    host: OnceLock<Host>,
    results: Vec<Results>,
}

struct Host {
    security: Arc<dyn SecurityHost>,
    /// Names of the listeners, by their number among those of MQTT.
    listeners: Vec<Arc<str>>,
    /// What unknown users are told in a log-in depends on it.
    unknown_user_secret: [u8; 32],
}

/// Results of log-ins on their way to a shard.
#[derive(Default)]
struct Results {
    has_any: AtomicBool,
    arrived: Mutex<Vec<(ConnId, LogInResult)>>,
    wake: OnceLock<Wake>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

impl Security {
    pub(crate) fn new(shards: usize) -> Self {
        Self { host: OnceLock::new(), results: (0..shards).map(|_| Results::default()).collect() }
    }

    pub(crate) fn set_host(
        &self,
        security: Arc<dyn SecurityHost>,
        listeners: Vec<Arc<str>>,
        unknown_user_secret: [u8; 32],
    ) {
        let is_first = self.host.set(Host { security, listeners, unknown_user_secret }).is_ok();
        debug_assert!(is_first, "set once, before the shards start");
    }

    pub(crate) fn bind_wake(&self, shard: usize, wake: Wake) {
        if let Some(results) = self.results.get(shard) {
            results.wake.get_or_init(|| wake);
        }
    }

    /// Grows with every change of users and rules.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.host.get().map_or(0, |host| host.security.published().epoch())
    }

    /// The newest users and rules.
    pub(crate) fn state(&self) -> Option<Arc<SecurityState>> {
        Some(self.host.get()?.security.published().state())
    }

    /// The quotas of a client; `None` without any.
    pub(crate) fn quotas(
        &self,
        client: (Option<&str>, &str),
        keys: &[QuotaKey],
        now_ms: u64,
    ) -> Option<Arc<ClientQuotas>> {
        let published = self.host.get()?.security.published();
        published.client_quotas(&published.state(), client, keys, now_ms)
    }

    /// A client has to wait because of a quota.
    pub(crate) fn note_throttled(&self, key: QuotaKey, wait_ms: u64) {
        if let Some(host) = self.host.get() {
            host.security.published().buckets().note_throttled(key, wait_ms);
        }
    }

    /// A message is refused because of a quota.
    pub(crate) fn note_refused(&self, key: QuotaKey) {
        if let Some(host) = self.host.get() {
            host.security.published().buckets().note_refused(key);
        }
    }

    /// The ban of a client, by user, client id and address, as a text for the log.
    pub(crate) fn ban(
        &self,
        (user, client_id, address): (Option<&str>, Option<&str>, Option<IpAddr>),
        unix_ms: u64,
    ) -> Option<String> {
        let state = self.state()?;
        state.bans().find(user, client_id, address, unix_ms).map(|subject| subject.to_string())
    }

    /// A banned client is refused or disconnected. What is known of it: user, client id and address.
    pub(crate) fn note_banned(
        &self,
        (user, client_id, address): (Option<&str>, Option<&str>, Option<IpAddr>),
    ) {
        if let Some(host) = self.host.get() {
            host.security.banned(&BannedClient { user, client_id, address, protocol: Some(PROTOCOL) });
        }
    }

    /// Bans a client identifier that connects too often, for this time.
    pub(crate) fn ban_client_id(&self, client_id: &str, unix_ms: u64, ban_s: u32) {
        let Some(host) = self.host.get() else { return };
        log::warn!(
            "client {client_id:?} connects too often (mqtt.flapping_max_connects): it is banned for {ban_s} s"
        );
        let until_ms = unix_ms + u64::from(ban_s) * 1000;
        let ban = Ban { reason: FLAPPING.into(), since_ms: unix_ms, until_ms: Some(until_ms) };
        let subject = BanSubject::ClientId(client_id.into());
        let edit = move |state: &SecurityState| Ok(add_ban(state, subject, ban));
        let on_result = |result: Result<_, ChangeError>| {
            if let Err(error) = result {
                log::warn!("a client that connects too often is not banned: {error}");
            }
        };
        // The reason of the ban says that no administrator made it.
        let by = Actor { principal: Principal::Anonymous, address: None, protocol: PROTOCOL };
        host.security.change(Box::new(edit), by, Box::new(on_result));
    }

    /// The name of a listener.
    pub(crate) fn listener(&self, number: u16) -> Option<&Arc<str>> {
        self.host.get()?.listeners.get(usize::from(number))
    }

    /// What the certificate of a client decides.
    pub(crate) fn check_certificate(
        &self,
        listener: u16,
        certificate: Option<PeerCertificate<'_>>,
        has_password: bool,
        address: Option<IpAddr>,
    ) -> CertificateOutcome {
        let Some(host) = self.host.get() else { return CertificateOutcome::Ignored(Certified::default()) };
        let listener = self.listener(listener).map_or("", |name| name);
        host.security.check_certificate(&Presented {
            listener,
            certificate,
            has_password,
            address,
            protocol: PROTOCOL,
        })
    }

    /// Starts to verify a log-in. [`Self::take_results`] of the shard returns the result.
    pub(crate) fn log_in(
        self: &Arc<Self>,
        shard: u16,
        conn: ConnId,
        (client_id, user, password): (&str, &str, &[u8]),
        certified: Certified,
        address: Option<IpAddr>,
    ) {
        let Some(host) = self.host.get() else { return };
        let security = Arc::clone(self);
        let reply = move |result| {
            let Some(results) = security.results.get(usize::from(shard)) else { return };
            results.arrived.lock().unwrap_or_else(PoisonError::into_inner).push((conn, result));
            results.has_any.store(true, Ordering::Release);
            if let Some(wake) = results.wake.get() {
                wake();
            }
        };
        let (user, password) = (user.into(), password.to_vec());
        let client_id = (!client_id.is_empty()).then(|| client_id.into());
        let log_in = LogIn { user, password, certified, address, protocol: PROTOCOL, client_id };
        host.security.log_in(log_in, Box::new(reply));
    }

    /// The method of enhanced authentication with this name, if it is offered.
    pub(crate) fn method(&self, name: &str) -> Option<Mechanism> {
        authentication::method(name).filter(|_| self.state().is_some_and(|state| state.has_users()))
    }

    /// Whether the keys of a user may be tried. Passwords are counted by the host, which checks them.
    pub(crate) fn may_attempt(&self, user: &str, address: Option<IpAddr>) -> bool {
        let attempt = Attempt { user, address, protocol: PROTOCOL };
        self.host.get().is_none_or(|host| host.security.may_attempt(&attempt))
    }

    /// Tells the host how a log-in with the keys of a user has ended.
    pub(crate) fn attempted(&self, user: &str, address: Option<IpAddr>, is_accepted: bool) {
        if let Some(host) = self.host.get() {
            host.security.attempted(&Attempt { user, address, protocol: PROTOCOL }, is_accepted);
        }
    }

    /// The keys of a user, if it may log in with them, and those to show to a client if there are none.
    pub(crate) fn scram_keys(&self, user: &str, algorithm: ScramAlgorithm) -> (Option<ScramKeys>, ScramKeys) {
        let secret = self.host.get().map_or([0; 32], |host| host.unknown_user_secret);
        self.state().unwrap_or_default().scram_keys(user, algorithm, &secret)
    }

    /// The results of log-ins on a shard since the last call.
    #[inline]
    pub(crate) fn take_results(&self, shard: u16) -> Vec<(ConnId, LogInResult)> {
        let Some(results) = self.results.get(usize::from(shard)) else { return Vec::new() };
        if !results.has_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        results.has_any.store(false, Ordering::Release);
        std::mem::take(&mut *results.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Who a session belongs to, where its connection comes from, and what it may do.
#[derive(Debug)]
pub(crate) struct Access {
    identity: Identity,
    /// Name of the listener.
    listener: Option<Arc<str>>,
    address: Option<IpAddr>,
    grants: Grants,
}

impl Access {
    /// The rights of a session, as of now.
    pub(crate) fn new(
        security: &Security,
        identity: Identity,
        client_id: &str,
        (listener, address): (Option<Arc<str>>, Option<IpAddr>),
    ) -> Option<Self> {
        let state = security.state()?;
        let origin = Origin {
            principal: &identity.principal,
            proof: identity.proof.as_deref(),
            client_id: Some(client_id),
            listener: listener.as_deref(),
            address,
        };
        let grants = Grants::compile(&state, &origin);
        Some(Self { identity, listener, address, grants })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.identity.principal
    }

    /// The same for newer users and rules.
    pub(crate) fn renewed(&self, security: &Security, client_id: &str) -> Option<Self> {
        let place = (self.listener.clone(), self.address);
        Self::new(security, self.identity.clone(), client_id, place)
    }

    /// What a journal keeps beside the user.
    pub(crate) fn client_origin(&self) -> ClientOrigin {
        let proof = self.identity.proof.clone();
        ClientOrigin { listener: self.listener.clone(), address: self.address, proof }
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.grants.epoch()
    }

    pub(crate) fn may_connect(&self) -> bool {
        self.grants.allows(Action::Connect, ResourceKind::Cluster, "")
    }

    /// Whether the session may publish to a valid topic, or send to the queue that it names.
    #[inline]
    pub(crate) fn may_publish(&self, topic: &str) -> bool {
        if self.grants.is_unrestricted() {
            return true;
        }
        let (action, kind, name) = publish_object(topic);
        self.grants.allows(action, kind, name)
    }

    /// Whether the session may receive messages of a topic.
    pub(crate) fn may_receive(&self, topic: &str) -> bool {
        self.grants.allows(Action::Subscribe, ResourceKind::Mqtt, topic)
    }

    /// Decides a subscription, without `$share/<group>/`.
    pub(crate) fn subscribe(&self, filter: &str) -> SubscribeDecision {
        if !is_of_queue(filter) {
            return self.grants.subscribe(filter);
        }
        let queue = queue_of(filter).map_or(filter, |(queue, _)| queue);
        if self.grants.allows(Action::Receive, ResourceKind::Queue, queue) {
            SubscribeDecision::Allowed
        } else {
            SubscribeDecision::Refused
        }
    }

    /// Notes a denied publish in the audit log.
    pub(crate) fn publish_denied(&self, security: &Security, client_id: &str, topic: &str) {
        let (action, kind, name) = publish_object(topic);
        self.denied(security, client_id, (action, kind), name);
    }

    /// Notes a denied subscription in the audit log.
    pub(crate) fn subscribe_denied(&self, security: &Security, client_id: &str, filter: &str) {
        let of_queue = is_of_queue(filter);
        let what = if of_queue {
            (Action::Receive, ResourceKind::Queue)
        } else {
            (Action::Subscribe, ResourceKind::Mqtt)
        };
        self.denied(security, client_id, what, filter);
    }

    /// Notes a denied connection in the audit log.
    pub(crate) fn connect_denied(&self, security: &Security, client_id: &str) {
        self.denied(security, client_id, (Action::Connect, ResourceKind::Cluster), "");
    }

    #[cold]
    fn denied(
        &self,
        security: &Security,
        client_id: &str,
        (action, kind): (Action, ResourceKind),
        name: &str,
    ) {
        let Some(host) = security.host.get() else { return };
        let origin = Origin {
            principal: &self.identity.principal,
            proof: self.identity.proof.as_deref(),
            client_id: Some(client_id),
            listener: self.listener.as_deref(),
            address: self.address,
        };
        host.security.denied(&Denial { origin, protocol: PROTOCOL, action, kind, name });
    }
}

/// What a publish to a topic is: of a message, or to a queue.
fn publish_object(topic: &str) -> (Action, ResourceKind, &str) {
    match queue_of(topic).filter(|_| is_of_queue(topic)) {
        Some((queue, _)) => (Action::Send, ResourceKind::Queue, queue),
        None => (Action::Publish, ResourceKind::Mqtt, topic),
    }
}
