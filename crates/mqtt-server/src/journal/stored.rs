//! Sessions as a journal contains them: the types, how entries change them, and their bytes in a snapshot.
//!
//! A replay applies the entries after the last snapshot to these types, without shards, windows or timers, and the
//! shard makes sessions of the result. A snapshot writes the same types. So the meaning of an entry is defined in one
//! place, whether a session comes from a snapshot, from entries, or from both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mainstem_mqtt::{QoS, SubscribeOptions};

use super::client_origin::ClientOrigin;
use super::entry::{
    Origin, ReachedTargets, Receiver, SessionEntry, WillEntry, begin_snapshot, options_byte, options_of,
};
use super::wire::{Damaged, Reader, put, put_bytes};
use crate::session::queue::Run;

mod piece {
    pub(super) const SESSION: u8 = 0;
    pub(super) const ORIGINS: u8 = 1;
    pub(super) const LAST_SESSION: u8 = 2;
}

/// One entry of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SnapshotPart {
    Session(u32, Box<StoredSession>),
    Origins(Vec<Arrival>),
    LastSession(u32),
}

/// What only few deliveries have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredExtra {
    pub(crate) ids: Vec<u32>,
    /// `$share/<name>/<filter>`.
    pub(crate) group: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredWill {
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) publish: Box<[u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredSubscription {
    pub(crate) options: SubscribeOptions,
    pub(crate) id: u32,
    /// The last topic that a replay of retained messages has sent (empty at its start); `None` if it is over.
    pub(crate) replay_position: Option<Box<str>>,
}

/// A QoS 2 publish that was received and is not released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredReceived {
    /// See [`Origin::sequence`].
    pub(crate) sequence: u64,
    /// All its targets have it.
    pub(crate) is_complete: bool,
    pub(crate) reached: ReachedTargets,
}

/// A QoS 2 publish of a session of another journal that has arrived in this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) origin: Origin,
    /// This journal, unless only shared subscriptions have delivered it here, and those.
    pub(crate) reached: ReachedTargets,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) client_id: Box<str>,
    pub(crate) version: u8,
    pub(crate) expiry_s: u32,
    pub(crate) gone_unix_ms: Option<u64>,
    pub(crate) will: Option<StoredWill>,
    /// The user that it belongs to, which is an entry of its own in a snapshot, too.
    pub(crate) user: Option<Box<str>>,
    /// Where its client was when it last connected, which is an entry of its own, too.
    pub(crate) origin: Option<ClientOrigin>,
    pub(crate) subscriptions: BTreeMap<Box<str>, StoredSubscription>,
    /// Sequence number of the last delivery.
    pub(crate) sequence: u64,
    /// Deliveries up to this one have been sent.
    pub(crate) sent: u64,
    /// Number of QoS 2 publishes received so far.
    pub(crate) received_sequence: u64,
    pub(crate) received: BTreeMap<u16, StoredReceived>,
    /// Unsettled deliveries, in order.
    pub(crate) unsettled: VecDeque<Run<StoredExtra>>,
    /// Sequence numbers of those for which PUBREC has come.
    pub(crate) released: BTreeSet<u64>,
}

