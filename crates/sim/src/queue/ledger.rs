//! What queues have promised, and whether they keep it: what was sent, where it stands, and what each group knows of it.

mod losses;
mod mqtt;
mod places;
mod power;
mod publishes;
mod room;
mod withheld;

use std::collections::{BTreeMap, BTreeSet};

use mainstem_mqtt::QoS;
use mainstem_queue::{DEFAULT_GROUP, Delivery, GroupName, Refusal, Reply, Request};

use super::group::{Dose, Group};
use super::plan::{QueuePlan, Role};
use crate::ledger::Violation;
use room::check_share;

/// A message, by its number.
pub(crate) type MessageId = usize;
/// A moment, of which no two are the same.
pub(crate) type Moment = u64;

/// What a producer sends.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) queue: usize,
    pub(crate) way: Way,
    pub(crate) key: Option<u64>,
    pub(crate) priority: u8,
    pub(crate) delay_ms: u64,
    /// 0 for none.
    pub(crate) ttl_ms: u64,
    /// Bytes behind its number.
    pub(crate) padding: usize,
    /// It has a deduplication identifier, so that it may be sent again.
    pub(crate) has_id: bool,
    /// It may have been settled before the power was lost: then what is sent once more is thrown away.
    pub(crate) may_be_settled: bool,
    pub(crate) attempts: Vec<Attempt>,
}

/// How a message comes to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The queue is asked to take it.
    Asked,
    /// It is published by MQTT: to a topic that a binding feeds into the queue, or to the queue's own.
    Published { qos: QoS, is_bound: bool },
}

/// One time that it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    asked: Moment,
    pub(crate) outcome: Outcome,
    /// It may have come to the queue beside those before it.
    is_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Unknown,
    /// Where it stands is told to those who ask queues, not to those who publish.
    Taken {
        offset: Option<u64>,
        at: Moment,
    },
    Refused,
}

impl Message {
    /// What it says: which one it is, and bytes of which no two in a row are the same.
    pub(crate) fn value(&self, id: MessageId) -> Vec<u8> {
        let mut value = format!("{id};").into_bytes();
        value.extend((0..self.padding).map(|at| b'a' + ((id + at) % 26) as u8));
        value
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.attempts.iter().any(|attempt| matches!(attempt.outcome, Outcome::Taken { .. }))
    }

    /// How often it may stand in its queue if it has no identifier.
    fn copies(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.is_copy).count().max(1)
    }

    fn is_refused(&self) -> bool {
        self.attempts.iter().all(|attempt| attempt.outcome == Outcome::Refused)
    }
}

/// How a message came to where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Sender,
    /// Out of a group of a queue, where it stood at this offset.
    Dead(usize, String, u64),
    Redriven,
}

/// A message that stands in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) message: MessageId,
    origin: Origin,
    timestamp_ms: Option<u64>,
    /// Since when it is known to be there.
    pub(crate) since: Moment,
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) plan: QueuePlan,
    pub(crate) places: BTreeMap<u64, Place>,
    pub(crate) groups: BTreeMap<GroupName, Group>,
    /// Offsets of messages with each key.
    by_key: BTreeMap<u64, BTreeSet<u64>>,
    /// Where each message stands.
    by_message: BTreeMap<MessageId, BTreeSet<u64>>,
    /// Dead letters that have been seen here, by where they come from.
    dead: BTreeMap<Origin, u64>,
    /// Messages were thrown away, or sent back, or may have been.
    is_purged: bool,
    is_redriven: bool,
    /// When it was surely deleted for the last time: asked for, and answered.
    deleted: Option<(Moment, Moment)>,
    /// When the power was lost for the last time, if it does not sync what it confirms; 0 for never.
    lost_at: Moment,
}

/// What is asked of a queue and has not been answered.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) member: usize,
    pub(crate) queue: usize,
    pub(crate) request: Request,
    /// The messages of a [`Request::Send`].
    pub(crate) messages: Vec<MessageId>,
    pub(crate) asked: Moment,
    /// What the broker's clocks show at least, ms since 1970.
    pub(crate) asked_ms: u64,
    /// Changes of its group that it may have come behind.
    pub(crate) epoch: u64,
}

