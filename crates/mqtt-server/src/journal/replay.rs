//! Rebuilds the sessions of a journal from its entries.
//!
//! Entries before the last complete snapshot may be missing: an entry about a session that is not known yet has no
//! effect, because the snapshot contains the session with everything before.

use std::collections::VecDeque;

use hashbrown::HashMap;
use mainstem_mqtt::{Packet, Version, decode};

use super::entry::{
    Entry, Mark, MessageEntry, Origin, ReachedTargets, Receivers, SessionEntry, take_receiver,
};
use super::stored::{Arrival, SnapshotPart, StoredSession, StoredSubscription, take_part};
use super::wire::{Damaged, Reader};

/// Foreign origins that are remembered, see [`super::Journal::origins`].
pub(super) const ORIGINS_MAX: usize = 4096;

/// The state of a journal.
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

impl Replayed {
    /// Applies one entry.
    ///
    /// # Errors
    /// [`Damaged`] if the bytes are not an entry.
    pub(crate) fn apply(&mut self, offset: u64, value: &[u8], journal_id: u16) -> Result<(), Damaged> {
        self.entries += 1;
        match Entry::take(value)? {
            Entry::Session(entry) => self.session(&entry),
            Entry::End { session } => {
                self.sessions.remove(&session);
            }
            Entry::Subscribe { session, filter, options, id, replays } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    let replay_position = replays.then(Box::default);
                    session
                        .subscriptions
                        .insert(filter.into(), StoredSubscription { options, id, replay_position });
                }
            }
            Entry::Unsubscribe { session, filter } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.subscriptions.remove(filter);
                }
            }
            Entry::User { session, user } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.user = Some(user.into());
                }
            }
            Entry::Client { session, origin } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.origin = Some(origin);
                }
            }
            Entry::ReplayEnds { session, filter } => {
                let subscription =
                    self.sessions.get_mut(&session).and_then(|known| known.subscriptions.get_mut(filter));
                if let Some(subscription) = subscription {
                    subscription.replay_position = None;
                }
            }
            Entry::Message(entry) => self.message(offset, &entry, journal_id)?,
            Entry::Marks(mut marks) => {
                while !marks.is_empty() {
                    self.mark(Mark::take(&mut marks)?);
                }
            }
            Entry::Received { session, packet_id, taken } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    match taken {
                        Some((sequence, reached)) => session.receive(packet_id, sequence, &reached),
                        None => drop(session.received.remove(&packet_id)),
                    }
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

    /// A session in a snapshot includes all earlier entries.
    fn snapshot_entry(&mut self, mut reader: Reader<'_>) -> Result<(), Damaged> {
        match take_part(&mut reader)? {
            SnapshotPart::Session(number, session) => {
                self.last_session = self.last_session.max(number);
                self.sessions.insert(number, *session);
            }
            SnapshotPart::Origins(origins) => {
                for arrival in origins.into_iter().rev() {
                    self.origins.push_front(arrival);
                }
            }
            SnapshotPart::LastSession(number) => {
                self.last_session = self.last_session.max(number);
            }
        }
        Ok(())
    }

    fn message(&mut self, offset: u64, entry: &MessageEntry<'_>, journal_id: u16) -> Result<(), Damaged> {
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
        let mut reached = ReachedTargets::default();
        while !reader.is_empty() {
            let receiver = take_receiver(&mut reader)?;
            match receiver.group {
                _ if entry.origin.is_none() => {}
                Some(group) => drop(reached.groups.insert(group.into())),
                None => drop(reached.journals.insert(journal_id)),
            }
            let Some(session) = self.sessions.get_mut(&receiver.session) else { continue };
            session.deliver(offset, bytes, receiver);
            if let Some(filter) = entry.replayed_for
                && let Some(subscription) = session.subscriptions.get_mut(filter)
                && subscription.replay_position.is_some()
            {
                subscription.replay_position = Some(topic_of(entry.publish)?.into());
            }
        }
        if let Some(origin) = entry.origin {
            self.arrive(Arrival { origin, reached }, journal_id);
        }
        Ok(())
    }

    fn arrive(&mut self, arrival: Arrival, journal_id: u16) {
        let Origin { journal_id: home, session, packet_id, sequence } = arrival.origin;
        if home != journal_id {
            if self.origins.len() == ORIGINS_MAX {
                self.origins.pop_front();
            }
            self.origins.push_back(arrival);
        } else if let Some(session) = self.sessions.get_mut(&session) {
            session.receive(packet_id, sequence, &arrival.reached);
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
                    received.is_complete = true;
                }
            }
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
