//! The entries of a journal and their encoding. `docs/formats/mqtt-journal.md` describes each byte.
//!
//! A message to thousands of durable sessions must cost one entry, not thousands. A [`MessageEntry`] has the message
//! once, as a PUBLISH packet, and a list of receivers; a list that occurs again is referred to by number, since most
//! topics have the same subscribers each time. Small changes, such as acknowledgements, are [`Mark`]s, of which many
//! share an entry.
//!
//! Decoding trusts nothing: a length or number that does not fit is [`Damaged`], never a panic.

use std::collections::BTreeSet;

use mainstem_mqtt::{QoS, RetainHandling, SubscribeOptions};

use super::client_origin::ClientOrigin;
use super::wire::{Damaged, Reader, put, put_bytes};

/// First byte of an entry.
mod kind {
    pub(super) const SESSION: u8 = 1;
    pub(super) const END: u8 = 2;
    pub(super) const SUBSCRIBE: u8 = 3;
    pub(super) const UNSUBSCRIBE: u8 = 4;
    pub(super) const MESSAGE: u8 = 5;
    pub(super) const MARKS: u8 = 6;
    pub(super) const RECEIVED: u8 = 7;
    pub(super) const SNAPSHOT_BEGINS: u8 = 8;
    pub(super) const SNAPSHOT: u8 = 9;
    pub(super) const SNAPSHOT_ENDS: u8 = 10;
    pub(super) const REPLAY_ENDS: u8 = 11;
    pub(super) const USER: u8 = 12;
    pub(super) const CLIENT: u8 = 13;
}

/// Flags of a message entry.
const HAS_ORIGIN: u8 = 1;
const DEFINES_SET: u8 = 2;
const RESETS_SETS: u8 = 4;
const REPLAYED: u8 = 8;
const HAS_RECEIVERS: u8 = 16;

/// The state of a session, written at CONNECT and when the connection is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionEntry<'a> {
    pub(crate) number: u32,
    pub(crate) client_id: &'a str,
    /// Protocol level of the last CONNECT.
    pub(crate) version: u8,
    pub(crate) expiry_s: u32,
    /// When the connection was lost, ms since 1970; `None` while there is one.
    pub(crate) gone_unix_ms: Option<u64>,
    pub(crate) will: Option<WillEntry<'a>>,
}

/// A pending will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WillEntry<'a> {
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    /// A PUBLISH packet of MQTT 5.
    pub(crate) publish: &'a [u8],
}

/// Identifies a QoS 2 publish of a session across journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    /// The journal of the session.
    pub(crate) journal_id: u16,
    pub(crate) session: u32,
    pub(crate) packet_id: u16,
    /// Number of the publish among those of the session, from 1.
    pub(crate) sequence: u64,
}

/// The targets of a QoS 2 publish that are known to have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReachedTargets {
    /// Journals whose sessions have it by subscriptions of their own.
    pub(crate) journals: BTreeSet<u16>,
    /// Shared subscriptions that have delivered it.
    pub(crate) groups: BTreeSet<Box<str>>,
}

/// A message and its receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageEntry<'a> {
    pub(crate) origin: Option<Origin>,
    pub(crate) receivers: Receivers<'a>,
    /// Filter of the subscription whose replay of retained messages has found it.
    pub(crate) replayed_for: Option<&'a str>,
    /// A PUBLISH packet of MQTT 5; its expiry counts from the record's timestamp.
    pub(crate) publish: &'a [u8],
}

/// A list of receivers, written once and then referred to by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receivers<'a> {
    /// None: a session refers to the message in a snapshot.
    Nobody,
    /// The list of this number.
    Known(u64),
    /// This list, which gets the next number. With `reset` that is 0, and earlier lists are invalid.
    New { reset: bool, list: &'a [u8] },
}

