//! The buckets of all clients, which those of a user or client id share, and counters for metrics.
//!
//! A client gets its buckets when it connects and when quotas change. A bucket is kept until it is full again, so that
//! a client cannot empty it, reconnect, and find a full one.

use std::array;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::bucket::Bucket;
use crate::entity::MAX_ENTITY_NAME_BYTES;
use crate::key::QuotaKey;
use crate::table::{QuotaTable, Sharing};

/// Most buckets. Clients beyond it share one of each kind, like those with longer names than an entity may have.
pub const BUCKETS_MAX: usize = 1 << 20;
/// Most bytes of buckets, beyond which clients share one of each kind, too. All of [`BUCKETS_MAX`] have room if their
/// names have 64 bytes.
pub const BUCKET_BYTES_MAX: usize = 320 << 20;
/// Bytes of a bucket besides its names and cells: the bucket, its entry in a table that is half full, and what the
/// allocator adds.
const BUCKET_BYTES: usize = 256;
/// Buckets from which on full ones are looked for.
const PRUNE_MIN: usize = 1024;
/// Shortest time between two searches while there is no room, ms: each looks at all buckets.
const PRUNE_INTERVAL_MS: u64 = 5_000;

/// What the configuration says about buckets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketSettings {
    /// Number of shards.
    pub shards: usize,
    /// Seconds whose units a Kafka client may use at once: `quota.window.num` times `quota.window.size.seconds`.
    pub kafka_window_s: f64,
    /// The same of other clients.
    pub burst_s: f64,
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self { shards: 0, kafka_window_s: 10.0, burst_s: 1.0 }
    }
}

/// Who shares a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BucketId {
    key: QuotaKey,
    user: Option<Arc<str>>,
    client_id: Option<Arc<str>>,
}

/// The buckets of a client.
#[derive(Debug, Default)]
pub struct ClientQuotas([Option<Arc<Bucket>>; QuotaKey::ALL.len()]);

/// What has been throttled and refused because of quotas of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often a client had to wait.
    pub throttled: u64,
    /// How long all had to wait, ms.
    pub throttled_ms: u64,
    /// How many messages, requests or connections were refused.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    throttled: AtomicU64,
    throttled_ms: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    buckets: HashMap<BucketId, Arc<Bucket>>,
    /// Bytes of all buckets.
    bytes: usize,
    prune_at: usize,
    /// When full buckets were last looked for, ms; `None` for never.
    pruned_ms: Option<u64>,
}

/// Counts the bytes of all buckets in the memory of the process.
struct Meter(Box<dyn Fn(usize) + Send + Sync>);

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

/// The buckets of all clients.
#[derive(Debug)]
pub struct Buckets {
    settings: OnceLock<BucketSettings>,
    known: Mutex<Known>,
    meter: OnceLock<Meter>,
    counters: [Counters; QuotaKey::ALL.len()],
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            settings: OnceLock::new(),
            known: Mutex::default(),
            meter: OnceLock::new(),
            counters: array::from_fn(|_| Counters::default()),
        }
    }
}

impl ClientQuotas {
    /// The bucket of a kind, if the client has such a quota.
    #[inline]
    pub fn get(&self, key: QuotaKey) -> Option<&Bucket> {
        self.0[key.index()].as_deref()
    }
}

impl Buckets {
    /// Sets what the configuration says, once and before clients connect.
    pub fn configure(&self, settings: BucketSettings) {
        let is_first = self.settings.set(settings).is_ok();
        debug_assert!(is_first, "set once");
    }

    /// Calls `count` with the bytes of all buckets whenever one is added, perhaps after others were forgotten. To be
    /// called once.
    pub fn count_memory(&self, count: Box<dyn Fn(usize) + Send + Sync>) {
        let is_first = self.meter.set(Meter(count)).is_ok();
        debug_assert!(is_first, "set once");
    }

    fn settings(&self) -> BucketSettings {
        self.settings.get().copied().unwrap_or_default()
    }

    /// The buckets of a client, of these kinds; `None` if it has no such quota.
    pub fn resolve(
        &self,
        table: &QuotaTable,
        (user, client_id): (&str, &str),
        keys: &[QuotaKey],
        now_ms: u64,
    ) -> Option<Arc<ClientQuotas>> {
        let candidates = table.candidates(user, client_id);
        let mut quotas = ClientQuotas::default();
        for key in keys {
            let quota = candidates.iter().find_map(|(known, sharing)| Some((known.get(*key)?, *sharing)));
            let Some((rate, sharing)) = quota else { continue };
            let part = |name: &str, is_shared: bool| is_shared.then(|| name.into());
            let id = BucketId {
                key: *key,
                user: part(user, sharing != Sharing::ClientId),
                client_id: part(client_id, sharing != Sharing::User),
            };
            quotas.0[key.index()] = Some(self.bucket(id, rate * key.units(), now_ms));
        }
        quotas.0.iter().any(Option::is_some).then(|| Arc::new(quotas))
    }

