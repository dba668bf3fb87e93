//! Sessions: the state of one client each, connected or not (4.1).
//!
//! A session lives on one shard for its whole life. A *persistent* one outlives its connection, a *durable* one also
//! the process: a journal has it. State that few sessions have is in [`SessionExt`], so that an idle session stays
//! small. The files of this folder are all that touches the fields of [`Session`].

pub(crate) mod account;
pub(crate) mod delivery;
pub(crate) mod offer;
pub(crate) mod queue;
mod shapes;
mod stored;
mod table;
mod templates;
pub(crate) mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_mqtt::alias::OutboundAliases;
use mainstem_mqtt::session::{Acked, LAST_ID, Pending, Received, ReceivedError, Window};
use mainstem_mqtt::{QoS, SubscribeOptions, Version};
use mainstem_runtime::{Clock, ConnId};
use mainstem_topic::FilterId;

use account::Account;
use offer::{Delivery, Extra};
use queue::Queue;
use shapes::WildcardShapes;
pub(crate) use table::Sessions;

use crate::access::Access;
use crate::groups::{Group, Load, Member};
use crate::message::{Message, SessionKey};
use crate::pending_acks::PendingAcks;
use crate::qos2_recovery::Qos2Publishes;
use crate::queue_consumers::SessionConsumers;
use crate::reassigned::ReassignedDeliveries;
use crate::retained_replay::RetainedReplays;
use crate::wills::{Will, WillState};

/// A subscription as its session remembers it; the subscriber list of the filter has the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: FilterId,
    /// Position in the filter's subscriber list.
    pub(crate) position: u32,
}

/// State that few sessions have, or only for a while. Each part guards its own fields.
#[derive(Debug, Default)]
pub(crate) struct SessionExt {
    pub(crate) will: WillState,
    pub(crate) retained: RetainedReplays,
    pub(crate) reassigned: ReassignedDeliveries,
    pub(crate) acks: PendingAcks,
    pub(crate) qos2: Qos2Publishes,
    queue_consumers: Option<Box<SessionConsumers>>,
    /// Shared subscriptions.
    groups: Vec<Arc<Group>>,
    /// Shapes of the wildcard filters, once there are enough for the limit to matter.
    shapes: Option<Box<WildcardShapes>>,
    /// Set once the session is in a group.
    load: Option<Arc<Load>>,
    aliases: Option<OutboundAliases>,
}

impl SessionExt {
    /// The queue consumers, if the session has ever subscribed to a queue.
    pub(crate) fn consumers(&self) -> Option<&SessionConsumers> {
        self.queue_consumers.as_deref()
    }
}

/// One client.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of a session")]
pub(crate) struct Session {
    key: SessionKey,
    client_id: Arc<str>,
    /// Number in a journal; 0 for a session that ends with the process.
    number: u32,
    /// Index of that journal on its shard.
    journal: u16,
    version: Version,
    connected: bool,
    /// The session ends or has ended: it gets no messages, while its subscriptions are removed.
    ended: bool,
    /// The client accepts reason strings and user properties in all packets.
    problem_information: bool,
    /// Messages are checked against the rules at delivery.
    narrowed: bool,
    /// A drop has been logged since the queue was last empty.
    drop_logged: bool,
    /// Valid while `connected`.
    conn: ConnId,
    /// QoS 1 and 2 messages in flight at most, less those of queues.
    inflight_max: u16,
    /// Largest packet that the client takes, bytes.
    packet_max: u32,
    window: Window<Delivery>,
    queue: Queue,
    /// QoS 0 messages queued since the queue was last empty.
    queued_qos0: u32,
    /// Deliveries that the journal has recorded so far.
    sequence: u64,
    /// When the client last acknowledged something, or had nothing to acknowledge.
    progress_ms: u64,
    /// Number of the last fan-out that has marked the session, and its index there.
    mark: (u64, u32),
    /// QoS 2 packet identifiers of the client.
    received: Received,
    /// Session Expiry Interval, seconds; `u32::MAX` is for ever, 0 ends it with the connection.
    expiry_s: u32,
    /// When the connection was lost, ms; negative before the process began.
    gone_at_ms: i64,
    /// By filter identifier.
    subscriptions: Vec<Subscription>,
    account: Account,
    ext: Option<Box<SessionExt>>,
    /// User and rights; `None` while there are no users and rules.
    access: Option<Box<Access>>,
}

