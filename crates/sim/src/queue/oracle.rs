//! The oracle of the queue scenario: what was sent, where it is stored, and what each group knows of it.
//!
//! Requests are recorded when they are sent, because they may take effect without a reply. Replies are compared with
//! everything recorded; `check_losses` judges the run as a whole. The other checks are in the files of the folder, by
//! subject.

mod losses;
mod mqtt;
mod power;
mod publishes;
mod room;
mod stored;
mod withheld;

use std::collections::{BTreeMap, BTreeSet};

use mainstem_mqtt::QoS;
use mainstem_queue_core::{
    DEFAULT_GROUP, Delivery, GroupName, ItemResult, QueueError, Reply, Request, Settlement,
};

use super::group::{Group, Lease};
use super::plan::{QueuePlan, Role};
use crate::Violation;
use crate::engine::Totals;
use room::check_reply_size;

/// Number of a message.
pub(crate) type MessageId = usize;
/// A point in the order of events. No two are the same.
pub(crate) type Moment = u64;

/// A message as its producer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) queue: usize,
    pub(crate) route: Route,
    pub(crate) key: Option<u64>,
    pub(crate) priority: u8,
    pub(crate) delay_ms: u64,
    /// 0 for none.
    pub(crate) ttl_ms: u64,
    /// Bytes after its number.
    pub(crate) padding: usize,
    /// It has a deduplication id, so it may be sent again.
    pub(crate) has_id: bool,
    /// It may have been settled before power was lost. A copy sent after that is discarded.
    pub(crate) may_be_settled: bool,
    pub(crate) attempts: Vec<Attempt>,
}

/// How a message reaches its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// By a request to the queue.
    Request,
    /// By MQTT, on a topic that a binding feeds into the queue or on the topic of the queue.
    Published { qos: QoS, is_bound: bool },
}

/// One attempt to send a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    sent_at: Moment,
    pub(crate) outcome: Outcome,
    /// It may be stored in addition to earlier attempts.
    is_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Unknown,
    /// Senders learn the offset, publishers do not.
    Taken {
        offset: Option<u64>,
        at: Moment,
    },
    Refused,
}

impl Message {
    /// Content: its number, and bytes of which neighbors differ.
    pub(crate) fn value(&self, id: MessageId) -> Vec<u8> {
        let mut value = format!("{id};").into_bytes();
        value.extend((0..self.padding).map(|at| b'a' + ((id + at) % 26) as u8));
        value
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.attempts.iter().any(|attempt| matches!(attempt.outcome, Outcome::Taken { .. }))
    }

    /// How often it may be stored if it has no deduplication id.
    fn copies(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.is_copy).count().max(1)
    }

    fn is_refused(&self) -> bool {
        self.attempts.iter().all(|attempt| attempt.outcome == Outcome::Refused)
    }
}

/// How a stored message came to its offset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Sender,
    /// A dead letter: its former queue, group and offset.
    Dead(usize, String, u64),
    Redriven,
}

/// A message stored in a queue.
#[derive(Clone, Debug)]
struct StoredMessage {
    message: MessageId,
    origin: Origin,
    timestamp_ms: Option<u64>,
    /// Since when it is known to be there.
    since: Moment,
}

#[derive(Debug)]
struct QueueState {
    plan: QueuePlan,
    stored: BTreeMap<u64, StoredMessage>,
    groups: BTreeMap<GroupName, Group>,
    /// Offsets by message key.
    by_key: BTreeMap<u64, BTreeSet<u64>>,
    /// Offsets by message.
    by_message: BTreeMap<MessageId, BTreeSet<u64>>,
    /// Offsets of dead letters by their origin.
    dead: BTreeMap<Origin, u64>,
    /// Messages were purged or redriven, or may have been.
    is_purged: bool,
    is_redriven: bool,
    /// When the last deletion was sent, and confirmed.
    deleted: Option<(Moment, Moment)>,
    /// When power was last lost, for a queue that does not sync; 0 for never.
    power_lost_at: Moment,
}

