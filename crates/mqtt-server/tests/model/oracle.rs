//! A broker without machinery: what every session is to get, told from the packets that the broker under test
//! has dealt with, in the order in which it did.
//!
//! Where the broker may choose (who of a group gets a message, whether a subscription made while mail was on
//! its way counts) the oracle keeps the least and the most that may happen.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_mqtt::{QoS, ReasonCode, RetainHandling, SubscribeOptions, Version};
use mainstem_mqtt_server::{MqttConfig, QueueOverflow};
use mainstem_topic::{matches, parse_subscription};

use crate::groups::Groups;
use crate::kit::LinkId;
use crate::plan::{Connecting, MessageId, shared_parts};
use crate::session::{Awaits, Serial, Session, Shape, Sub, Walk};

/// More than a packet of the run has beside its payload.
pub(crate) const OVERHEAD_BYTES: usize = 200;
/// A queue of so many messages fills only when the oracle knows.
const LONG_QUEUE: usize = 100;
/// So much may surely be sent to one client in one turn.
const OUTPUT_BYTES: usize = 200 * 1024;

/// A message, however often it is published.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) topic: &'static str,
    pub(crate) bytes: usize,
    pub(crate) expiry_s: Option<u32>,
    /// When its last publication expires.
    pub(crate) expires_at_ms: Option<u64>,
    /// Some publication of it had an expiry.
    pub(crate) had_expiry: bool,
    /// Publications so far.
    pub(crate) count: u32,
    /// Number of the last one.
    pub(crate) number: u64,
    pub(crate) publisher: Serial,
    /// MQTT 5 properties that it carries besides.
    pub(crate) has_properties: bool,
}

impl Message {
    pub(crate) fn is_current(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_none_or(|at_ms| now_ms < at_ms)
    }

    /// Whether every copy of it is sure to be current: an earlier publication expired earlier.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.is_current(now_ms) && (self.count == 1 || !self.had_expiry)
    }
}

/// One publication on its way.
#[derive(Clone, Debug)]
pub(crate) struct Publication {
    pub(crate) message: MessageId,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: Serial,
    pub(crate) number: u64,
}

/// The broker as it should be.
pub(crate) struct Oracle {
    pub(crate) config: MqttConfig,
    pub(crate) now_ms: u64,
    pub(crate) messages: Vec<Message>,
    pub(crate) sessions: BTreeMap<Serial, Session>,
    pub(crate) by_client: HashMap<usize, Serial>,
    pub(crate) groups: Groups,
    /// Topic → message and QoS.
    pub(crate) retained: BTreeMap<&'static str, (MessageId, QoS)>,
    /// Sessions whose connections the broker is to close, and why.
    pub(crate) closing: Vec<(LinkId, ReasonCode)>,
    /// Connections whose clients read nothing now.
    pub(crate) stalled: Vec<LinkId>,
    /// Several things time out together: nobody knows which comes first.
    pub(crate) is_rush: bool,
    /// Shards on which somebody was lost in this turn, whose messages may have gone to others.
    is_shifting: Vec<bool>,
    serials: Serial,
    numbers: u64,
    unsubscribes: u64,
    /// Mail by sender and receiver: not yet posted, and posted.
    outbox: Vec<Vec<Vec<Publication>>>,
    posted: Vec<Vec<Vec<Publication>>>,
}

impl Oracle {
    pub(crate) fn new(config: MqttConfig, shards: usize, now_ms: u64) -> Self {
        Self {
            config,
            now_ms,
            messages: Vec::new(),
            sessions: BTreeMap::new(),
            by_client: HashMap::new(),
            groups: Groups::default(),
            retained: BTreeMap::new(),
            closing: Vec::new(),
            stalled: Vec::new(),
            is_rush: false,
            is_shifting: vec![false; shards],
            serials: 0,
            numbers: 0,
            unsubscribes: 0,
            outbox: vec![vec![Vec::new(); shards]; shards],
            posted: vec![vec![Vec::new(); shards]; shards],
        }
    }

    pub(crate) fn session(&mut self, client: usize) -> Option<&mut Session> {
        self.sessions.get_mut(self.by_client.get(&client)?)
    }

