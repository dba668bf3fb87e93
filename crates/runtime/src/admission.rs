//! Admission: how many connections may be open, in the process, per listener and per address.
//!
//! A connection needs a file descriptor before anything is known about its peer, so the limits are checked when it is
//! accepted. [`Admission::admit`] counts it and returns a [`Permit`], which the owner of the socket keeps. Dropping the
//! permit ends the count, on whichever thread that happens. A connection beyond a limit is closed at once.
//!
//! Refusals are logged once per interval and kind of limit, with their number: a peer that keeps trying must not fill
//! the log.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use mainstem_quota::LogThrottle;

use crate::proxy::ProxiedClient;
use crate::rate::RateLimit;

/// Bits of an IPv6 address that identify a client: hosts get a /64 and choose the rest.
const IPV6_CLIENT_BITS: u32 = 64;

/// The limits that hold for all listeners together.
#[derive(Clone, Debug)]
pub struct AdmissionLimits {
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// What to change to raise `connections_max`, for the log.
    pub connections_hint: String,
    /// Maximum number of open connections per client address; 0 for no limit. IPv6 addresses count by their /64 prefix.
    pub per_address_max: usize,
    /// The key of `per_address_max`, for the log.
    pub per_address_key: &'static str,
    /// Maximum number of new connections per client address and second; 0 for no limit.
    pub per_address_rate_max: u32,
    /// The key of `per_address_rate_max`, for the log.
    pub per_address_rate_key: &'static str,
}

impl Default for AdmissionLimits {
    /// No limits.
    fn default() -> Self {
        Self {
            connections_max: usize::MAX,
            connections_hint: String::new(),
            per_address_max: 0,
            per_address_key: "",
            per_address_rate_max: 0,
            per_address_rate_key: "",
        }
    }
}

/// The connections of one listener, or of several.
#[derive(Debug)]
pub struct ListenerQuota {
    name: String,
    max: usize,
    max_key: String,
    open: AtomicUsize,
    /// The quota of a group of listeners, which counts its connections too.
    group: Option<Arc<ListenerQuota>>,
}

impl ListenerQuota {
    /// A quota of `max` connections for the listener `name`. `max_key` is the key to change, for the log.
    pub fn new(name: impl Into<String>, max: usize, max_key: impl Into<String>) -> Arc<Self> {
        Self::build(name.into(), max, max_key.into(), None)
    }

    /// Like [`new`](Self::new), for a listener whose connections also count toward the quota `group`.
    pub fn within(
        group: &Arc<Self>,
        name: impl Into<String>,
        max: usize,
        max_key: impl Into<String>,
    ) -> Arc<Self> {
        Self::build(name.into(), max, max_key.into(), Some(Arc::clone(group)))
    }

    fn build(name: String, max: usize, max_key: String, group: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { name, max, max_key, open: AtomicUsize::new(0), group })
    }

    fn try_open(&self) -> bool {
        if !try_add(&self.open, self.max) {
            return false;
        }
        let is_open = self.group.as_ref().is_none_or(|group| group.try_open());
        if !is_open {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        is_open
    }

    fn close(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.close();
        }
    }

    /// This quota, or that of its group if only that one is used up.
    fn exhausted(&self) -> &Self {
        match &self.group {
            Some(group) if self.open.load(Ordering::Relaxed) < self.max => group.exhausted(),
            _ => self,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process has as many connections as it may.
    Process,
    /// The listener has.
    Listener,
    /// The client's address has.
    Address,
    /// The client's address opens connections too fast.
    Rate,
    /// The client's address has a quota of new connections, and exceeds it.
    Quota,
    /// The client's address is banned.
    Banned,
}

const REFUSALS: usize = 6;

/// What others decide about addresses while the process runs: bans, and quotas of single addresses.
pub trait AddressGate: Send + Sync {
    /// Whether connections of an address are refused.
    fn is_banned(&self, address: IpAddr) -> bool;

    /// Maximum number of new connections of an address per second; `None` for no limit.
    fn rate_max(&self, address: IpAddr) -> Option<u32>;

    /// Notes a connection that was refused because of one or the other.
    fn refused(&self, address: IpAddr, refusal: Refusal);
}

/// The gate, once it is set.
#[derive(Default)]
struct Gate(OnceLock<Arc<dyn AddressGate>>);

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// Counts the open connections of a process.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    open: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    rate: Mutex<RateLimit>,
    gate: Gate,
    /// New connections of addresses with quotas.
    quota_rate: Mutex<RateLimit>,
    log: [Mutex<LogThrottle>; REFUSALS],
}