/// The connection of a session, as CONNECT has negotiated it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientParameters {
    pub(crate) conn: ConnId,
    pub(crate) version: Version,
    pub(crate) problem_information: bool,
    /// QoS 1 and 2 messages in flight at most.
    pub(crate) inflight_max: u16,
    /// Largest packet that the client takes, bytes.
    pub(crate) packet_max: u32,
    pub(crate) expiry_s: u32,
}

/// Deliveries taken out of a session.
#[derive(Debug, Default)]
pub(crate) struct TakenDeliveries {
    /// Sent, and not acknowledged.
    pub(crate) sent: Vec<Delivery>,
    pub(crate) queued: Vec<Delivery>,
}

impl Session {
    fn new(client_id: Arc<str>, key: SessionKey, conn: ConnId, account: Account) -> Self {
        Self {
            key,
            number: 0,
            journal: 0,
            version: Version::V4,
            connected: false,
            ended: false,
            problem_information: true,
            narrowed: false,
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
            account,
            ext: None,
            access: None,
        }
    }

    pub(crate) fn ext(&mut self) -> &mut SessionExt {
        self.ext.get_or_insert_default()
    }

    pub(crate) fn ext_ref(&self) -> Option<&SessionExt> {
        self.ext.as_deref()
    }

    pub(crate) fn ext_mut(&mut self) -> Option<&mut SessionExt> {
        self.ext.as_deref_mut()
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    pub(crate) fn client_id(&self) -> &Arc<str> {
        &self.client_id
    }

    /// Number in its journal; 0 if it is not durable.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Index of its journal on its shard.
    pub(crate) fn journal(&self) -> u16 {
        self.journal
    }

    pub(crate) fn make_durable(&mut self, journal: u16, number: u32) {
        (self.journal, self.number) = (journal, number);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected
    }

    /// The connection, while there is one.
    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Whether the client accepts reason strings and user properties in all packets.
    pub(crate) fn accepts_problem_information(&self) -> bool {
        self.problem_information
    }

    /// Largest packet that the client takes, bytes.
    pub(crate) fn packet_max(&self) -> u32 {
        self.packet_max
    }

    /// Session Expiry Interval, seconds; `u32::MAX` is for ever.
    pub(crate) fn expiry_s(&self) -> u32 {
        self.expiry_s
    }

    pub(crate) fn set_expiry(&mut self, expiry_s: u32) {
        self.expiry_s = expiry_s;
    }

    // Rights.

    pub(crate) fn access(&self) -> Option<&Access> {
        self.access.as_deref()
    }

    /// The user that the session belongs to.
    pub(crate) fn user(&self) -> Option<&Arc<str>> {
        self.access.as_ref()?.principal().user()
    }

    /// When what proves who its client is ends, Unix time in ms.
    pub(crate) fn proof_ends_ms(&self) -> Option<u64> {
        self.access.as_ref()?.identity().expires_ms()
    }

    pub(crate) fn set_access(&mut self, access: Option<Access>) {
        self.access = access.map(Box::new);
    }

    /// Sets whether messages are checked against the rules at delivery.
    pub(crate) fn set_narrowed(&mut self, is_narrowed: bool) {
        self.narrowed = is_narrowed;
    }

    /// Whether the rules keep messages of a topic from the session.
    #[inline]
    pub(crate) fn is_kept_from(&self, topic: &str) -> bool {
        self.narrowed && self.access.as_ref().is_some_and(|access| !access.may_receive(topic))
    }

    /// The same of a message that has waited, perhaps for a subscription that is gone and by rules that have changed.
    pub(crate) fn may_no_longer_receive(&self, topic: &str) -> bool {
        self.access.as_ref().is_some_and(|access| !access.may_receive(topic))
    }

    // Queue consumers.

    /// The queue consumers, if the session has ever subscribed to a queue.
    pub(crate) fn consumers_mut(&mut self) -> Option<&mut SessionConsumers> {
        self.ext.as_mut()?.queue_consumers.as_deref_mut()
    }

    /// The queue consumers, added if there are none.
    pub(crate) fn add_consumers(&mut self) -> &mut SessionConsumers {
        self.ext().queue_consumers.get_or_insert_default()
    }

    pub(crate) fn take_consumers(&mut self) -> Option<Box<SessionConsumers>> {
        self.ext.as_mut()?.queue_consumers.take()
    }

    /// Free places of the window.
    pub(crate) fn window_room(&self) -> u16 {
        self.inflight_max.saturating_sub(self.window.in_flight())
    }

    /// A queue delivery was sent: until it is acknowledged, the window has one place less.
    pub(crate) fn reserve_place(&mut self, now_ms: u64) {
        if self.window.in_flight() == 0 {
            self.progress_ms = now_ms;
        }
        self.inflight_max -= 1;
    }

    pub(crate) fn free_place(&mut self) {
        self.inflight_max += 1;
    }

    // Subscriptions.

    /// Number of subscriptions of any kind.
    pub(crate) fn subscription_count(&self) -> usize {
        let of_ext = self.ext.as_ref().map_or(0, |ext| {
            ext.groups.len() + ext.queue_consumers.as_ref().map_or(0, |consumers| consumers.len())
        });
        self.subscriptions.len() + of_ext
    }

    pub(crate) fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    pub(crate) fn subscription(&self, filter: FilterId) -> Option<Subscription> {
        self.find(filter).ok().map(|index| self.subscriptions[index])
    }

    /// Adds a subscription, unless there is one with its filter.
    pub(crate) fn add_subscription(&mut self, subscription: Subscription) {
        if let Err(index) = self.find(subscription.filter) {
            self.subscriptions.insert(index, subscription);
        }
    }

    /// Updates the position of a subscription in its filter's subscriber list.
    pub(crate) fn set_position(&mut self, filter: FilterId, position: u32) {
        if let Ok(index) = self.find(filter) {
            self.subscriptions[index].position = position;
        }
    }

    pub(crate) fn remove_subscription(&mut self, filter: FilterId) -> Option<Subscription> {
        self.find(filter).ok().map(|index| self.subscriptions.remove(index))
    }

    fn find(&self, filter: FilterId) -> Result<usize, usize> {
        self.subscriptions.binary_search_by_key(&order(filter), |known| order(known.filter))
    }

    /// Takes up to `limit` subscriptions.
    pub(crate) fn take_subscriptions(&mut self, limit: usize) -> Vec<Subscription> {
        // From the end, so that the others stay in order.
        let kept = self.subscriptions.len().saturating_sub(limit);
        self.subscriptions.split_off(kept)
    }

    /// Shared subscriptions.
    pub(crate) fn groups(&self) -> &[Arc<Group>] {
        self.ext.as_ref().map_or(&[], |ext| &ext.groups)
    }

    /// Takes up to `limit` shared subscriptions.
    pub(crate) fn take_groups(&mut self, limit: usize) -> Vec<Arc<Group>> {
        let Some(groups) = self.ext.as_mut().map(|ext| &mut ext.groups) else { return Vec::new() };
        groups.split_off(groups.len().saturating_sub(limit))
    }

    /// The shapes of the wildcard filters, if they are counted.
    pub(crate) fn shapes_mut(&mut self) -> Option<&mut WildcardShapes> {
        self.ext.as_mut()?.shapes.as_deref_mut()
    }

    /// Counts the shapes of the wildcard filters from now on. `name_of` returns the text of a filter.
    pub(crate) fn count_shapes(&mut self, name_of: impl Fn(FilterId) -> Option<Box<str>>) {
        let mut shapes = WildcardShapes::default();
        for subscription in &self.subscriptions {
            if let Some(name) = name_of(subscription.filter) {
                shapes.add(&name, u32::MAX);
            }
        }
        let ext = self.ext.get_or_insert_default();
        for group in &ext.groups {
            shapes.add(&group.filter, u32::MAX);
        }
        ext.shapes = Some(Box::new(shapes));
    }

    /// Whether the session has a shared subscription of this name and filter.
    pub(crate) fn is_in_group(&self, name: &str, filter: &str) -> bool {
        let groups = self.ext.iter().flat_map(|ext| &ext.groups);
        groups.into_iter().any(|group| *group.name == *name && *group.filter == *filter)
    }

    /// The session as a member of a group.
    pub(crate) fn member(&mut self, options: SubscribeOptions, id: u32) -> Member {
        let key = self.key;
        let load = self.ext().load.get_or_insert_with(|| {
            let load = Load::default();
            load.online.store(true, Ordering::Relaxed);
            Arc::new(load)
        });
        Member { key, options, id, load: Arc::clone(load) }
    }

    pub(crate) fn add_group(&mut self, group: Arc<Group>) {
        self.ext().groups.push(group);
    }

    pub(crate) fn remove_group(&mut self, name: &str, filter: &str) -> Option<Arc<Group>> {
        let groups = &mut self.ext.as_mut()?.groups;
        let index = groups.iter().position(|group| *group.name == *name && *group.filter == *filter)?;
        Some(groups.swap_remove(index))
    }

    /// Whether the session has ever been in a group.
    pub(crate) fn has_load(&self) -> bool {
        self.ext.as_ref().is_some_and(|ext| ext.load.is_some())
    }

    /// Marks the session in a fan-out with the index `next`. Returns the index that it has been marked with: another
    /// one if this fan-out has met it before.
    pub(crate) fn mark(&mut self, fan_out: u64, next: u32) -> u32 {
        if self.mark.0 != fan_out {
            self.mark = (fan_out, next);
        }
        self.mark.1
    }

    // Durability.

    /// Whether the session outlives its connection, so that messages in flight must be kept.
    pub(crate) fn is_persistent(&self) -> bool {
        self.expiry_s > 0 || self.is_durable()
    }

    /// Whether the session outlives the process: a journal has it.
    pub(crate) fn is_durable(&self) -> bool {
        self.number != 0
    }

    /// Whether acks are pending, which none may overtake.
    pub(crate) fn has_pending_acks(&self) -> bool {
        self.ext.as_ref().is_some_and(|ext| !ext.acks.is_empty())
    }

    /// When the connection was lost, ms since 1970; `None` while there is one.
    pub(crate) fn gone_unix_ms(&self, clock: Clock) -> Option<u64> {
        let age_ms = (clock.now_ms.cast_signed() - self.gone_at_ms).max(0).cast_unsigned();
        (!self.connected).then(|| clock.unix_ms.saturating_sub(age_ms))
    }

    /// Whether a QoS 2 publish of the session has reached some of its targets, and not all.
    pub(crate) fn is_partial_publish(&self, packet_id: u16) -> bool {
        self.ext.as_ref().is_some_and(|ext| ext.qos2.is_partial(packet_id))
    }

    /// Whether the window has room for the next message.
    pub(crate) fn has_window_room(&self) -> bool {
        if self.is_durable() {
            self.window.has_room_for(packet_id_of(self.sequence + 1), self.inflight_max)
        } else {
            self.window.has_room(self.inflight_max)
        }
    }

    /// Retained messages above QoS 0 that there is room for. Those of a durable session leave by the queue, which must
    /// not fill up with what can stay in the store.
    pub(crate) fn retained_replay_room(&self) -> u16 {
        let queued = if self.is_durable() { self.queue.len().min(u16::MAX.into()) as u16 } else { 0 };
        self.window_room().saturating_sub(queued)
    }

    /// See [`RetainedReplays::is_full`].
    pub(crate) fn is_retained_replay_full(&self) -> bool {
        self.ext.as_ref().is_some_and(|ext| ext.retained.is_full())
    }

    /// See [`RetainedReplays::will_send`].
    pub(crate) fn is_replayed_later(&self, topic: &str) -> bool {
        self.ext.as_ref().is_some_and(|ext| ext.retained.will_send(topic))
    }

    pub(crate) fn set_online(&self, online: bool) {
        if let Some(load) = self.ext.as_ref().and_then(|ext| ext.load.as_ref()) {
            load.online.store(online, Ordering::Relaxed);
        }
    }

    /// A message of a shared subscription that was offered to the session is over.
    pub(crate) fn settle_group_message(&self) {
        if let Some(load) = self.ext.as_ref().and_then(|ext| ext.load.as_ref()) {
            load.settle();
        }
    }

    /// One message of a shared subscription has left this session's hands.
    pub(crate) fn settle(&self, delivery: &Delivery) {
        if delivery.group().is_some() {
            self.settle_group_message();
        }
    }

    // Connection.

    pub(crate) fn connect(&mut self, client: ClientParameters) {
        self.connected = true;
        self.conn = client.conn;
        self.version = client.version;
        self.problem_information = client.problem_information;
        self.inflight_max = client.inflight_max;
        self.packet_max = client.packet_max;
        self.expiry_s = client.expiry_s;
    }

    /// The session ends: it gets no further messages.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Replaces the will, and starts topic aliases up to `aliases_max`.
    pub(crate) fn set_will_and_aliases(&mut self, will: Option<Will>, aliases_max: u16) {
        if will.is_some() || self.ext.is_some() {
            self.ext().will.replace(will);
        }
        if aliases_max > 0 {
            self.ext().aliases = Some(OutboundAliases::new(aliases_max));
        }
        self.set_online(true);
    }

    /// The connection is lost. Returns the delay of the will, if there is one.
    pub(crate) fn disconnect(&mut self, now_ms: u64) -> Option<u32> {
        self.connected = false;
        self.gone_at_ms = now_ms.cast_signed();
        self.drop_logged = false;
        self.set_online(false);
        self.window.disconnected();
        let ext = self.ext.as_mut()?;
        // A client that waits for an ack will repeat what it asked for.
        ext.acks.clear();
        ext.aliases = None;
        ext.will.start_delay(now_ms)
    }

    /// When the connection was lost, ms; negative before the process began.
    pub(crate) fn gone_at_ms(&self) -> i64 {
        self.gone_at_ms
    }

    pub(crate) fn set_gone(&mut self, at_ms: i64) {
        self.gone_at_ms = at_ms;
    }

    /// When the session expires unless its client comes back, ms; `None` if never or while it is connected.
    pub(crate) fn expires_at_ms(&self) -> Option<i64> {
        let expires = !self.connected && self.expiry_s != u32::MAX;
        expires.then(|| self.gone_at_ms + i64::from(self.expiry_s) * 1000)
    }

    // Acknowledgements.

    /// A client that acknowledges has not stalled.
    pub(crate) fn note_progress(&mut self, now_ms: u64) {
        self.progress_ms = now_ms;
    }

    #[inline]
    pub(crate) fn on_puback(&mut self, packet_id: u16) -> Acked<Delivery> {
        let acked = self.window.puback(packet_id);
        self.discount_acked(&acked);
        acked
    }

    #[inline]
    pub(crate) fn on_pubrec(&mut self, packet_id: u16, is_error: bool) -> Acked<Delivery> {
        let acked = self.window.pubrec(packet_id, is_error);
        self.discount_acked(&acked);
        acked
    }

    #[inline]
    pub(crate) fn on_pubcomp(&mut self, packet_id: u16) -> Acked<Delivery> {
        let acked = self.window.pubcomp(packet_id);
        self.discount_acked(&acked);
        acked
    }

    /// Whether messages are in flight.
    pub(crate) fn has_in_flight(&self) -> bool {
        !self.window.is_empty()
    }

    /// A QoS 2 PUBLISH: true if its packet identifier is new.
    ///
    /// # Errors
    /// There are `most` of them.
    pub(crate) fn receive(&mut self, packet_id: u16, most: u16) -> Result<bool, ReceivedError> {
        self.received.publish(packet_id, most)
    }

    pub(crate) fn has_received(&self, packet_id: u16) -> bool {
        self.received.iter().any(|known| known == packet_id)
    }

    /// Ends a QoS 2 exchange. False if there is none with this packet identifier.
    pub(crate) fn release(&mut self, packet_id: u16) -> bool {
        self.received.release(packet_id)
    }

    // Deliveries.

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether anything may wait to be sent, or the queue has just become empty.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.queue.is_idle()
            || !self.window.is_sent()
            || self.drop_logged
            || self.queued_qos0 > 0
            || self.ext.as_ref().is_some_and(|ext| !ext.retained.is_empty() || ext.queue_consumers.is_some())
    }

