//! Those who send: single messages and many, with keys, priorities, delays, times to live and identifiers, and again
//! where they do not know what has become of one that has an identifier.

use mainstem_disk::fault::Dice;
use mainstem_log::{Header, put_headers};
use mainstem_queue::{NewMessage, Reply, Request, header};

use super::client::{Client, Desk};
use super::ledger::{Message, MessageId, Outcome, Pending, Way};
use super::plan::{Plan, Role};
use crate::plan::pick;

/// Requests that have not been answered, at most.
const WAITING_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Producer {
    /// Messages with identifiers of which nobody knows whether they were taken.
    unknown: Vec<MessageId>,
    /// Messages of which no answer came.
    unsure: Vec<MessageId>,
    /// It has not sent anything yet: no run is without a message.
    has_sent: bool,
}

impl Producer {
    fn send(desk: &mut Desk<'_>, queue: usize, ids: Vec<MessageId>) {
        let messages = ids.iter().map(|id| new_message(*id, &desk.ledger.messages[*id])).collect();
        desk.asks.push_back((queue, Request::Send(messages), ids));
    }
}

/// A message that nobody has sent yet.
pub(super) fn invent(
    plan: &Plan,
    dice: &mut Dice,
    messages: &mut Vec<Message>,
    queue: usize,
    way: Way,
) -> MessageId {
    let delay_ms = if dice.chance(plan.delays) { pick(dice, &[1, 200, 3_000, 15_000]) } else { 0 };
    let ttl_ms = if dice.chance(plan.ttls) { pick(dice, &[1, 500, 5_000, 60_000]) } else { 0 };
    let id = messages.len();
    let small = if id.is_multiple_of(19) { 3_000 } else { id % 7 };
    let is_large = dice.chance(plan.large);
    messages.push(Message {
        queue,
        way,
        padding: if is_large { pick(dice, &[510, 5_000, 70_000, 300_000]) } else { small },
        key: dice.chance(plan.keys).then(|| dice.below(4)),
        priority: if dice.chance(plan.priorities) { dice.below(10) as u8 } else { 0 },
        delay_ms,
        ttl_ms,
        has_id: dice.chance(plan.ids),
        may_be_settled: false,
        attempts: Vec::new(),
    });
    id
}

/// What a message asks for, by the names of the headers that say so.
pub(super) fn asked_for(id: MessageId, message: &Message) -> Vec<(&'static str, String)> {
    let asked = [
        (header::PRIORITY, (message.priority > 0).then(|| message.priority.to_string())),
        (header::DELAY_MS, (message.delay_ms > 0).then(|| message.delay_ms.to_string())),
        (header::TTL_MS, (message.ttl_ms > 0).then(|| message.ttl_ms.to_string())),
        (header::DEDUP_ID, message.has_id.then(|| format!("id-{id}"))),
    ];
    asked.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A message as it is sent.
fn new_message(id: MessageId, message: &Message) -> NewMessage {
    let asked = asked_for(id, message);
    let mut headers = Vec::new();
    if !asked.is_empty() {
        let all = asked.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
        put_headers(all, &mut headers);
    }
    let key = message.key.map(|key| format!("k{key}").into_bytes());
    NewMessage { key, value: message.value(id), headers }
}

impl Client for Producer {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if desk.waiting >= WAITING_MAX {
            return;
        }
        let unsure = std::mem::take(&mut self.unsure);
        self.unknown.extend(unsure.into_iter().filter(|id| desk.ledger.messages[*id].has_id));
        if !self.unknown.is_empty() && desk.dice.chance(if desk.is_ending { 100 } else { 40 }) {
            let at = desk.dice.below(self.unknown.len() as u64) as usize;
            let id = self.unknown.swap_remove(at);
            let queue = desk.ledger.messages[id].queue;
            return Self::send(desk, queue, vec![id]);
        }
        if !desk.is_ending
            && let Some(id) = desk.ledger.perhaps_lost(desk.dice).filter(|_| desk.dice.chance(20))
        {
            let queue = desk.ledger.messages[id].queue;
            return Self::send(desk, queue, vec![id]);
        }
        if (desk.is_ending || desk.ledger.messages.len() >= desk.plan.messages_max) && self.has_sent {
            return;
        }
        self.has_sent = true;
        let is_temporary = desk.dice.chance(5);
        let queue = desk.any_queue(|role| match role {
            Role::Main { .. } => !is_temporary,
            Role::Dead => false,
            Role::Temporary => is_temporary,
        });
        let count = pick(desk.dice, &[1, 1, 2, 5, 20]);
        let ids = (0..count)
            .map(|_| invent(desk.plan, desk.dice, &mut desk.ledger.messages, queue, Way::Asked))
            .collect();
        Self::send(desk, queue, ids);
    }

    fn answered(&mut self, desk: &mut Desk<'_>, pending: &Pending, _: &Reply) {
        for id in &pending.messages {
            let message = &desk.ledger.messages[*id];
            let last = message.attempts.last().map(|attempt| attempt.outcome);
            // One that was taken may be sent once more, and count for nothing.
            let is_repeated = message.is_taken() && !desk.is_ending && desk.dice.chance(10);
            if message.has_id
                && ((last == Some(Outcome::Unknown) && !message.is_taken()) || is_repeated)
                && desk.plan.queues[message.queue].role != Role::Temporary
            {
                self.unknown.push(*id);
            }
        }
    }

    fn lost(&mut self, pending: &Pending) {
        self.unsure.extend(&pending.messages);
    }

    fn is_done(&self) -> bool {
        self.unknown.is_empty() && self.unsure.is_empty()
    }
}