/// A small change of a delivery or publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The delivery is over: acknowledged, expired, or dropped.
    Settled { session: u32, sequence: u64 },
    /// PUBREC has come: PUBREL and PUBCOMP are left.
    Released { session: u32, sequence: u64 },
    /// Deliveries up to this one have been sent at least once.
    Sent { session: u32, sequence: u64 },
    /// A QoS 2 publish of the session has reached all its targets.
    Complete { session: u32, packet_id: u16 },
}

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    Session(SessionEntry<'a>),
    End {
        session: u32,
    },
    Subscribe {
        session: u32,
        filter: &'a str,
        options: SubscribeOptions,
        id: u32,
        replays: bool,
    },
    Unsubscribe {
        session: u32,
        filter: &'a str,
    },
    Message(MessageEntry<'a>),
    Marks(Reader<'a>),
    /// A QoS 2 publish was received that nobody here gets, or was found to have reached these targets (`Some`, with its
    /// sequence number), or was released (`None`).
    Received {
        session: u32,
        packet_id: u16,
        taken: Option<(u64, ReachedTargets)>,
    },
    SnapshotBegins,
    Snapshot(Reader<'a>),
    SnapshotEnds {
        begins: u64,
    },
    /// The replay of retained messages for a subscription is over.
    ReplayEnds {
        session: u32,
        filter: &'a str,
    },
    /// The session belongs to this user.
    User {
        session: u32,
        user: &'a str,
    },
    /// Where the client of the session was when it connected.
    Client {
        session: u32,
        origin: ClientOrigin,
    },
}

impl PartialEq for Reader<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Reader<'_> {}

/// Begins an entry of a snapshot.
pub(crate) fn begin_snapshot(into: &mut Vec<u8>) {
    into.push(kind::SNAPSHOT);
}

/// Begins an entry of marks; each [`Mark::put`] adds one.
pub(crate) fn begin_marks(into: &mut Vec<u8>) {
    into.push(kind::MARKS);
}

impl Mark {
    pub(crate) fn put(self, into: &mut Vec<u8>) {
        let (what, session, value) = match self {
            Self::Settled { session, sequence } => (0, session, sequence),
            Self::Released { session, sequence } => (1, session, sequence),
            Self::Sent { session, sequence } => (2, session, sequence),
            Self::Complete { session, packet_id } => (3, session, u64::from(packet_id)),
        };
        into.push(what);
        put(into, u64::from(session));
        put(into, value);
    }

    /// Decodes the next mark of an entry.
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        let what = reader.byte()?;
        let session = reader.small()?;
        let sequence = reader.number()?;
        Ok(match what {
            0 => Self::Settled { session, sequence },
            1 => Self::Released { session, sequence },
            2 => Self::Sent { session, sequence },
            3 => Self::Complete { session, packet_id: sequence.try_into().map_err(|_| Damaged)? },
            _ => return Err(Damaged),
        })
    }
}

/// Subscription options as one byte.
pub(crate) fn options_byte(options: SubscribeOptions) -> u8 {
    options.qos as u8
        | u8::from(options.no_local) << 2
        | u8::from(options.retain_as_published) << 3
        | (options.retain_handling as u8) << 4
}

/// Inverse of [`options_byte`].
pub(crate) fn options_of(byte: u8) -> Result<SubscribeOptions, Damaged> {
    Ok(SubscribeOptions {
        qos: QoS::try_from(byte & 3).map_err(|_| Damaged)?,
        no_local: byte & 4 != 0,
        retain_as_published: byte & 8 != 0,
        retain_handling: match byte >> 4 & 3 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(Damaged),
        },
    })
}

impl SessionEntry<'_> {
    pub(crate) fn put_fields(&self, into: &mut Vec<u8>) {
        put(into, u64::from(self.number));
        put_bytes(into, self.client_id.as_bytes());
        into.push(self.version);
        put(into, u64::from(self.expiry_s));
        put(into, self.gone_unix_ms.map_or(0, |gone| gone + 1));
        match &self.will {
            None => into.push(0),
            Some(will) => {
                into.push(1);
                put(into, u64::from(will.delay_s));
                put(into, will.expiry_s.map_or(0, |expiry_s| u64::from(expiry_s) + 1));
                put_bytes(into, will.publish);
            }
        }
    }
}

impl<'a> SessionEntry<'a> {
    pub(crate) fn take_fields(reader: &mut Reader<'a>) -> Result<Self, Damaged> {
        Ok(Self {
            number: reader.small()?,
            client_id: reader.text()?,
            version: reader.byte()?,
            expiry_s: reader.small()?,
            gone_unix_ms: reader.number()?.checked_sub(1),
            will: match reader.byte()? {
                0 => None,
                _ => Some(WillEntry {
                    delay_s: reader.small()?,
                    expiry_s: reader.number()?.checked_sub(1).map(|expiry_s| expiry_s as u32),
                    publish: reader.bytes()?,
                }),
            },
        })
    }
}