/// All that is known.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) messages: Vec<Message>,
    pub(crate) books: Vec<Book>,
    last: Moment,
    /// Of the broker.
    pub(crate) life: u32,
    /// When that began.
    pub(crate) life_began: Moment,
    pub(crate) acknowledged: u64,
    pub(crate) delivered: u64,
    pub(crate) has_queues: bool,
    /// Some have messages before anybody hears of it.
    pub(crate) has_subscribers: bool,
    /// Messages that a queue wants to know at once.
    known_max: u64,
}

impl Ledger {
    pub(crate) fn new(queues: &[QueuePlan], known_max: u64) -> Self {
        let book = |plan: &QueuePlan| Book {
            plan: plan.clone(),
            places: BTreeMap::new(),
            groups: BTreeMap::from([(DEFAULT_GROUP.into(), Group::new(&DEFAULT_GROUP.into()))]),
            by_key: BTreeMap::new(),
            by_message: BTreeMap::new(),
            dead: BTreeMap::new(),
            is_purged: false,
            is_redriven: false,
            deleted: None,
            lost_at: 0,
        };
        Self {
            messages: Vec::new(),
            books: queues.iter().map(book).collect(),
            last: 0,
            life: 0,
            life_began: 0,
            acknowledged: 0,
            delivered: 0,
            has_queues: false,
            has_subscribers: false,
            known_max,
        }
    }

    pub(crate) fn tick(&mut self) -> Moment {
        self.last += 1;
        self.last
    }

    pub(crate) fn group(&mut self, queue: usize, name: &GroupName) -> &mut Group {
        let group = self.books[queue].groups.entry(GroupName::clone(name));
        group.or_insert_with(|| Group::new(name))
    }

    // --- what is asked

    /// Somebody asks a queue.
    pub(crate) fn asked(&mut self, mut pending: Pending) -> Pending {
        pending.asked = self.tick();
        let Pending { queue, asked, asked_ms, .. } = pending;
        for &id in &pending.messages {
            self.messages[id].attempts.push(Attempt { asked, outcome: Outcome::Unknown, is_copy: true });
        }
        match &pending.request {
            Request::Receive { group, .. } | Request::Peek { group, .. } => {
                pending.epoch = self.group(queue, group).epoch;
            }
            Request::Settle { group, settlements } => {
                let group = self.group(queue, group);
                pending.epoch = group.epoch;
                for settlement in settlements {
                    group.settling(settlement, asked_ms);
                }
            }
            Request::Leave { group, consumer } => self.group(queue, group).left.push(*consumer),
            Request::Purge { group } => {
                self.books[queue].is_purged = true;
                self.each_group(queue, group.as_ref(), |group| group.purging(asked));
            }
            Request::Replay { group, .. } | Request::RemoveGroup { group } => {
                self.group(queue, group).may_begin_anew();
            }
            Request::Redrive { .. } => self.books[queue].is_redriven = true,
            _ => {}
        }
        pending
    }

    fn each_group(&mut self, queue: usize, name: Option<&GroupName>, what: impl FnMut(&mut Group)) {
        let groups = self.books[queue].groups.values_mut();
        groups.filter(|group| name.is_none_or(|name| group.name == *name)).for_each(what);
    }

    // --- what is answered

