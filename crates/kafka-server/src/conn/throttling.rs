//! The quotas of connections: finds those of one, mutes it, and says so in the log and in counters.

use mainstem_quota::{KAFKA_KEYS, QuotaKey};
use mainstem_runtime::{ConnId, Io};

use super::Connections;
use crate::conn_quotas::begin_request;
use crate::environment::Environment;
use crate::fetch_job::{Fetch, Part};
use crate::shard_message::RequestContext;
use crate::timer::Timer;

impl Connections {
    /// Finds the quotas of a connection whose client id, or users and rules, have changed.
    ///
    /// # Errors
    /// Why the connection must close: its client id is banned.
    pub(crate) fn refresh_quotas<M>(
        &mut self,
        env: &Environment,
        io: &Io<'_, M>,
        id: ConnId,
    ) -> Result<(), &'static str> {
        let conn = self.get_mut(id).ok_or("it is closed")?;
        conn.quotas.epoch = conn.grants.epoch;
        let security = env.shared().security().filter(|_| conn.log_in.is_complete());
        let Some(security) = security else { return Ok(()) };
        let published = security.host.published();
        let state = published.state();
        let client_id = conn.client_id.as_deref().unwrap_or("");
        let user = conn.log_in.session().and_then(|session| session.identity.principal.user());
        let user = user.map(|user| &**user);
        let now_ms = io.clock.now_ms;
        conn.quotas.quotas = published.client_quotas(&state, (user, client_id), KAFKA_KEYS, now_ms);
        if state.bans().of_client_id(client_id, io.clock.unix_ms).is_none() {
            return Ok(());
        }
        conn.note_banned(security);
        Err("its client id is banned")
    }

    /// Applies the quotas of a connection to a request of this size that begins.
    pub(crate) fn throttle_request<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        call: &mut RequestContext,
        bytes: usize,
    ) {
        let Some(quotas) = &call.quotas else { return };
        let (throttle_ms, key) = begin_request(quotas, env.me(), (call.api_key, bytes), io.clock.now_ms);
        if throttle_ms > 0 {
            call.throttle(throttle_ms);
            self.mute(env, io, call.caller.conn, (throttle_ms, key));
        }
    }

    /// Counts the records of a fetch that is answered, and throttles the client.
    pub(crate) fn throttle_fetch<M>(&mut self, env: &mut Environment, io: &mut Io<'_, M>, fetch: &mut Fetch) {
        let Some(quotas) = &fetch.call.quotas else { return };
        let Some(bucket) = quotas.get(QuotaKey::ConsumerByteRate) else { return };
        let bytes: usize = fetch.parts.iter().map(Part::fetched_bytes).sum();
        let throttle_ms = bucket.take(env.me(), bytes as u64, io.clock.now_ms);
        if throttle_ms > 0 {
            fetch.call.throttle(throttle_ms);
            self.mute(env, io, fetch.call.caller.conn, (throttle_ms, QuotaKey::ConsumerByteRate));
        }
    }

    /// Begins no further request of a connection for this time.
    pub(crate) fn mute<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        id: ConnId,
        (throttle_ms, key): (u64, QuotaKey),
    ) {
        let now_ms = io.clock.now_ms;
        let Some(conn) = self.get_mut(id) else { return };
        conn.quotas.mute(throttle_ms, now_ms, key);
        io.set_timer(now_ms + throttle_ms, Timer::Unmute(id.slot() as u32).token());
        let client_id = conn.client_id.clone().unwrap_or_default();
        if let Some(security) = env.shared().security() {
            security.host.published().buckets().note_throttled(key, throttle_ms);
        }
        if env.should_log(now_ms) {
            log::info!(
                "kafka client {client_id:?} is throttled for {throttle_ms} ms: its quota {key} is exceeded"
            );
        }
    }

    /// Shortens the muting of a connection after users and rules have changed: its quota may have been raised.
    ///
    /// # Errors
    /// Why the connection must close.
    pub(super) fn renew_muting<M>(
        &mut self,
        env: &Environment,
        io: &mut Io<'_, M>,
        id: ConnId,
    ) -> Result<(), &'static str> {
        self.refresh_grants(env, io, id)?;
        self.refresh_quotas(env, io, id)?;
        let now_ms = io.clock.now_ms;
        match self.get_mut(id).and_then(|conn| conn.quotas.shorten_muting(now_ms)) {
            Some(0) => self.mark_ready(id),
            Some(wait_ms) => io.set_timer(now_ms + wait_ms, Timer::Unmute(id.slot() as u32).token()),
            None => {}
        }
        Ok(())
    }

    /// A connection in this slot may not be muted any more.
    pub(crate) fn unmute(&mut self, slot: u32) {
        if let Some(id) = self.open_in(slot as usize) {
            self.mark_ready(id);
        }
    }
}
