//! Retained messages on their way to new subscriptions of one session.
//!
//! A replay visits the retained messages that match a filter in the order of their topics, a few at a time, as the
//! window has room. A message published meanwhile on a topic that the replay has not reached must not overtake the
//! retained message of that topic [MQTT-4.6.0-5]: either it waits in the queue, or the retained message is sent early
//! and its topic is noted, so that the replay skips it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashSet;
use mainstem_mqtt::{QoS, SubscribeOptions};

use crate::message::{Message, SessionKey};
use crate::retained::{Cursor, Read, Retained};

/// Topics per session whose retained message was sent early.
const EARLY_MAX: usize = 16 * 1024;
/// Bytes of these topics.
const EARLY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Memory of such a topic besides its text.
const EARLY_BYTES: usize = 48;
/// Retained messages read for one subscription at a time.
const BATCH_MESSAGES: usize = 64;

/// A replay of retained messages to a new subscription.
#[derive(Debug)]
pub(crate) struct RetainedReplay {
    cursor: Cursor,
    options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    id: u32,
}

/// The replays of one session, by filter.
#[derive(Debug, Default)]
pub(crate) struct RetainedReplays {
    replays: BTreeMap<Box<str>, RetainedReplay>,
    /// The session is in the list of those that continue in the next turn.
    is_scheduled: bool,
    /// Topics whose retained message was sent before its replay reached it.
    early: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Memory of `early`.
    early_bytes: usize,
    /// Bytes of the topics that the replays have come to.
    position_bytes: usize,
}

/// The sessions of a shard that are sent more in the next turn: of their replays, or of what has waited for them.
#[derive(Debug, Default)]
pub(crate) struct SendSchedule {
    sessions: VecDeque<SessionKey>,
}

impl SendSchedule {
    pub(crate) fn add(&mut self, session: SessionKey) {
        self.sessions.push_back(session);
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Takes the session that has waited longest.
    pub(crate) fn next(&mut self) -> Option<SessionKey> {
        self.sessions.pop_front()
    }
}

/// How much a session can take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayRoom {
    /// There is room for messages above QoS 0.
    pub(crate) has_window: bool,
    /// Messages above QoS 0 at most.
    pub(crate) window: u16,
    pub(crate) has_output: bool,
}

/// A few retained messages of one replay.
#[derive(Debug)]
pub(crate) struct ReplayBatch {
    pub(crate) filter: Box<str>,
    pub(crate) options: SubscribeOptions,
    pub(crate) id: u32,
    /// There are no more for this filter.
    pub(crate) is_last: bool,
    /// Number of retained messages that were visited.
    pub(crate) visited: u32,
}

impl RetainedReplay {
    /// A replay of all messages that match `filter` and are not newer than the change `newest` of the store. To be
    /// called when the subscription gets messages, so that it gets those that are newer.
    pub(crate) fn new(filter: &str, options: SubscribeOptions, id: u32, newest: u64) -> Self {
        Self { cursor: Cursor::new(filter, newest), options, id }
    }
}

impl RetainedReplays {
    pub(crate) fn is_empty(&self) -> bool {
        self.replays.is_empty()
    }

    /// Starts a replay, from the beginning if there is one for this filter.
    pub(crate) fn start(&mut self, replay: RetainedReplay) {
        let former = self.replays.insert(replay.cursor.filter().into(), replay);
        self.position_bytes -= former.map_or(0, |former| former.cursor.last().len());
    }

    /// Restores a replay that has reached topic `last`; `newest` as for [`RetainedReplay::new`].
    pub(crate) fn restore(
        &mut self,
        filter: &str,
        last: &str,
        options: SubscribeOptions,
        id: u32,
        newest: u64,
    ) {
        let cursor = Cursor::after(filter, last, newest);
        self.position_bytes += cursor.last().len();
        self.start(RetainedReplay { cursor, options, id });
    }

    /// Ends the replay of a subscription that is gone: nothing new is sent for it [MQTT-3.10.4-2].
    pub(crate) fn remove(&mut self, filter: &str) {
        let former = self.replays.remove(filter);
        self.position_bytes -= former.map_or(0, |former| former.cursor.last().len());
        self.forget_early_if_done();
    }