impl Admission {
    /// Nothing is open.
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            open: AtomicUsize::new(0),
            by_address: Mutex::default(),
            rate: Mutex::default(),
            gate: Gate::default(),
            quota_rate: Mutex::default(),
            log: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Sets the gate, once and before connections are accepted.
    pub fn set_gate(&self, gate: Arc<dyn AddressGate>) {
        let is_first = self.gate.0.set(gate).is_ok();
        debug_assert!(is_first, "set once");
    }

    /// Asks the gate about a new connection of `peer`.
    fn pass_gate(&self, peer: IpAddr) -> Result<(), Refusal> {
        let Some(gate) = self.gate.0.get() else { return Ok(()) };
        let address = peer.to_canonical();
        let refusal = if gate.is_banned(address) {
            Some(Refusal::Banned)
        } else {
            gate.rate_max(address).and_then(|rate_max| {
                let mut rate = self.quota_rate.lock().unwrap_or_else(PoisonError::into_inner);
                (!rate.allow(address, rate_max, Instant::now())).then_some(Refusal::Quota)
            })
        };
        let Some(refusal) = refusal else { return Ok(()) };
        gate.refused(address, refusal);
        Err(refusal)
    }

    /// Counts a connection of `peer`, unless a limit is reached. A peer without an address, such as that of a Unix
    /// socket, has no limit per address. Logs refusals.
    ///
    /// # Errors
    /// The limit that refuses it. The caller closes the socket.
    pub fn admit(
        self: &Arc<Self>,
        quota: &Arc<ListenerQuota>,
        peer: Option<IpAddr>,
    ) -> Result<Permit, Refusal> {
        self.count(quota, peer, peer).inspect_err(|refusal| self.log_refusal(*refusal, quota, peer))
    }

    /// Like [`admit`](Self::admit), for a connection of a proxy: the limits per address are for its client, see
    /// [`Permit::identify`].
    ///
    /// # Errors
    /// As for [`admit`](Self::admit).
    pub fn admit_proxied(
        self: &Arc<Self>,
        quota: &Arc<ListenerQuota>,
        proxy: Option<IpAddr>,
    ) -> Result<Permit, Refusal> {
        self.count(quota, proxy, None).inspect_err(|refusal| self.log_refusal(*refusal, quota, proxy))
    }

    /// Counts a connection of `peer` toward the limit per address only, for a listener `name` that bounds the number
    /// of its connections itself. Logs refusals.
    ///
    /// # Errors
    /// [`Refusal::Address`]. The caller closes the socket.
    pub fn admit_address(self: &Arc<Self>, name: &str, peer: IpAddr) -> Result<AddressPermit, Refusal> {
        self.count_address(peer).inspect_err(|refusal| {
            self.log_refusal(*refusal, &ListenerQuota::new(name, 0, ""), Some(peer));
        })
    }

    /// `counted` is the address whose limits apply.
    fn count(
        self: &Arc<Self>,
        quota: &Arc<ListenerQuota>,
        peer: Option<IpAddr>,
        counted: Option<IpAddr>,
    ) -> Result<Permit, Refusal> {
        if !try_add(&self.open, self.limits.connections_max) {
            return Err(Refusal::Process);
        }
        // From here on the permit takes back what has been counted, also if a later limit refuses.
        let mut permit =
            Permit { admission: Arc::clone(self), quota: None, peer, address: None, client: None };
        if !quota.try_open() {
            return Err(Refusal::Listener);
        }
        permit.quota = Some(Arc::clone(quota));
        permit.address = counted.map(|address| self.count_address(address)).transpose()?;
        Ok(permit)
    }

    fn count_address(self: &Arc<Self>, peer: IpAddr) -> Result<AddressPermit, Refusal> {
        self.pass_gate(peer)?;
        let address = client_address(peer);
        let rate_max = self.limits.per_address_rate_max;
        if rate_max > 0 {
            let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            if !rate.allow(address, rate_max, Instant::now()) {
                return Err(Refusal::Rate);
            }
        }
        let max = self.limits.per_address_max;
        if max == 0 {
            return Ok(AddressPermit(None));
        }
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let open = by_address.entry(address).or_insert(0);
        if *open >= max {
            return Err(Refusal::Address);
        }
        *open += 1;
        drop(by_address);
        Ok(AddressPermit(Some((Arc::clone(self), address))))
    }

