//! The oracle of the MQTT scenario: every message, every session as its client sees it, and the rules for deliveries.
//!
//! Events have an order (`Moment`), and a promise holds between two of them: a message must reach a session if the
//! subscription was granted before it was sent and not given up before it was acknowledged. Between these bounds it may
//! or may not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_mqtt::QoS;

use crate::Violation;

/// Position in the order of all events of a run.
pub(crate) type Moment = u64;
/// Number of a message. A later one of the same publisher has a higher number.
pub(crate) type MessageId = usize;
/// Number of a session.
pub(crate) type SessionId = usize;

/// A message as its publisher sees it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a message, independent of each other")]
pub(crate) struct Message {
    pub(crate) publisher: usize,
    pub(crate) topic: Arc<str>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Its payload is empty, which clears the retained message.
    pub(crate) is_clear: bool,
    pub(crate) is_will: bool,
    /// A will that must be published.
    pub(crate) is_due: bool,
    pub(crate) expiry_s: Option<u32>,
    /// When it was first sent.
    pub(crate) sent: Moment,
    /// When it was last sent.
    pub(crate) sent_ms: u64,
    /// The broker has refused it. A publisher that has not received the refusal sends it again, after messages that
    /// were taken since.
    pub(crate) was_refused: bool,
    /// When PUBACK or PUBREC arrived without an error.
    pub(crate) acked: Option<Moment>,
}

impl Message {
    fn promise(&self) -> &'static str {
        if self.is_due { "was a will that is due" } else { "was acknowledged" }
    }
}

/// A subscription as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub(crate) filter: Arc<str>,
    pub(crate) group: Option<&'static str>,
    pub(crate) qos: QoS,
    pub(crate) sent_at: Moment,
    /// What was acknowledged before this moment was no longer in flight between shards when the subscription was sent.
    pub(crate) since: Moment,
    pub(crate) granted: Option<Moment>,
    /// When UNSUBSCRIBE, or a SUBSCRIBE that replaces it, was sent.
    pub(crate) leaving: Option<Moment>,
    /// When that was acknowledged.
    pub(crate) left: Option<Moment>,
}

impl Sub {
    /// Whether the message may be delivered to it.
    fn may_match(&self, message: &Message) -> bool {
        let is_shared = self.group.is_some();
        matches(&self.filter, &message.topic)
            && self.left.is_none_or(|left| left > message.sent)
            // A member of a group may receive what another one did not acknowledge.
            && (is_shared || message.acked.is_none_or(|acked| acked > self.since))
    }

    /// Whether the message must be delivered to it: it existed from before the publish until after the acknowledgement.
    fn must_match(&self, message: &Message) -> bool {
        let Some(acked) = message.acked.or(message.is_due.then_some(Moment::MAX)) else { return false };
        matches(&self.filter, &message.topic)
            && self.granted.is_some_and(|granted| granted < message.sent)
            && self.leaving.is_none_or(|leaving| leaving > acked)
            && self.qos.min(message.qos) > QoS::AtMostOnce
    }
}

/// A session as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: usize,
    pub(crate) subs: Vec<Sub>,
    /// When its connection was lost; none while it has one. The session ends no earlier.
    disconnected_at: Option<Moment>,
    /// When its client knew that it had ended.
    ended: Option<Moment>,
    /// How often each message was first received at QoS 2 and, in addition, in total.
    received: BTreeMap<MessageId, (u32, u32)>,
    /// Last message received for the first time, by publisher, topic, and QoS of both ends.
    last: BTreeMap<(usize, Arc<str>, QoS, QoS), MessageId>,
    /// Retained messages received, by topic.
    retained: BTreeMap<Arc<str>, MessageId>,
}

/// The first delivery of a message under its packet identifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) session: SessionId,
    pub(crate) message: MessageId,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
}

/// All messages and sessions of a run.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) messages: Vec<Message>,
    pub(crate) sessions: Vec<Session>,
    /// How often each message was first received at QoS 2 by a member of a group.
    group_received: BTreeMap<(&'static str, MessageId), u32>,
    /// Sessions of members end, and what they held goes to other members.
    may_redistribute: bool,
    pub(crate) acknowledged: u64,
    pub(crate) delivered: u64,
    /// When each shard last began a turn, and took in messages of other shards.
    turns: Vec<Moment>,
    now: Moment,
}