    fn bucket(&self, mut id: BucketId, rate: f64, now_ms: u64) -> Arc<Bucket> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long =
            |name: &Option<Arc<str>>| name.as_ref().is_some_and(|name| name.len() > MAX_ENTITY_NAME_BYTES);
        let BucketSettings { shards, kafka_window_s, burst_s } = self.settings();
        if is_long(&id.user) || is_long(&id.client_id) || !known.has_room(&id, shards, now_ms) {
            id = BucketId { key: id.key, user: None, client_id: None };
        }
        let burst_s = if id.key.has_kafka_window() { kafka_window_s } else { burst_s };
        let (cells, bytes) = (id.cells(shards), id.bytes(shards));
        let Known { buckets, bytes: all, .. } = &mut *known;
        let bucket = buckets.entry(id).or_insert_with_key(|id| {
            *all += bytes;
            if let Some(Meter(count)) = self.meter.get() {
                count(*all);
            }
            Arc::new(Bucket::new(id.key, rate, burst_s, cells))
        });
        bucket.set_rate(rate, now_ms);
        Arc::clone(bucket)
    }

    /// A client has to wait because of a quota.
    pub fn note_throttled(&self, key: QuotaKey, wait_ms: u64) {
        let counters = &self.counters[key.index()];
        counters.throttled.fetch_add(1, Ordering::Relaxed);
        counters.throttled_ms.fetch_add(wait_ms, Ordering::Relaxed);
    }

    /// Something was refused because of a quota.
    pub fn note_refused(&self, key: QuotaKey) {
        self.counters[key.index()].refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What has been throttled and refused because of quotas of a kind.
    pub fn counts(&self, key: QuotaKey) -> Counts {
        let Counters { throttled, throttled_ms, refused } = &self.counters[key.index()];
        Counts {
            throttled: throttled.load(Ordering::Relaxed),
            throttled_ms: throttled_ms.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
        }
    }
}

impl Known {
    /// Whether a bucket exists or may be added. Forgets full ones that nobody has, at times.
    fn has_room(&mut self, id: &BucketId, shards: usize, now_ms: u64) -> bool {
        if self.buckets.contains_key(id) {
            return true;
        }
        let bytes = id.bytes(shards);
        let is_due = if self.fits(bytes) {
            self.buckets.len() >= self.prune_at.max(PRUNE_MIN)
        } else {
            self.pruned_ms.is_none_or(|pruned_ms| now_ms.abs_diff(pruned_ms) >= PRUNE_INTERVAL_MS)
        };
        if is_due {
            self.prune(shards, now_ms);
        }
        self.fits(bytes)
    }

    fn fits(&self, bytes: usize) -> bool {
        self.buckets.len() < BUCKETS_MAX && self.bytes + bytes <= BUCKET_BYTES_MAX
    }

    /// Forgets full buckets that nobody has.
    fn prune(&mut self, shards: usize, now_ms: u64) {
        self.pruned_ms = Some(now_ms);
        self.buckets.retain(|id, bucket| {
            let is_needed = Arc::strong_count(bucket) > 1 || !bucket.is_full(now_ms);
            if !is_needed {
                self.bytes -= id.bytes(shards);
            }
            is_needed
        });
        self.prune_at = (2 * self.buckets.len()).min(BUCKETS_MAX);
    }
}

impl BucketId {
    /// Cells of the bucket: a client id is mostly on one shard.
    fn cells(&self, shards: usize) -> usize {
        if self.client_id.is_some() { 0 } else { shards }
    }