/// A request to a queue without a reply.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) client: usize,
    pub(crate) queue: usize,
    pub(crate) request: Request,
    /// The messages of a [`Request::Send`].
    pub(crate) messages: Vec<MessageId>,
    pub(crate) sent_at: Moment,
    /// Lower bound of the clocks of all shards, ms since 1970.
    pub(crate) sent_ms: u64,
    /// Epoch of the group when it was sent.
    pub(crate) epoch: u64,
}

/// Everything known about the queues of a run.
#[derive(Debug)]
pub(crate) struct Oracle {
    messages: Vec<Message>,
    queues: Vec<QueueState>,
    last: Moment,
    /// Incarnation of the broker.
    incarnation: u32,
    /// When it started.
    incarnation_began: Moment,
    acknowledged: u64,
    delivered: u64,
    has_queues: bool,
    /// Subscribers may hold messages before they report it.
    has_subscribers: bool,
    /// Number of messages that a queue keeps in memory.
    known_max: u64,
}

impl Oracle {
    pub(crate) fn new(queues: &[QueuePlan], known_max: u64) -> Self {
        let state = |plan: &QueuePlan| QueueState {
            plan: plan.clone(),
            stored: BTreeMap::new(),
            groups: BTreeMap::from([(DEFAULT_GROUP.into(), Group::new(&DEFAULT_GROUP.into()))]),
            by_key: BTreeMap::new(),
            by_message: BTreeMap::new(),
            dead: BTreeMap::new(),
            is_purged: false,
            is_redriven: false,
            deleted: None,
            power_lost_at: 0,
        };
        Self {
            messages: Vec::new(),
            queues: queues.iter().map(state).collect(),
            last: 0,
            incarnation: 0,
            incarnation_began: 0,
            acknowledged: 0,
            delivered: 0,
            has_queues: false,
            has_subscribers: false,
            known_max,
        }
    }

    /// Subscribers take part.
    pub(crate) fn expect_subscribers(&mut self) {
        self.has_subscribers = true;
    }

    /// All queues of the plan exist.
    pub(crate) fn queues_created(&mut self) {
        self.has_queues = true;
    }

    pub(crate) fn has_queues(&self) -> bool {
        self.has_queues
    }

    /// Number of the broker's incarnation.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// A new message, which nobody has sent yet. Its number is the [count](Self::message_count) before the call.
    pub(crate) fn add_message(&mut self, message: Message) -> MessageId {
        debug_assert!(message.attempts.is_empty(), "attempts are recorded when they are sent");
        self.messages.push(message);
        self.messages.len() - 1
    }

    pub(crate) fn message(&self, id: MessageId) -> &Message {
        &self.messages[id]
    }

    pub(crate) fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The groups of all queues that are not deleted, and the numbers of their queues. `default` comes first.
    pub(crate) fn lasting_groups(&self) -> impl Iterator<Item = (usize, GroupName)> {
        let lasting = self.queues.iter().enumerate();
        let lasting = lasting.filter(|(_, state)| state.plan.role != Role::Temporary);
        lasting.flat_map(|(queue, state)| {
            let others = state.groups.keys().filter(|name| ***name != *DEFAULT_GROUP).cloned();
            std::iter::once(DEFAULT_GROUP.into()).chain(others).map(move |group| (queue, group))
        })
    }

    pub(crate) fn totals(&self) -> Totals {
        let Self { acknowledged, delivered, .. } = *self;
        Totals { published: self.messages.len() as u64, acknowledged, delivered }
    }

    fn tick(&mut self) -> Moment {
        self.last += 1;
        self.last
    }

    pub(crate) fn group(&mut self, queue: usize, name: &GroupName) -> &mut Group {
        let group = self.queues[queue].groups.entry(GroupName::clone(name));
        group.or_insert_with(|| Group::new(name))
    }

    // --- what is asked

