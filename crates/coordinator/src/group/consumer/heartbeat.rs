//! ConsumerGroupHeartbeat: joins, changes of subscriptions, and steps toward the target.
//!
//! One heartbeat may do all of it: a member joins, the target is computed, and the response has what is free of it. A
//! heartbeat that changes nothing, which nearly all are, looks up the member and moves its deadline.

use std::sync::Arc;

use super::ConsumerGroup;
use super::member::{ClassicMember, ConsumerMember, LEFT_STATIC, Progress};
use super::request::{ConsumerHeartbeat, JOINING, LEAVING};
use super::response::{ConsumerHeartbeatResult, Refusal, by_topic};
use super::subscription::{Resolved, Selection, Subscription, Topics, compile, matching};
use super::{PARTITION_BYTES, records};
use crate::group::Groups;
use crate::group::consumer_group::Group;
use crate::group::context::GroupContext;
use crate::group::response::Response;
use crate::group::timers::TimerKind;
use crate::{Caller, Error};

/// A subscription, and what it selects if no member has had it before.
type NewSubscription = (Arc<Subscription>, Option<Resolved>);

/// A member that was admitted.
pub(super) struct AdmittedMember<'a> {
    /// Whether it joins, or begins again.
    pub(super) is_new: bool,
    /// The static member whose place it takes.
    pub(super) replaced: Option<&'a str>,
    /// Set if it uses the classic protocol.
    pub(super) classic: Option<ClassicMember>,
}

impl Groups {
    /// ConsumerGroupHeartbeat. Answered once what it changes is durable.
    pub fn handle_consumer_heartbeat(
        &mut self,
        now_ms: u64,
        request: &ConsumerHeartbeat<'_>,
        topics: &dyn Topics,
        caller: Caller,
    ) {
        let unknown = Refusal { error: Error::GroupIdNotFound, message: "There is no such consumer group." };
        let handled =
            request.check().and_then(|()| self.prepare_consumer_group(now_ms, request)).and_then(|()| {
                let beat = |context: &mut GroupContext<'_>| context.consumer_heartbeat(request, topics);
                self.with_group(now_ms, request.group_id, beat).unwrap_or(Err(unknown))
            });
        match handled {
            Ok((result, true)) => {
                self.effects.reply_when_durable(caller, Response::ConsumerHeartbeat(Ok(result)));
            }
            Ok((result, false)) => self.effects.reply(caller, Response::ConsumerHeartbeat(Ok(result))),
            Err(refusal) => self.effects.reply(caller, Response::ConsumerHeartbeat(Err(refusal))),
        }
    }

    /// Creates the group if a member joins.
    fn prepare_consumer_group(
        &mut self,
        now_ms: u64,
        request: &ConsumerHeartbeat<'_>,
    ) -> Result<(), Refusal> {
        let group = self.by_id.get(request.group_id);
        if group.is_some_and(|group| group.consumer().is_some()) {
            return Ok(());
        }
        let not_found = |message| Err(Refusal { error: Error::GroupIdNotFound, message });
        if request.member_epoch != JOINING {
            // A member that was away while the group has changed back may join again.
            let is_classic = group.is_some_and(Group::uses_consumer_protocol);
            return if is_classic {
                Err(unknown_member())
            } else {
                not_found("There is no such consumer group.")
            };
        }
        if group.is_none() {
            let full = Refusal { error: Error::PolicyViolation, message: "There are too many groups." };
            self.check_group_limit().map_err(|_| full)?;
            let group_id: Arc<str> = request.group_id.into();
            self.by_id.insert(group_id.clone(), Group::new(group_id, now_ms));
        }
        Ok(())
    }
}

