//! A session: what the broker knows of one client, connected or not (4.1).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_mqtt::alias::OutboundAliases;
use mainstem_mqtt::session::{Received, Window};
use mainstem_mqtt::{QoS, SubscribeOptions, Version};
use mainstem_runtime::ConnId;
use mainstem_topic::FilterId;

use crate::groups::{Group, Load};
use crate::message::{Message, SessionKey};
use crate::retained::Cursor;

/// A message with what one subscriber needs to know to get it.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Most deliveries have none.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What only some deliveries have.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// Subscription Identifiers.
    pub(crate) ids: Vec<u32>,
    /// The shared subscription it was dealt out by.
    pub(crate) group: Option<Arc<Group>>,
}

impl Delivery {
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

/// What few sessions have, or only for a while.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) will: Option<Will>,
    /// The connection has gone and the will is due at this time.
    pub(crate) will_at_ms: Option<u64>,
    /// By filter.
    pub(crate) walks: BTreeMap<Box<str>, RetainedWalk>,
    /// The walks go on in the next turn.
    pub(crate) walk_is_due: bool,
    pub(crate) groups: Vec<Arc<Group>>,
    pub(crate) aliases: Option<OutboundAliases>,
    /// Set while the session is in a group.
    pub(crate) load: Option<Arc<Load>>,
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
    pub(crate) version: Version,
    pub(crate) connected: bool,
    /// The client understands reason strings and user properties anywhere.
    pub(crate) problem_information: bool,
    /// A drop has been logged and the queue has not run empty since.
    pub(crate) drop_logged: bool,
    /// Valid while `connected`.
    pub(crate) conn: ConnId,
    /// QoS 1 and 2 messages it takes at once.
    pub(crate) inflight_max: u16,
    /// Largest packet it takes, bytes.
    pub(crate) packet_max: u32,
    pub(crate) window: Window<Delivery>,
    pub(crate) queue: VecDeque<Delivery>,
    pub(crate) queue_bytes: u64,
    /// QoS 0 messages queued since the queue was last empty.
    pub(crate) queued_qos0: u32,
    /// When it last acknowledged something, or had nothing to acknowledge.
    pub(crate) progress_ms: u64,
    /// Which publish has marked it, and where: for clients that meet a publish by several subscriptions.
    pub(crate) mark: (u64, u32),
    pub(crate) received: Received,
    pub(crate) client_id: Arc<str>,
    /// Session Expiry Interval, seconds; `u32::MAX` is for ever, 0 ends it with the connection.
    pub(crate) expiry_s: u32,
    pub(crate) gone_at_ms: u64,
    /// By filter identifier.
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) rare: Option<Box<Rare>>,
}

impl Session {
    pub(crate) fn new(client_id: Arc<str>, generation: u32, conn: ConnId) -> Self {
        Self {
            generation,
            version: Version::V4,
            connected: false,
            problem_information: true,
            drop_logged: false,
            conn,
            inflight_max: 1,
            packet_max: u32::MAX,
            window: Window::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            queued_qos0: 0,
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
        self.expiry_s > 0
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

    /// The session of a key, if it has not ended.
    pub(crate) fn get(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.slab.get_mut(key.slot as usize).filter(|session| session.generation == key.generation)
    }
}
