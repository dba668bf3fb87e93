//! A session: what the broker knows of one client, connected or not (4.1).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use mainstem_mqtt::alias::OutboundAliases;
use mainstem_mqtt::session::{LAST_ID, Received, Window};
use mainstem_mqtt::{QoS, SubscribeOptions, Version};
use mainstem_runtime::{Clock, ConnId};
use mainstem_topic::FilterId;

use crate::answers::Answers;
use crate::given::Given;
use crate::groups::{Group, Load};
use crate::message::{Message, SessionKey};
use crate::outside::SINKS;
use crate::queue::Queue;
use crate::retained::Cursor;
use crate::shared::Part;
use crate::work::Worker;

/// Topics whose retained message one session is given before its walk comes by.
const EARLY_MAX: usize = 16 * 1024;

/// A message with what one subscriber needs to know to get it.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// Nothing while it is only in the journal, or no longer needed.
    pub(crate) message: Option<Arc<Message>>,
    /// Place in the order of the session's deliveries that its journal knows; 0 if it does not know this one.
    pub(crate) sequence: u64,
    /// Where the message stands in the journal.
    pub(crate) offset: u64,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Most deliveries have none.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What only some deliveries have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Subscription Identifiers.
    pub(crate) ids: Vec<u32>,
    /// The shared subscription it was dealt out by.
    pub(crate) group: Option<Arc<Group>>,
}

impl PartialEq for Extra {
    fn eq(&self, other: &Self) -> bool {
        let same_group = match (&self.group, &other.group) {
            (None, None) => true,
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        same_group && self.ids == other.ids
    }
}

impl Delivery {
    /// Size of the message, as limits count it; 0 if it is not in memory.
    pub(crate) fn size(&self) -> u64 {
        self.message.as_ref().map_or(0, |message| message.size() as u64)
    }

    pub(crate) fn ids(&self) -> &[u32] {
        self.extra.as_ref().map_or(&[], |extra| &extra.ids)
    }

    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.extra.as_ref()?.group.as_ref()
    }
}

/// One subscription as its session remembers it; the shard's subscriber list has the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: FilterId,
    /// Position in the filter's subscriber list.
    pub(crate) position: u32,
}

/// A walk through the retained messages for a new subscription.
#[derive(Debug)]
pub(crate) struct RetainedWalk {
    pub(crate) cursor: Cursor,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
}

/// The will of a client, to be published when it is lost.
#[derive(Debug)]
pub(crate) struct Will {
    pub(crate) message: Message,
    /// Message Expiry Interval, counted from when the will is published.
    pub(crate) expiry_s: Option<u32>,
    pub(crate) delay_s: u32,
}

/// How far a QoS 2 publish had come when the process ended, or a disk failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CutShort {
    /// See [`crate::journal::entry::Origin::sequence`].
    pub(crate) sequence: u64,
    /// Journals that lack it; one bit each.
    pub(crate) lacking: u64,
    /// Shared subscriptions that have it.
    pub(crate) groups: Vec<Box<str>>,
    /// What was still under way; nothing after a restart.
    pub(crate) under_way: Option<Box<UnderWay>>,
}

/// Who lacks a publish that is given out once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lacking {
    /// See [`CutShort::lacking`].
    pub(crate) journals: u64,
    /// It was given out since the process began: sessions that no journal has got it then, and what its topic
    /// retains in memory is that message, or a newer one.
    pub(crate) is_out: bool,
}

impl CutShort {
    pub(crate) fn lacking(&self) -> Lacking {
        Lacking { journals: self.lacking, is_out: self.under_way.is_some() }
    }
}

/// A QoS 2 publish of the session of which it is not known yet that it is on disk everywhere.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    pub(crate) packet_id: u16,
    pub(crate) sequence: u64,
    /// Number of its answer, by which other shards tell of it.
    pub(crate) number: u64,
    /// The commit that it is part of on its own shard.
    pub(crate) commit: u64,
    /// Other journals that it may have to reach; one bit each.
    pub(crate) reach: u64,
    /// Journals that it is given to; the others have had it.
    pub(crate) targets: u64,
    /// Shared subscriptions that have dealt it out on this shard.
    pub(crate) groups: Vec<Box<str>>,
    /// Those that have it on disk, on other shards or from before.
    pub(crate) kept: Vec<Box<str>>,
    /// Journals of other shards that could not keep it.
    pub(crate) lacking: u64,
    /// Other shards that have not told yet.
    pub(crate) awaited: u32,
}

impl UnderWay {
    /// Another shard tells what has become of its part.
    pub(crate) fn hear(&mut self, part: &Part) {
        self.awaited = self.awaited.saturating_sub(1);
        match (&part.group, part.is_durable) {
            (Some(group), true) => self.kept.push(group.full_name().into()),
            // Nobody of the group has it: it is dealt out again.
            (Some(_), false) | (None, true) => {}
            (None, false) => self.lacking |= part.lacking,
        }
    }
}

