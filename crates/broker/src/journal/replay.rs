//! Reading a journal: from its entries to the sessions as they were when the last of them was written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use mainstem_log::{Error, batches};
use mainstem_mqtt::{Packet, SubscribeOptions, Version, decode};

use super::Journal;
use super::entry::{Entry, Mark, MessageEntry, Origin, Receiver, Receivers, SessionEntry, take_receiver};
use super::wire::{Damaged, Reader};
use crate::queue::Run;

/// Bytes read from the store at a time.
const READ_BYTES: usize = 1024 * 1024;

/// What only some deliveries have, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredExtra {
    pub(crate) ids: Vec<u32>,
    /// `$share/<name>/<filter>`.
    pub(crate) group: Option<Box<str>>,
}

/// A will as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredWill {
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) publish: Box<[u8]>,
}

/// A subscription as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredSubscription {
    pub(crate) options: SubscribeOptions,
    pub(crate) id: u32,
    /// A walk through the retained messages is under way, and has come by this topic; the empty one is none.
    pub(crate) walk: Option<Box<str>>,
}

/// A QoS 2 publish that was received and is not released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredReceived {
    /// See [`Origin::sequence`].
    pub(crate) sequence: u64,
    /// Other journals that it was to go to, unless it is known that they all have it.
    pub(crate) reach: u64,
    /// Shared subscriptions that have dealt it out here.
    pub(crate) groups: Vec<Box<str>>,
}

/// A QoS 2 publish of a session of another journal that has arrived in this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) origin: Origin,
    /// As for [`StoredReceived`].
    pub(crate) groups: Vec<Box<str>>,
}

/// A session as a journal tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) client_id: Box<str>,
    pub(crate) version: u8,
    pub(crate) expiry_s: u32,
    pub(crate) gone_unix_ms: Option<u64>,
    pub(crate) will: Option<StoredWill>,
    pub(crate) subscriptions: BTreeMap<Box<str>, StoredSubscription>,
    /// Sequence number of the last delivery.
    pub(crate) sequence: u64,
    /// Deliveries up to this one have been sent.
    pub(crate) sent: u64,
    /// QoS 2 publishes taken in so far.
    pub(crate) received_sequence: u64,
    pub(crate) received: BTreeMap<u16, StoredReceived>,
    /// Deliveries that are not over, in order.
    pub(crate) unsettled: VecDeque<Run<StoredExtra>>,
    /// Sequence numbers of those for which PUBREC has come.
    pub(crate) released: BTreeSet<u64>,
}

/// Everything that a journal tells.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) sessions: HashMap<u32, StoredSession, foldhash::fast::RandomState>,
    /// QoS 2 publishes of sessions of other journals.
    pub(crate) origins: VecDeque<Arrival>,
    pub(crate) last_session: u32,
    /// Where the last complete snapshot begins.
    pub(crate) snapshot: Option<u64>,
    /// Entries read.
    pub(crate) entries: u64,
    sets: Vec<Box<[u8]>>,
}

impl Journal {
    /// Reads the journal, from its last complete snapshot if it knows one.
    ///
    /// # Errors
    /// What the store says, and [`Error::Corrupt`] if an entry does not make sense.
    pub(crate) fn replay(&mut self) -> Result<Replayed, Error> {
        let mut replayed = Replayed::default();
        let status = self.store.status(self.log);
        let mut at = self.snapshot_hint()?.unwrap_or(status.start).max(status.start);
        let mut bytes = Vec::new();
        while at < status.end {
            bytes.clear();
            self.store.read(self.log, at..status.end, READ_BYTES, &mut bytes)?;
            let mut next = at;
            for batch in batches(&bytes) {
                next = batch.header.end_offset();
                for record in batch.records() {
                    let record = record.map_err(Error::Malformed)?;
                    let value = record.value.filter(|_| record.offset >= at).unwrap_or_default();
                    if !value.is_empty() && replayed.apply(record.offset, value, self.home).is_err() {
                        return Err(Error::Corrupt { offset: record.offset });
                    }
                }
            }
            if next == at {
                return Err(Error::Corrupt { offset: at });
            }
            at = next;
        }
        self.next_session = replayed.last_session + 1;
        self.origins = replayed.origins.iter().map(|arrival| (0, arrival.clone())).collect();
        self.snapshots.found(replayed.snapshot, status.bytes);
        Ok(replayed)
    }
}

