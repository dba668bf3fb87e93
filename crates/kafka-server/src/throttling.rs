//! Carries out quotas: finds those of a connection, mutes it, and says so in the log and in counters.

use std::sync::Arc;

use mainstem_quota::{ClientQuotas, KAFKA_KEYS, QuotaKey};
use mainstem_runtime::{ConnId, Io};

use crate::conn_quotas::begin_request;
use crate::fetch_job::{Fetch, Part};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::timer::Timer;

impl Shard {
    /// Finds the quotas of a connection whose client id, or users and rules, have changed. Returns false if it was
    /// closed because its client id is banned.
    pub(crate) fn refresh_quotas(&mut self, io: &mut Io<'_, Mail>, id: ConnId) -> bool {
        let shared = Arc::clone(self.env.shared());
        let Some(conn) = self.conns.get_mut(id) else { return false };
        conn.quotas.epoch = conn.grants.epoch;
        let Some(security) = shared.security().filter(|_| conn.log_in.is_complete()) else { return true };
        let published = security.host.published();
        let state = published.state();
        let client_id = conn.client_id.as_deref().unwrap_or("");
        let user = conn.log_in.session().and_then(|session| session.identity.principal.user());
        let user = user.map(|user| &**user);
        let now_ms = io.clock.now_ms;
        conn.quotas.quotas = published.client_quotas(&state, (user, client_id), KAFKA_KEYS, now_ms);
        if state.bans().of_client_id(client_id, io.clock.unix_ms).is_none() {
            return true;
        }
        self.refuse(io, id, "its client id is banned");
        false
    }

    /// Applies the quotas of a connection to a request of this size that begins.
    pub(crate) fn throttle_request(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: &mut RequestContext,
        bytes: usize,
    ) {
        let Some(quotas) = &call.quotas else { return };
        let (throttle_ms, key) = begin_request(quotas, self.env.me(), (call.api_key, bytes), io.clock.now_ms);
        if throttle_ms > 0 {
            call.throttle(throttle_ms);
            self.mute(io, call.caller.conn, throttle_ms, key);
        }
    }

    /// Counts the work that a request has caused.
    pub(crate) fn count_request_time(&self, io: &Io<'_, Mail>, quotas: &ClientQuotas, charged_before: u64) {
        if let Some(bucket) = quotas.get(QuotaKey::RequestPercentage) {
            bucket.take(self.env.me(), io.charged().saturating_sub(charged_before), io.clock.now_ms);
        }
    }

    /// Counts partitions that a request creates or deletes. Returns false if the client's quota forbids it.
    pub(crate) fn may_mutate(
        &mut self,
        io: &Io<'_, Mail>,
        call: &mut RequestContext,
        partitions: usize,
    ) -> bool {
        let is_allowed = call.may_mutate(self.env.me(), partitions, io.clock.now_ms);
        if !is_allowed {
            let key = QuotaKey::ControllerMutationRate;
            if let Some(security) = self.env.shared().security() {
                security.host.published().buckets().note_refused(key);
            }
            if self.env.should_log(io.clock.now_ms) {
                let client_id = &call.client_id;
                log::info!(
                    "kafka client {client_id:?}: a change of topics is refused: its quota {key} is exceeded"
                );
            }
        }
        is_allowed
    }

    /// Counts the records of a fetch that is answered, and throttles the client.
    pub(crate) fn throttle_fetch(&mut self, io: &mut Io<'_, Mail>, fetch: &mut Fetch) {
        let Some(quotas) = &fetch.call.quotas else { return };
        let Some(bucket) = quotas.get(QuotaKey::ConsumerByteRate) else { return };
        let bytes: usize = fetch.parts.iter().map(Part::fetched_bytes).sum();
        let throttle_ms = bucket.take(self.env.me(), bytes as u64, io.clock.now_ms);
        if throttle_ms > 0 {
            fetch.call.throttle(throttle_ms);
            self.mute(io, fetch.call.caller.conn, throttle_ms, QuotaKey::ConsumerByteRate);
        }
    }

    /// Begins no further request of a connection for this time.
    pub(crate) fn mute(&mut self, io: &mut Io<'_, Mail>, id: ConnId, throttle_ms: u64, key: QuotaKey) {
        let now_ms = io.clock.now_ms;
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.quotas.mute(throttle_ms, now_ms);
        io.set_timer(now_ms + throttle_ms, Timer::Unmute(id.slot() as u32).token());
        let client_id = conn.client_id.clone().unwrap_or_default();
        if let Some(security) = self.env.shared().security() {
            security.host.published().buckets().note_throttled(key, throttle_ms);
        }
        if self.env.should_log(now_ms) {
            log::info!(
                "kafka client {client_id:?} is throttled for {throttle_ms} ms: its quota {key} is exceeded"
            );
        }
    }

    /// A connection in this slot may not be muted any more.
    pub(crate) fn unmute(&mut self, slot: u32) {
        if let Some(id) = self.conns.open_in(slot as usize) {
            self.conns.mark_ready(id);
        }
    }
}