/// What few sessions have, or only for a while.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) will: Option<Will>,
    /// A will that has been published and is not known to be on disk everywhere.
    pub(crate) will_leaving: Option<Will>,
    /// The connection has gone and the will is due at this time.
    pub(crate) will_at_ms: Option<u64>,
    /// By filter.
    pub(crate) walks: BTreeMap<Box<str>, RetainedWalk>,
    /// The walks go on in the next turn.
    pub(crate) walk_is_due: bool,
    pub(crate) groups: Vec<Arc<Group>>,
    pub(crate) aliases: Option<OutboundAliases>,
    /// What it has to do with work queues.
    pub(crate) worker: Option<Box<Worker>>,
    /// Set while the session is in a group.
    pub(crate) load: Option<Arc<Load>>,
    /// What it has given to others of its groups, in order.
    pub(crate) given: VecDeque<Given>,
    /// Answers that wait for the disk, or behind some that do.
    pub(crate) answers: Answers,
    /// QoS 2 publishes taken in from a client whose session lasts.
    pub(crate) received_sequence: u64,
    /// QoS 2 publishes that may have been cut short by a crash, by their packet identifiers.
    pub(crate) cut_short: Vec<(u16, CutShort)>,
    pub(crate) under_way: Vec<UnderWay>,
    /// Topics whose retained message was given out before the walk came by.
    pub(crate) early: HashSet<Box<str>, foldhash::fast::RandomState>,
}

impl Rare {
    /// Whether a message published now on `topic` has to wait: a retained message of that topic, published
    /// before it, is still to come [MQTT-4.6.0-5].
    pub(crate) fn holds_back(&self, topic: &str, queue_is_empty: bool) -> bool {
        !self.walks.is_empty()
            && (!queue_is_empty || self.walks.values().any(|walk| walk.cursor.is_ahead(topic)))
    }
}

/// Everything about one client. Owned by one shard for its whole life.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) generation: u32,
    /// Its number in a journal; 0 for a session that ends with the process.
    pub(crate) number: u32,
    /// Which of its shard's journals that is.
    pub(crate) journal: u16,
    pub(crate) version: Version,
    pub(crate) connected: bool,
    /// The client understands reason strings and user properties anywhere.
    pub(crate) problem_information: bool,
    /// A drop has been logged and the queue has not run empty since.
    pub(crate) drop_logged: bool,
    /// Valid while `connected`.
    pub(crate) conn: ConnId,
    /// QoS 1 and 2 messages it takes at once, less those that it has of queues.
    pub(crate) inflight_max: u16,
    /// Largest packet it takes, bytes.
    pub(crate) packet_max: u32,
    pub(crate) window: Window<Delivery>,
    pub(crate) queue: Queue,
    /// QoS 0 messages queued since the queue was last empty.
    pub(crate) queued_qos0: u32,
    /// Deliveries that its journal knows of, so far.
    pub(crate) sequence: u64,
    /// When it last acknowledged something, or had nothing to acknowledge.
    pub(crate) progress_ms: u64,
    /// Which publish has marked it, and where: for clients that meet a publish by several subscriptions.
    pub(crate) mark: (u64, u32),
    pub(crate) received: Received,
    pub(crate) client_id: Arc<str>,
    /// Session Expiry Interval, seconds; `u32::MAX` is for ever, 0 ends it with the connection.
    pub(crate) expiry_s: u32,
    /// When its connection was lost, ms; below zero before the process began.
    pub(crate) gone_at_ms: i64,
    /// By filter identifier.
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) rare: Option<Box<Rare>>,
}

impl Session {
    pub(crate) fn new(client_id: Arc<str>, generation: u32, conn: ConnId) -> Self {
        Self {
            generation,
            number: 0,
            journal: 0,
            version: Version::V4,
            connected: false,
            problem_information: true,
            drop_logged: false,
            conn,
            inflight_max: 1,
            packet_max: u32::MAX,
            window: Window::default(),
            queue: Queue::default(),
            queued_qos0: 0,
            sequence: 0,
            progress_ms: 0,
            mark: (0, 0),
            received: Received::default(),
            client_id,
            expiry_s: 0,
            gone_at_ms: 0,
            subscriptions: Vec::new(),
            rare: None,
        }
    }

    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Whether it outlives its connection, so that messages in flight must be kept.
    pub(crate) fn is_persistent(&self) -> bool {
        self.expiry_s > 0 || self.lasts()
    }

    /// Whether it outlives the process: a journal knows it.
    pub(crate) fn lasts(&self) -> bool {
        self.number != 0
    }

