//! Where messages are stored: which one is at an offset, and how it came there.

use std::collections::BTreeMap;

use mainstem_log::Headers;
use mainstem_queue_core::header;

use super::{Attempt, Message, MessageId, Moment, Oracle, Origin, Outcome, StoredMessage};
use crate::Violation;
use crate::queue::plan::Role;

impl Oracle {
    /// A message was observed at an offset of a queue. Returns which one it is.
    pub(super) fn observe_message(
        &mut self,
        queue: usize,
        offset: u64,
        value: Option<&[u8]>,
        headers: &[u8],
        timestamp_ms: Option<u64>,
        at: Moment,
    ) -> Result<MessageId, Violation> {
        let id = self.message_of(queue, value)?;
        let origin = self.origin_of(queue, headers)?;
        let message = &self.messages[id];
        if message.is_refused() {
            return Err(Violation(format!("message {id} was refused and is delivered: {message:?}")));
        }
        self.record_message(queue, offset, id, &origin, timestamp_ms, at)?;
        Ok(id)
    }

    pub(super) fn message_of(&self, queue: usize, value: Option<&[u8]>) -> Result<MessageId, Violation> {
        let value = value.unwrap_or_default();
        let text = String::from_utf8_lossy(&value[..value.len().min(30)]);
        let id = text.split(';').next().and_then(|digits| digits.parse::<MessageId>().ok());
        let message = id.and_then(|id| self.messages.get(id));
        let is_home = message.is_some_and(|message| {
            let home = &self.queues[message.queue].plan.role;
            message.queue == queue || matches!(home, Role::Main { dead } if *dead == queue)
        });
        match id {
            Some(id) if is_home && self.messages[id].value(id) != value => {
                let name = &self.queues[queue].plan.name;
                let (len, message) = (value.len(), &self.messages[id]);
                Err(Violation(format!("{name}: message {id} is not what was sent: {len} bytes, {message:?}")))
            }
            Some(id) if is_home => Ok(id),
            _ => {
                Err(Violation(format!("{}: {text:?}, which nobody sent there", self.queues[queue].plan.name)))
            }
        }
    }

    fn origin_of(&self, queue: usize, headers: &[u8]) -> Result<Origin, Violation> {
        let mut found: BTreeMap<&str, String> = BTreeMap::new();
        let all = Headers::parse(headers).map_err(|error| Violation(format!("headers: {error:?}")))?;
        for header in all.flatten() {
            let value = header.value.map(String::from_utf8_lossy).unwrap_or_default();
            found.insert(header.key, value.into_owned());
        }
        let is_dead = self.queues[queue].plan.role == Role::Dead;
        let origin = match found.get(header::DEAD_LETTER_QUEUE) {
            Some(name) => {
                let from = self.queues.iter().position(|state| state.plan.name == *name);
                let group = found.get(header::DEAD_LETTER_GROUP).cloned();
                let offset = found.get(header::DEAD_LETTER_OFFSET).and_then(|text| text.parse().ok());
                match (from, group, offset) {
                    (Some(from), Some(group), Some(offset)) => Some(Origin::Dead(from, group, offset)),
                    _ => None,
                }
            }
            None if found.contains_key(header::MOVED_BY) => Some(Origin::Redriven),
            None => Some(Origin::Sender),
        };
        match origin {
            Some(origin) if is_dead == matches!(origin, Origin::Dead(..)) => Ok(origin),
            _ => Err(Violation(format!("{}: headers {found:?}", self.queues[queue].plan.name))),
        }
    }

    /// Whether a queue may hold more messages than it keeps in memory: nobody knows how many were published.
    pub(super) fn may_know_less(&self, queue: usize) -> bool {
        let is_there = |attempt: &&Attempt| attempt.outcome != Outcome::Refused;
        let sent = |message: &Message| message.attempts.iter().filter(is_there).count() as u64;
        let all = self.messages.iter().filter(|message| message.queue == queue).map(sent).sum();
        (self.queues[queue].stored.len() as u64).max(all) >= self.known_max
    }

    pub(super) fn record_message(
        &mut self,
        queue: usize,
        offset: u64,
        id: MessageId,
        origin: &Origin,
        timestamp_ms: Option<u64>,
        at: Moment,
    ) -> Result<(), Violation> {
        let is_old = matches!(*origin, Origin::Dead(from, ..) if self.may_predate_loss(from, id));
        // A message may wait on disk for longer than the deduplication window, so a repetition goes unnoticed.
        let waits = self.may_know_less(queue);
        let (state, message) = (&mut self.queues[queue], &self.messages[id]);
        let name = &state.plan.name;
        if let Some(known) = state.stored.get_mut(&offset) {
            if known.message != id || known.origin != *origin {
                return Err(Violation(format!(
                    "{name}: message {id} ({origin:?}) stands at {offset}, where {known:?} stood"
                )));
            }
            known.timestamp_ms = known.timestamp_ms.or(timestamp_ms);
        } else {
            let stored = StoredMessage { message: id, origin: origin.clone(), timestamp_ms, since: at };
            state.stored.insert(offset, stored);
            state.by_message.entry(id).or_default().insert(offset);
            if let Some(key) = message.key {
                state.by_key.entry(key).or_default().insert(offset);
            }
            if is_old {
                return Ok(());
            }
            if let Origin::Dead(from, ref group, old) = *origin {
                let earlier = state.dead.insert(origin.clone(), offset);
                self.queues[from].by_message.entry(id).or_default().insert(old);
                self.died(from, group, old, (offset, earlier))?;
                return Ok(());
            }
        }
        if *origin == Origin::Sender {
            let is_sent =
                |at: &&u64| state.stored.get(at).is_some_and(|stored| stored.origin == Origin::Sender);
            let standing = state.by_message[&id].iter().filter(is_sent).count();
            let may_stand = !message.has_id && standing <= message.copies();
            let others = state.by_message[&id].iter().filter(|other| **other != offset);
            for (other, stored) in others.filter_map(|other| Some((other, state.stored.get(other)?))) {
                let apart = stored.timestamp_ms.zip(timestamp_ms).map(|(one, two)| one.abs_diff(two));
                let is_apart = apart.is_none_or(|apart| apart >= state.plan.dedup_window_ms);
                let may = may_stand || (message.has_id && (is_apart || waits));
                if stored.origin == Origin::Sender && !may {
                    return Err(Violation(format!(
                        "{name}: message {id} stands twice, at {other} and {offset}, {apart:?} ms apart: {message:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A dead letter was found.
    fn died(
        &mut self,
        from: usize,
        group: &str,
        old: u64,
        (offset, earlier): (u64, Option<u64>),
    ) -> Result<(), Violation> {
        let name = self.queues[from].plan.name.clone();
        let group = self.group(from, &group.into());
        if let Some(earlier) = earlier
            && !group.may_have_reset()
        {
            return Err(Violation(format!(
                "{name}: message {old} of {} is a dead letter twice, at {earlier} and {offset}",
                group.name
            )));
        }
        group.died(old).map_err(|words| Violation(format!("{name}: {words}")))
    }
}