    fn log_refusal(&self, refusal: Refusal, quota: &ListenerQuota, peer: Option<IpAddr>) {
        let log = &self.log[refusal as usize];
        let count = log.lock().unwrap_or_else(PoisonError::into_inner).count(Instant::now());
        let Some(count) = count else { return };
        let name = &quota.name;
        let ListenerQuota { max, max_key, .. } = quota.exhausted();
        let AdmissionLimits {
            connections_max,
            connections_hint,
            per_address_max,
            per_address_key,
            per_address_rate_max,
            per_address_rate_key,
        } = &self.limits;
        let peer = peer.map_or_else(String::new, |peer| peer.to_string());
        match refusal {
            Refusal::Process => log::warn!(
                "{name}: {count} connections closed at once: {connections_max} are open, which is the most for this process; {connections_hint}"
            ),
            Refusal::Listener => log::warn!(
                "{name}: {count} connections closed at once: {max} are open, which is the limit of {max_key}"
            ),
            Refusal::Address => log::warn!(
                "{name}: {count} connections closed at once, the last from {peer}: {per_address_max} per address are the limit of {per_address_key}"
            ),
            Refusal::Rate => log::warn!(
                "{name}: {count} connections closed at once, the last from {peer}: {per_address_rate_max} per address and second are the limit of {per_address_rate_key}"
            ),
            Refusal::Quota => log::warn!(
                "{name}: {count} connections closed at once, the last from {peer}: the quota connection_creation_rate of its address is exceeded (mainstem quota)"
            ),
            Refusal::Banned => log::info!(
                "{name}: {count} connections closed at once, the last from {peer}: its address is banned (mainstem ban)"
            ),
        }
    }
}

/// Adds one unless that exceeds `max`.
fn try_add(count: &AtomicUsize, max: usize) -> bool {
    let add = |open: usize| (open < max).then_some(open + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

/// What identifies a client among addresses.
pub(crate) fn client_address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = address.to_bits() >> (128 - IPV6_CLIENT_BITS) << (128 - IPV6_CLIENT_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(prefix))
        }
    }
}

/// The share of one open connection in the counts. Dropping it gives the share back.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    quota: Option<Arc<ListenerQuota>>,
    peer: Option<IpAddr>,
    address: Option<AddressPermit>,
    client: Option<Box<ProxiedClient>>,
}

impl Permit {
    /// Address of the peer, or of its client if it is a proxy that has named it. `None` for a Unix socket.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// The client behind a proxy.
    pub fn client(&self) -> Option<&ProxiedClient> {
        self.client.as_deref()
    }

    /// Name of the listener, for the log.
    pub(crate) fn listener(&self) -> &str {
        self.quota.as_ref().map_or("", |quota| &quota.name)
    }

    /// Sets the client of a proxy, and counts its address. Logs refusals.
    ///
    /// # Errors
    /// The limit that refuses it. The caller closes the socket.
    pub fn identify(&mut self, client: ProxiedClient) -> Result<(), Refusal> {
        let address = client.address;
        let counted = self.admission.count_address(address);
        if let (Err(refusal), Some(quota)) = (&counted, &self.quota) {
            self.admission.log_refusal(*refusal, quota, Some(address));
        }
        self.address = Some(counted?);
        self.peer = Some(address);
        self.client = Some(Box::new(client));
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(quota) = &self.quota {
            quota.close();
        }
    }
}