impl GroupContext<'_> {
    /// Handles a heartbeat. A group of the classic protocol changes over, unless the first one is refused.
    fn consumer_heartbeat(
        &mut self,
        request: &ConsumerHeartbeat<'_>,
        topics: &dyn Topics,
    ) -> Result<(ConsumerHeartbeatResult, bool), Refusal> {
        if self.group.consumer().is_none() {
            let consumer = self.upgraded(topics)?;
            self.group.begin_consumer(consumer);
            let outcome = self.member_heartbeat(request, topics);
            if outcome.is_err() {
                self.group.take_consumer();
            } else {
                self.end_classic();
            }
            return outcome;
        }
        let outcome = self.member_heartbeat(request, topics);
        self.downgrade_without_consumers();
        outcome
    }

    /// Turns a group of the consumer protocol without members into one of the classic protocol.
    pub(in crate::group) fn leave_consumer_protocol(&mut self) {
        if self.group.take_consumer().is_some_and(|consumer| consumer.is_persisted()) {
            self.effects.persist(vec![records::group_tombstone(self.group.id())]);
        }
    }

    /// Returns the response, and whether anything has changed that must be durable first.
    fn member_heartbeat(
        &mut self,
        request: &ConsumerHeartbeat<'_>,
        topics: &dyn Topics,
    ) -> Result<(ConsumerHeartbeatResult, bool), Refusal> {
        if matches!(request.member_epoch, LEAVING | LEFT_STATIC) {
            return self.consumer_leave(request);
        }
        let Some(consumer) = self.group.consumer() else { return Err(unknown_member()) };
        let replaced = consumer.admit(request, self.settings.members_max)?;
        let is_new = request.member_epoch == JOINING;
        let admitted = AdmittedMember { is_new, replaced: replaced.as_deref(), classic: None };
        let has_changed = self.apply_heartbeat(request, admitted, topics)?;
        let default_ms = self.settings.consumer_heartbeat_interval_ms;
        let heartbeat_interval_ms = self.config.heartbeat_interval_ms.unwrap_or(default_ms);
        let Some(consumer) = self.group.consumer() else { return Err(unknown_member()) };
        let result = consumer.result(request, has_changed, heartbeat_interval_ms);
        let has_records = self.persist_consumer_group(Some(request.member_id));
        // A repeated heartbeat changes nothing, but what the first one has changed may not be durable yet.
        let promises = result.assignment.is_some() || result.member_epoch != request.member_epoch;
        Ok((result, has_records || promises))
    }

    /// Takes over what a member that was admitted says, and takes a step with it. Returns whether its assignment has
    /// changed.
    pub(super) fn apply_heartbeat(
        &mut self,
        request: &ConsumerHeartbeat<'_>,
        admitted: AdmittedMember<'_>,
        topics: &dyn Topics,
    ) -> Result<bool, Refusal> {
        if let Some(consumer) = self.group.consumer_mut() {
            // First, so that what members have left behind is not in the way.
            self.effects.assigned += consumer.refresh_topics(topics);
        }
        let subscription = self.new_subscription(request, admitted.replaced, topics)?;
        self.clear_timers_of(admitted.replaced);
        let is_classic = admitted.classic.is_some();
        let Some(consumer) = self.group.consumer_mut() else { return Err(unknown_member()) };
        consumer.update_member(self.now_ms, request, admitted);
        let is_subscription_new = subscription.is_some();
        if let Some((subscription, resolved)) = subscription {
            consumer.subscribe(self.now_ms, request.member_id, subscription, resolved);
        }
        self.effects.assigned += consumer.update_target(is_subscription_new);
        let has_changed = consumer.reconcile(request.member_id, request);
        let member = consumer.member(request.member_id);
        let is_revoking = member.is_some_and(|member| member.progress == Progress::Revoking);
        self.renew_consumer_session(request.member_id);
        if is_classic {
            // It has joined again, as it was told to.
            self.set_revocation_timer(request.member_id, false);
        }
        self.set_revocation_timer(request.member_id, is_revoking);
        Ok(has_changed)
    }

    /// Renews the session of a member.
    fn renew_consumer_session(&mut self, id: &str) {
        let Some(member) = self.group.consumer().and_then(|consumer| consumer.member(id)) else { return };
        let default_ms = self.settings.consumer_session_timeout_ms;
        let timeout_ms = member.session_timeout_ms(self.config.session_timeout_ms.unwrap_or(default_ms));
        self.set_session_deadline(id, timeout_ms);
    }

    /// The subscription of the member after this request, if it is a new one, and what it selects, if no other member
    /// has it.
    fn new_subscription(
        &self,
        request: &ConsumerHeartbeat<'_>,
        replaced: Option<&str>,
        topics: &dyn Topics,
    ) -> Result<Option<NewSubscription>, Refusal> {
        let Some(consumer) = self.group.consumer() else { return Ok(None) };
        let before = consumer.member(replaced.unwrap_or(request.member_id));
        if before.is_some() && request.topic_names.is_none() && request.topic_regex.is_none() {
            return Ok(None);
        }
        let none = Arc::default();
        let old = before.map_or(&none, |member| &member.subscription);
        let names =
            request.topic_names.as_ref().map(|names| names.iter().map(|name| Arc::from(*name)).collect());
        let regex = match request.topic_regex {
            None => old.regex.clone(),
            Some("") => None,
            Some(pattern) => Some(Arc::from(pattern)),
        };
        let new = Arc::new(Subscription { names: names.unwrap_or_else(|| old.names.clone()), regex });
        if before.is_some_and(|member| member.subscription == new) {
            return Ok(None);
        }
        if let Some((known, resolved)) = consumer.subscriptions.get_key_value(&new) {
            self.check_room(request, resolved, 0)?;
            return Ok(Some((known.clone(), None)));
        }
        if let Some(pattern) = &new.regex {
            compile(pattern)?;
            consumer.check_regexes(pattern)?;
        }
        let matched = new.regex.as_deref().map(|pattern| matching(pattern, topics)).unwrap_or_default();
        let resolved = new.resolve(topics, &matched, &mut Selection::unlimited());
        let bytes = new.bytes() + resolved.bytes() + resolved.partition_count() * PARTITION_BYTES;
        self.check_room(request, &resolved, bytes)?;
        Ok(Some((new, Some(resolved))))
    }

    /// Checks that there is room for a member that selects these topics, with `bytes` for a subscription that no other
    /// member has.
    fn check_room(
        &self,
        request: &ConsumerHeartbeat<'_>,
        resolved: &Resolved,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let refused = |message| Err(Refusal { error: Error::PolicyViolation, message });
        let has_room = |consumer: &ConsumerGroup| consumer.selection.has_room_for(resolved.topics.len());
        if !self.group.consumer().is_none_or(has_room) {
            return refused("The members of the group are subscribed to too many topics.");
        }
        let mut member = ConsumerMember::new(request.member_id.into());
        member.update_from(request);
        if self.has_room_for(member.bytes() + bytes) {
            Ok(())
        } else {
            refused("The group needs too much memory.")
        }
    }

    /// Gives all members a new session, after a restart.
    pub(in crate::group) fn resume_consumer_group(&mut self) {
        let Some(consumer) = self.group.consumer() else { return };
        for id in consumer.member_ids() {
            self.renew_consumer_session(&id);
            let member = self.group.consumer().and_then(|consumer| consumer.member(&id));
            let is_revoking = member.is_some_and(|member| member.progress == Progress::Revoking);
            self.set_revocation_timer(&id, is_revoking);
        }
    }

    /// Removes a member whose time is over.
    pub(in crate::group) fn expire_consumer_member(&mut self, id: &str) {
        self.clear_timers_of(Some(id));
        if let Some(consumer) = self.group.consumer_mut() {
            consumer.remove(self.now_ms, id);
        }
        self.persist_consumer_group(None);
        self.downgrade_without_consumers();
    }

    /// A member has been asked to give up partitions or to join again, or has done so: sets or clears its timer.
    pub(super) fn set_revocation_timer(&mut self, id: &str, is_awaited: bool) {
        let Some(member) = self.group.consumer_mut().and_then(|consumer| consumer.member_mut(id)) else {
            return;
        };
        let timeout_ms = u64::from(member.rebalance_timeout_ms);
        match (is_awaited, member.revocation_deadline_ms) {
            (true, None) => {
                let deadline_ms = self.now_ms.saturating_add(timeout_ms);
                member.revocation_deadline_ms = Some(deadline_ms);
                let kind = TimerKind::Revocation(member.id.clone());
                self.timers.set(deadline_ms, self.group.id(), kind);
            }
            (false, Some(deadline_ms)) => {
                member.revocation_deadline_ms = None;
                let kind = TimerKind::Revocation(member.id.clone());
                self.timers.clear(deadline_ms, self.group.id(), kind);
            }
            _ => {}
        }
    }

    /// Clears the timers of a member that goes.
    pub(in crate::group) fn clear_timers_of(&mut self, id: Option<&str>) {
        let member = id.and_then(|id| self.group.consumer_mut()?.member_mut(id));
        let Some(member) = member else { return };
        let id = member.id.clone();
        let (session, revocation) = (member.session.timer_ms.take(), member.revocation_deadline_ms.take());
        if let Some(timer_ms) = session {
            self.timers.clear(timer_ms, self.group.id(), TimerKind::Member(id.clone()));
        }
        if let Some(timer_ms) = revocation {
            self.timers.clear(timer_ms, self.group.id(), TimerKind::Revocation(id));
        }
    }

    /// Hands out the records of what has changed, and those of `sender` if earlier ones may be lost. Returns whether
    /// there are any.
    pub(super) fn persist_consumer_group(&mut self, sender: Option<&str>) -> bool {
        let failed_writes = self.effects.changes.failed_writes();
        let is_failing = self.effects.changes.is_failing();
        let group_id = self.group.id().clone();
        let Some(consumer) = self.group.consumer_mut() else { return false };
        let records = consumer.take_records(&group_id, (failed_writes, is_failing), sender);
        let has_records = !records.is_empty();
        self.effects.persist(records);
        has_records
    }
}

