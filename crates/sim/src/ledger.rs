//! What was promised and what came of it: every message, every session as its client knows it, and the rules that
//! a broker has broken if something does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_mqtt::QoS;

/// Place in the order of everything that happens in a run.
pub(crate) type Moment = u64;
/// Number of a message: later ones of the same publisher have higher ones.
pub(crate) type MessageId = usize;
/// Number of a session, from its beginning to its end.
pub(crate) type SessionId = usize;

/// What a broker did wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// A message as its publisher knows it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a message, independent of each other")]
pub(crate) struct Message {
    pub(crate) publisher: usize,
    pub(crate) topic: Arc<str>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Its payload is empty: it clears what is retained.
    pub(crate) is_clear: bool,
    pub(crate) is_will: bool,
    /// A will that has to be published, sooner or later.
    pub(crate) is_due: bool,
    pub(crate) expiry_s: Option<u32>,
    /// First sent.
    pub(crate) sent: Moment,
    /// Last sent.
    pub(crate) sent_ms: u64,
    /// The broker has answered that it does not take it. Whoever has not read that sends it again, behind what was
    /// taken since.
    pub(crate) was_refused: bool,
    /// PUBACK or PUBREC has come, and said that all is well.
    pub(crate) acked: Option<Moment>,
}

impl Message {
    /// Why it has to come.
    fn promise(&self) -> &'static str {
        if self.is_due { "was a will that is due" } else { "was acknowledged" }
    }
}

/// A subscription as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub(crate) filter: Arc<str>,
    pub(crate) group: Option<&'static str>,
    pub(crate) qos: QoS,
    pub(crate) asked: Moment,
    /// What was acknowledged before this was on its way to no shard any more when the subscription was asked for.
    pub(crate) since: Moment,
    pub(crate) granted: Option<Moment>,
    /// UNSUBSCRIBE, or SUBSCRIBE with other options, was sent.
    pub(crate) leaving: Option<Moment>,
    /// It was answered.
    pub(crate) left: Option<Moment>,
}

impl Sub {
    /// Whether messages may come that were published between `sent` and `acked`.
    fn may_meet(&self, message: &Message) -> bool {
        let is_shared = self.group.is_some();
        matches(&self.filter, &message.topic)
            && self.left.is_none_or(|left| left > message.sent)
            // Members of a group are given what others had and did not take.
            && (is_shared || message.acked.is_none_or(|acked| acked > self.since))
    }

    /// Whether it was there from before a message was sent until after it was acknowledged.
    fn must_meet(&self, message: &Message) -> bool {
        let Some(acked) = message.acked.or(message.is_due.then_some(Moment::MAX)) else { return false };
        matches(&self.filter, &message.topic)
            && self.granted.is_some_and(|granted| granted < message.sent)
            && self.leaving.is_none_or(|leaving| leaving > acked)
            && self.qos.min(message.qos) > QoS::AtMostOnce
    }
}

/// A session, from its beginning to its end.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: usize,
    pub(crate) subs: Vec<Sub>,
    /// When its connection was lost; nothing while it has one. It ends no earlier.
    gone: Option<Moment>,
    /// When its client had heard that it had ended.
    ended: Option<Moment>,
    /// How often each message has begun to come at QoS 2 and, beside it, at all.
    got: BTreeMap<MessageId, (u32, u32)>,
    /// The last message that came for the first time, by publisher, topic, and QoS of both ends.
    last: BTreeMap<(usize, Arc<str>, QoS, QoS), MessageId>,
    /// What came as retained, by topic.
    retained: BTreeMap<Arc<str>, MessageId>,
}

/// A message that has come, and is none that was sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) session: SessionId,
    pub(crate) message: MessageId,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
}

/// All messages and sessions of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) messages: Vec<Message>,
    pub(crate) sessions: Vec<Session>,
    /// How often a message for a group has begun to come at QoS 2, to any member.
    dealt: BTreeMap<(&'static str, MessageId), u32>,
    /// Members of groups end, and what they held is dealt out again.
    may_deal_twice: bool,
    pub(crate) deliveries: u64,
    /// When each shard last began a turn, and took in what others had sent it.
    turns: Vec<Moment>,
    now: Moment,
}