impl Origin {
    pub(super) fn put(self, into: &mut Vec<u8>) {
        put(into, u64::from(self.journal_id));
        put(into, u64::from(self.session));
        put(into, u64::from(self.packet_id));
        put(into, self.sequence);
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            journal_id: reader.small()?,
            session: reader.small()?,
            packet_id: reader.small()?,
            sequence: reader.number()?,
        })
    }
}

impl ReachedTargets {
    pub(crate) fn extend(&mut self, other: &Self) {
        self.journals.extend(&other.journals);
        self.groups.extend(other.groups.iter().cloned());
    }

    pub(super) fn put(&self, into: &mut Vec<u8>) {
        put(into, self.journals.len() as u64);
        for journal_id in &self.journals {
            put(into, u64::from(*journal_id));
        }
        put(into, self.groups.len() as u64);
        for group in &self.groups {
            put_bytes(into, group.as_bytes());
        }
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        let count = reader.number()?;
        let journals = (0..count).map(|_| reader.small()).collect::<Result<_, _>>()?;
        let count = reader.number()?;
        let groups = (0..count).map(|_| Ok(reader.text()?.into())).collect::<Result<_, _>>()?;
        Ok(Self { journals, groups })
    }
}

impl<'a> MessageEntry<'a> {
    fn put(&self, into: &mut Vec<u8>) {
        let (receivers, list, number) = match self.receivers {
            Receivers::Nobody => (0, None, None),
            Receivers::Known(number) => (HAS_RECEIVERS, None, Some(number)),
            Receivers::New { reset: true, list } => {
                (HAS_RECEIVERS | DEFINES_SET | RESETS_SETS, Some(list), None)
            }
            Receivers::New { reset: false, list } => (HAS_RECEIVERS | DEFINES_SET, Some(list), None),
        };
        let origin = if self.origin.is_some() { HAS_ORIGIN } else { 0 };
        let replayed_for = if self.replayed_for.is_some() { REPLAYED } else { 0 };
        into.push(receivers | origin | replayed_for);
        if let Some(origin) = self.origin {
            origin.put(into);
        }
        if let Some(number) = number {
            put(into, number);
        }
        if let Some(list) = list {
            put_bytes(into, list);
        }
        if let Some(filter) = self.replayed_for {
            put_bytes(into, filter.as_bytes());
        }
        into.extend_from_slice(self.publish);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Damaged> {
        let flags = reader.byte()?;
        let origin = if flags & HAS_ORIGIN != 0 { Some(Origin::take(reader)?) } else { None };
        let receivers = match (flags & HAS_RECEIVERS != 0, flags & DEFINES_SET != 0) {
            (false, _) => Receivers::Nobody,
            (true, false) => Receivers::Known(reader.number()?),
            (true, true) => Receivers::New { reset: flags & RESETS_SETS != 0, list: reader.bytes()? },
        };
        let replayed_for = if flags & REPLAYED != 0 { Some(reader.text()?) } else { None };
        Ok(Self { origin, receivers, replayed_for, publish: reader.rest() })
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        match self {
            Self::Session(session) => {
                into.push(kind::SESSION);
                session.put_fields(into);
            }
            Self::End { session } => {
                into.push(kind::END);
                put(into, u64::from(*session));
            }
            Self::Subscribe { session, filter, options, id, replays } => {
                into.push(kind::SUBSCRIBE);
                put(into, u64::from(*session));
                into.push(options_byte(*options));
                put(into, u64::from(*id));
                into.push(u8::from(*replays));
                into.extend_from_slice(filter.as_bytes());
            }
            Self::Unsubscribe { session, filter } => {
                into.push(kind::UNSUBSCRIBE);
                put(into, u64::from(*session));
                into.extend_from_slice(filter.as_bytes());
            }
            Self::Message(message) => {
                into.push(kind::MESSAGE);
                message.put(into);
            }
            Self::Marks(Reader(marks)) => {
                into.push(kind::MARKS);
                into.extend_from_slice(marks);
            }
            Self::Received { session, packet_id, taken } => {
                into.push(kind::RECEIVED);
                put(into, u64::from(*session));
                put(into, u64::from(*packet_id));
                if let Some((sequence, reached)) = taken {
                    put(into, *sequence);
                    reached.put(into);
                }
            }
            Self::SnapshotBegins => into.push(kind::SNAPSHOT_BEGINS),
            Self::Snapshot(Reader(snapshot)) => {
                into.push(kind::SNAPSHOT);
                into.extend_from_slice(snapshot);
            }
            Self::SnapshotEnds { begins } => {
                into.push(kind::SNAPSHOT_ENDS);
                put(into, *begins);
            }
            Self::ReplayEnds { session, filter } => {
                into.push(kind::REPLAY_ENDS);
                put(into, u64::from(*session));
                into.extend_from_slice(filter.as_bytes());
            }
            Self::User { session, user } => {
                into.push(kind::USER);
                put(into, u64::from(*session));
                into.extend_from_slice(user.as_bytes());
            }
            Self::Client { session, origin } => {
                into.push(kind::CLIENT);
                put(into, u64::from(*session));
                origin.put(into);
            }
        }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`Damaged`] if the bytes are not an entry.
    pub(crate) fn take(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(bytes);
        let text = |reader: &mut Reader<'a>| std::str::from_utf8(reader.rest()).map_err(|_| Damaged);
        Ok(match reader.byte()? {
            kind::SESSION => Self::Session(SessionEntry::take_fields(&mut reader)?),
            kind::END => Self::End { session: reader.small()? },
            kind::SUBSCRIBE => Self::Subscribe {
                session: reader.small()?,
                options: options_of(reader.byte()?)?,
                id: reader.small()?,
                replays: reader.byte()? != 0,
                filter: text(&mut reader)?,
            },
            kind::UNSUBSCRIBE => Self::Unsubscribe { session: reader.small()?, filter: text(&mut reader)? },
            kind::MESSAGE => Self::Message(MessageEntry::take(&mut reader)?),
            kind::MARKS => Self::Marks(reader),
            kind::RECEIVED => Self::Received {
                session: reader.small()?,
                packet_id: reader.small()?,
                taken: if reader.is_empty() {
                    None
                } else {
                    Some((reader.number()?, ReachedTargets::take(&mut reader)?))
                },
            },
            kind::SNAPSHOT_BEGINS => Self::SnapshotBegins,
            kind::SNAPSHOT => Self::Snapshot(reader),
            kind::SNAPSHOT_ENDS => Self::SnapshotEnds { begins: reader.number()? },
            kind::REPLAY_ENDS => Self::ReplayEnds { session: reader.small()?, filter: text(&mut reader)? },
            kind::USER => Self::User { session: reader.small()?, user: text(&mut reader)? },
            kind::CLIENT => {
                Self::Client { session: reader.small()?, origin: ClientOrigin::take(&mut reader)? }
            }
            _ => return Err(Damaged),
        })
    }
}

/// One receiver in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receiver<'a> {
    pub(crate) session: u32,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Subscription Identifiers.
    pub(crate) ids: Vec<u32>,
    /// The shared subscription that it came by: `$share/<name>/<filter>`.
    pub(crate) group: Option<&'a str>,
}