    /// Whether answers wait, which none may overtake.
    pub(crate) fn owes_answers(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.answers.is_empty())
    }

    /// When its connection was lost, ms since 1970; nothing while it has one.
    pub(crate) fn gone_unix_ms(&self, clock: Clock) -> Option<u64> {
        let age_ms = (clock.now_ms.cast_signed() - self.gone_at_ms).max(0).cast_unsigned();
        (!self.connected).then(|| clock.unix_ms.saturating_sub(age_ms))
    }

    /// Whether a QoS 2 publish of it was taken in by some shards and not by all, when the process ended.
    pub(crate) fn is_cut_short(&self, packet_id: u16) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.cut_short.iter().any(|(known, _)| *known == packet_id))
    }

    /// Whether it is not known yet who lacks such a publish, or whether sinks have it. Sinks keep messages in logs
    /// that no commit of the shard speaks of, so that waiting for one would not do.
    pub(crate) fn is_in_doubt(&self, packet_id: u16) -> bool {
        let is_it = |(known, cut_short): &(u16, CutShort)| {
            let under_way = cut_short.under_way.as_ref();
            *known == packet_id && under_way.is_some_and(|publish| publish.awaited > 0)
        };
        let is_on_its_way = |publish: &UnderWay| {
            publish.packet_id == packet_id && publish.awaited > 0 && publish.reach & SINKS != 0
        };
        self.rare
            .as_ref()
            .is_some_and(|rare| rare.cut_short.iter().any(is_it) || rare.under_way.iter().any(is_on_its_way))
    }

    /// Who lacks such a publish, which is now to be given to them.
    pub(crate) fn take_cut_short(&mut self, packet_id: u16, qos: QoS) -> Option<CutShort> {
        let cut_short = &mut self.rare.as_mut()?.cut_short;
        let index = cut_short.iter().position(|(known, _)| *known == packet_id)?;
        (qos == QoS::ExactlyOnce).then(|| cut_short.swap_remove(index).1)
    }

    /// Whether the window has room for the next message.
    pub(crate) fn has_window_room(&self) -> bool {
        if self.lasts() {
            self.window.has_room_for(packet_id_of(self.sequence + 1), self.inflight_max)
        } else {
            self.window.has_room(self.inflight_max)
        }
    }

    /// For how many retained messages above QoS 0 there is room.
    pub(crate) fn walk_room(&self) -> u16 {
        let room = self.inflight_max.saturating_sub(self.window.in_flight());
        // Those of a session that lasts leave by the queue, which must not fill up with what can wait in the store.
        let queued = if self.lasts() { self.queue.len().min(u16::MAX.into()) as u16 } else { 0 };
        room.saturating_sub(queued)
    }

    /// Whether more has been published ahead of its walks than is remembered.
    pub(crate) fn is_walk_crowded(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.early.len() >= EARLY_MAX)
    }

    /// Whether retained messages of some topic may still be on their way to it by a walk.
    pub(crate) fn is_walked_later(&self, topic: &str) -> bool {
        self.rare.as_ref().is_some_and(|rare| {
            rare.walks.values().any(|walk| walk.cursor.is_ahead(topic)) && !rare.early.contains(topic)
        })
    }

    pub(crate) fn set_online(&self, online: bool) {
        if let Some(load) = self.rare.as_ref().and_then(|rare| rare.load.as_ref()) {
            load.online.store(online, Ordering::Relaxed);
        }
    }

    /// One message of a shared subscription has left this session's hands.
    pub(crate) fn settle(&self, delivery: &Delivery) {
        if delivery.group().is_some()
            && let Some(load) = self.rare.as_ref().and_then(|rare| rare.load.as_ref())
        {
            load.settle();
        }
    }

    pub(crate) fn find(&self, filter: FilterId) -> Result<usize, usize> {
        self.subscriptions.binary_search_by_key(&order(filter), |known| order(known.filter))
    }
}

/// The packet identifier of a delivery that a journal knows: the same before and after a crash.
pub(crate) fn packet_id_of(sequence: u64) -> u16 {
    ((sequence - 1) % u64::from(LAST_ID)) as u16 + 1
}

fn order(filter: FilterId) -> (u32, u32) {
    (filter.slot(), filter.generation())
}

/// The sessions of one shard.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slab: slab::Slab<Session>,
    generations: u32,
}

impl Sessions {
    /// A new, unconnected session.
    pub(crate) fn insert(&mut self, shard: u16, client_id: Arc<str>, conn: ConnId) -> SessionKey {
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        let slot = self.slab.insert(Session::new(client_id, generation, conn)) as u32;
        SessionKey { shard, slot, generation }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Session {
        self.slab.remove(slot as usize)
    }

    /// The session in a slot that is known to be taken.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> &mut Session {
        &mut self.slab[slot as usize]
    }

    pub(crate) fn key(&self, shard: u16, slot: u32) -> SessionKey {
        SessionKey { shard, slot, generation: self.slab[slot as usize].generation }
    }

    /// The slots of all sessions from `from` on, in order.
    pub(crate) fn slots_from(&self, from: usize) -> impl Iterator<Item = u32> {
        (from..self.slab.capacity()).filter(|slot| self.slab.contains(*slot)).map(|slot| slot as u32)
    }

    /// The session of a key, if it has not ended.
    pub(crate) fn get(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.slab.get_mut(key.slot as usize).filter(|session| session.generation == key.generation)
    }
}
