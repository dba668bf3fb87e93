//! Where messages stand: which one it is that shows at an offset, and how it came there.

use std::collections::BTreeMap;

use mainstem_log::Headers;
use mainstem_queue::header;

use super::{Attempt, Ledger, Message, MessageId, Moment, Origin, Outcome, Place};
use crate::ledger::Violation;
use crate::queue::plan::Role;

impl Ledger {
    /// A message shows at an offset of a queue: which one it is.
    pub(super) fn stands(
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
        self.place(queue, offset, id, &origin, timestamp_ms, at)?;
        Ok(id)
    }

    pub(super) fn message_of(&self, queue: usize, value: Option<&[u8]>) -> Result<MessageId, Violation> {
        let value = value.unwrap_or_default();
        let text = String::from_utf8_lossy(&value[..value.len().min(30)]);
        let id = text.split(';').next().and_then(|digits| digits.parse::<MessageId>().ok());
        let message = id.and_then(|id| self.messages.get(id));
        let is_home = message.is_some_and(|message| {
            let home = &self.books[message.queue].plan.role;
            message.queue == queue || matches!(home, Role::Main { dead } if *dead == queue)
        });
        match id {
            Some(id) if is_home && self.messages[id].value(id) != value => {
                let name = &self.books[queue].plan.name;
                let (len, message) = (value.len(), &self.messages[id]);
                Err(Violation(format!("{name}: message {id} is not what was sent: {len} bytes, {message:?}")))
            }
            Some(id) if is_home => Ok(id),
            _ => {
                Err(Violation(format!("{}: {text:?}, which nobody sent there", self.books[queue].plan.name)))
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
        let is_dead = self.books[queue].plan.role == Role::Dead;
        let origin = match found.get(header::DEAD_LETTER_QUEUE) {
            Some(name) => {
                let from = self.books.iter().position(|book| book.plan.name == *name);
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
            _ => Err(Violation(format!("{}: headers {found:?}", self.books[queue].plan.name))),
        }
    }

    /// Whether a queue may have more messages than it knows at once: where some stand that were published nobody is told.
    pub(super) fn may_know_less(&self, queue: usize) -> bool {
        let is_there = |attempt: &&Attempt| attempt.outcome != Outcome::Refused;
        let sent = |message: &Message| message.attempts.iter().filter(is_there).count() as u64;
        let all = self.messages.iter().filter(|message| message.queue == queue).map(sent).sum();
        (self.books[queue].places.len() as u64).max(all) >= self.known_max
    }

    pub(super) fn place(
        &mut self,
        queue: usize,
        offset: u64,
        id: MessageId,
        origin: &Origin,
        timestamp_ms: Option<u64>,
        at: Moment,
    ) -> Result<(), Violation> {
        let is_old = matches!(*origin, Origin::Dead(from, ..) if self.may_predate_loss(from, id));
        // What waits to be known to the queue for longer than identifiers are remembered is not found out.
        let waits = self.may_know_less(queue);
        let (book, message) = (&mut self.books[queue], &self.messages[id]);
        let name = &book.plan.name;
        if let Some(known) = book.places.get_mut(&offset) {
            if known.message != id || known.origin != *origin {
                return Err(Violation(format!(
                    "{name}: message {id} ({origin:?}) stands at {offset}, where {known:?} stood"
                )));
            }
            known.timestamp_ms = known.timestamp_ms.or(timestamp_ms);
        } else {
            let place = Place { message: id, origin: origin.clone(), timestamp_ms, since: at };
            book.places.insert(offset, place);
            book.by_message.entry(id).or_default().insert(offset);
            if let Some(key) = message.key {
                book.by_key.entry(key).or_default().insert(offset);
            }
            if is_old {
                return Ok(());
            }
            if let Origin::Dead(from, ref group, old) = *origin {
                let earlier = book.dead.insert(origin.clone(), offset);
                self.books[from].by_message.entry(id).or_default().insert(old);
                self.died(from, group, old, (offset, earlier))?;
                return Ok(());
            }
        }
        if *origin == Origin::Sender {
            let is_sent = |at: &&u64| book.places.get(at).is_some_and(|place| place.origin == Origin::Sender);
            let standing = book.by_message[&id].iter().filter(is_sent).count();
            let may_stand = !message.has_id && standing <= message.copies();
            let others = book.by_message[&id].iter().filter(|other| **other != offset);
            for (other, place) in others.filter_map(|other| Some((other, book.places.get(other)?))) {
                let apart = place.timestamp_ms.zip(timestamp_ms).map(|(one, two)| one.abs_diff(two));
                let is_apart = apart.is_none_or(|apart| apart >= book.plan.dedup_window_ms);
                let may = may_stand || (message.has_id && (is_apart || waits));
                if place.origin == Origin::Sender && !may {
                    return Err(Violation(format!(
                        "{name}: message {id} stands twice, at {other} and {offset}, {apart:?} ms apart: {message:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A dead letter is there.
    fn died(
        &mut self,
        from: usize,
        group: &str,
        old: u64,
        (offset, earlier): (u64, Option<u64>),
    ) -> Result<(), Violation> {
        let name = self.books[from].plan.name.clone();
        let group = self.group(from, &group.into());
        if let Some(earlier) = earlier
            && !group.has_begun_anew()
        {
            return Err(Violation(format!(
                "{name}: message {old} of {} is a dead letter twice, at {earlier} and {offset}",
                group.name
            )));
        }
        group.died(old).map_err(|words| Violation(format!("{name}: {words}")))
    }
}