    /// Whether the session present was resumed.
    pub(crate) fn connect(&mut self, link: LinkId, shard: usize, connecting: &Connecting) -> bool {
        let client = connecting.client;
        if let Some(serial) = self.by_client.get(&client).copied() {
            assert_eq!(self.sessions[&serial].shard, shard, "a session is served on another shard");
            if let Some(old) = self.sessions[&serial].link {
                self.closing.push((old, ReasonCode::SessionTakenOver));
                self.detach(serial);
            }
            if connecting.clean && self.sessions.contains_key(&serial) {
                self.end(serial);
            }
        }
        let is_present = self.by_client.contains_key(&client);
        if !is_present {
            self.serials += 1;
            self.sessions.insert(self.serials, Session::new(self.serials, client, shard));
            self.by_client.insert(client, self.serials);
        }
        let asked_s = match (connecting.version, connecting.clean) {
            (Version::V5, _) => connecting.expiry_s.unwrap_or(0),
            (_, true) => 0,
            (_, false) => u32::MAX,
        };
        let expiry_s = asked_s.min(self.config.session_expiry_s_max);
        let most = self.config.max_inflight_messages;
        let session = self.session(client).expect("just made");
        session.version = connecting.version;
        session.link = Some(link);
        session.expiry_s = expiry_s;
        session.will.clone_from(&connecting.will);
        session.will_due_ms = None;
        session.inflight_max = usize::from(connecting.receive_maximum.unwrap_or(u16::MAX).min(most));
        session.packet_max = connecting.packet_max.map_or(usize::MAX, |most| most as usize);
        session.packet_max_least = session.packet_max_least.min(session.packet_max);
        let serial = session.serial;
        self.groups.disturb(serial);
        if connecting.packet_max.is_some() {
            self.groups.give_up(serial);
        }
        self.forget_unfit(serial);
        is_present
    }

    /// What a session had from its groups goes to other members, whose queues may be too short for it.
    fn shift(&mut self, serial: Serial) {
        if self.config.max_queued_messages as usize >= LONG_QUEUE {
            return;
        }
        for other in self.groups.concerned_with(serial) {
            self.groups.give_up(other);
            if self.sessions.contains_key(&other) {
                self.overflow(other);
            }
        }
    }

    /// The session has lost its connection.
    pub(crate) fn detach(&mut self, serial: Serial) {
        let now_ms = self.now_ms;
        let session = self.sessions.get_mut(&serial).expect("a session");
        session.link = None;
        session.gone_at_ms = now_ms;
        session.is_reset_due = true;
        self.is_shifting[session.shard] = true;
        for flight in session.flights.iter().filter(|flight| flight.awaits == Awaits::PubAck) {
            self.groups.hand_back(flight.message);
        }
        self.shift(serial);
        let session = &self.sessions[&serial];
        let expiry_s = session.expiry_s;
        let delay_s = session.will.as_ref().map(|will| will.delay_s);
        self.groups.disturb(serial);
        match delay_s {
            Some(0) => self.publish_will(serial),
            Some(delay_s) if delay_s < expiry_s => {
                let session = self.sessions.get_mut(&serial).expect("a session");
                session.will_due_ms = Some(now_ms + u64::from(delay_s) * 1000);
            }
            _ => {}
        }
        if expiry_s == 0 {
            self.end(serial);
        }
    }

    /// Output of a connection is looked at. Whatever was in flight on an earlier one is to be sent again.
    pub(crate) fn hear(&mut self, serial: Serial, link: LinkId) {
        let Some(session) = self.sessions.get_mut(&serial).filter(|session| session.heard != Some(link))
        else {
            return;
        };
        if session.heard.replace(link).is_some() {
            self.ground(serial);
        }
    }

    /// The last output of a lost connection has been looked at.
    pub(crate) fn reset(&mut self, serial: Serial) {
        let session = self.sessions.get_mut(&serial).expect("a session");
        if std::mem::take(&mut session.is_reset_due) {
            session.heard = None;
            self.ground(serial);
        }
    }

    /// What was in flight is to be sent again, or was given to another member of its group.
    fn ground(&mut self, serial: Serial) {
        let session = self.sessions.get_mut(&serial).expect("a session");
        for expected in session.expected.values_mut() {
            // Messages of QoS 0 that waited for others are not kept.
            expected.lo -= expected.lo_qos0.min(expected.lo);
            expected.lo_qos0 = 0;
        }
        for flight in &mut session.flights {
            flight.is_sent = false;
            flight.counts = false;
            if flight.awaits == Awaits::PubAck && self.groups.may_bring(flight.message, serial) {
                flight.may_be_gone = true;
            }
        }
        self.forget_unfit(serial);
    }