impl ConsumerGroup {
    /// Checks who sends a heartbeat. Returns the member whose place it takes: a static member that has left under
    /// another member id.
    fn admit(
        &self,
        request: &ConsumerHeartbeat<'_>,
        members_max: usize,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let known = self.members.get(request.member_id);
        let joins = request.member_epoch == JOINING;
        let holder = request.instance_id.and_then(|instance_id| self.instances.get(instance_id));
        match (holder, known) {
            (Some(holder), _) if **holder != *request.member_id && joins => {
                // A client of the classic protocol does not leave when it changes over.
                let yields =
                    |member: &ConsumerMember| member.epoch == LEFT_STATIC || member.classic.is_some();
                if self.members.get(holder).is_some_and(yields) && known.is_none() {
                    Ok(Some(holder.clone()))
                } else {
                    Err(unreleased())
                }
            }
            (Some(holder), _) if **holder != *request.member_id => Err(fenced_instance()),
            (None, Some(_)) if request.instance_id.is_some() && !joins => Err(unknown_member()),
            (_, Some(_)) if joins => Ok(None),
            (_, Some(member)) => check_epoch(member, request).map(|()| None),
            (_, None) if !joins => Err(unknown_member()),
            (_, None) if self.members.len() >= members_max => Err(Refusal {
                error: Error::GroupMaxSizeReached,
                message: "The consumer group has reached its maximum number of members.",
            }),
            (_, None) => Ok(None),
        }
    }