impl Ledger {
    /// With `may_deal_twice` sessions end that are members of groups.
    pub(crate) fn new(may_deal_twice: bool) -> Self {
        Self { may_deal_twice, ..Self::default() }
    }

    /// The next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A broker of so many shards begins.
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
            gone: None,
            ended: None,
            got: BTreeMap::new(),
            last: BTreeMap::new(),
            retained: BTreeMap::new(),
        });
        self.sessions.len() - 1
    }

    /// The connection of a session is lost.
    pub(crate) fn gone(&mut self, session: SessionId) {
        let now = self.tick();
        self.sessions[session].gone.get_or_insert(now);
    }

    /// The client of a session has come back to it.
    pub(crate) fn returned(&mut self, session: SessionId) {
        self.sessions[session].gone = None;
    }

    /// The client of a session has been given another.
    pub(crate) fn ended(&mut self, session: SessionId) {
        let now = self.tick();
        self.sessions[session].ended.get_or_insert(now);
    }

    /// A client asks for a subscription. Returns its number in its session.
    pub(crate) fn subscribe(&mut self, session: SessionId, sub: Sub) -> usize {
        let subs = &mut self.sessions[session].subs;
        subs.push(sub);
        subs.len() - 1
    }

    /// It was granted.
    pub(crate) fn grant(&mut self, session: SessionId, index: usize) {
        let now = self.tick();
        let subs = &mut self.sessions[session].subs;
        subs[index].granted = Some(now);
        let (filter, group) = (Arc::clone(&subs[index].filter), subs[index].group);
        // What was there before has been replaced.
        for old in subs[..index].iter_mut().filter(|old| old.filter == filter && old.group == group) {
            old.left.get_or_insert(now);
        }
    }

    /// UNSUBSCRIBE is sent, or SUBSCRIBE that replaces a subscription.
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

    /// UNSUBACK has come: everything left at `asked` or before is over.
    pub(crate) fn left(&mut self, session: SessionId, filter: &str, group: Option<&str>, asked: Moment) {
        let now = self.tick();
        for sub in &mut self.sessions[session].subs {
            if &*sub.filter == filter && sub.group == group && sub.asked < asked {
                sub.left.get_or_insert(now);
            }
        }
    }

    /// A message begins to come to a client.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Result<(), Violation> {
        self.deliveries += 1;
        let Arrival { session, message: id, qos, retain } = arrival;
        let message = &self.messages[id];
        let known = &self.sessions[session];
        let who = format!("client {}, session {session}, message {id} on {}", known.client, message.topic);
        if retain {
            let is_asked = |sub: &Sub| sub.group.is_none() && matches(&sub.filter, &message.topic);
            if !message.retain || !known.subs.iter().any(is_asked) {
                return Err(Violation(format!("{who}: retained, and nobody asked for it")));
            }
            self.sessions[session].retained.insert(Arc::clone(&message.topic), id);
            return self.check_retained(session, id);
        }
        if !known.subs.iter().any(|sub| sub.may_meet(message)) {
            return Err(Violation(format!("{who}: no subscription that it could have met")));
        }
        let group = known.subs.iter().find_map(|sub| sub.group.filter(|_| sub.may_meet(message)));
        // What a member has at QoS 1 moves on as QoS 1 does, and then comes at the QoS of whoever gets it.
        let may_move = |group: &'static str| {
            let is_moved =
                |sub: &Sub| sub.group == Some(group) && sub.qos < QoS::ExactlyOnce && sub.may_meet(message);
            self.may_deal_twice || self.sessions.iter().any(|known| known.subs.iter().any(is_moved))
        };
        let is_once = qos == QoS::ExactlyOnce && !group.is_some_and(may_move);
        let known = &mut self.sessions[session];
        let (begun, came) = known.got.entry(id).or_default();
        *came += 1;
        let is_first = *came == 1;
        *begun += u32::from(is_once);
        if *begun > 1 {
            return Err(Violation(format!("{who}: delivered at QoS 2 for the {begun}. time")));
        }
        if let Some(group) = group {
            let dealt = self.dealt.entry((group, id)).or_default();
            *dealt += u32::from(is_once);
            if *dealt > 1 {
                return Err(Violation(format!("{who}: dealt out at QoS 2 for the {dealt}. time")));
            }
        } else if is_first && !message.is_will && message.expiry_s.is_none() && qos >= message.qos {
            let key = (message.publisher, Arc::clone(&message.topic), message.qos, qos);
            // What was sent before its subscription was there comes when it is sent again, if at all.
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

    /// A retained message is at least as new as what was acknowledged before somebody asked for it.
    fn check_retained(&self, session: SessionId, id: MessageId) -> Result<(), Violation> {
        let message = &self.messages[id];
        let is_fresh = |sub: &&Sub| {
            let newer = |other: &&Message| other.acked.is_some_and(|acked| acked < sub.asked);
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

    /// Everything has come to rest: whatever was acknowledged has reached these sessions, which are there to
    /// this day.
    pub(crate) fn check_losses(&self, sessions: &[SessionId]) -> Result<(), Violation> {
        for (id, message) in self.messages.iter().enumerate() {
            if (message.acked.is_none() && !message.is_due) || message.is_clear || message.expiry_s.is_some()
            {
                continue;
            }
            let mut groups = BTreeSet::new();
            for session in sessions {
                let known = &self.sessions[*session];
                let has_it = known.got.contains_key(&id);
                for sub in known.subs.iter().filter(|sub| sub.must_meet(message)) {
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
                self.check_dealt(id, group, sessions)?;
            }
        }
        Ok(())
    }

    /// A message for a group has come to somebody, unless it ended with the session that had it.
    fn check_dealt(&self, id: MessageId, group: &str, sessions: &[SessionId]) -> Result<(), Violation> {
        let message = &self.messages[id];
        let is_met = |sub: &&Sub| sub.group == Some(group) && sub.may_meet(message);
        let mut members =
            self.sessions.iter().enumerate().filter(|(_, known)| known.subs.iter().any(|sub| is_met(&sub)));
        // What one member has begun to get at QoS 2 goes to no other, whatever becomes of it [MQTT-4.8.2-5]. And what
        // somebody had when leaving the group stays with that one.
        let keeps_it = |known: &Session| {
            message.qos == QoS::ExactlyOnce
                || known.subs.iter().filter(is_met).any(|sub| sub.leaving.is_some())
        };
        let may_be_lost = members.clone().any(|(session, known)| {
            !sessions.contains(&session) && (keeps_it(known) || self.ends_alone(session, group))
        });
        if may_be_lost || members.any(|(_, known)| known.got.contains_key(&id)) {
            return Ok(());
        }
        Err(Violation(format!(
            "group {group}: message {id} on {} {} and came to nobody",
            message.topic,
            message.promise()
        )))
    }

    /// Whether nobody else may have been in a group when a session ended that was.
    fn ends_alone(&self, session: SessionId, group: &str) -> bool {
        let Session { gone, ended, .. } = self.sessions[session];
        let is_over =
            |moment: Option<Moment>| moment.is_some_and(|moment| ended.is_none_or(|ended| moment <= ended));
        let stays = |other: &Session| {
            let has_ended = other.ended.is_some() && is_over(other.gone);
            let is_member = |sub: &Sub| {
                sub.group == Some(group)
                    && sub.granted.is_some_and(|granted| gone.is_some_and(|gone| granted < gone))
                    && !is_over(sub.leaving)
            };
            !has_ended && other.subs.iter().any(is_member)
        };
        let mut others = self.sessions.iter().enumerate().filter(|(other, _)| *other != session);
        !others.any(|(_, other)| stays(other))
    }

    /// What is retained now, as this session was told, which has just asked for it.
    pub(crate) fn check_retained_now(&self, session: SessionId) -> Result<(), Violation> {
        let found = &self.sessions[session].retained;
        let mut topics: BTreeMap<&str, Vec<MessageId>> = BTreeMap::new();
        for (id, message) in self.messages.iter().enumerate().filter(|(_, message)| message.retain) {
            topics.entry(&message.topic).or_default().push(id);
        }
        for (topic, ids) in topics {
            let acked = ids.iter().rposition(|id| self.messages[*id].acked.is_some());
            let possible = &ids[acked.unwrap_or(0)..];
            // One that was refused at first may have come behind them.
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

/// Whether a topic name meets a filter.
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