impl Oracle {
    /// With `may_redistribute`, sessions of members of groups end.
    pub(crate) fn new(may_redistribute: bool) -> Self {
        Self { may_redistribute, ..Self::default() }
    }

    /// Returns the next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A client is about to publish a message.
    pub(crate) fn add_message(
        &mut self,
        publisher: usize,
        topic: Arc<str>,
        qos: QoS,
        sent_ms: u64,
    ) -> MessageId {
        let sent = self.tick();
        self.messages.push(Message {
            publisher,
            topic,
            qos,
            retain: false,
            is_clear: false,
            is_will: false,
            is_due: false,
            expiry_s: None,
            sent,
            sent_ms,
            was_refused: false,
            acked: None,
        });
        self.messages.len() - 1
    }

    /// PUBACK or PUBREC for a message has arrived.
    pub(crate) fn acknowledged(&mut self, message: MessageId) {
        let now = self.tick();
        let acked = &mut self.messages[message].acked;
        self.acknowledged += u64::from(acked.is_none());
        acked.get_or_insert(now);
    }

    /// A broker starts.
    pub(crate) fn begin_broker(&mut self, shards: usize) {
        let now = self.tick();
        self.turns = vec![now; shards];
    }

    /// A shard has begun a turn.
    pub(crate) fn begin_turn(&mut self, shard: usize) {
        self.turns[shard] = self.now;
    }

    /// See [`Sub::since`].
    pub(crate) fn since(&self) -> Moment {
        self.turns.iter().copied().min().unwrap_or_default()
    }

    pub(crate) fn begin_session(&mut self, client: usize) -> SessionId {
        self.sessions.push(Session {
            client,
            subs: Vec::new(),
            disconnected_at: None,
            ended: None,
            received: BTreeMap::new(),
            last: BTreeMap::new(),
            retained: BTreeMap::new(),
        });
        self.sessions.len() - 1
    }

    /// The connection of a session is lost.
    pub(crate) fn session_disconnected(&mut self, session: SessionId) {
        let now = self.tick();
        self.sessions[session].disconnected_at.get_or_insert(now);
    }

    /// The client of a session has resumed it.
    pub(crate) fn session_resumed(&mut self, session: SessionId) {
        self.sessions[session].disconnected_at = None;
    }

    /// The client of a session has another one now.
    pub(crate) fn session_ended(&mut self, session: SessionId) {
        let now = self.tick();
        self.sessions[session].ended.get_or_insert(now);
    }

    /// SUBSCRIBE is sent. Returns the index of the subscription in its session.
    pub(crate) fn subscribe(&mut self, session: SessionId, sub: Sub) -> usize {
        let subs = &mut self.sessions[session].subs;
        subs.push(sub);
        subs.len() - 1
    }

    /// SUBACK has granted a subscription.
    pub(crate) fn grant(&mut self, session: SessionId, index: usize) {
        let now = self.tick();
        let subs = &mut self.sessions[session].subs;
        subs[index].granted = Some(now);
        let (filter, group) = (Arc::clone(&subs[index].filter), subs[index].group);
        // It has replaced earlier ones.
        for old in subs[..index].iter_mut().filter(|old| old.filter == filter && old.group == group) {
            old.left.get_or_insert(now);
        }
    }

    /// UNSUBSCRIBE is sent, or a SUBSCRIBE that replaces a subscription.
    pub(crate) fn leave(
        &mut self,
        session: SessionId,
        filter: &str,
        group: Option<&'static str>,
        now: Moment,
    ) {
        for sub in &mut self.sessions[session].subs {
            if &*sub.filter == filter && sub.group == group {
                sub.leaving.get_or_insert(now);
            }
        }
    }

    /// UNSUBACK has arrived: every subscription given up at `sent_at` or before is over.
    pub(crate) fn left(&mut self, session: SessionId, filter: &str, group: Option<&str>, sent_at: Moment) {
        let now = self.tick();
        for sub in &mut self.sessions[session].subs {
            if &*sub.filter == filter && sub.group == group && sub.sent_at < sent_at {
                sub.left.get_or_insert(now);
            }
        }
    }