    /// A request is about to be sent.
    pub(crate) fn request_sent(&mut self, mut pending: Pending) -> Pending {
        pending.sent_at = self.tick();
        let Pending { queue, sent_at, sent_ms, .. } = pending;
        for &id in &pending.messages {
            self.messages[id].attempts.push(Attempt { sent_at, outcome: Outcome::Unknown, is_copy: true });
        }
        match &pending.request {
            Request::Receive { group, .. } | Request::Peek { group, .. } => {
                pending.epoch = self.group(queue, group).epoch;
            }
            Request::Settle { group, settlements } => {
                let group = self.group(queue, group);
                pending.epoch = group.epoch;
                for settlement in settlements {
                    group.settling(settlement, sent_ms);
                }
            }
            Request::Leave { group, consumer } => self.group(queue, group).left.push(*consumer),
            Request::Purge { group } => {
                self.queues[queue].is_purged = true;
                self.each_group(queue, group.as_ref(), |group| group.purging(sent_at));
            }
            Request::Replay { group, .. } | Request::RemoveGroup { group } => {
                self.group(queue, group).reset_sent();
            }
            Request::Redrive { .. } => self.queues[queue].is_redriven = true,
            _ => {}
        }
        pending
    }

    fn each_group(&mut self, queue: usize, name: Option<&GroupName>, what: impl FnMut(&mut Group)) {
        let groups = self.queues[queue].groups.values_mut();
        groups.filter(|group| name.is_none_or(|name| group.name == *name)).for_each(what);
    }

    // --- what is answered

    /// A queue has replied.
    pub(crate) fn handle_reply(
        &mut self,
        pending: &Pending,
        reply: &Reply,
        (now_ms, is_troubled): (u64, bool),
    ) -> Result<(), Violation> {
        let queue = pending.queue;
        let at = self.tick();
        match (&pending.request, reply) {
            (Request::Send(_), Reply::Sent(outcomes)) => {
                self.check_refusals(queue, outcomes)?;
                for (id, outcome) in pending.messages.iter().zip(outcomes) {
                    self.send_replied(pending, *id, outcome, at)?;
                }
            }
            (Request::Send(_), Reply::Refused(refusal)) => {
                for id in &pending.messages {
                    self.send_replied(pending, *id, &Err(refusal.clone()), at)?;
                }
            }
            (Request::Receive { group, .. }, Reply::Received(deliveries)) => {
                self.delivered += deliveries.len() as u64;
                self.group(queue, group).apply_resets();
                if self.queues[queue].plan.role == Role::Temporary {
                    return self.temporary(pending, deliveries);
                }
                check_reply_size(pending, deliveries)
                    .map_err(|words| Violation(format!("{}: {words}", self.queues[queue].plan.name)))?;
                self.received(pending, deliveries, (now_ms, is_troubled), at)?;
            }
            (Request::Settle { group, settlements }, Reply::Settled(outcomes)) => {
                self.check_settled(pending, group, settlements.iter().zip(outcomes), now_ms)?;
                if self.group(queue, group).is_barrier(pending, outcomes) {
                    let sent_at = pending.sent_at;
                    self.each_group(queue, None, |group| group.is_durable(sent_at));
                }
            }
            (Request::Purge { group }, Reply::Count(_)) => {
                self.each_group(queue, group.as_ref(), |group| group.purged(pending.sent_at, at, now_ms));
            }
            (Request::Peek { group, .. }, Reply::Peeked(messages)) => {
                self.check_peeked(pending, group, messages, at)?;
            }
            (Request::Info, Reply::Info(info)) => self.check_room(queue, info)?,
            (Request::Delete, Reply::Done) => self.queues[queue].deleted = Some((pending.sent_at, at)),
            _ => {}
        }
        if let Request::Replay { group, .. } | Request::RemoveGroup { group } = &pending.request {
            self.group(queue, group).reset_completed();
        }
        Ok(())
    }