impl Replayed {
    /// Takes in one entry.
    ///
    /// # Errors
    /// [`Damaged`] if it is none.
    pub(crate) fn apply(&mut self, offset: u64, value: &[u8], home: u16) -> Result<(), Damaged> {
        self.entries += 1;
        match Entry::take(value)? {
            Entry::Session(entry) => self.session(&entry),
            Entry::End { session } => {
                self.sessions.remove(&session);
            }
            Entry::Subscribe { session, filter, options, id, walks } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    let walk = walks.then(Box::default);
                    session.subscriptions.insert(filter.into(), StoredSubscription { options, id, walk });
                }
            }
            Entry::Unsubscribe { session, filter } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.subscriptions.remove(filter);
                }
            }
            Entry::WalkEnds { session, filter } => {
                let subscription =
                    self.sessions.get_mut(&session).and_then(|known| known.subscriptions.get_mut(filter));
                if let Some(subscription) = subscription {
                    subscription.walk = None;
                }
            }
            Entry::Message(entry) => self.message(offset, &entry, home)?,
            Entry::Marks(mut marks) => {
                while !marks.is_empty() {
                    self.mark(Mark::take(&mut marks)?);
                }
            }
            Entry::Received { session, packet_id, taken } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.receive(packet_id, taken);
                }
            }
            Entry::SnapshotBegins => {}
            Entry::Snapshot(reader) => self.snapshot_entry(reader)?,
            Entry::SnapshotEnds { begins } => self.snapshot = Some(begins),
        }
        Ok(())
    }

    fn session(&mut self, entry: &SessionEntry<'_>) {
        self.last_session = self.last_session.max(entry.number);
        self.sessions.entry(entry.number).or_default().describe(entry);
    }

    /// A session as a snapshot has it: all that came before is part of it.
    fn snapshot_entry(&mut self, mut reader: Reader<'_>) -> Result<(), Damaged> {
        match super::snapshot::take(&mut reader)? {
            super::snapshot::Piece::Session(number, session) => {
                self.last_session = self.last_session.max(number);
                self.sessions.insert(number, *session);
            }
            super::snapshot::Piece::Origins(origins) => {
                for arrival in origins.into_iter().rev() {
                    self.origins.push_front(arrival);
                }
            }
            super::snapshot::Piece::LastSession(number) => {
                self.last_session = self.last_session.max(number);
            }
        }
        Ok(())
    }

    fn message(&mut self, offset: u64, entry: &MessageEntry<'_>, home: u16) -> Result<(), Damaged> {
        let list: &[u8] = match entry.receivers {
            Receivers::Nobody => &[],
            Receivers::Known(number) => self.sets.get(number as usize).ok_or(Damaged)?,
            Receivers::New { reset, list } => {
                if reset {
                    self.sets.clear();
                }
                self.sets.push(list.into());
                list
            }
        };
        let bytes = size_of(entry.publish)?;
        let mut reader = Reader(list);
        let mut groups = Vec::new();
        while !reader.is_empty() {
            let receiver = take_receiver(&mut reader)?;
            groups.extend(receiver.group.map(Box::<str>::from));
            let Some(session) = self.sessions.get_mut(&receiver.session) else { continue };
            session.deliver(offset, bytes, receiver);
            if let Some(filter) = entry.walked
                && let Some(subscription) = session.subscriptions.get_mut(filter)
                && subscription.walk.is_some()
            {
                subscription.walk = Some(topic_of(entry.publish)?.into());
            }
        }
        if let Some(origin) = entry.origin {
            self.arrive(origin, groups, home);
        }
        Ok(())
    }

    fn arrive(&mut self, origin: Origin, groups: Vec<Box<str>>, home: u16) {
        if origin.home != home {
            if self.origins.len() == super::ORIGINS_MAX {
                self.origins.pop_front();
            }
            self.origins.push_back(Arrival { origin, groups });
        } else if let Some(session) = self.sessions.get_mut(&origin.session) {
            session.receive(origin.packet_id, Some((origin.sequence, origin.reach)));
            if let Some(received) = session.received.get_mut(&origin.packet_id) {
                received.groups.extend(groups);
            }
        }
    }

    fn mark(&mut self, mark: Mark) {
        match mark {
            Mark::Settled { session, sequence } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.settle(sequence);
                }
            }
            Mark::Released { session, sequence } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.released.insert(sequence);
                }
            }
            Mark::Sent { session, sequence } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.sent = session.sent.max(sequence);
                }
            }
            Mark::Complete { session, packet_id } => {
                let received =
                    self.sessions.get_mut(&session).and_then(|known| known.received.get_mut(&packet_id));
                if let Some(received) = received {
                    received.reach = 0;
                }
            }
        }
    }
}

