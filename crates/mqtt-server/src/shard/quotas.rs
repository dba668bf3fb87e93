//! Quotas of publishers: a client that exceeds its quota is not read until it may publish again, or gets an error, as
//! `mqtt.quota_policy` says.
//!
//! To wait is the default because it loses nothing and the client needs no code for it: TCP holds it back. A refusal
//! needs a packet that can carry a reason, so QoS 0 messages are dropped, those of MQTT 5 get an error, and a QoS 2
//! exchange that has begun waits in any case.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_quota::{ClientQuotas, MQTT_KEYS, QuotaKey};
use mainstem_runtime::{ConnId, Io};

use super::Shard;
use crate::access::Access;
use crate::broker_state::Mail;
use crate::config::QuotaPolicy;
use crate::handled::{Handled, Next, ProtocolError};

/// Longest time until a client that waits is looked at again, ms: its quota may have changed.
const PAUSE_MS_MAX: u64 = 1_000;

impl Shard {
    /// Finds the quotas of a connected client.
    pub(super) fn refresh_quotas(&mut self, io: &Io<'_, Mail>, conn: ConnId, slot: u32) {
        let session = self.host.session(slot);
        let user = session.access().map(Access::principal).and_then(|principal| principal.user());
        let user = user.map(|user| &**user);
        let quotas = self.shared.security.quotas((user, session.client_id()), MQTT_KEYS, io.clock.now_ms);
        self.connections.set_quotas(conn, quotas);
    }

    /// Counts a PUBLISH of a client with quotas. Returns how to continue without it, if it exceeds one.
    pub(super) fn check_quotas(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Option<Handled> {
        let now_ms = io.clock.now_ms;
        let quotas = self.connections.quotas(conn)?;
        let bytes = publish.topic.len() + publish.payload.len();
        let (wait_ms, key) = take(quotas, usize::from(self.me), bytes as u64, now_ms).err()?;
        let session = self.host.session(slot);
        let is_v5 = session.version() == Version::V5;
        let can_refuse = match publish.qos {
            QoS::AtMostOnce => true,
            QoS::AtLeastOnce => is_v5,
            // An exchange that has begun must not end with an error.
            QoS::ExactlyOnce => is_v5 && !session.has_received(publish.packet_id),
        };
        match self.config().quota_policy {
            QuotaPolicy::Refuse if can_refuse => {
                self.shared.security.note_refused(key);
                self.log_quota(now_ms, slot, key, "its message is refused");
                self.publisher.note_over_quota();
                None
            }
            QuotaPolicy::Disconnect => {
                self.shared.security.note_refused(key);
                let what = "its publish quota is exceeded (mqtt.quota_policy)";
                Some(Err(ProtocolError::new(ReasonCode::MessageRateTooHigh, what)))
            }
            QuotaPolicy::Wait | QuotaPolicy::Refuse => {
                if self.connections.pause(conn, wait_ms, now_ms, io.peer_has_closed(conn)) {
                    self.shared.security.note_throttled(key, wait_ms);
                    self.log_quota(now_ms, slot, key, &format!("it is not read for {wait_ms} ms"));
                }
                Some(Ok(Next::Pause(wait_ms.min(PAUSE_MS_MAX) as u32)))
            }
        }
    }

    fn log_quota(&mut self, now_ms: u64, slot: u32, key: QuotaKey, what: &str) {
        if self.quota_log.is_due(now_ms) {
            let client_id = Arc::clone(self.host.session(slot).client_id());
            log::info!("client {client_id:?}: the quota {key} is exceeded, {what}");
        }
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