    /// Checks each settlement of a reply against what the group has delivered.
    fn check_settled<'a>(
        &mut self,
        pending: &Pending,
        group: &GroupName,
        settled: impl Iterator<Item = (&'a Settlement, &'a ItemResult<()>)>,
        now_ms: u64,
    ) -> Result<(), Violation> {
        let incarnation = self.incarnation;
        let plan = self.queues[pending.queue].plan.clone();
        let group = self.group(pending.queue, group);
        for (settlement, outcome) in settled {
            let backoff_ms = plan.backoff_least_ms(settlement.receipt.count);
            group
                .settled(pending, settlement, outcome, (incarnation, now_ms, backoff_ms))
                .map_err(|words| Violation(format!("{}: {words}", plan.name)))?;
        }
        Ok(())
    }

    /// Checks the messages of a [`Reply::Peeked`]: their content, and that none was settled before the request.
    fn check_peeked(
        &mut self,
        pending: &Pending,
        group: &GroupName,
        messages: &[mainstem_queue_core::PeekedMessage],
        at: Moment,
    ) -> Result<(), Violation> {
        let queue = pending.queue;
        for message in messages {
            let record = message.payload.record();
            self.observe_message(queue, message.offset, record.value, record.headers, None, at)?;
            let shown = &self.queues[queue];
            if let Some(group) = shown.groups.get(group)
                && group.was_settled(pending, message.offset)
            {
                return Err(Violation(format!(
                    "{}: message {} was settled, and {} still shows it",
                    shown.plan.name, message.offset, group.name
                )));
            }
        }
        Ok(())
    }

    /// The broker has ended, and no reply will come.
    pub(crate) fn connection_lost(&mut self, pending: &Pending) {
        match &pending.request {
            Request::Receive { group, .. } => self.group(pending.queue, group).unanswered += 1,
            Request::Replay { group, .. } | Request::RemoveGroup { group } => {
                self.group(pending.queue, group).reset_completed();
            }
            _ => {}
        }
    }

    /// Another broker starts.
    pub(crate) fn begin_incarnation(&mut self) {
        self.incarnation += 1;
        self.incarnation_began = self.tick();
        for group in self.queues.iter_mut().flat_map(|state| state.groups.values_mut()) {
            group.begin_incarnation();
        }
    }

    fn send_replied(
        &mut self,
        pending: &Pending,
        id: MessageId,
        outcome: &Result<u64, QueueError>,
        at: Moment,
    ) -> Result<(), Violation> {
        let message = &mut self.messages[id];
        let has_id = message.has_id;
        let Some(attempt) = message.attempts.iter_mut().find(|attempt| attempt.sent_at == pending.sent_at)
        else {
            return Ok(());
        };
        match outcome {
            Ok(offset) => {
                attempt.outcome = Outcome::Taken { offset: Some(*offset), at };
                self.acknowledged += 1;
                if !has_id && self.queues[pending.queue].plan.role != Role::Temporary {
                    self.record_message(pending.queue, *offset, id, &Origin::Sender, None, at)?;
                }
            }
            // The message may be stored or not.
            Err(QueueError::Storage | QueueError::UnknownQueue | QueueError::Busy) => {}
            Err(_) => attempt.outcome = Outcome::Refused,
        }
        Ok(())
    }

    // --- deliveries

    fn temporary(&mut self, pending: &Pending, deliveries: &[Delivery]) -> Result<(), Violation> {
        for delivery in deliveries {
            let id = self.message_of(pending.queue, delivery.payload.record().value)?;
            let Some((sent_at, answered)) = self.queues[pending.queue].deleted else { continue };
            let is_before = |attempt: &Attempt| match attempt.outcome {
                Outcome::Taken { at, .. } => at < sent_at,
                _ => false,
            };
            if pending.sent_at > answered && self.messages[id].attempts.iter().all(is_before) {
                return Err(Violation(format!(
                    "message {id} was in a queue that was deleted, and is delivered"
                )));
            }
        }
        Ok(())
    }

    fn received(
        &mut self,
        pending: &Pending,
        deliveries: &[Delivery],
        (now_ms, is_troubled): (u64, bool),
        at: Moment,
    ) -> Result<(), Violation> {
        let Request::Receive { group, consumer, lease_ms, .. } = &pending.request else { return Ok(()) };
        let queue = pending.queue;
        let name = self.queues[queue].plan.name.clone();
        let mut before: Option<(u8, u64)> = None;
        let mut given = BTreeSet::new();
        for delivery in deliveries {
            let record = delivery.payload.record();
            let offset = delivery.receipt.offset;
            let timestamp_ms = record.timestamp_ms.cast_unsigned();
            let id =
                self.observe_message(queue, offset, record.value, record.headers, Some(timestamp_ms), at)?;
            let lease = Lease {
                incarnation: self.incarnation,
                count: delivery.receipt.count,
                queue_incarnation: delivery.receipt.incarnation,
                granted_ms: delivery.lease_until_ms - lease_ms.unwrap_or_default(),
                until_ms: delivery.lease_until_ms,
                consumer: *consumer,
                is_back: false,
                received_at: at,
            };
            let fault = |words: String| {
                Violation(format!("{name}, {group}: message {id} at {offset}: {words}; {lease:?}"))
            };
            self.check_times(queue, id, offset, timestamp_ms, &lease).map_err(fault)?;
            self.check_key_order(queue, group, id, offset, &lease).map_err(fault)?;
            let (since, plan) = (self.queues[queue].stored[&offset].since, &self.queues[queue].plan);
            let (is_single, most) = (plan.is_single, plan.max_deliveries);
            let group = self.group(queue, group);
            group.deliver(offset, &lease, pending.epoch, (since, is_single, most)).map_err(fault)?;
            let rank = (self.messages[id].priority, u64::MAX - offset);
            if before.is_some_and(|before| before < rank) {
                return Err(fault(format!("it comes behind one with a lower priority: {before:?}")));
            }
            before = Some(rank);
            given.insert(offset);
        }
        self.group(queue, group).is_there(at);
        let least = before.map(|before| before.0);
        self.check_withheld(pending, least, &given, (now_ms, is_troubled))
    }

    /// Checks that a message is delivered neither before its delay nor after it expired.
    fn check_times(
        &self,
        queue: usize,
        id: MessageId,
        offset: u64,
        timestamp_ms: u64,
        lease: &Lease,
    ) -> Result<(), String> {
        let (message, plan) = (&self.messages[id], &self.queues[queue].plan);
        let is_sent = self.queues[queue].stored[&offset].origin == Origin::Sender;
        if is_sent && lease.granted_ms < timestamp_ms + message.delay_ms {
            return Err(format!("it comes before its time: {} ms after {timestamp_ms}", message.delay_ms));
        }
        let own_ms = if is_sent { message.ttl_ms } else { 0 };
        let ttl_ms = [own_ms, plan.certain_ttl_ms()].into_iter().filter(|ttl_ms| *ttl_ms > 0).min();
        if ttl_ms.is_some_and(|ttl_ms| lease.granted_ms >= timestamp_ms + ttl_ms) {
            return Err(format!("it has expired: {ttl_ms:?} ms after {timestamp_ms}"));
        }
        Ok(())
    }

    /// Checks the order of messages with one key: each is delivered after the one before is settled.
    fn check_key_order(
        &self,
        queue: usize,
        name: &GroupName,
        id: MessageId,
        offset: u64,
        lease: &Lease,
    ) -> Result<(), String> {
        let state = &self.queues[queue];
        let Some(key) = self.messages[id].key.filter(|_| state.plan.has_order()) else { return Ok(()) };
        let Some(group) = state.groups.get(name) else { return Ok(()) };
        for other in state.by_key.get(&key).into_iter().flatten().copied() {
            let stored = &state.stored[&other];
            if other < offset
                && self.surely_has(queue, group, stored)
                && !self.may_be_over(queue, group, other, stored)
            {
                return Err(format!("{other} with the same key is not settled"));
            }
            if other > offset && group.was_delivered_before(other, lease) {
                return Err(format!("{other} with the same key was delivered before it"));
            }
        }
        Ok(())
    }

    /// When a message was first sent.
    fn first_sent_at(&self, id: MessageId) -> Moment {
        self.messages[id].attempts.first().map_or(0, |first| first.sent_at)
    }

    /// Whether a group was certain to exist when a message was stored.
    fn surely_has(&self, queue: usize, group: &Group, stored: &StoredMessage) -> bool {
        let is_sent = stored.origin == Origin::Sender;
        if self.queues[queue].power_lost_at > 0 && (!is_sent || self.may_predate_loss(queue, stored.message))
        {
            return false;
        }
        group.is_default() || (is_sent && group.was_there(self.first_sent_at(stored.message)))
    }

    /// Whether a message may be settled in a group, or be moving to another queue.
    fn may_be_over(&self, queue: usize, group: &Group, offset: u64, stored: &StoredMessage) -> bool {
        let plan = &self.queues[queue].plan;
        let may_expire = plan.may_expire() || self.messages[stored.message].ttl_ms > 0;
        plan.may_drop()
            || may_expire
            || self.queues[queue].is_redriven
            || group.may_be_over(offset, self.first_sent_at(stored.message), plan.max_deliveries)
    }
}
