//! Producers: they send one or many messages, with keys, priorities, delays, times to live and deduplication ids. A
//! message with an id is sent again if its outcome is unknown.

use mainstem_disk::fault::Rng;
use mainstem_log::{Header, put_headers};
use mainstem_queue_core::{NewMessage, Reply, Request, header};

use super::client::{Client, Context};
use super::oracle::{Message, MessageId, Outcome, Pending, Route};
use super::plan::{Plan, Role};
use crate::engine::pick;

/// Requests in flight.
const WAITING_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Producer {
    /// Messages with deduplication ids and unknown outcome.
    unknown: Vec<MessageId>,
    /// Messages whose requests have no reply.
    unsure: Vec<MessageId>,
    /// It has sent something: no run is without a message.
    has_sent: bool,
}

impl Producer {
    fn send(context: &mut Context<'_>, queue: usize, ids: Vec<MessageId>) {
        let messages = ids.iter().map(|id| new_message(*id, context.oracle.message(*id))).collect();
        context.requests.push_back((queue, Request::Send(messages), ids));
    }
}

/// Makes the message `id` with random properties.
pub(super) fn make_message(plan: &Plan, rng: &mut Rng, id: MessageId, queue: usize, route: Route) -> Message {
    let delay_ms = if rng.chance(plan.delays) { pick(rng, &[1, 200, 3_000, 15_000]) } else { 0 };
    let ttl_ms = if rng.chance(plan.ttls) { pick(rng, &[1, 500, 5_000, 60_000]) } else { 0 };
    let small = if id.is_multiple_of(19) { 3_000 } else { id % 7 };
    let is_large = rng.chance(plan.large);
    Message {
        queue,
        route,
        padding: if is_large { pick(rng, &[510, 5_000, 70_000, 300_000]) } else { small },
        key: rng.chance(plan.keys).then(|| rng.below(4)),
        priority: if rng.chance(plan.priorities) { rng.below(10) as u8 } else { 0 },
        delay_ms,
        ttl_ms,
        has_id: rng.chance(plan.ids),
        may_be_settled: false,
        attempts: Vec::new(),
    }
}

/// Properties of a message, by the name of their header.
pub(super) fn properties(id: MessageId, message: &Message) -> Vec<(&'static str, String)> {
    let properties = [
        (header::PRIORITY, (message.priority > 0).then(|| message.priority.to_string())),
        (header::DELAY_MS, (message.delay_ms > 0).then(|| message.delay_ms.to_string())),
        (header::TTL_MS, (message.ttl_ms > 0).then(|| message.ttl_ms.to_string())),
        (header::DEDUP_ID, message.has_id.then(|| format!("id-{id}"))),
    ];
    properties.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A message as it is sent.
fn new_message(id: MessageId, message: &Message) -> NewMessage {
    let properties = properties(id, message);
    let mut headers = Vec::new();
    if !properties.is_empty() {
        let all = properties.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
        put_headers(all, &mut headers);
    }
    let key = message.key.map(|key| format!("k{key}").into_bytes());
    NewMessage { key, value: message.value(id), headers }
}

impl Client for Producer {
    fn act(&mut self, context: &mut Context<'_>) {
        if context.waiting >= WAITING_MAX {
            return;
        }
        let unsure = std::mem::take(&mut self.unsure);
        self.unknown.extend(unsure.into_iter().filter(|id| context.oracle.message(*id).has_id));
        if !self.unknown.is_empty() && context.rng.chance(if context.is_ending { 100 } else { 40 }) {
            let at = context.rng.below(self.unknown.len() as u64) as usize;
            let id = self.unknown.swap_remove(at);
            let queue = context.oracle.message(id).queue;
            return Self::send(context, queue, vec![id]);
        }
        if !context.is_ending
            && let Some(id) = context.oracle.perhaps_lost(context.rng).filter(|_| context.rng.chance(20))
        {
            let queue = context.oracle.message(id).queue;
            return Self::send(context, queue, vec![id]);
        }
        if (context.is_ending || context.oracle.message_count() >= context.plan.messages_max) && self.has_sent
        {
            return;
        }
        self.has_sent = true;
        let is_temporary = context.rng.chance(5);
        let queue = context.any_queue(|role| match role {
            Role::Main { .. } => !is_temporary,
            Role::Dead => false,
            Role::Temporary => is_temporary,
        });
        let count = pick(context.rng, &[1, 1, 2, 5, 20]);
        let ids = (0..count)
            .map(|_| {
                let id = context.oracle.message_count();
                let message = make_message(context.plan, context.rng, id, queue, Route::Request);
                context.oracle.add_message(message)
            })
            .collect();
        Self::send(context, queue, ids);
    }

    fn handle_reply(&mut self, context: &mut Context<'_>, pending: &Pending, _: &Reply) {
        for id in &pending.messages {
            let message = context.oracle.message(*id);
            let last = message.attempts.last().map(|attempt| attempt.outcome);
            // A message that was taken may be sent again, and is discarded.
            let is_repeated = message.is_taken() && !context.is_ending && context.rng.chance(10);
            if message.has_id
                && ((last == Some(Outcome::Unknown) && !message.is_taken()) || is_repeated)
                && context.plan.queues[message.queue].role != Role::Temporary
            {
                self.unknown.push(*id);
            }
        }
    }

    fn connection_lost(&mut self, pending: &Pending) {
        self.unsure.extend(&pending.messages);
    }

    fn is_done(&self) -> bool {
        self.unknown.is_empty() && self.unsure.is_empty()
    }
}
