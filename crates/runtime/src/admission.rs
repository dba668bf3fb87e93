//! Admission: how many connections may be open, in the process, per listener and per address.
//!
//! A connection needs a file descriptor before anything is known about its peer, so the limits are checked when it is
//! accepted. [`Admission::admit`] counts it and returns a [`Permit`], which the owner of the socket keeps. Dropping the
//! permit ends the count, on whichever thread that happens. A connection beyond a limit is closed at once.
//!
//! Refusals are logged once per interval and kind of limit, with their number: a peer that keeps trying must not fill
//! the log.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two log lines about the same kind of refusal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
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
}

impl Default for AdmissionLimits {
    /// No limits.
    fn default() -> Self {
        Self {
            connections_max: usize::MAX,
            connections_hint: String::new(),
            per_address_max: 0,
            per_address_key: "",
        }
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub struct ListenerQuota {
    name: String,
    max: usize,
    max_key: &'static str,
    open: AtomicUsize,
}

impl ListenerQuota {
    /// A quota of `max` connections for the listener `name`. `max_key` is the key to change, for the log.
    pub fn new(name: impl Into<String>, max: usize, max_key: &'static str) -> Arc<Self> {
        Arc::new(Self { name: name.into(), max, max_key, open: AtomicUsize::new(0) })
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
}

const REFUSALS: usize = 3;

/// Counts the open connections of a process.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    open: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    log: [Mutex<LogThrottle>; REFUSALS],
}

impl Admission {
    /// Nothing is open.
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            open: AtomicUsize::new(0),
            by_address: Mutex::default(),
            log: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Counts a connection of `peer`, unless a limit is reached. Logs refusals.
    ///
    /// # Errors
    /// The limit that refuses it. The caller closes the socket.
    pub fn admit(self: &Arc<Self>, quota: &Arc<ListenerQuota>, peer: IpAddr) -> Result<Permit, Refusal> {
        self.count(quota, peer).inspect_err(|refusal| {
            self.log_refusal(*refusal, &quota.name, (quota.max, quota.max_key), peer);
        })
    }

    /// Counts a connection of `peer` toward the limit per address only, for a listener `name` that bounds the number
    /// of its connections itself. Logs refusals.
    ///
    /// # Errors
    /// [`Refusal::Address`]. The caller closes the socket.
    pub fn admit_address(self: &Arc<Self>, name: &str, peer: IpAddr) -> Result<AddressPermit, Refusal> {
        self.count_address(peer).inspect_err(|refusal| self.log_refusal(*refusal, name, (0, ""), peer))
    }

    fn count(self: &Arc<Self>, quota: &Arc<ListenerQuota>, peer: IpAddr) -> Result<Permit, Refusal> {
        if !try_add(&self.open, self.limits.connections_max) {
            return Err(Refusal::Process);
        }
        // From here on the permit takes back what has been counted, also if a later limit refuses.
        let mut permit = Permit { admission: Arc::clone(self), quota: None, peer, address: None };
        if !try_add(&quota.open, quota.max) {
            return Err(Refusal::Listener);
        }
        permit.quota = Some(Arc::clone(quota));
        permit.address = Some(self.count_address(peer)?);
        Ok(permit)
    }

    fn count_address(self: &Arc<Self>, peer: IpAddr) -> Result<AddressPermit, Refusal> {
        let max = self.limits.per_address_max;
        if max == 0 {
            return Ok(AddressPermit(None));
        }
        let address = client_address(peer);
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let open = by_address.entry(address).or_insert(0);
        if *open >= max {
            return Err(Refusal::Address);
        }
        *open += 1;
        drop(by_address);
        Ok(AddressPermit(Some((Arc::clone(self), address))))
    }

    /// `listener` is the limit of the listener and its key.
    fn log_refusal(&self, refusal: Refusal, name: &str, listener: (usize, &str), peer: IpAddr) {
        let log = &self.log[refusal as usize];
        let count = log.lock().unwrap_or_else(PoisonError::into_inner).count(Instant::now());
        let Some(count) = count else { return };
        let (max, max_key) = listener;
        let AdmissionLimits { connections_max, connections_hint, per_address_max, per_address_key } =
            &self.limits;
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
        }
    }
}

/// Adds one unless that exceeds `max`.
fn try_add(count: &AtomicUsize, max: usize) -> bool {
    let add = |open: usize| (open < max).then_some(open + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

/// What identifies a client among addresses.
fn client_address(peer: IpAddr) -> IpAddr {
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
    peer: IpAddr,
    address: Option<AddressPermit>,
}

impl Permit {
    /// Address of the peer.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(quota) = &self.quota {
            quota.open.fetch_sub(1, Ordering::Relaxed);
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

/// Lets one log line pass per interval, and counts what it stands for.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    count: u64,
}

impl LogThrottle {
    /// Counts an occurrence. Returns the number since the last line if a line is due.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
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
        let first = admission.admit(&quota, ip("10.0.0.1")).unwrap();
        assert_eq!(admission.admit(&quota, ip("10.0.0.2")).unwrap_err(), Refusal::Listener);
        assert_eq!(admission.admit(&other, ip("10.0.0.1")).unwrap_err(), Refusal::Address);
        let second = admission.admit(&other, ip("10.0.0.2")).unwrap();
        assert_eq!(admission.admit(&other, ip("10.0.0.3")).unwrap_err(), Refusal::Process);
        drop(first);
        let third = admission.admit(&quota, ip("10.0.0.1")).unwrap();
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
        let second = admission.admit(&quota, ip("10.0.0.1")).unwrap();
        assert_eq!(admission.admit(&quota, ip("10.0.0.1")).unwrap_err(), Refusal::Address);
        assert_eq!(admission.admit_address("b", ip("10.0.0.1")).unwrap_err(), Refusal::Address);
        let other = admission.admit_address("b", ip("10.0.0.2")).unwrap();
        assert_eq!(admission.open.load(Ordering::Relaxed), 1, "the others do not count in the process");
        drop((first, second, other));
        assert!(admission.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn ipv6_addresses_count_by_their_prefix_and_mapped_ones_as_ipv4() {
        let admission = admission(9, 1);
        let quota = ListenerQuota::new("a", 9, "a.max");
        let _first = admission.admit(&quota, ip("2001:db8::1")).unwrap();
        assert_eq!(admission.admit(&quota, ip("2001:db8::2:3")).unwrap_err(), Refusal::Address);
        let _other = admission.admit(&quota, ip("2001:db8:0:1::1")).unwrap();
        let _v4 = admission.admit(&quota, ip("10.0.0.1")).unwrap();
        assert_eq!(admission.admit(&quota, ip("::ffff:10.0.0.1")).unwrap_err(), Refusal::Address);
    }

    #[test]
    fn the_log_gets_one_line_per_interval_with_the_number_of_occurrences() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(throttle.count(start), Some(1));
        assert_eq!(throttle.count(start + LOG_INTERVAL / 2), None);
        assert_eq!(throttle.count(start + LOG_INTERVAL), Some(2));
        assert_eq!(throttle.count(start + LOG_INTERVAL * 2), Some(1));
    }
}