impl StoredSession {
    pub(super) fn describe(&mut self, entry: &SessionEntry<'_>) {
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

    pub(super) fn receive(&mut self, packet_id: u16, sequence: u64, reached: &ReachedTargets) {
        self.received_sequence = self.received_sequence.max(sequence);
        let known = self.received.entry(packet_id).or_default();
        if known.sequence != sequence {
            *known = StoredReceived { sequence, ..StoredReceived::default() };
        }
        known.reached.extend(reached);
    }

    pub(super) fn deliver(&mut self, offset: u64, bytes: u64, receiver: Receiver<'_>) {
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

    pub(super) fn settle(&mut self, sequence: u64) {
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

    /// Updates the offset of each delivery with what `place` returns, or removes the delivery if that is `None`.
    pub(crate) fn place_each(&mut self, mut place: impl FnMut(u64) -> Option<u64>) {
        let mut placed: VecDeque<Run<StoredExtra>> = VecDeque::new();
        for mut run in std::mem::take(&mut self.unsettled) {
            while run.count > 0 {
                let mut one = Run { count: 1, ..run.clone() };
                one.bytes = run.shorten(None);
                let Some(offset) = place(one.offset) else { continue };
                one.offset = offset;
                if !placed.back_mut().is_some_and(|last| last.join(&one)) {
                    placed.push_back(one);
                }
            }
        }
        self.unsettled = placed;
    }
}

pub(super) fn put_session(into: &mut Vec<u8>, number: u32, session: &StoredSession) {
    begin_snapshot(into);
    into.push(piece::SESSION);
    let will = session.will.as_ref().map(StoredWill::as_entry);
    let fields = SessionEntry {
        number,
        client_id: &session.client_id,
        version: session.version,
        expiry_s: session.expiry_s,
        gone_unix_ms: session.gone_unix_ms,
        will,
    };
    fields.put_fields(into);
    put(into, session.sequence);
    put(into, session.sent);
    put(into, session.received_sequence);
    put(into, session.subscriptions.len() as u64);
    for (filter, subscription) in &session.subscriptions {
        put_bytes(into, filter.as_bytes());
        into.push(options_byte(subscription.options));
        put(into, u64::from(subscription.id));
        into.push(u8::from(subscription.replay_position.is_some()));
        if let Some(replay_position) = &subscription.replay_position {
            put_bytes(into, replay_position.as_bytes());
        }
    }
    put(into, session.received.len() as u64);
    for (packet_id, received) in &session.received {
        put(into, u64::from(*packet_id));
        put(into, received.sequence);
        into.push(u8::from(received.is_complete));
        received.reached.put(into);
    }
    put(into, session.unsettled.len() as u64);
    for run in &session.unsettled {
        put_run(into, run);
    }
    put(into, session.released.len() as u64);
    for sequence in &session.released {
        put(into, *sequence);
    }
}

/// The last entry of a snapshot's content: the number of the newest session.
pub(super) fn put_last_session(into: &mut Vec<u8>, last: u32) {
    begin_snapshot(into);
    into.push(piece::LAST_SESSION);
    put(into, u64::from(last));
}

fn put_run(into: &mut Vec<u8>, run: &Run<StoredExtra>) {
    put(into, run.sequence);
    put(into, run.offset);
    put(into, u64::from(run.count));
    put(into, run.bytes);
    into.push(run.qos as u8 | u8::from(run.retain) << 2 | u8::from(run.extra.is_some()) << 3);
    if let Some(extra) = &run.extra {
        put(into, extra.ids.len() as u64);
        for id in &extra.ids {
            put(into, u64::from(*id));
        }
        put_bytes(into, extra.group.as_deref().unwrap_or_default().as_bytes());
    }
}

pub(super) fn put_origins(into: &mut Vec<u8>, origins: &[Arrival]) {
    begin_snapshot(into);
    into.push(piece::ORIGINS);
    put(into, origins.len() as u64);
    for Arrival { origin, reached } in origins {
        origin.put(into);
        reached.put(into);
    }
}

/// Decodes one entry of a snapshot.
pub(super) fn take_part(reader: &mut Reader<'_>) -> Result<SnapshotPart, Damaged> {
    Ok(match reader.byte()? {
        piece::SESSION => {
            let (number, session) = take_session(reader)?;
            SnapshotPart::Session(number, Box::new(session))
        }
        piece::ORIGINS => {
            let count = reader.number()?;
            let mut arrival =
                || Ok(Arrival { origin: Origin::take(reader)?, reached: ReachedTargets::take(reader)? });
            SnapshotPart::Origins((0..count).map(|_| arrival()).collect::<Result<_, _>>()?)
        }
        piece::LAST_SESSION => SnapshotPart::LastSession(reader.small()?),
        _ => return Err(Damaged),
    })
}

fn take_session(reader: &mut Reader<'_>) -> Result<(u32, StoredSession), Damaged> {
    let fields = SessionEntry::take_fields(reader)?;
    let mut session = StoredSession::default();
    session.describe(&fields);
    session.sequence = reader.number()?;
    session.sent = reader.number()?;
    session.received_sequence = reader.number()?;
    for _ in 0..reader.number()? {
        let filter = reader.text()?;
        let options = options_of(reader.byte()?)?;
        let id = reader.small()?;
        let replay_position = if reader.byte()? != 0 { Some(reader.text()?.into()) } else { None };
        session.subscriptions.insert(filter.into(), StoredSubscription { options, id, replay_position });
    }
    for _ in 0..reader.number()? {
        let packet_id = reader.small()?;
        let (sequence, is_complete) = (reader.number()?, reader.byte()? != 0);
        let received = StoredReceived { sequence, is_complete, reached: ReachedTargets::take(reader)? };
        session.received.insert(packet_id, received);
    }
    let mut unsettled = VecDeque::new();
    for _ in 0..reader.number()? {
        unsettled.push_back(take_run(reader)?);
    }
    session.unsettled = unsettled;
    for _ in 0..reader.number()? {
        session.released.insert(reader.number()?);
    }
    Ok((fields.number, session))
}

fn take_run(reader: &mut Reader<'_>) -> Result<Run<StoredExtra>, Damaged> {
    let (sequence, offset) = (reader.number()?, reader.number()?);
    let count = reader.small::<u32>()?;
    if count == 0 {
        return Err(Damaged);
    }
    let bytes = reader.number()?;
    let flags = reader.byte()?;
    let extra = if flags & 8 != 0 {
        let mut ids = Vec::new();
        for _ in 0..reader.number()? {
            ids.push(reader.small()?);
        }
        let group = reader.text()?;
        Some(Box::new(StoredExtra { ids, group: (!group.is_empty()).then(|| group.into()) }))
    } else {
        None
    };
    let qos = QoS::try_from(flags & 3).map_err(|_| Damaged)?;
    Ok(Run { sequence, offset, count, bytes, qos, retain: flags & 4 != 0, extra })
}

impl StoredWill {
    pub(crate) fn as_entry(&self) -> WillEntry<'_> {
        WillEntry { delay_s: self.delay_s, expiry_s: self.expiry_s, publish: &self.publish }
    }
}