    /// Adds the member if it is new, and takes over what the request says about it.
    fn update_member(&mut self, now_ms: u64, request: &ConsumerHeartbeat<'_>, admitted: AdmittedMember<'_>) {
        let AdmittedMember { is_new, replaced, classic } = admitted;
        if !is_new {
            let known = self.members.get(request.member_id);
            if known.is_some_and(|member| classic.is_some() || member.is_changed_by(request))
                && let Some(mut member) = self.take(request.member_id)
            {
                member.update_from(request);
                member.classic = classic.or(member.classic);
                self.put(now_ms, member);
            }
            return;
        }
        let mut member = match replaced.and_then(|id| self.take(id)) {
            // It keeps what its predecessor had.
            Some(before) => {
                ConsumerMember { id: request.member_id.into(), epoch: 0, previous_epoch: 0, ..before }
            }
            None => match self.take(request.member_id) {
                Some(mut member) => {
                    if member.epoch != LEFT_STATIC {
                        member.reset_for_rejoin();
                    }
                    (member.epoch, member.previous_epoch) = (0, 0);
                    member
                }
                None => ConsumerMember::new(request.member_id.into()),
            },
        };
        member.instance_id = request.instance_id.map(Arc::from);
        member.update_from(request);
        member.classic = classic;
        self.put(now_ms, member);
    }

    fn subscribe(
        &mut self,
        now_ms: u64,
        id: &str,
        subscription: Arc<Subscription>,
        resolved: Option<Resolved>,
    ) {
        let Some(mut member) = self.take(id) else { return };
        member.subscription = subscription.clone();
        if let Some(resolved) = resolved {
            self.subscriptions.insert(subscription, resolved);
        }
        self.put(now_ms, member);
        self.update_topics();
    }

    fn result(
        &self,
        request: &ConsumerHeartbeat<'_>,
        has_changed: bool,
        heartbeat_interval_ms: u32,
    ) -> ConsumerHeartbeatResult {
        let member = self.members.get(request.member_id);
        // A member that owns something else has not received an earlier response.
        let differs = |member: &&ConsumerMember| {
            has_changed || request.is_full() || request.owns_other(&member.assigned)
        };
        let assigned = member.filter(differs);
        ConsumerHeartbeatResult {
            member_id: request.member_id.to_owned(),
            member_epoch: member.map_or(request.member_epoch, |member| member.epoch),
            heartbeat_interval_ms,
            assignment: assigned.map(|member| by_topic(&member.assigned)),
        }
    }
}

/// Checks the epoch of a heartbeat. The one before is accepted if the member has nothing that it should not have: it
/// has not received the last response.
fn check_epoch(member: &ConsumerMember, request: &ConsumerHeartbeat<'_>) -> Result<(), Refusal> {
    let is_repeated = member.epoch != LEFT_STATIC
        && request.member_epoch == member.previous_epoch
        && request
            .owned_partitions()
            .is_some_and(|mut owned| owned.all(|owned| member.assigned.contains(&owned)));
    if request.member_epoch == member.epoch || is_repeated {
        return Ok(());
    }
    let message = if request.member_epoch > member.epoch {
        "The member epoch is greater than the one known to the coordinator; the member must rejoin."
    } else {
        "The member epoch is smaller than the one known to the coordinator; the member must rejoin."
    };
    Err(Refusal { error: Error::FencedMemberEpoch, message })
}

pub(super) fn unknown_member() -> Refusal {
    Refusal { error: Error::UnknownMemberId, message: "The member is not a member of the group." }
}

pub(super) fn fenced_instance() -> Refusal {
    Refusal { error: Error::FencedInstanceId, message: "Another member has taken over the instance id." }
}

fn unreleased() -> Refusal {
    let message = "Another member uses the instance id and has not left.";
    Refusal { error: Error::UnreleasedInstanceId, message }
}
