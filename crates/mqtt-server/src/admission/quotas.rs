//! Quotas of publishers: a client that exceeds its quota is not read until it may publish again, or gets an error, as
//! `mqtt.quota_policy` says.
//!
//! To wait is the default because it loses nothing and the client needs no code for it: TCP holds it back. A refusal
//! needs a packet that can carry a reason, so QoS 0 messages are dropped, those of MQTT 5 get an error, and a QoS 2
//! exchange that has begun waits in any case.

use mainstem_mqtt::{Publish, QoS, Version};
use mainstem_quota::{ClientQuotas, QuotaKey};

use crate::config::QuotaPolicy;
use crate::session::Session;

/// What becomes of a PUBLISH of a client with quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaOutcome {
    /// It is counted, and handled.
    Within,
    /// It waits, and all that follows it.
    Wait { key: QuotaKey, wait_ms: u64 },
    /// It gets an error, or is dropped.
    Refuse { key: QuotaKey },
    /// The connection ends.
    Disconnect { key: QuotaKey },
}

/// Counts a PUBLISH, and decides what becomes of it.
pub(super) fn decide(
    quotas: &ClientQuotas,
    shard: usize,
    policy: QuotaPolicy,
    session: &Session,
    publish: &Publish<'_>,
    now_ms: u64,
) -> QuotaOutcome {
    let bytes = publish.topic.len() + publish.payload.len();
    let Err((wait_ms, key)) = take(quotas, shard, bytes as u64, now_ms) else { return QuotaOutcome::Within };
    match policy {
        QuotaPolicy::Refuse if can_refuse(session, publish) => QuotaOutcome::Refuse { key },
        QuotaPolicy::Disconnect => QuotaOutcome::Disconnect { key },
        QuotaPolicy::Wait | QuotaPolicy::Refuse => QuotaOutcome::Wait { key, wait_ms },
    }
}

fn can_refuse(session: &Session, publish: &Publish<'_>) -> bool {
    let is_v5 = session.version() == Version::V5;
    match publish.qos {
        QoS::AtMostOnce => true,
        QoS::AtLeastOnce => is_v5,
        // An exchange that has begun must not end with an error.
        QoS::ExactlyOnce => is_v5 && !session.has_received(publish.packet_id),
    }
}

/// Takes a message from the buckets of a client, unless one is in debt: then says how long.
fn take(quotas: &ClientQuotas, shard: usize, bytes: u64, now_ms: u64) -> Result<(), (u64, QuotaKey)> {
    let of_bytes = quotas.get(QuotaKey::PublishByteRate);
    let wait_ms = of_bytes.map_or(0, |bucket| bucket.wait_ms(now_ms));
    if wait_ms > 0 {
        return Err((wait_ms, QuotaKey::PublishByteRate));
    }
    if let Some(bucket) = quotas.get(QuotaKey::PublishRate) {
        bucket.try_take(shard, 1, now_ms).map_err(|wait_ms| (wait_ms, QuotaKey::PublishRate))?;
    }
    if let Some(bucket) = of_bytes {
        bucket.take(shard, bytes, now_ms);
    }
    Ok(())
}
