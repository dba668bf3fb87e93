//! The end of a shard: its listeners close, the service closes its connections, and messages stop.
//!
//! A shard without connections does not end at once, because other shards may still send it data that must be stored.
//! It ends when no shard has connections and no message has arrived for some turns, or after a time limit.

use std::sync::atomic::Ordering;

use super::Driver;
use crate::service::Service;

/// Maximum duration of a drain, ms. The shard then ends with connections open.
const DRAIN_MS: u64 = 5_000;
/// Turns without messages after which a draining shard assumes that none will arrive.
const QUIET_TURNS: u32 = 2;

/// Progress of a drain.
#[derive(Debug, Default)]
pub(super) struct Drain {
    until_ms: Option<u64>,
    /// Whether this shard is counted in [`Common::empty`](super::Common::empty).
    is_empty: bool,
    /// Consecutive turns without messages since all shards are empty.
    quiet_turns: u32,
}

impl Drain {
    pub(super) fn has_begun(&self) -> bool {
        self.until_ms.is_some()
    }

    /// How long the poll may block while it lasts, ms. `retry_ms` is the pause while connections are open.
    pub(super) fn poll_ms(&self, now_ms: u64, retry_ms: u64) -> Option<u64> {
        let pause_ms = if self.is_empty { 1 } else { retry_ms };
        self.until_ms.map(|until_ms| until_ms.saturating_sub(now_ms).min(pause_ms))
    }
}

impl<S: Service> Driver<S> {
    /// Starts or continues the drain if one was requested. Returns `true` when the shard must end.
    pub(super) fn drain(&mut self, has_mail: bool) -> bool {
        if !self.core.common.draining.load(Ordering::Acquire) {
            return false;
        }
        let now_ms = self.core.clock.now_ms;
        if let Some(until_ms) = self.drain.until_ms {
            return self.has_drained(has_mail) || now_ms >= until_ms;
        }
        self.drain.until_ms = Some(now_ms + DRAIN_MS);
        for listener in &mut self.listeners {
            if let Err(error) = listener.deregister(self.poll.registry()) {
                log::warn!("cannot close a listener: {error}");
            }
        }
        self.listeners.clear();
        self.proxied.clear();
        self.service.drain(&mut self.core.io());
        false
    }

    /// Whether no shard has connections and messages have stopped.
    fn has_drained(&mut self, has_mail: bool) -> bool {
        if self.core.links.open_count() > 0 {
            return false;
        }
        let common = &self.core.common;
        if !std::mem::replace(&mut self.drain.is_empty, true) {
            common.empty.fetch_add(1, Ordering::AcqRel);
        }
        let all_are_empty = common.empty.load(Ordering::Acquire) == common.mailboxes.shards();
        self.drain.quiet_turns = if has_mail || !all_are_empty { 0 } else { self.drain.quiet_turns + 1 };
        self.drain.quiet_turns > QUIET_TURNS
    }
}
