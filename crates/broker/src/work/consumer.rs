//! Subscriptions to queues: how they begin, how they ask, and how they end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use mainstem_mqtt::{QoS, ReasonCode, SubscribeFilter, SubscribeOptions};
use mainstem_runtime::Io;

use super::{Asking, QueueGroup, QueueSubscription, REFUSED_MS, Verdict, Wants, Worker};
use crate::answers::Wait;
use crate::journal::entry::Entry;
use crate::message::SessionKey;
use crate::session::Session;
use crate::shard::Shard;
use crate::shared::Mail;
use crate::timers::Timer;
use crate::work::Errand;

/// A session's part in queues, which it has from its first subscription to one on.
fn worker(session: &mut Session) -> &mut Worker {
    session.rare().worker.get_or_insert_default()
}

impl Shard {
    /// Subscribes to a queue, or does so again. Returns the options as granted; its consumer is what
    /// [`Shard::hold_suback`] is told.
    ///
    /// # Errors
    /// The reason for which the filter is refused.
    pub(crate) fn subscribe_to_queue(
        &mut self,
        slot: u32,
        asked: &SubscribeFilter<'_>,
        (filter, group): (&str, Option<&str>),
        id: u32,
    ) -> Result<(SubscribeOptions, u64), ReasonCode> {
        let of = QueueGroup::of(filter, group).ok_or(ReasonCode::TopicFilterInvalid)?;
        if asked.options.qos.min(self.config().qos_max()) == QoS::AtMostOnce {
            let client_id = &self.deliveries.sessions.at(slot).client_id;
            log::info!("client {client_id:?} is refused {:?} at QoS 0, which settles nothing", asked.filter);
            return Err(ReasonCode::ImplementationSpecificError);
        }
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..asked.options };
        let is_new = self.add_queue_subscription(slot, asked.filter, of, options, id);
        let is_new = is_new.ok_or(ReasonCode::QuotaExceeded)?;
        let key = self.deliveries.sessions.key(self.me, slot);
        let known = worker(self.deliveries.sessions.at(slot)).subscriptions.iter_mut();
        let mut consumer = 0;
        for known in known.filter(|known| *known.filter == *asked.filter) {
            if is_new {
                known.consumer = self.queues.new_consumer(self.me, key);
            }
            consumer = known.consumer;
        }
        self.note_worker(slot);
        Ok((options, consumer))
    }

    /// Adds or replaces a queue subscription of a session. True if it is new; nothing if there is no room for it.
    fn add_queue_subscription(
        &mut self,
        slot: u32,
        filter: &str,
        of: Arc<QueueGroup>,
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        let subscriptions = &mut worker(self.deliveries.sessions.at(slot)).subscriptions;
        if let Some(known) = subscriptions.iter_mut().find(|known| *known.filter == *filter) {
            (known.options, known.id) = (options, id);
            return Some(false);
        }
        if !self.has_room_for_subscription(slot) {
            return None;
        }
        self.deliveries.counters.subscriptions += 1;
        worker(self.deliveries.sessions.at(slot)).subscriptions.push(QueueSubscription {
            filter: filter.into(),
            options,
            id,
            of,
            consumer: 0,
            asking: Asking::No,
            is_known: false,
            refusal_logged: false,
            leased: 0,
            held: VecDeque::new(),
            subacks: Vec::new(),
        });
        Some(true)
    }

    /// Puts a queue subscription that was kept back in its place. Nothing if there is no room for it.
    pub(crate) fn restore_queue_subscription(
        &mut self,
        slot: u32,
        filter: &str,
        (name, group): (&str, Option<&str>),
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        self.add_queue_subscription(slot, filter, QueueGroup::of(name, group)?, options, id)
    }

    /// Lets a SUBACK wait until its consumer's queue has answered for the first time: the answer of this number, at
    /// this place of its list. False if it need not, since the queue has answered before.
    pub(crate) fn hold_suback(&mut self, slot: u32, consumer: u64, suback: (u64, usize)) -> bool {
        let subscriptions = &mut worker(self.deliveries.sessions.at(slot)).subscriptions;
        let known = subscriptions.iter_mut().find(|known| known.consumer == consumer && !known.is_known);
        known.is_some_and(|known| {
            known.subacks.push(suback);
            // One that was refused before is worth another look at once.
            if matches!(known.asking, Asking::Later(_)) {
                known.asking = Asking::No;
            }
            true
        })
    }

    /// Ends a queue subscription; what its client has of it can still be acknowledged. False if there is none.
    pub(crate) fn unsubscribe_from_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        filter: &str,
    ) -> ReasonCode {
        let known = self.remove_queue_subscription(slot, |known| *known.filter == *filter);
        let Some(known) = known else { return ReasonCode::NoSubscriptionExisted };
        self.release_subacks(io, slot, known.subacks, None);
        ReasonCode::Success
    }

    fn remove_queue_subscription(
        &mut self,
        slot: u32,
        is_it: impl Fn(&QueueSubscription) -> bool,
    ) -> Option<QueueSubscription> {
        let worker = self.deliveries.sessions.at(slot).rare.as_mut()?.worker.as_mut()?;
        let index = worker.subscriptions.iter().position(is_it)?;
        let mut known = worker.subscriptions.remove(index);
        self.deliveries.counters.subscriptions -= 1;
        self.retire(&mut known);
        Some(known)
    }

    /// A consumer is no more.
    fn retire(&mut self, known: &mut QueueSubscription) {
        for held in known.held.drain(..) {
            self.queues.settle(&known.of, held.lease, Verdict::Unsent);
        }
        let consumer = std::mem::take(&mut known.consumer);
        if self.queues.consumers.remove(&consumer).is_some() {
            let wants = Wants::Leave { consumer };
            self.queues.errands.push(Errand { of: Arc::clone(&known.of), wants });
        }
        (known.asking, known.is_known, known.leased) = (Asking::No, false, 0);
    }

    /// A session has a connection: its queue subscriptions begin to ask.
    pub(crate) fn start_consumers(&mut self, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        let Some(worker) = session.rare.as_mut().and_then(|rare| rare.worker.as_mut()) else { return };
        for known in &mut worker.subscriptions {
            known.consumer = self.queues.new_consumer(self.me, key);
        }
        self.note_worker(slot);
    }

    /// A session has lost its connection: what it has of queues goes back to them.
    pub(crate) fn stop_consumers(&mut self, slot: u32) {
        let session = self.deliveries.sessions.at(slot);
        let Some(mut worker) = session.rare.as_mut().and_then(|rare| rare.worker.take()) else { return };
        for (of, lease, verdict) in worker.settled.drain(..) {
            self.queues.settle(&of, lease, verdict);
        }
        for leased in worker.leased.drain() {
            self.queues.settle(&leased.of, leased.lease, Verdict::Release);
        }
        for known in &mut worker.subscriptions {
            // Its SUBACK goes with the connection.
            known.subacks.clear();
            self.retire(known);
        }
        worker.too_large_logged = false;
        self.deliveries.sessions.at(slot).rare().worker = Some(worker);
    }

    /// A session ends: it has no connection any more.
    pub(crate) fn end_queue_subscriptions(&mut self, slot: u32) {
        let session = self.deliveries.sessions.at(slot);
        if let Some(worker) = session.rare.as_mut().and_then(|rare| rare.worker.take()) {
            self.deliveries.counters.subscriptions -= worker.subscriptions.len() as u64;
        }
    }

    /// A queue answers a consumer that has asked for messages; they follow by [`Shard::deliver`]. False if the
    /// consumer is gone: then nothing of it is taken.
    pub fn queue_answered(&mut self, io: &mut Io<'_, Mail>, consumer: u64) -> bool {
        let Some((key, known)) = self.find_consumer(consumer) else { return false };
        (known.asking, known.is_known, known.refusal_logged) = (Asking::No, true, false);
        let subacks = std::mem::take(&mut known.subacks);
        self.note_worker(key.slot);
        self.release_subacks(io, key.slot, subacks, None);
        self.queues.consumers.contains_key(&consumer)
    }

    /// A queue refuses a consumer, for a reason that a SUBACK can name. It asks again after a while, unless it has just
    /// subscribed.
    pub fn refuse_consumer(
        &mut self,
        io: &mut Io<'_, Mail>,
        consumer: u64,
        reason: ReasonCode,
        why: &dyn fmt::Display,
    ) {
        let Some((key, known)) = self.find_consumer(consumer) else { return };
        let is_new = !known.subacks.is_empty();
        let is_first = !std::mem::replace(&mut known.refusal_logged, true);
        let filter = known.filter.clone();
        known.asking = Asking::Later(io.clock.now_ms + REFUSED_MS);
        known.is_known = false;
        let client_id = Arc::clone(&self.deliveries.sessions.at(key.slot).client_id);
        if is_first {
            log::warn!("client {client_id:?} gets nothing from {filter:?}: {why}");
        }
        if !is_new {
            if !self.queues.refused.contains(&key) {
                self.queues.refused.push(key);
            }
            io.set_timer(io.clock.now_ms + REFUSED_MS, Timer::Queues.token());
            return;
        }
        let (subacks, wait) = self.entering(|shard| {
            let known = shard.remove_queue_subscription(key.slot, |known| known.consumer == consumer);
            if let Some((journal, session)) = shard.journal(key.slot) {
                journal.push(&Entry::Unsubscribe { session, filter: &filter });
            }
            known.map(|known| known.subacks).unwrap_or_default()
        });
        self.release_subacks(io, key.slot, subacks, Some((reason, wait)));
    }

    /// Consumers that were refused ask again.
    pub(crate) fn ask_queues_again(&mut self, now_ms: u64) {
        for key in std::mem::take(&mut self.queues.refused) {
            let Some(session) = self.deliveries.sessions.get(key) else { continue };
            let worker = session.rare.as_ref().and_then(|rare| rare.worker.as_ref());
            let is_early =
                |known: &QueueSubscription| matches!(known.asking, Asking::Later(at) if at > now_ms);
            if worker.is_some_and(|worker| worker.subscriptions.iter().any(is_early)) {
                self.queues.refused.push(key);
            }
            self.note_worker(key.slot);
        }
    }

    /// SUBACKs need not wait any more: they grant what they were to, or refuse it.
    fn release_subacks(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        subacks: Vec<(u64, usize)>,
        refused: Option<(ReasonCode, Wait)>,
    ) {
        if subacks.is_empty() {
            return;
        }
        let key = self.deliveries.sessions.key(self.me, slot);
        let rare = self.deliveries.sessions.at(slot).rare();
        for (number, index) in subacks {
            if let Some((reason, wait)) = refused {
                rare.answers.refuse(number, index, reason, wait.commit);
            }
            rare.answers.receipt(number, None);
        }
        if let Some((_, wait)) = refused.filter(|(_, wait)| wait.commit > 0) {
            self.commits.wake_with(wait.commit, key);
        }
        self.send_answers(io, slot);
    }

    /// The session of a consumer, and its subscription.
    pub(super) fn find_consumer(&mut self, consumer: u64) -> Option<(SessionKey, &mut QueueSubscription)> {
        let key = *self.queues.consumers.get(&consumer)?;
        let worker = self.deliveries.sessions.get(key)?.rare.as_mut()?.worker.as_mut()?;
        let known = worker.subscriptions.iter_mut().find(|known| known.consumer == consumer)?;
        Some((key, known))
    }
}