    /// A message is received for the first time under its packet identifier.
    ///
    /// # Errors
    /// The session must not receive it, or not again, or not in this order.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Result<(), Violation> {
        self.delivered += 1;
        let Arrival { session, message: id, qos, retain } = arrival;
        let message = &self.messages[id];
        let known = &self.sessions[session];
        let who = format!("client {}, session {session}, message {id} on {}", known.client, message.topic);
        if retain {
            let is_subscribed = |sub: &Sub| sub.group.is_none() && matches(&sub.filter, &message.topic);
            if !message.retain || !known.subs.iter().any(is_subscribed) {
                return Err(Violation(format!("{who}: retained, and nobody asked for it")));
            }
            self.sessions[session].retained.insert(Arc::clone(&message.topic), id);
            return self.check_retained(session, id);
        }
        if !known.subs.iter().any(|sub| sub.may_match(message)) {
            return Err(Violation(format!("{who}: no subscription that it could have met")));
        }
        let group = known.subs.iter().find_map(|sub| sub.group.filter(|_| sub.may_match(message)));
        // What a member holds at QoS 1 may move to another member, which receives it at its own QoS.
        let may_move = |group: &'static str| {
            let is_moved =
                |sub: &Sub| sub.group == Some(group) && sub.qos < QoS::ExactlyOnce && sub.may_match(message);
            self.may_redistribute || self.sessions.iter().any(|known| known.subs.iter().any(is_moved))
        };
        let is_once = qos == QoS::ExactlyOnce && !group.is_some_and(may_move);
        let known = &mut self.sessions[session];
        let (begun, came) = known.received.entry(id).or_default();
        *came += 1;
        let is_first = *came == 1;
        *begun += u32::from(is_once);
        if *begun > 1 {
            return Err(Violation(format!("{who}: delivered at QoS 2 for the {begun}. time")));
        }
        if let Some(group) = group {
            let group_received = self.group_received.entry((group, id)).or_default();
            *group_received += u32::from(is_once);
            if *group_received > 1 {
                return Err(Violation(format!("{who}: dealt out at QoS 2 for the {group_received}. time")));
            }
        } else if is_first && !message.is_will && message.expiry_s.is_none() && qos >= message.qos {
            let key = (message.publisher, Arc::clone(&message.topic), message.qos, qos);
            // A message from before the subscription may be delivered when it is sent again.
            let is_due = |sub: &Sub| {
                sub.granted.is_some_and(|granted| granted < message.sent)
                    && sub.leaving.is_none()
                    && sub.qos.min(message.qos) == qos
                    && matches(&sub.filter, &message.topic)
            };
            let is_due = known.subs.iter().any(is_due);
            let last = known.last.entry(key).or_insert(id);
            let last = std::mem::replace(last, id.max(*last));
            if is_due && last > id && !message.was_refused {
                return Err(Violation(format!("{who}: behind message {last}")));
            }
        }
        Ok(())
    }

    /// A retained message is at least as new as the last one acknowledged before the SUBSCRIBE.
    fn check_retained(&self, session: SessionId, id: MessageId) -> Result<(), Violation> {
        let message = &self.messages[id];
        let is_fresh = |sub: &&Sub| {
            let newer = |other: &&Message| other.acked.is_some_and(|acked| acked < sub.sent_at);
            matches(&sub.filter, &message.topic)
                && !self.messages[id + 1..]
                    .iter()
                    .filter(|other| other.retain && other.topic == message.topic)
                    .any(|other| newer(&other))
        };
        if message.was_refused || self.sessions[session].subs.iter().any(|sub| is_fresh(&sub)) {
            return Ok(());
        }
        Err(Violation(format!(
            "client {}, session {session}: retained message {id} on {} is stale",
            self.sessions[session].client, message.topic
        )))
    }

    /// Checks that every acknowledged message has reached these sessions, which exist at the end of the run.
    pub(crate) fn check_losses(&self, sessions: &[SessionId]) -> Result<(), Violation> {
        for (id, message) in self.messages.iter().enumerate() {
            if (message.acked.is_none() && !message.is_due) || message.is_clear || message.expiry_s.is_some()
            {
                continue;
            }
            let mut groups = BTreeSet::new();
            for session in sessions {
                let known = &self.sessions[*session];
                let has_it = known.received.contains_key(&id);
                for sub in known.subs.iter().filter(|sub| sub.must_match(message)) {
                    if let Some(group) = sub.group {
                        groups.insert(group);
                    } else if !has_it {
                        return Err(Violation(format!(
                            "client {}, session {session}: message {id} on {} {} and never came",
                            known.client,
                            message.topic,
                            message.promise()
                        )));
                    }
                }
            }
            for group in groups {
                self.check_group(id, group, sessions)?;
            }
        }
        Ok(())
    }

    /// Checks that a message for a group has reached a member, unless it ended with the session that held it.
    fn check_group(&self, id: MessageId, group: &str, sessions: &[SessionId]) -> Result<(), Violation> {
        let message = &self.messages[id];
        let is_matched = |sub: &&Sub| sub.group == Some(group) && sub.may_match(message);
        let mut members = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, known)| known.subs.iter().any(|sub| is_matched(&sub)));
        // A QoS 2 message goes to no other member once its delivery has begun [MQTT-4.8.2-5]. A member that leaves the
        // group keeps what it holds.
        let keeps_it = |known: &Session| {
            message.qos == QoS::ExactlyOnce
                || known.subs.iter().filter(is_matched).any(|sub| sub.leaving.is_some())
        };
        let may_be_lost = members.clone().any(|(session, known)| {
            !sessions.contains(&session) && (keeps_it(known) || self.ends_alone(session, group))
        });
        if may_be_lost || members.any(|(_, known)| known.received.contains_key(&id)) {
            return Ok(());
        }
        Err(Violation(format!(
            "group {group}: message {id} on {} {} and came to nobody",
            message.topic,
            message.promise()
        )))
    }

    /// Whether a session may have been the last member of a group when it ended.
    fn ends_alone(&self, session: SessionId, group: &str) -> bool {
        let Session { disconnected_at, ended, .. } = self.sessions[session];
        let is_over =
            |moment: Option<Moment>| moment.is_some_and(|moment| ended.is_none_or(|ended| moment <= ended));
        let stays = |other: &Session| {
            let has_ended = other.ended.is_some() && is_over(other.disconnected_at);
            let is_member = |sub: &Sub| {
                sub.group == Some(group)
                    && sub.granted.is_some_and(|granted| {
                        disconnected_at.is_some_and(|disconnected_at| granted < disconnected_at)
                    })
                    && !is_over(sub.leaving)
            };
            !has_ended && other.subs.iter().any(is_member)
        };
        let mut others = self.sessions.iter().enumerate().filter(|(other, _)| *other != session);
        !others.any(|(_, other)| stays(other))
    }

    /// Checks the retained messages that this session, which has just subscribed, received.
    pub(crate) fn check_retained_now(&self, session: SessionId) -> Result<(), Violation> {
        let found = &self.sessions[session].retained;
        let mut topics: BTreeMap<&str, Vec<MessageId>> = BTreeMap::new();
        for (id, message) in self.messages.iter().enumerate().filter(|(_, message)| message.retain) {
            topics.entry(&message.topic).or_default().push(id);
        }
        for (topic, ids) in topics {
            let acked = ids.iter().rposition(|id| self.messages[*id].acked.is_some());
            let possible = &ids[acked.unwrap_or(0)..];
            // A message that was refused at first may have replaced them.
            let refused = ids.iter().filter(|id| self.messages[**id].was_refused);
            let mut possible = possible.iter().chain(refused);
            let is_right = match found.get(topic) {
                Some(id) => possible.any(|known| known == id),
                None => acked.is_none() || possible.any(|id| self.messages[*id].is_clear),
            };
            if !is_right {
                return Err(Violation(format!(
                    "{topic} retains {:?}, and should one of {:?}",
                    found.get(topic),
                    &ids[acked.unwrap_or(0)..]
                )));
            }
        }
        Ok(())
    }
}

/// Whether a topic name matches a filter.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_meet_what_they_say() {
        for (filter, topic, meets) in [
            ("t/#", "t/a/x", true),
            ("t/#", "t", true),
            ("t/+", "t/a", true),
            ("t/+", "t/a/x", false),
            ("t/a", "t/a", true),
            ("t/a", "t/b", false),
            ("t/a/x", "t/a", false),
        ] {
            assert_eq!(matches(filter, topic), meets, "{filter} {topic}");
        }
    }
}