    /// A queue answers.
    pub(crate) fn answered(
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
                    self.sent(pending, *id, outcome, at)?;
                }
            }
            (Request::Send(_), Reply::Refused(refusal)) => {
                for id in &pending.messages {
                    self.sent(pending, *id, &Err(refusal.clone()), at)?;
                }
            }
            (Request::Receive { group, .. }, Reply::Received(deliveries)) => {
                self.delivered += deliveries.len() as u64;
                self.group(queue, group).look();
                if self.books[queue].plan.role == Role::Temporary {
                    return self.temporary(pending, deliveries);
                }
                check_share(pending, deliveries)
                    .map_err(|words| Violation(format!("{}: {words}", self.books[queue].plan.name)))?;
                self.received(pending, deliveries, (now_ms, is_troubled), at)?;
            }
            (Request::Settle { group, settlements }, Reply::Settled(outcomes)) => {
                let life = self.life;
                let name = &self.books[queue].plan.name.clone();
                let least = self.books[queue].plan.clone();
                let group = self.group(queue, group);
                for (settlement, outcome) in settlements.iter().zip(outcomes) {
                    let backoff_ms = least.backoff_least_ms(settlement.receipt.count);
                    group
                        .settled(pending, settlement, outcome, (life, now_ms, backoff_ms))
                        .map_err(|words| Violation(format!("{name}: {words}")))?;
                }
                if group.is_barrier(pending, outcomes) {
                    let asked = pending.asked;
                    self.each_group(queue, None, |group| group.is_durable(asked));
                }
            }
            (Request::Purge { group }, Reply::Count(_)) => {
                self.each_group(queue, group.as_ref(), |group| group.purged(pending.asked, at, now_ms));
            }
            (Request::Peek { group, .. }, Reply::Peeked(messages)) => {
                for message in messages {
                    let record = message.payload.record();
                    self.stands(queue, message.offset, record.value, record.headers, None, at)?;
                    let name = &self.books[queue].plan.name;
                    if let Some(group) = self.books[queue].groups.get(group) {
                        let is_over = group.was_settled(pending, message.offset);
                        if is_over {
                            return Err(Violation(format!(
                                "{name}: message {} was settled, and {} still shows it",
                                message.offset, group.name
                            )));
                        }
                    }
                }
            }
            (Request::Info, Reply::Info(info)) => self.check_room(queue, info)?,
            (Request::Delete, Reply::Done) => self.books[queue].deleted = Some((pending.asked, at)),
            _ => {}
        }
        if let Request::Replay { group, .. } | Request::RemoveGroup { group } = &pending.request {
            self.group(queue, group).has_ended_anew();
        }
        Ok(())
    }

    /// The broker is gone, and no answer comes.
    pub(crate) fn lost(&mut self, pending: &Pending) {
        match &pending.request {
            Request::Receive { group, .. } => self.group(pending.queue, group).unheard += 1,
            Request::Replay { group, .. } | Request::RemoveGroup { group } => {
                self.group(pending.queue, group).has_ended_anew();
            }
            _ => {}
        }
    }

    /// Another broker begins.
    pub(crate) fn begin_life(&mut self) {
        self.life += 1;
        self.life_began = self.tick();
        for group in self.books.iter_mut().flat_map(|book| book.groups.values_mut()) {
            group.begin_life();
        }
    }

    fn sent(
        &mut self,
        pending: &Pending,
        id: MessageId,
        outcome: &Result<u64, Refusal>,
        at: Moment,
    ) -> Result<(), Violation> {
        let message = &mut self.messages[id];
        let has_id = message.has_id;
        let Some(attempt) = message.attempts.iter_mut().find(|attempt| attempt.asked == pending.asked) else {
            return Ok(());
        };
        match outcome {
            Ok(offset) => {
                attempt.outcome = Outcome::Taken { offset: Some(*offset), at };
                self.acknowledged += 1;
                if !has_id && self.books[pending.queue].plan.role != Role::Temporary {
                    self.place(pending.queue, *offset, id, &Origin::Sender, None, at)?;
                }
            }
            // Whether it is there is not known, or it is not known yet that it is not.
            Err(Refusal::Storage | Refusal::UnknownQueue | Refusal::Busy) => {}
            Err(_) => attempt.outcome = Outcome::Refused,
        }
        Ok(())
    }

    // --- deliveries

    fn temporary(&mut self, pending: &Pending, deliveries: &[Delivery]) -> Result<(), Violation> {
        for delivery in deliveries {
            let id = self.message_of(pending.queue, delivery.payload.record().value)?;
            let Some((asked, answered)) = self.books[pending.queue].deleted else { continue };
            let is_of_old = |attempt: &Attempt| match attempt.outcome {
                Outcome::Taken { at, .. } => at < asked,
                _ => false,
            };
            if pending.asked > answered && self.messages[id].attempts.iter().all(is_of_old) {
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
        let name = self.books[queue].plan.name.clone();
        let mut before: Option<(u8, u64)> = None;
        let mut given = BTreeSet::new();
        for delivery in deliveries {
            let record = delivery.payload.record();
            let offset = delivery.receipt.offset;
            let timestamp_ms = record.timestamp_ms.cast_unsigned();
            let id = self.stands(queue, offset, record.value, record.headers, Some(timestamp_ms), at)?;
            let dose = Dose {
                life: self.life,
                count: delivery.receipt.count,
                queue_life: delivery.receipt.life,
                granted_ms: delivery.lease_until_ms - lease_ms.unwrap_or_default(),
                until_ms: delivery.lease_until_ms,
                consumer: *consumer,
                is_back: false,
                heard: at,
            };
            let fault = |words: String| {
                Violation(format!("{name}, {group}: message {id} at {offset}: {words}; {dose:?}"))
            };
            self.check_times(queue, id, offset, timestamp_ms, &dose).map_err(fault)?;
            self.check_line(queue, group, id, offset, &dose).map_err(fault)?;
            let (since, plan) = (self.books[queue].places[&offset].since, &self.books[queue].plan);
            let (is_single, most) = (plan.is_single, plan.max_deliveries);
            let group = self.group(queue, group);
            group.deliver(offset, &dose, pending.epoch, (since, is_single, most)).map_err(fault)?;
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

    /// Nothing comes before its time, nor after it.
    fn check_times(
        &self,
        queue: usize,
        id: MessageId,
        offset: u64,
        timestamp_ms: u64,
        dose: &Dose,
    ) -> Result<(), String> {
        let (message, plan) = (&self.messages[id], &self.books[queue].plan);
        let is_sent = self.books[queue].places[&offset].origin == Origin::Sender;
        if is_sent && dose.granted_ms < timestamp_ms + message.delay_ms {
            return Err(format!("it comes before its time: {} ms after {timestamp_ms}", message.delay_ms));
        }
        let own_ms = if is_sent { message.ttl_ms } else { 0 };
        let ttl_ms = [own_ms, plan.surest_ttl_ms()].into_iter().filter(|ttl_ms| *ttl_ms > 0).min();
        if ttl_ms.is_some_and(|ttl_ms| dose.granted_ms >= timestamp_ms + ttl_ms) {
            return Err(format!("it has expired: {ttl_ms:?} ms after {timestamp_ms}"));
        }
        Ok(())
    }

    /// Those with one key come in order, each when the one before is settled.
    fn check_line(
        &self,
        queue: usize,
        name: &GroupName,
        id: MessageId,
        offset: u64,
        dose: &Dose,
    ) -> Result<(), String> {
        let book = &self.books[queue];
        let Some(key) = self.messages[id].key.filter(|_| book.plan.has_order()) else { return Ok(()) };
        let Some(group) = book.groups.get(name) else { return Ok(()) };
        for other in book.by_key.get(&key).into_iter().flatten().copied() {
            let place = &book.places[&other];
            if other < offset
                && self.surely_has(queue, group, place)
                && !self.may_be_over(queue, group, other, place)
            {
                return Err(format!("{other} with the same key is not settled"));
            }
            if other > offset && group.was_delivered_before(other, dose) {
                return Err(format!("{other} with the same key was delivered before it"));
            }
        }
        Ok(())
    }

    /// When a message was sent for the first time.
    fn sent_at(&self, id: MessageId) -> Moment {
        self.messages[id].attempts.first().map_or(0, |first| first.asked)
    }

    /// Whether a message that stands somewhere was to be settled in a group.
    fn surely_has(&self, queue: usize, group: &Group, place: &Place) -> bool {
        let is_sent = place.origin == Origin::Sender;
        if self.books[queue].lost_at > 0 && (!is_sent || self.may_predate_loss(queue, place.message)) {
            return false;
        }
        group.is_default() || (is_sent && group.was_there(self.sent_at(place.message)))
    }

    /// Whether a message may be settled in a group, or on its way elsewhere.
    fn may_be_over(&self, queue: usize, group: &Group, offset: u64, place: &Place) -> bool {
        let plan = &self.books[queue].plan;
        let may_expire = plan.may_expire() || self.messages[place.message].ttl_ms > 0;
        plan.may_drop()
            || may_expire
            || self.books[queue].is_redriven
            || group.may_be_over(offset, self.sent_at(place.message), plan.max_deliveries)
    }
}