const RECEIVER_RETAIN: u8 = 4;
const RECEIVER_HAS_IDS: u8 = 8;
const RECEIVER_HAS_GROUP: u8 = 16;

/// Appends a receiver to a list; see [`Receiver`].
pub(crate) fn put_receiver(
    into: &mut Vec<u8>,
    session: u32,
    qos: QoS,
    retain: bool,
    ids: &[u32],
    group: Option<&str>,
) {
    put(into, u64::from(session));
    let flags = |set: bool, flag: u8| if set { flag } else { 0 };
    into.push(
        qos as u8
            | flags(retain, RECEIVER_RETAIN)
            | flags(!ids.is_empty(), RECEIVER_HAS_IDS)
            | flags(group.is_some(), RECEIVER_HAS_GROUP),
    );
    if !ids.is_empty() {
        put(into, ids.len() as u64);
        for id in ids {
            put(into, u64::from(*id));
        }
    }
    if let Some(group) = group {
        put_bytes(into, group.as_bytes());
    }
}

/// Decodes the next receiver of a list.
pub(crate) fn take_receiver<'a>(reader: &mut Reader<'a>) -> Result<Receiver<'a>, Damaged> {
    let session = reader.small()?;
    let flags = reader.byte()?;
    let mut ids = Vec::new();
    if flags & RECEIVER_HAS_IDS != 0 {
        for _ in 0..reader.number()? {
            ids.push(reader.small()?);
        }
    }
    Ok(Receiver {
        session,
        qos: QoS::try_from(flags & 3).map_err(|_| Damaged)?,
        retain: flags & RECEIVER_RETAIN != 0,
        ids,
        group: if flags & RECEIVER_HAS_GROUP != 0 { Some(reader.text()?) } else { None },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin() -> impl Strategy<Value = Origin> {
        (any::<u16>(), any::<u32>(), any::<u16>(), any::<u64>()).prop_map(
            |(journal_id, session, packet_id, sequence)| Origin { journal_id, session, packet_id, sequence },
        )
    }

    proptest! {
        #[test]
        fn messages_and_sessions_come_back(
            origin in prop::option::of(origin()),
            which in 0..4,
            list in prop::collection::vec(any::<u8>(), 0..50),
            replayed_for in prop::option::of("[a-z/+#]{1,9}"),
            publish in prop::collection::vec(any::<u8>(), 0..50),
            gone in prop::option::of(0_u64..1 << 50),
            expiry in prop::option::of(any::<u32>()),
        ) {
            let receivers = match which {
                0 => Receivers::Nobody,
                1 => Receivers::Known(list.len() as u64),
                _ => Receivers::New { reset: which == 3, list: &list },
            };
            let message = Entry::Message(MessageEntry {
                origin, receivers, replayed_for: replayed_for.as_deref(), publish: &publish,
            });
            let will = expiry.map(|_| WillEntry { delay_s: 7, expiry_s: expiry, publish: &publish });
            let session = Entry::Session(SessionEntry {
                number: 9, client_id: "cl", version: 5, expiry_s: u32::MAX, gone_unix_ms: gone, will,
            });
            for entry in [message, session] {
                let mut bytes = Vec::new();
                entry.put(&mut bytes);
                prop_assert_eq!(Entry::take(&bytes), Ok(entry));
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Entry::Marks(mut marks)) = Entry::take(&bytes) {
                while !marks.is_empty() && Mark::take(&mut marks).is_ok() {}
            }
            let mut list = Reader(&bytes);
            while !list.is_empty() && take_receiver(&mut list).is_ok() {}
        }
    }

    #[test]
    fn small_entries_round_trip() {
        let options = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
        };
        let reached =
            ReachedTargets { journals: [0, 61, 64, u16::MAX].into(), groups: ["$share/g/x".into()].into() };
        for entry in [
            Entry::End { session: 300 },
            Entry::Subscribe { session: 1, filter: "a/#", options, id: 77, replays: true },
            Entry::Unsubscribe { session: 2, filter: "$share/g/x" },
            Entry::Received { session: 3, packet_id: 65_535, taken: Some((4, ReachedTargets::default())) },
            Entry::Received { session: 3, packet_id: 1, taken: Some((5, reached)) },
            Entry::Received { session: 3, packet_id: 65_535, taken: None },
            Entry::SnapshotBegins,
            Entry::SnapshotEnds { begins: 1 << 40 },
            Entry::ReplayEnds { session: 4, filter: "a/+" },
            Entry::User { session: 5, user: "älice" },
            Entry::Client {
                session: 6,
                origin: ClientOrigin { listener: Some("mqtts".into()), ..ClientOrigin::default() },
            },
        ] {
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            assert_eq!(Entry::take(&bytes), Ok(entry));
        }
        let mut bytes = Vec::new();
        let marks = [
            Mark::Settled { session: 1, sequence: 2 },
            Mark::Released { session: 1, sequence: 1 << 50 },
            Mark::Sent { session: 1, sequence: 3 },
            Mark::Complete { session: 1, packet_id: 9 },
        ];
        for mark in marks {
            mark.put(&mut bytes);
        }
        let mut reader = Reader(&bytes);
        for mark in marks {
            assert_eq!(Mark::take(&mut reader), Ok(mark));
        }
        assert!(reader.is_empty());
        let mut list = Vec::new();
        put_receiver(&mut list, 5, QoS::AtLeastOnce, true, &[1, 900], Some("$share/g/a/+"));
        let receiver = Receiver {
            session: 5,
            qos: QoS::AtLeastOnce,
            retain: true,
            ids: vec![1, 900],
            group: Some("$share/g/a/+"),
        };
        assert_eq!(take_receiver(&mut Reader(&list)), Ok(receiver));
    }
}