    fn forget_early_if_done(&mut self) {
        if self.replays.is_empty() {
            self.early = HashSet::default();
            self.early_bytes = 0;
        }
    }

    /// True if the session was not scheduled for the next turn yet.
    pub(crate) fn schedule(&mut self) -> bool {
        !std::mem::replace(&mut self.is_scheduled, true)
    }

    pub(crate) fn unschedule(&mut self) {
        self.is_scheduled = false;
    }

    /// Memory of positions and remembered topics. Replays themselves are part of what their subscriptions cost.
    pub(crate) fn bytes(&self) -> usize {
        self.early_bytes + self.position_bytes
    }

    /// The same, computed anew.
    pub(crate) fn recomputed_bytes(&self) -> usize {
        let early: usize = self.early.iter().map(|topic| EARLY_BYTES + topic.len()).sum();
        early + self.replays.values().map(|replay| replay.cursor.last().len()).sum::<usize>()
    }

    /// Number of topics that are remembered.
    pub(crate) fn early_topics(&self) -> usize {
        self.early.len()
    }

    /// Whether no further topic can be remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.early.len() >= EARLY_MAX || self.early_bytes >= EARLY_BYTES_MAX
    }

    /// Whether a message published now on `topic` has to wait in the queue.
    pub(crate) fn holds_back(&self, topic: &str, queue_is_empty: bool) -> bool {
        !self.replays.is_empty() && (!queue_is_empty || self.is_ahead(topic))
    }

    /// Whether a replay may still send a retained message of `topic`.
    pub(crate) fn will_send(&self, topic: &str) -> bool {
        !self.replays.is_empty() && self.is_ahead(topic) && !self.early.contains(topic)
    }

    fn is_ahead(&self, topic: &str) -> bool {
        self.replays.values().any(|replay| replay.cursor.is_ahead(topic))
    }

    /// The retained message of `topic` is sent early. Returns options and identifier of the subscription that gets it,
    /// and the newest change of the store that its replay sees; `None` if no replay would send it.
    pub(crate) fn send_early(&mut self, topic: &str) -> Option<(SubscribeOptions, u32, u64)> {
        if self.replays.is_empty() {
            return None;
        }
        if self.early.insert(topic.into()) {
            self.early_bytes += EARLY_BYTES + topic.len();
        }
        let replay = self.replays.values().find(|replay| replay.cursor.is_ahead(topic))?;
        Some((replay.options, replay.id, replay.cursor.newest()))
    }

    /// The last topic that the replay of a filter has sent. `None` without one, and for QoS 0, where messages may be
    /// lost.
    pub(crate) fn position(&self, filter: &str) -> Option<&str> {
        let replay = self.replays.get(filter)?;
        (replay.options.qos > QoS::AtMostOnce).then(|| replay.cursor.last())
    }

    /// Reads the next messages of some replay into `found`. `None` if there is no room for any.
    pub(crate) fn read(
        &mut self,
        retained: &Retained,
        room: ReplayRoom,
        now_ms: u64,
        found: &mut Vec<Arc<Message>>,
    ) -> Option<ReplayBatch> {
        let has_room = |replay: &RetainedReplay| room.has_window || replay.options.qos == QoS::AtMostOnce;
        let (filter, replay) = self.replays.iter_mut().find(|(_, replay)| has_room(replay))?;
        if !room.has_output {
            return None;
        }
        let RetainedReplay { options, id, .. } = *replay;
        let limit = match options.qos {
            QoS::AtMostOnce => BATCH_MESSAGES,
            _ => BATCH_MESSAGES.min(usize::from(room.window)),
        };
        let filter = filter.clone();
        self.position_bytes -= replay.cursor.last().len();
        let Read { is_last, visited } = retained.read(&mut replay.cursor, limit, now_ms, found);
        self.position_bytes += if is_last { 0 } else { replay.cursor.last().len() };
        if is_last {
            self.replays.remove(&filter);
        }
        found.retain(|message| !self.early.contains(message.topic()));
        self.forget_early_if_done();
        Some(ReplayBatch { filter, options, id, is_last, visited })
    }
}