/// The share of one open connection in the count of its address, if there is a limit per address. Dropping it gives the
/// share back.
#[derive(Debug)]
pub struct AddressPermit(Option<(Arc<Admission>, IpAddr)>);

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let Some((admission, address)) = &self.0 else { return };
        let mut by_address = admission.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = by_address.get_mut(address) {
            *open -= 1;
            if *open == 0 {
                by_address.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections_max: usize, per_address_max: usize) -> Arc<Admission> {
        Admission::new(AdmissionLimits { connections_max, per_address_max, ..AdmissionLimits::default() })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_dropped_permit_makes_room_in_every_count() {
        let admission = admission(2, 1);
        let quota = ListenerQuota::new("a", 1, "a.max");
        let other = ListenerQuota::new("b", 9, "b.max");
        let first = admission.admit(&quota, Some(ip("10.0.0.1"))).unwrap();
        assert_eq!(admission.admit(&quota, Some(ip("10.0.0.2"))).unwrap_err(), Refusal::Listener);
        assert_eq!(admission.admit(&other, Some(ip("10.0.0.1"))).unwrap_err(), Refusal::Address);
        let second = admission.admit(&other, Some(ip("10.0.0.2"))).unwrap();
        assert_eq!(admission.admit(&other, Some(ip("10.0.0.3"))).unwrap_err(), Refusal::Process);
        drop(first);
        let third = admission.admit(&quota, Some(ip("10.0.0.1"))).unwrap();
        drop((second, third));
        // A refusal leaves nothing behind either.
        assert_eq!(admission.open.load(Ordering::Relaxed), 0);
        assert_eq!(quota.open.load(Ordering::Relaxed) + other.open.load(Ordering::Relaxed), 0);
        assert!(admission.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn an_address_has_one_limit_for_listeners_with_and_without_a_quota() {
        let admission = admission(2, 2);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let first = admission.admit_address("b", ip("10.0.0.1")).unwrap();
        let second = admission.admit(&quota, Some(ip("10.0.0.1"))).unwrap();
        assert_eq!(admission.admit(&quota, Some(ip("10.0.0.1"))).unwrap_err(), Refusal::Address);
        assert_eq!(admission.admit_address("b", ip("10.0.0.1")).unwrap_err(), Refusal::Address);
        let other = admission.admit_address("b", ip("10.0.0.2")).unwrap();
        assert_eq!(admission.open.load(Ordering::Relaxed), 1, "the others do not count in the process");
        drop((first, second, other));
        assert!(admission.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn a_group_of_listeners_has_a_limit_beside_those_of_each() {
        let admission = admission(9, 0);
        let group = ListenerQuota::new("all", 3, "all.max");
        let small = ListenerQuota::within(&group, "small", 1, "small.max");
        let large = ListenerQuota::within(&group, "large", 9, "large.max");
        let first = admission.admit(&small, None).unwrap();
        assert_eq!(admission.admit(&small, None).unwrap_err(), Refusal::Listener);
        assert_eq!(small.exhausted().max_key, "small.max");
        let _others = [admission.admit(&large, None).unwrap(), admission.admit(&large, None).unwrap()];
        assert_eq!(admission.admit(&large, None).unwrap_err(), Refusal::Listener);
        assert_eq!(large.exhausted().max_key, "all.max");
        drop(first);
        admission.admit(&large, None).unwrap();
    }

    #[test]
    fn the_client_of_a_proxy_counts_and_not_the_proxy() {
        let client = |address| ProxiedClient { address: ip(address), authority: None, common_name: None };
        let admission = admission(9, 1);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let mut first = admission.admit_proxied(&quota, Some(ip("127.0.0.1"))).unwrap();
        first.identify(client("192.0.2.1")).unwrap();
        assert_eq!(first.peer(), Some(ip("192.0.2.1")));
        let mut second = admission.admit_proxied(&quota, Some(ip("127.0.0.1"))).unwrap();
        assert_eq!(second.identify(client("192.0.2.1")), Err(Refusal::Address));
        second.identify(client("192.0.2.2")).unwrap();
        drop((first, second));
        assert!(admission.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn an_address_opens_so_many_connections_per_second() {
        let limits = AdmissionLimits { per_address_rate_max: 2, ..AdmissionLimits::default() };
        let admission = Admission::new(limits);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let results = [0, 1, 2].map(|_| admission.admit(&quota, Some(ip("192.0.2.1"))).err());
        assert_eq!(results, [None, None, Some(Refusal::Rate)]);
        admission.admit(&quota, Some(ip("192.0.2.2"))).unwrap();
        assert_eq!(quota.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_gate_refuses_addresses_and_limits_how_fast_they_connect() {
        #[derive(Default)]
        struct Bans(Mutex<Vec<Refusal>>);

        impl AddressGate for Bans {
            fn is_banned(&self, address: IpAddr) -> bool {
                address == ip("192.0.2.9")
            }

            fn rate_max(&self, address: IpAddr) -> Option<u32> {
                (address == ip("192.0.2.1")).then_some(1)
            }

            fn refused(&self, _address: IpAddr, refusal: Refusal) {
                self.0.lock().unwrap().push(refusal);
            }
        }

        let (admission, gate) = (admission(9, 0), Arc::new(Bans::default()));
        admission.set_gate(Arc::clone(&gate) as Arc<dyn AddressGate>);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let admit = |peer| admission.admit(&quota, Some(ip(peer))).err();
        assert_eq!(admit("::ffff:192.0.2.9"), Some(Refusal::Banned));
        assert_eq!([admit("192.0.2.1"), admit("192.0.2.1")], [None, Some(Refusal::Quota)]);
        assert_eq!([admit("192.0.2.2"), admit("192.0.2.2")], [None, None]);
        assert_eq!(*gate.0.lock().unwrap(), [Refusal::Banned, Refusal::Quota]);
        assert_eq!(quota.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ipv6_addresses_count_by_their_prefix_and_mapped_ones_as_ipv4() {
        let admission = admission(9, 1);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let _first = admission.admit(&quota, Some(ip("2001:db8::1"))).unwrap();
        assert_eq!(admission.admit(&quota, Some(ip("2001:db8::2:3"))).unwrap_err(), Refusal::Address);
        let _other = admission.admit(&quota, Some(ip("2001:db8:0:1::1"))).unwrap();
        let _v4 = admission.admit(&quota, Some(ip("10.0.0.1"))).unwrap();
        assert_eq!(admission.admit(&quota, Some(ip("::ffff:10.0.0.1"))).unwrap_err(), Refusal::Address);
    }
}
