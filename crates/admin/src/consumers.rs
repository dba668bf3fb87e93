//! Consumer ids of HTTP clients, and which receive request of a named consumer is the newest.
//!
//! A consumer without a name gets a new id for each request. A consumer with a name keeps its id, and may send a
//! request while an older one of its waits: the queue then ends the older one, whose end must not stop the newer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mainstem_queue_core::GroupName;

/// Set in the consumer ids of this crate. No other protocol uses ids with this bit.
const HTTP_CONSUMER: u64 = 1 << 63;
/// Set in the ids of consumers with a name.
const NAMED_CONSUMER: u64 = 1 << 62;

/// The consumers that receive over HTTP.
#[derive(Default)]
pub(crate) struct Consumers {
    next_request: AtomicU64,
    name_hasher: RandomState,
    /// Newest receive request of each named consumer that has one in flight, by consumer id.
    newest_request: Mutex<HashMap<u64, u64>>,
}

/// Identifies one receive request of a consumer.
#[derive(Clone, Copy)]
pub(crate) struct ReceiveId {
    pub(crate) consumer: u64,
    request: u64,
}

impl ReceiveId {
    pub(crate) fn is_named(self) -> bool {
        self.consumer & NAMED_CONSUMER != 0
    }
}

impl Consumers {
    /// Begins a receive request, which supersedes an older one of a consumer with the same name.
    pub(crate) fn begin(&self, queue: &str, group: &GroupName, name: Option<&str>) -> ReceiveId {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let hash = |name| self.name_hasher.hash_one((queue, group, name)) >> 2 | NAMED_CONSUMER;
        let consumer = name.map_or(request, hash) | HTTP_CONSUMER;
        if name.is_some() {
            self.lock().insert(consumer, request);
        }
        ReceiveId { consumer, request }
    }

    /// Ends a receive request. Returns `false` if a newer one of the same consumer has superseded it.
    pub(crate) fn end(&self, id: ReceiveId) -> bool {
        let mut newest_request = self.lock();
        let newest = newest_request.get(&id.consumer).copied();
        if newest == Some(id.request) {
            newest_request.remove(&id.consumer);
        }
        newest.is_none_or(|newest| newest == id.request)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.newest_request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