    /// What was in flight and is too large for the client's new connection counts as delivered
    /// [MQTT-3.1.2-25].
    fn forget_unfit(&mut self, serial: Serial) {
        let fits: Vec<bool> =
            self.sessions[&serial].flights.iter().map(|flight| self.fits(serial, flight.message)).collect();
        let session = self.sessions.get_mut(&serial).expect("a session");
        for (flight, fits) in session.flights.iter_mut().zip(fits) {
            if !fits && !flight.is_sent {
                flight.may_be_gone |= flight.awaits == Awaits::PubAck;
                flight.may_be_released |= flight.awaits == Awaits::PubRec;
            }
        }
    }

    fn publish_will(&mut self, serial: Serial) {
        let session = self.sessions.get_mut(&serial).expect("a session");
        session.will_due_ms = None;
        let shard = session.shard;
        if let Some(will) = session.will.take() {
            self.publish(shard, Some(serial), will.message, will.qos, will.retain);
        }
    }

    /// The session ends.
    pub(crate) fn end(&mut self, serial: Serial) {
        self.shift(serial);
        self.publish_will(serial);
        let session = self.sessions.remove(&serial).expect("a session");
        for key in session.shares.keys() {
            self.groups.leave(*key, serial, self.numbers);
        }
        for flight in session.flights.iter().filter(|flight| flight.awaits == Awaits::PubAck) {
            self.groups.hand_back(flight.message);
        }
        self.groups.member_ended(serial);
        self.by_client.remove(&session.client);
    }

    /// When a session's will or its end is due, if it has no connection.
    pub(crate) fn due_ms(&self, serial: Serial) -> Option<u64> {
        let session = &self.sessions[&serial];
        if session.link.is_some() {
            return None;
        }
        let ends_ms =
            (session.expiry_s != u32::MAX).then(|| session.gone_at_ms + u64::from(session.expiry_s) * 1000);
        session.will_due_ms.into_iter().chain(ends_ms).min()
    }

    /// Does what is due on a shard.
    pub(crate) fn fire(&mut self, shard: usize) {
        while let Some((_, serial)) = self
            .sessions
            .values()
            .filter(|session| session.shard == shard)
            .filter_map(|session| Some((self.due_ms(session.serial)?, session.serial)))
            .filter(|(at_ms, _)| *at_ms <= self.now_ms)
            .min()
        {
            match self.sessions[&serial].will_due_ms {
                Some(at_ms) if at_ms <= self.now_ms => self.publish_will(serial),
                _ => self.end(serial),
            }
        }
    }

