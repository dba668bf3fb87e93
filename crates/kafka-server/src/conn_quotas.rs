//! The quotas of a connection, and until when it is throttled.
//!
//! A request is always served, and its response says how long the client is throttled because of it. For that time the
//! broker does not begin another request of the connection (KIP-219).

use std::sync::Arc;

use mainstem_kafka::{Message, Request, frame, put_response_header};
use mainstem_quota::{ClientQuotas, QuotaKey};

use crate::environment::Environment;
use crate::shard_message::RequestContext;

/// Longest throttling because of the share of time, ms: a window, as in Kafka.
const REQUEST_THROTTLE_MS_MAX: u64 = 1_000;
/// Longest time until a throttled connection is looked at again, ms.
const PAUSE_MS_MAX: u64 = 1_000;
const PRODUCE: i16 = 0;
const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;
const CREATE_PARTITIONS: i16 = 37;

/// The quotas of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnQuotas {
    /// The state of users and rules that they come from; `None` before the first request.
    pub(crate) epoch: Option<u64>,
    /// `None` without any.
    pub(crate) quotas: Option<Arc<ClientQuotas>>,
    muted_until_ms: u64,
    /// The quota because of which it is muted.
    muted_by: Option<QuotaKey>,
}

impl ConnQuotas {
    /// Whether no request may begin now.
    #[inline]
    pub(crate) fn is_muted(&self, now_ms: u64) -> bool {
        now_ms < self.muted_until_ms
    }

    /// How long to read nothing of the connection, ms.
    pub(crate) fn pause_ms(&self, now_ms: u64) -> u32 {
        self.muted_until_ms.saturating_sub(now_ms).min(PAUSE_MS_MAX) as u32
    }

    /// Begins no further request for this time, because of this quota.
    pub(crate) fn mute(&mut self, throttle_ms: u64, now_ms: u64, key: QuotaKey) {
        if now_ms + throttle_ms > self.muted_until_ms {
            self.muted_until_ms = now_ms + throttle_ms;
            self.muted_by = Some(key);
        }
    }

    /// Mutes no longer than the quota demands, which may have been raised or deleted. Returns for how long, ms, if that
    /// is shorter than before.
    pub(crate) fn shorten_muting(&mut self, now_ms: u64) -> Option<u64> {
        let bucket = self.muted_by.and_then(|key| self.quotas.as_ref()?.get(key));
        let wait_ms = bucket.map_or(0, |bucket| bucket.wait_ms(now_ms));
        (now_ms + wait_ms < self.muted_until_ms).then(|| {
            self.muted_until_ms = now_ms + wait_ms;
            wait_ms
        })
    }
}

/// What the quotas of a client say about a request that begins: how long to throttle, ms, and because of which.
pub(crate) fn begin_request(
    quotas: &ClientQuotas,
    shard: usize,
    (api_key, bytes): (i16, usize),
    now_ms: u64,
) -> (u64, QuotaKey) {
    let of_api = match api_key {
        PRODUCE => quotas.get(QuotaKey::ProducerByteRate).map_or(0, |b| b.take(shard, bytes as u64, now_ms)),
        CREATE_TOPICS | DELETE_TOPICS | CREATE_PARTITIONS => {
            quotas.get(QuotaKey::ControllerMutationRate).map_or(0, |bucket| bucket.wait_ms(now_ms))
        }
        _ => 0,
    };
    let of_time = quotas.get(QuotaKey::RequestPercentage).map_or(0, |bucket| bucket.wait_ms(now_ms));
    let of_time = of_time.min(REQUEST_THROTTLE_MS_MAX);
    let key = match api_key {
        _ if of_time >= of_api => QuotaKey::RequestPercentage,
        PRODUCE => QuotaKey::ProducerByteRate,
        _ => QuotaKey::ControllerMutationRate,
    };
    (of_api.max(of_time), key)
}

/// Counts the work that a request has caused, units.
pub(crate) fn count_request_time(quotas: &ClientQuotas, shard: usize, units: u64, now_ms: u64) {
    if let Some(bucket) = quotas.get(QuotaKey::RequestPercentage) {
        bucket.take(shard, units, now_ms);
    }
}

/// Counts partitions that a request creates or deletes. Returns false if the quota of the client forbids it.
pub(crate) fn may_mutate(
    env: &mut Environment,
    call: &mut RequestContext,
    partitions: usize,
    now_ms: u64,
) -> bool {
    let is_allowed = call.may_mutate(env.me(), partitions, now_ms);
    if !is_allowed {
        let key = QuotaKey::ControllerMutationRate;
        if let Some(security) = env.shared().security() {
            security.host.published().buckets().note_refused(key);
        }
        if env.should_log(now_ms) {
            let client_id = &call.client_id;
            log::info!(
                "kafka client {client_id:?}: a change of topics is refused: its quota {key} is exceeded"
            );
        }
    }
    is_allowed
}

impl RequestContext {
    /// Encodes a response, which says how long the client is throttled.
    pub(crate) fn encode<M: Message>(&self, response: &M, into: &mut Vec<u8>) {
        if self.throttle_ms == 0 {
            return response.encode(into, self.version);
        }
        let mut throttled = response.clone();
        if let Some(throttle_time_ms) = throttled.throttle_time_ms() {
            *throttle_time_ms = i32::try_from(self.throttle_ms).unwrap_or(i32::MAX);
        }
        throttled.encode(into, self.version);
    }

    /// Encodes a response in its frame.
    pub(crate) fn encode_frame<R: Request>(&self, response: &R::Response) -> Vec<u8> {
        let mut answer = Vec::new();
        let begun = frame::begin_frame(&mut answer);
        put_response_header(self.correlation_id, self.api_key, self.version, &mut answer);
        self.encode(response, &mut answer);
        frame::end_frame(&mut answer, begun, 0);
        answer
    }

    /// Says in the response that the client is throttled.
    pub(crate) fn throttle(&mut self, throttle_ms: u64) {
        self.throttle_ms = self.throttle_ms.max(u32::try_from(throttle_ms).unwrap_or(u32::MAX));
    }

    /// Counts partitions that the request creates or deletes (KIP-599). If the client knows the error and has exceeded
    /// its quota, they must not be created or deleted: returns false.
    fn may_mutate(&mut self, shard: usize, partitions: usize, now_ms: u64) -> bool {
        let Some(quotas) = self.quotas.clone() else { return true };
        let Some(bucket) = quotas.get(QuotaKey::ControllerMutationRate) else { return true };
        let first_strict = match self.api_key {
            CREATE_TOPICS => 6,
            DELETE_TOPICS => 5,
            _ => 3,
        };
        let is_strict = self.version >= first_strict;
        if is_strict && let Err(wait_ms) = bucket.try_take(shard, partitions as u64, now_ms) {
            self.throttle(wait_ms);
            return false;
        }
        let wait_ms =
            if is_strict { bucket.wait_ms(now_ms) } else { bucket.take(shard, partitions as u64, now_ms) };
        self.throttle(wait_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_throttling_is_not_cut_short() {
        let mut quotas = ConnQuotas::default();
        assert!(!quotas.is_muted(0));
        quotas.mute(5_000, 100, QuotaKey::ProducerByteRate);
        quotas.mute(10, 200, QuotaKey::ConsumerByteRate);
        assert!(quotas.is_muted(5_099) && !quotas.is_muted(5_100));
        assert_eq!((quotas.pause_ms(100), quotas.pause_ms(5_050)), (1_000, 50));
    }
}
