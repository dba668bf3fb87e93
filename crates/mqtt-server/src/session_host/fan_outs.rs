//! Fan-outs to the sessions of a shard: at once if they are small, else a part in each turn.
//!
//! Almost all messages have few receivers, and are offered to all of them where they arrive. A fan-out to thousands is
//! put aside, and each turn continues it for a part of a millisecond. Its publisher sends nothing else
//! meanwhile (`shard/mod.rs` holds its input).
//!
//! A publish at QoS 1 or 2 is not divided: a journal has all of it or nothing, which recovery and a repeated publish
//! rely on, and where no session is durable, a subscriber may still not be passed over. So nobody waits for the end of
//! a divided fan-out.

use std::sync::Arc;

use mainstem_mqtt::QoS;
use mainstem_runtime::{Io, SHARED_MIN_BYTES};

use super::SessionHost;
use super::publishes::BYTES_PER_UNIT;
use crate::broker_state::Mail;
use crate::fan_outs::UnfinishedFanOut;
use crate::message::Message;
use crate::qos2_recovery::PartialPublish;
use crate::router::FanOut;
use crate::routes::Matched;

/// Units of a turn for fan-outs that are divided. Few, because a unit takes several times as long as usual where the
/// sessions were idle and are in no cache.
const TURN_FAN_OUT_UNITS: u64 = 1_000;
/// Subscriptions that are visited at once.
const VISITED_AT_ONCE: u32 = 512;
/// Searches in other lists of subscribers that cost one unit.
const SEARCHES_PER_UNIT: u32 = 4;

impl SessionHost {
    /// Whether a message may have to wait for a later turn, because it has very many subscribers on this shard or
    /// others are not finished.
    #[inline]
    pub(super) fn may_divide(&self, matched: &Matched) -> bool {
        !self.fan_outs.is_empty() || self.router.must_divide(matched)
    }

    /// Puts a fan-out aside that takes long, or has to wait for one that does. Returns whether that is so. Otherwise
    /// those that it has to wait for are finished.
    #[cold]
    pub(super) fn put_aside(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        matched: &Arc<Matched>,
    ) -> bool {
        if message.qos > QoS::AtMostOnce {
            self.finish_before(io, message);
            return false;
        }
        let has_subscribers = matched.shards & (1 << self.me) != 0;
        let is_later = has_subscribers && (self.router.must_divide(matched) || self.fan_outs.blocks(message));
        if is_later {
            // Whoever subscribes from now on gets what comes from now on.
            let number = self.fan_outs.push(Arc::clone(message), Arc::clone(matched));
            self.router.begin_divided(number, matched);
        }
        is_later
    }

    /// Finishes the fan-outs that a message must wait for, whatever that takes.
    pub(super) fn finish_before(&mut self, io: &mut Io<'_, Mail>, message: &Message) {
        while self.fan_outs.blocks(message) && self.continue_next(io) {}
    }

    /// Finishes all fan-outs: the shard ends.
    pub(super) fn finish_fan_outs(&mut self, io: &mut Io<'_, Mail>) {
        while self.continue_next(io) {}
    }

    /// Whether a publish of this session must wait for an earlier one of it.
    #[inline]
    pub(crate) fn has_unfinished_publish(&mut self, slot: u32) -> bool {
        !self.fan_outs.is_empty() && self.fan_outs.has_publisher(self.sessions.key(slot))
    }

    /// Whether so many fan-outs are unfinished that other shards should send no more.
    pub(crate) fn has_too_many_fan_outs(&self) -> bool {
        self.fan_outs.is_full()
    }

    /// Continues fan-outs for their share of the turn.
    pub(crate) fn continue_fan_outs(&mut self, io: &mut Io<'_, Mail>) {
        let end = io.charged() + TURN_FAN_OUT_UNITS;
        while io.charged() < end && self.continue_next(io) {}
    }

    /// Continues one fan-out, in turn with the others. False if there is none.
    fn continue_next(&mut self, io: &mut Io<'_, Mail>) -> bool {
        let Some(mut fan_out) = self.fan_outs.next() else { return false };
        let is_over = self.offer_part(io, &mut fan_out);
        self.append_message(io, &fan_out.message, None);
        if is_over {
            self.router.end_divided(fan_out.number);
            self.fan_outs.finish(&fan_out);
        } else {
            self.fan_outs.put_back(fan_out);
        }
        true
    }

    /// Offers a message to its next subscribers. Returns whether there were none left.
    fn offer_part(&mut self, io: &mut Io<'_, Mail>, fan_out: &mut UnfinishedFanOut) -> bool {
        let number = fan_out.number;
        let UnfinishedFanOut { message, matched, has_begun, .. } = fan_out;
        if !std::mem::replace(has_begun, true) {
            io.note_fan_out(message.size(), message.copied_bytes());
        }
        let Self { router, sessions, deliveries, persistence, .. } = self;
        let part = router.offer_to_next(sessions, message, number, VISITED_AT_ONCE, |session, offer| {
            deliveries.offer(io, persistence, session, offer);
        });
        let level = deliveries.take_tally().majority(part.receivers);
        let searches = part.visited * matched.filters.len().saturating_sub(1) as u32;
        io.charge(fan_out_units(part, matched, message) + searches / SEARCHES_PER_UNIT);
        if part.visited > 0 {
            matched.pressure.note(level, self.me, io.clock.now_ms);
        }
        part.visited == 0
    }

    /// Offers a message to every subscriber on this shard, and notes if most of them are behind.
    pub(super) fn fan_out(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        matched: &Matched,
        partial: Option<&Arc<PartialPublish>>,
    ) {
        let Self { router, sessions, deliveries, persistence, .. } = self;
        deliveries.limit_to(partial.cloned());
        let fan_out = router.offer_to_all(sessions, message, matched, |session, offer| {
            deliveries.offer(io, persistence, session, offer);
        });
        deliveries.limit_to(None);
        let level = deliveries.take_tally().majority(fan_out.receivers);
        if fan_out.is_large {
            io.note_fan_out(message.size(), message.copied_bytes());
        }
        io.charge(fan_out_units(fan_out, matched, message));
        matched.pressure.note(level, self.me, io.clock.now_ms);
    }
}

/// Cost of a fan-out, units. Small messages that several lists of subscribers lead to cost more than copies of them.
fn fan_out_units(fan_out: FanOut, matched: &Matched, message: &Message) -> u32 {
    let copied = if message.size() < SHARED_MIN_BYTES { (message.size() / BYTES_PER_UNIT) as u32 } else { 0 };
    let visited = matched.filters.len() as u32 + fan_out.visited;
    visited / 2 + fan_out.receivers / 2 + fan_out.receivers * copied
}