    /// What PUBACK or PUBREC should say.
    pub(crate) fn publish_reason(&self, topic: &str) -> ReasonCode {
        let meets = |filter: &str| matches(filter, topic);
        let is_met = self.sessions.values().any(|session| {
            session.subs.keys().any(|filter| meets(filter))
                || session.shares.keys().any(|(_, filter)| meets(filter))
        });
        if is_met { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
    }

    /// A message is published on a shard.
    pub(crate) fn publish(
        &mut self,
        shard: usize,
        publisher: Option<Serial>,
        message: MessageId,
        qos: QoS,
        retain: bool,
    ) {
        self.numbers += 1;
        let publisher = publisher.unwrap_or(0);
        let now_ms = self.now_ms;
        let known = &mut self.messages[message];
        known.count += 1;
        known.number = self.numbers;
        known.publisher = publisher;
        known.expires_at_ms = known.expiry_s.map(|expiry_s| now_ms + u64::from(expiry_s) * 1000);
        known.had_expiry |= known.expiry_s.is_some();
        let (topic, is_empty) = (known.topic, known.bytes == 0);
        let publication = Publication { message, qos, retain, publisher, number: self.numbers };
        if retain {
            self.retain(topic, message, qos, is_empty);
        }
        self.fan_out(shard, &publication);
        self.deal(shard, &publication);
        for (to, outbox) in self.outbox[shard].iter_mut().enumerate() {
            if to != shard {
                outbox.push(publication.clone());
            }
        }
    }

    /// Walks under way meet the new value, if they have not passed it.
    fn retain(&mut self, topic: &'static str, message: MessageId, qos: QoS, is_empty: bool) {
        if is_empty {
            self.retained.remove(topic);
        } else {
            self.retained.insert(topic, (message, qos));
        }
        for session in self.sessions.values_mut() {
            let mut shapes = Vec::new();
            for walk in
                session.walks.iter_mut().filter(|walk| walk.ends.is_none() && matches(walk.filter, topic))
            {
                walk.due.remove(topic);
                walk.brings.extend((!is_empty).then_some(message));
                shapes.push((Shape { qos: walk.shape.qos.min(qos), ..walk.shape.clone() }, walk.is_vague));
            }
            if !is_empty {
                for (shape, is_vague) in shapes {
                    let expected = session.expect(message);
                    expected.is_vague |= is_vague;
                    expected.hi += 1;
                    expected.walks += 1;
                    expected.shapes.push(shape);
                }
            }
        }
    }

    /// Mail of a shard leaves at the end of its turn.
    pub(crate) fn end_turn(&mut self, shard: usize) {
        self.is_shifting[shard] = false;
        for (to, outbox) in self.outbox[shard].iter_mut().enumerate() {
            self.posted[shard][to].append(outbox);
        }
        for session in self.sessions.values_mut().filter(|session| session.shard == shard) {
            session.turn_bytes = 0;
            session.is_just_lost = false;
        }
    }

    /// Mail arrives at the beginning of a turn, then timers fire.
    pub(crate) fn begin_turn(&mut self, shard: usize) {
        for from in 0..self.posted.len() {
            for publication in std::mem::take(&mut self.posted[from][shard]) {
                self.fan_out(shard, &publication);
            }
        }
        self.fire(shard);
    }

    /// A publication meets the plain subscriptions of one shard.
    fn fan_out(&mut self, shard: usize, publication: &Publication) {
        let topic = self.messages[publication.message].topic;
        let serials: Vec<Serial> = self.sessions.keys().copied().collect();
        for serial in serials {
            let session = &self.sessions[&serial];
            if session.shard != shard {
                continue;
            }
            let is_own = publication.publisher == serial;
            let met: Vec<&Sub> = session
                .subs
                .iter()
                .filter(|(filter, sub)| matches(filter, topic) && !(sub.options.no_local && is_own))
                .map(|(_, sub)| sub)
                .collect();
            let shape = |sub: &Sub| Shape {
                qos: publication.qos.min(sub.options.qos),
                retain: publication.retain && sub.options.retain_as_published,
                ids: if sub.id == 0 { Vec::new() } else { vec![sub.id] },
            };
            let is_sure = |sub: &Sub| sub.born < publication.number;
            let copies: Vec<(Shape, bool, bool)> = if self.config.one_copy_per_client {
                let shapes: Vec<Shape> = met.iter().map(|sub| shape(sub)).collect();
                let together = shapes.into_iter().reduce(join);
                let any_sure = met.iter().any(|sub| is_sure(sub));
                let all_sure = met.iter().all(|sub| is_sure(sub));
                together.map(|shape| (shape, any_sure, !all_sure)).into_iter().collect()
            } else {
                met.iter().map(|sub| (shape(sub), is_sure(sub), false)).collect()
            };
            // They come in an order that nobody knows: where one may find the queue full, any may.
            let others = copies.len().saturating_sub(1);
            let has_room = self.sessions[&serial].waiting_max + self.groups.open_deals(serial) + others
                < self.config.max_queued_messages as usize;
            for (shape, is_sure, is_vague) in copies {
                self.offer(serial, publication.message, shape, (is_sure, is_vague, has_room));
            }
        }
    }

    /// One copy for one session: whether its subscription is sure to count, whether others may as well, and
    /// whether the queue is sure to have room.
    fn offer(
        &mut self,
        serial: Serial,
        message: MessageId,
        shape: Shape,
        (is_sure, is_vague, has_room): (bool, bool, bool),
    ) {
        let is_stalled = self.is_stalled(serial);
        let fits = self.fits(serial, message);
        let session = self.sessions.get_mut(&serial).expect("a session");
        let is_qos0 = shape.qos == QoS::AtMostOnce;
        let is_kept = !is_qos0 || self.config.queue_qos0;
        if session.link.is_none() && !(is_kept && session.is_persistent()) {
            if session.is_just_lost {
                let expected = session.expect(message);
                expected.hi += 1;
                expected.shapes.push(shape);
            }
            return;
        }
        // A retained message of the topic may have to come first.
        let waits = is_kept || session.may_hold_back;
        let overflows = waits && !has_room;
        session.turn_bytes += self.messages[message].bytes + OVERHEAD_BYTES;
        let is_flooded = is_stalled || self.is_rush || session.turn_bytes >= OUTPUT_BYTES;
        let may_be_lost = overflows || !fits || !is_sure || is_vague || (is_qos0 && is_flooded);
        session.waiting_max += usize::from(waits);
        let expected = session.expect(message);
        expected.hi += 1;
        expected.lo += u32::from(!may_be_lost);
        expected.lo_qos0 += u32::from(!may_be_lost && !is_kept);
        // What is vague in one copy of a message is vague in all: they look alike on arrival.
        expected.is_vague |= is_vague || !is_sure;
        expected.shapes.push(shape);
        if overflows {
            self.overflow(serial);
        }
    }

    /// A queue may be full: if room is made by dropping, anything in it may be lost.
    fn overflow(&mut self, serial: Serial) {
        if self.config.queue_overflow == QueueOverflow::DropOldest {
            let session = self.sessions.get_mut(&serial).expect("a session");
            session.expected.values_mut().for_each(|expected| expected.lo = 0);
            self.groups.give_up(serial);
        }
    }

    pub(crate) fn is_stalled(&self, serial: Serial) -> bool {
        self.sessions[&serial].link.is_some_and(|link| self.stalled.contains(&link))
    }

    /// Whether a message is sure to be small enough for a client, whatever else its packet carries.
    fn fits(&self, serial: Serial, message: MessageId) -> bool {
        let known = &self.messages[message];
        known.bytes + OVERHEAD_BYTES <= self.sessions[&serial].packet_max_least
    }

    /// A publication meets the shared subscriptions.
    fn deal(&mut self, shard: usize, publication: &Publication) {
        let topic = self.messages[publication.message].topic;
        let queued_max = self.config.max_queued_messages as usize;
        for key in self.groups.met_by(topic) {
            let members = self.groups.members(key);
            let mut is_sure = true;
            let mut is_soft = false;
            let mut full = Vec::new();
            for serial in &members {
                let session = &self.sessions[serial];
                let qos = publication.qos.min(session.shares[&key].options.qos);
                let is_here = session.link.is_some() && !self.is_stalled(*serial);
                is_soft |= qos == QoS::AtMostOnce;
                let is_flooded =
                    session.turn_bytes + self.messages[publication.message].bytes >= OUTPUT_BYTES;
                is_sure &= qos != QoS::AtMostOnce || (is_here && !is_flooded);
                is_sure &= self.fits(*serial, publication.message);
                // What else is in the mail to a short queue nobody can tell.
                is_sure &= (session.shard == shard && !self.is_shifting[shard]) || queued_max >= LONG_QUEUE;
                let has_room = session.waiting_max + self.groups.open_deals(*serial) < queued_max;
                let waits = qos != QoS::AtMostOnce || self.config.queue_qos0 || session.may_hold_back;
                is_sure &= has_room || !waits;
                if !has_room {
                    full.push(*serial);
                }
            }
            is_sure &= !self.is_rush;
            self.groups.deal(key, publication, is_sure, is_soft);
            for serial in full {
                self.overflow(serial);
            }
        }
    }

    /// SUBSCRIBE: the reason codes of the SUBACK.
    pub(crate) fn subscribe(
        &mut self,
        serial: Serial,
        id: u32,
        filters: &[(&'static str, SubscribeOptions)],
    ) -> Vec<u8> {
        filters.iter().map(|(text, options)| self.subscribe_one(serial, id, text, *options)).collect()
    }

    fn subscribe_one(
        &mut self,
        serial: Serial,
        id: u32,
        text: &'static str,
        options: SubscribeOptions,
    ) -> u8 {
        if parse_subscription(text).is_err() {
            return ReasonCode::TopicFilterInvalid as u8;
        }
        let most = self.config.max_subscriptions_per_session as usize;
        let now_ms = self.now_ms;
        let session = self.sessions.get_mut(&serial).expect("a session");
        let has_room = session.subs.len() + session.shares.len() < most;
        let sub = |known: Option<&Sub>| Sub { options, id, born: known.map_or(self.numbers, |sub| sub.born) };
        let is_new = match shared_parts(text) {
            Some(key) => {
                let known = session.shares.get(&key);
                if known.is_none() && !has_room {
                    return ReasonCode::QuotaExceeded as u8;
                }
                session.shares.insert(key, sub(known));
                self.groups.join(key, serial);
                return options.qos as u8;
            }
            None => {
                let known = session.subs.get(text);
                if known.is_none() && !has_room {
                    return ReasonCode::QuotaExceeded as u8;
                }
                session.subs.insert(text, sub(known)).is_none()
            }
        };
        let shape =
            Shape { qos: options.qos, retain: true, ids: if id == 0 { Vec::new() } else { vec![id] } };
        self.blur_walk(serial, text);
        let wants_retained = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => is_new,
            RetainHandling::DoNotSend => false,
        };
        if wants_retained {
            let session = self.sessions.get_mut(&serial).expect("a session");
            session.walks.retain(|walk| walk.filter != text || walk.ends.is_some());
            let mut due = BTreeMap::new();
            let mut brings = BTreeSet::new();
            let is_stalled = self.is_stalled(serial);
            for (topic, (message, qos)) in &self.retained {
                if !matches(text, topic) || !self.messages[*message].is_current(now_ms) {
                    continue;
                }
                if self.fits(serial, *message) && !is_stalled {
                    due.insert(*topic, *message);
                }
                brings.insert(*message);
                let expected = self.sessions.get_mut(&serial).expect("a session").expect(*message);
                expected.hi += 1;
                expected.walks += 1;
                expected.shapes.push(Shape { qos: shape.qos.min(*qos), ..shape.clone() });
            }
            let session = self.sessions.get_mut(&serial).expect("a session");
            session.may_hold_back = true;
            session.walks.push(Walk { filter: text, shape, is_vague: false, ends: None, due, brings });
        }
        options.qos as u8
    }

    /// A walk under way for a subscription that is made again may go on with the old options or the new.
    fn blur_walk(&mut self, serial: Serial, filter: &'static str) {
        let session = self.sessions.get_mut(&serial).expect("a session");
        let Some(walk) = session.walks.iter_mut().find(|walk| walk.filter == filter && walk.ends.is_none())
        else {
            return;
        };
        walk.is_vague = true;
        for (message, expected) in &mut session.expected {
            expected.is_vague |= expected.walks > 0 && matches(filter, self.messages[*message].topic);
        }
    }

    /// UNSUBSCRIBE: the reason codes of the UNSUBACK, and a number for [`Oracle::unsubscribed`].
    pub(crate) fn unsubscribe(&mut self, serial: Serial, filters: &[&'static str]) -> (Vec<u8>, u64) {
        let mut reasons = Vec::new();
        self.unsubscribes += 1;
        for text in filters {
            let session = self.sessions.get_mut(&serial).expect("a session");
            let was_there = match shared_parts(text) {
                Some(key) => {
                    let was_there = session.shares.remove(&key).is_some();
                    if was_there {
                        self.groups.leave(key, serial, self.numbers);
                    }
                    was_there
                }
                None => {
                    let is_it = |walk: &&mut Walk| walk.filter == *text && walk.ends.is_none();
                    for walk in session.walks.iter_mut().filter(is_it) {
                        walk.ends = Some(self.unsubscribes);
                        walk.due.clear();
                    }
                    session.subs.remove(text).is_some()
                }
            };
            reasons.push(match (parse_subscription(text).is_ok(), was_there) {
                (false, _) => ReasonCode::TopicFilterInvalid as u8,
                (true, false) => ReasonCode::NoSubscriptionExisted as u8,
                (true, true) => ReasonCode::Success as u8,
            });
        }
        (reasons, self.unsubscribes)
    }

    /// The client has been told that subscriptions have ended: walks for them bring nothing more
    /// [MQTT-3.10.4-2].
    pub(crate) fn unsubscribed(&mut self, serial: Serial, number: u64) {
        let Some(session) = self.sessions.get_mut(&serial) else { return };
        let ended: Vec<Walk> = session.walks.extract_if(.., |walk| walk.ends == Some(number)).collect();
        for message in ended.into_iter().flat_map(|walk| walk.brings) {
            let expected = session.expect(message);
            // Where anything has come, or may come otherwise, nobody can tell what the walk still owes.
            if expected.walks == expected.hi && expected.got == 0 && expected.hi > 0 {
                expected.walks -= 1;
                expected.hi -= 1;
            }
        }
    }
}

/// One copy for two subscriptions that a message meets [MQTT-3.3.4-2].
fn join(one: Shape, other: Shape) -> Shape {
    let mut ids = [one.ids, other.ids].concat();
    ids.sort_unstable();
    Shape { qos: one.qos.max(other.qos), retain: one.retain || other.retain, ids }
}