    /// Loads messages in flight that are only on disk, to send them again.
    pub(crate) fn load_window(&mut self, mut load: impl FnMut(u64) -> Option<Arc<Message>>) {
        for (delivery, pending) in self.window.messages_mut() {
            if delivery.message.is_none() && pending != Pending::PubComp {
                delivery.message = load(delivery.offset);
            }
        }
        self.recount_in_flight();
    }

    /// Takes the deliveries that another member of their group may get, as `may_move` decides. QoS 2 messages that were
    /// sent stay: their exchange is to be completed with this client [MQTT-4.8.2-4].
    pub(crate) fn take_movable(&mut self, may_move: impl Fn(QoS, &Arc<Group>) -> bool) -> TakenDeliveries {
        let moves = |qos, group: Option<&Arc<Group>>| group.is_some_and(|group| may_move(qos, group));
        let sent = self.window.take_messages(|delivery, pending| {
            pending == Pending::PubAck && moves(delivery.qos, delivery.group())
        });
        self.discount_in_flight(&sent);
        let group = |extra: Option<&Extra>| extra.and_then(|extra| extra.group.clone());
        let queued = self.queue.take_if(|qos, extra| moves(qos, group(extra).as_ref()));
        TakenDeliveries { sent, queued }
    }

    /// Takes what another receiver may get when the session ends: QoS 1 messages that were sent, and all that were not.
    /// QoS 2 messages that were sent must not be delivered to another client [MQTT-4.8.2-5].
    pub(crate) fn take_all(&mut self) -> TakenDeliveries {
        let queued = self.queue.take_if(|_, _| true);
        let sent = self.window.take_messages(|_, pending| pending == Pending::PubAck);
        self.discount_in_flight(&sent);
        TakenDeliveries { sent, queued }
    }

    /// Takes the deliveries of messages at the offsets `once` of the journal back. Copies that a snapshot has made are
    /// lost as well: `moved_from` returns the offset of what they are copies of. Returns the number of deliveries that
    /// left the queue.
    pub(crate) fn take_back(
        &mut self,
        moved_from: impl Fn(u64) -> Option<u64>,
        once: &BTreeSet<u64>,
    ) -> usize {
        self.queue.replace_each(&moved_from);
        let taken = self.queue.take_at(once);
        for delivery in &taken {
            self.settle(delivery);
        }
        if let Some(ext) = &mut self.ext {
            ext.reassigned.relocate(|offset, _| moved_from(offset));
            ext.reassigned.remove_at(once);
        }
        let qos0 = taken.iter().filter(|delivery| delivery.qos == QoS::AtMostOnce).count() as u32;
        self.queued_qos0 -= qos0.min(self.queued_qos0);
        taken.len()
    }
}

/// The packet identifier of a delivery that a journal has: the same before and after a crash.
fn packet_id_of(sequence: u64) -> u16 {
    ((sequence - 1) % u64::from(LAST_ID)) as u16 + 1
}

fn order(filter: FilterId) -> (u32, u32) {
    (filter.slot(), filter.generation())
}