impl StoredSession {
    pub(crate) fn describe(&mut self, entry: &SessionEntry<'_>) {
        self.client_id = entry.client_id.into();
        self.version = entry.version;
        self.expiry_s = entry.expiry_s;
        self.gone_unix_ms = entry.gone_unix_ms;
        self.will = entry.will.as_ref().map(|will| StoredWill {
            delay_s: will.delay_s,
            expiry_s: will.expiry_s,
            publish: will.publish.into(),
        });
    }

    fn receive(&mut self, packet_id: u16, taken: Option<(u64, u64)>) {
        match taken {
            Some((sequence, reach)) => {
                self.received_sequence = self.received_sequence.max(sequence);
                let before = self.received.remove(&packet_id).filter(|known| known.sequence == sequence);
                let groups = before.map(|known| known.groups).unwrap_or_default();
                self.received.insert(packet_id, StoredReceived { sequence, reach, groups });
            }
            None => {
                self.received.remove(&packet_id);
            }
        }
    }

    fn deliver(&mut self, offset: u64, bytes: u64, receiver: Receiver<'_>) {
        self.sequence += 1;
        let is_plain = receiver.ids.is_empty() && receiver.group.is_none();
        let extra = || Box::new(StoredExtra { ids: receiver.ids, group: receiver.group.map(Into::into) });
        let run = Run {
            sequence: self.sequence,
            offset,
            count: 1,
            bytes,
            qos: receiver.qos,
            retain: receiver.retain,
            extra: (!is_plain).then(extra),
        };
        if !self.unsettled.back_mut().is_some_and(|last| last.join(&run)) {
            self.unsettled.push_back(run);
        }
    }

    fn settle(&mut self, sequence: u64) {
        self.released.remove(&sequence);
        let index = self.unsettled.partition_point(|run| run.sequence + u64::from(run.count) <= sequence);
        let Some(run) = self.unsettled.get_mut(index).filter(|run| run.sequence <= sequence) else { return };
        if run.sequence == sequence {
            run.shorten(None);
            if run.count == 0 {
                self.unsettled.remove(index);
            }
            return;
        }
        let before = (sequence - run.sequence) as u32;
        let mut rest = run.clone();
        let bytes_before = run.bytes / u64::from(run.count) * u64::from(before);
        (run.count, run.bytes) = (before, bytes_before);
        rest.bytes -= bytes_before;
        rest.sequence += u64::from(before);
        rest.offset += u64::from(before);
        rest.count -= before;
        rest.shorten(None);
        if rest.count > 0 {
            self.unsettled.insert(index + 1, rest);
        }
    }
}

/// Size of the message in a PUBLISH packet, as limits count it.
fn size_of(publish: &[u8]) -> Result<u64, Damaged> {
    match decode(Version::V5, publish) {
        Ok(Packet::Publish(publish)) => Ok((publish.topic.len() + publish.payload.len()) as u64),
        _ => Err(Damaged),
    }
}

fn topic_of(publish: &[u8]) -> Result<&str, Damaged> {
    match decode(Version::V5, publish) {
        Ok(Packet::Publish(publish)) => Ok(publish.topic),
        _ => Err(Damaged),
    }
}