    fn bytes(&self, shards: usize) -> usize {
        let name = |name: &Option<Arc<str>>| name.as_ref().map_or(0, |name| name.len());
        BUCKET_BYTES + name(&self.user) + name(&self.client_id) + self.cells(shards) * size_of::<AtomicU64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{Entity, Name};
    use crate::key::MQTT_KEYS;
    use crate::table::Quotas;

    fn table(entity: &Entity, rate: f64) -> QuotaTable {
        let (mut table, mut quotas) = (QuotaTable::default(), Quotas::default());
        quotas.set(QuotaKey::PublishRate, Some(rate));
        table.put(entity, Some(&quotas));
        table
    }

    fn take(quotas: &ClientQuotas, now_ms: u64) -> bool {
        quotas.get(QuotaKey::PublishRate).unwrap().try_take(0, 10, now_ms).is_ok()
    }

    #[test]
    fn clients_share_the_bucket_of_their_user_and_each_user_has_one() {
        let (buckets, table) = (Buckets::default(), table(&Entity::User(Name::Default), 1.0));
        let of = |user, client| buckets.resolve(&table, (user, client), MQTT_KEYS, 0).unwrap();
        assert!(take(&of("alice", "a"), 0));
        assert!(!take(&of("alice", "b"), 0));
        assert!(take(&of("bob", "a"), 0));
        assert!(of("bob", "a").get(QuotaKey::PublishByteRate).is_none());
        assert!(buckets.resolve(&QuotaTable::default(), ("alice", "a"), MQTT_KEYS, 0).is_none());
    }

    #[test]
    fn a_bucket_is_kept_until_it_is_full() {
        let (buckets, table) = (Buckets::default(), table(&Entity::ClientId(Name::Default), 1.0));
        let of = |client: &str, now_ms| buckets.resolve(&table, ("u", client), MQTT_KEYS, now_ms).unwrap();
        assert!(take(&of("debtor", 0), 0));
        for number in 0..3 * PRUNE_MIN {
            of(&number.to_string(), 1);
        }
        assert!(buckets.known.lock().unwrap().buckets.len() <= 2 * PRUNE_MIN, "full ones are forgotten");
        assert!(!take(&of("debtor", 2), 2));
        assert!(take(&of("debtor", 10_001), 10_001));
    }

    #[test]
    fn buckets_have_a_limit_in_bytes_beyond_which_clients_share_one() {
        let (buckets, table) = (Buckets::default(), table(&Entity::ClientId(Name::Default), 1.0));
        let counted = Arc::new(AtomicU64::new(0));
        let cell = Arc::clone(&counted);
        buckets.count_memory(Box::new(move |bytes| cell.store(bytes as u64, Ordering::Relaxed)));
        let counted = || counted.load(Ordering::Relaxed) as usize;
        let name = |number: usize| format!("{number:0MAX_ENTITY_NAME_BYTES$}");
        let take_once = |number: usize, now_ms: u64| {
            let quotas = buckets.resolve(&table, ("u", &name(number)), MQTT_KEYS, now_ms).unwrap();
            take(&quotas, now_ms)
        };
        // Names that have room all have a bucket of their own, in debt for the next 10 s.
        let fitting = BUCKET_BYTES_MAX / (BUCKET_BYTES + MAX_ENTITY_NAME_BYTES);
        for number in 0..fitting {
            assert!(take_once(number, 0), "{number}");
        }
        assert!(counted() <= BUCKET_BYTES_MAX);
        assert!(counted() > BUCKET_BYTES_MAX - BUCKET_BYTES - MAX_ENTITY_NAME_BYTES);
        assert!(take_once(fitting, 0), "the first of those who share");
        assert!(!take_once(fitting + 1, 0));
        assert!(!take_once(0, 0), "who has a bucket keeps it");
        assert!(take_once(fitting + 2, 20_000), "full buckets make room");
        assert_eq!(counted(), BUCKET_BYTES + MAX_ENTITY_NAME_BYTES);
    }

    #[test]
    fn clients_with_long_names_share_a_bucket() {
        let (buckets, table) = (Buckets::default(), table(&Entity::ClientId(Name::Default), 1.0));
        let long = |last: char| format!("{}{last}", "x".repeat(MAX_ENTITY_NAME_BYTES));
        let of = |client: &str| buckets.resolve(&table, ("u", client), MQTT_KEYS, 0).unwrap();
        assert!(take(&of(&long('a')), 0));
        assert!(!take(&of(&long('b')), 0));
    }

    #[test]
    fn a_changed_quota_changes_the_bucket_that_clients_have() {
        let (buckets, entity) = (Buckets::default(), Entity::User(Name::Default));
        let of = |rate| buckets.resolve(&table(&entity, rate), ("u", "c"), MQTT_KEYS, 0).unwrap();
        let quotas = of(1.0);
        assert!(take(&quotas, 0) && !take(&quotas, 8_000));
        of(100.0);
        assert!(take(&quotas, 8_000));
    }

    #[test]
    fn what_is_throttled_and_refused_is_counted_by_kind() {
        let buckets = Buckets::default();
        buckets.note_throttled(QuotaKey::PublishRate, 40);
        buckets.note_throttled(QuotaKey::PublishRate, 2);
        buckets.note_refused(QuotaKey::HttpRequestRate);
        let counts = |throttled, throttled_ms, refused| Counts { throttled, throttled_ms, refused };
        assert_eq!(buckets.counts(QuotaKey::PublishRate), counts(2, 42, 0));
        assert_eq!(buckets.counts(QuotaKey::HttpRequestRate), counts(0, 0, 1));
        assert_eq!(buckets.counts(QuotaKey::ProducerByteRate), Counts::default());
    }
}
