//! What was promised about topics, and what was seen of them: records and where they stand, transactions, how far
//! partitions reach, committed offsets.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_mqtt::QoS;

use crate::frames;
use crate::ledger::{self as mqtt, MessageId, Violation};

/// Number of a record. Later ones of the same producer have higher ones.
pub(crate) type RecordId = usize;
/// Number of a transaction.
pub(crate) type TxnId = usize;
/// Place in the order of everything that happens in a run.
pub(crate) type Moment = u64;

/// A partition of one of the run's topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    pub(crate) topic: usize,
    pub(crate) index: i32,
}

/// A record as its producer knows it.
#[derive(Clone, Debug)]
pub(crate) struct Rec {
    pub(crate) part: Part,
    /// Who sent it, on which connection if that matters: what has the same keeps its order in a partition.
    pub(crate) stream: (usize, u64),
    pub(crate) txn: Option<TxnId>,
    /// Where it stands, as far as anybody has heard or seen.
    found: Option<u64>,
    /// It was acknowledged.
    is_acked: bool,
}

/// What stands at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Record(RecordId),
    /// The marker of a transaction that was committed, or was not.
    Marker {
        is_commit: bool,
    },
    /// A message that a binding brought.
    Message(MessageId),
}

/// How far a partition reaches at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) start: u64,
    pub(crate) high_watermark: u64,
    pub(crate) last_stable: u64,
}

#[derive(Debug, Default)]
struct Log {
    at: BTreeMap<u64, Entry>,
    reach: Reach,
    /// Records below may have been deleted.
    deletable: u64,
    /// Where the records of each stream stand.
    streams: BTreeMap<(usize, u64), BTreeMap<RecordId, u64>>,
    /// What a reader found that went through all of it at the end: by isolation.
    swept: [Option<Swept>; 2],
}

/// A whole partition, as it was at the end.
#[derive(Debug, Default)]
struct Swept {
    start: u64,
    at: BTreeSet<u64>,
}

/// What a reader is shown of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    ReadUncommitted = 0,
    ReadCommitted = 1,
}

/// How a transaction has ended, as far as anybody was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    Committed,
    Aborted,
    /// Whoever knows has not said.
    Unknown,
}

/// A transaction as its producer knows it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a transaction, independent of each other")]
struct Txn {
    /// Its transactional id.
    name: String,
    fate: Fate,
    /// Its producer has asked for its commit.
    is_commit_asked: bool,
    /// Before it had, another producer of the same name began.
    is_fenced: bool,
    /// The offset that is committed with it.
    offset: Option<u64>,
    /// Somebody was shown what is shown only of committed transactions.
    was_shown: bool,
    /// Somebody was told that it was aborted.
    was_hidden: bool,
}

/// All that is known of a run's topics.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    records: Vec<Rec>,
    txns: Vec<Txn>,
    logs: BTreeMap<Part, Log>,
    /// Whom each producer id was given to.
    ids: BTreeMap<i64, String>,
    /// The last epoch of each.
    epochs: BTreeMap<i64, i16>,
    /// Offsets that were to be committed in transactions.
    offsets: BTreeMap<u64, TxnId>,
    /// The last of each transactional id that was.
    offset_floors: BTreeMap<String, u64>,
    /// Of each group and partition, the offset that was committed for certain, and the last that was asked for.
    committed: BTreeMap<(&'static str, Part), (u64, u64)>,
    /// Whom each partition was given to, by the leader and number of a generation.
    given: BTreeMap<(String, i32, Part), String>,
    /// Where messages stand that bindings brought.
    messages: BTreeMap<MessageId, Vec<(Part, u64)>>,
    now: Moment,
    /// The run's topics are there.
    pub(crate) has_topics: bool,
    /// Brokers that have ended.
    pub(crate) ends: u64,
    pub(crate) acknowledged: u64,
    pub(crate) consumed: u64,
}

impl Ledger {
    /// The next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn log(&mut self, part: Part) -> &mut Log {
        self.logs.entry(part).or_default()
    }

    /// A record is about to be sent for the first time.
    pub(crate) fn record(&mut self, part: Part, stream: (usize, u64), txn: Option<TxnId>) -> RecordId {
        self.records.push(Rec { part, stream, txn, found: None, is_acked: false });
        self.records.len() - 1
    }

    /// Records were acknowledged, the first of them as standing at `base_offset`.
    pub(crate) fn acked(&mut self, records: &[RecordId], base_offset: u64) -> Result<(), Violation> {
        for (offset, id) in (base_offset..).zip(records) {
            let part = self.records[*id].part;
            self.place(part, offset, Entry::Record(*id))?;
            self.records[*id].is_acked = true;
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Somebody has seen, or was told, what stands at an offset.
    pub(crate) fn place(&mut self, part: Part, offset: u64, entry: Entry) -> Result<(), Violation> {
        let log = self.logs.entry(part).or_default();
        if let Some(known) = log.at.insert(offset, entry) {
            if known == entry {
                return Ok(());
            }
            return Err(Violation(format!("{part:?}: at {offset} stood {known:?}, and stands {entry:?}")));
        }
        let Entry::Record(id) = entry else { return Ok(()) };
        let record = &mut self.records[id];
        if record.part != part {
            return Err(Violation(format!("{part:?}: at {offset} stands record {id} of {:?}", record.part)));
        }
        // One that was deleted before its producer heard of it may be sent again.
        let deletable = log.deletable;
        if let Some(before) = record.found.replace(offset).filter(|before| *before >= deletable) {
            return Err(Violation(format!(
                "{part:?}: record {id} stands twice, at {before} and at {offset}"
            )));
        }
        let stream = log.streams.entry(record.stream).or_default();
        stream.insert(id, offset);
        let before = stream.range(..id).next_back().filter(|(_, at)| **at > offset);
        let behind = stream.range(id + 1..).find(|(_, at)| **at >= deletable).filter(|(_, at)| **at < offset);
        if let Some((other, at)) = before.or(behind) {
            return Err(Violation(format!(
                "{part:?}: records {id} and {other} of one producer are out of order, at {offset} and {at}"
            )));
        }
        Ok(())
    }

    /// A producer was given its id; nobody else may have it.
    pub(crate) fn given_id(&mut self, id: i64, to: &str) -> Result<(), Violation> {
        let known = self.ids.entry(id).or_insert_with(|| to.to_owned());
        if known == to {
            return Ok(());
        }
        Err(Violation(format!("the producer id {id} of {known} is given to {to}")))
    }

    /// How far a partition reaches, by what anybody has been told by now.
    pub(crate) fn reach(&self, part: Part) -> Reach {
        self.logs.get(&part).map(|log| log.reach).unwrap_or_default()
    }

    /// A reader was told how far a partition reaches; it had asked when it reached as far as `floor`.
    pub(crate) fn told(&mut self, part: Part, floor: Reach, told: Reach) -> Result<(), Violation> {
        let back = |what: &str, was: u64, is: u64| {
            Violation(format!("{part:?}: the {what} was {was}, and has gone back to {is}"))
        };
        if told.high_watermark < floor.high_watermark {
            return Err(back("high watermark", floor.high_watermark, told.high_watermark));
        }
        if told.last_stable < floor.last_stable {
            return Err(back("last stable offset", floor.last_stable, told.last_stable));
        }
        if told.start < floor.start {
            return Err(back("log start", floor.start, told.start));
        }
        let log = self.log(part);
        if told.start > log.deletable {
            let Log { deletable, .. } = log;
            return Err(Violation(format!(
                "{part:?}: begins at {}, and nothing behind {deletable} was deleted",
                told.start
            )));
        }
        log.reach.start = log.reach.start.max(told.start);
        log.reach.high_watermark = log.reach.high_watermark.max(told.high_watermark);
        log.reach.last_stable = log.reach.last_stable.max(told.last_stable);
        Ok(())
    }

    /// Records below an offset are to be deleted.
    pub(crate) fn delete_before(&mut self, part: Part, offset: u64) {
        let log = self.log(part);
        log.deletable = log.deletable.max(offset);
    }

    /// They have been.
    pub(crate) fn deleted_before(&mut self, part: Part, offset: u64) {
        let log = self.log(part);
        log.reach.start = log.reach.start.max(offset);
    }

    /// The broker has ended. Where records had been deleted a log may start where it did before.
    pub(crate) fn broker_ended(&mut self) {
        self.ends += 1;
        for log in self.logs.values_mut().filter(|log| log.deletable > 0) {
            (log.reach.start, log.reach.last_stable) = (0, 0);
        }
    }

    /// Below which offset records may have been deleted.
    pub(crate) fn deletable(&self, part: Part) -> u64 {
        self.logs.get(&part).map_or(0, |log| log.deletable)
    }
}

/// Transactions.
impl Ledger {
    pub(crate) fn begin_txn(&mut self, name: &str) -> TxnId {
        self.txns.push(Txn {
            name: name.to_owned(),
            fate: Fate::Open,
            is_commit_asked: false,
            is_fenced: false,
            offset: None,
            was_shown: false,
            was_hidden: false,
        });
        self.txns.len() - 1
    }

    /// A commit is about to be asked for.
    pub(crate) fn commit_asked(&mut self, txn: TxnId) {
        self.txns[txn].is_commit_asked = true;
    }

    /// Transactions that have begun.
    pub(crate) fn txns(&self) -> TxnId {
        self.txns.len()
    }

    /// A producer of this name has begun: what others of the name have open is over, if it was before it asked.
    pub(crate) fn fence(&mut self, name: &str, before: TxnId) {
        for txn in self.txns[..before].iter_mut().filter(|txn| txn.name == name && txn.fate == Fate::Open) {
            txn.is_fenced |= !txn.is_commit_asked;
        }
    }

    /// A producer was given an epoch; it is never lower than an earlier one.
    pub(crate) fn given_epoch(&mut self, id: i64, epoch: i16) -> Result<(), Violation> {
        let known = self.epochs.insert(id, epoch).unwrap_or(epoch);
        if known > epoch {
            return Err(Violation(format!(
                "the epoch of producer {id} was {known}, and has gone back to {epoch}"
            )));
        }
        Ok(())
    }

    /// An offset to be committed with a transaction: higher than any before.
    pub(crate) fn new_offset(&mut self, txn: TxnId) -> u64 {
        let offset = self.tick();
        self.offsets.insert(offset, txn);
        self.txns[txn].offset = Some(offset);
        offset
    }

    /// The last offset that is known to be committed by producers of this name; 0 if there is none.
    pub(crate) fn offset_floor(&self, name: &str) -> u64 {
        self.offset_floors.get(name).copied().unwrap_or(0)
    }

    /// An offset was found committed, of a group that only producers of this name commit for.
    pub(crate) fn found_offset(&mut self, name: &str, floor: u64, found: i64) -> Result<(), Violation> {
        let at = u64::try_from(found).unwrap_or(0);
        if at < floor {
            return Err(Violation(format!(
                "{name}: the committed offset was {floor}, and has gone back to {found}"
            )));
        }
        match self.offsets.get(&at).copied() {
            Some(txn) if self.txns[txn].name == name => self.shown(txn),
            None if found == -1 => Ok(()),
            _ => Err(Violation(format!("{name}: the committed offset is {found}, which nobody committed"))),
        }
    }

    /// Its producer has been told how a transaction has ended, or cannot hear of it any more.
    pub(crate) fn ended(&mut self, txn: TxnId, fate: Fate) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        known.fate = fate;
        match fate {
            Fate::Aborted if known.was_shown => Err(Violation(format!(
                "transaction {txn} was aborted, and shown to readers of committed ones"
            ))),
            Fate::Committed if known.was_hidden => {
                Err(Violation(format!("transaction {txn} was committed, and called aborted")))
            }
            Fate::Committed if known.is_fenced => {
                Err(Violation(format!("transaction {txn} of a fenced producer was committed")))
            }
            Fate::Committed => {
                let floor = self.offset_floors.entry(known.name.clone()).or_default();
                *floor = known.offset.unwrap_or(0).max(*floor);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A reader of committed transactions is shown something of this one.
    pub(crate) fn shown(&mut self, txn: TxnId) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        let what = match known.fate {
            _ if known.was_hidden => "was called aborted",
            Fate::Aborted => "was aborted",
            _ if known.is_fenced => "was of a fenced producer",
            _ if !known.is_commit_asked => "was not committed yet",
            _ => {
                known.was_shown = true;
                return Ok(());
            }
        };
        Err(Violation(format!("transaction {txn} {what}, and is shown to readers of committed ones")))
    }

    /// A reader of committed transactions is told that this one was aborted.
    pub(crate) fn hidden(&mut self, txn: TxnId) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        if known.fate == Fate::Committed || known.was_shown {
            return Err(Violation(format!("transaction {txn} was committed, and is called aborted")));
        }
        known.was_hidden = true;
        Ok(())
    }

    /// A reader has seen a record.
    pub(crate) fn consume(
        &mut self,
        part: Part,
        offset: u64,
        id: RecordId,
        isolation: Isolation,
    ) -> Result<(), Violation> {
        if id >= self.records.len() {
            return Err(Violation(format!("{part:?}: at {offset} stands record {id}, which nobody sent")));
        }
        self.consumed += 1;
        self.place(part, offset, Entry::Record(id))?;
        match self.records[id].txn {
            Some(txn) if isolation == Isolation::ReadCommitted => self.shown(txn),
            _ => Ok(()),
        }
    }

    /// The transaction of a record.
    pub(crate) fn txn_of(&self, id: RecordId) -> Option<TxnId> {
        self.records.get(id).and_then(|record| record.txn)
    }
}

/// Groups with members.
impl Ledger {
    /// The offset that a group has committed for certain, and the last that was asked for; 0 if there is none.
    pub(crate) fn committed(&self, group: &'static str, part: Part) -> (u64, u64) {
        self.committed.get(&(group, part)).copied().unwrap_or_default()
    }

    /// An offset is to be committed.
    pub(crate) fn commit_tried(&mut self, group: &'static str, part: Part, offset: u64) {
        let (_, tried) = self.committed.entry((group, part)).or_default();
        *tried = offset.max(*tried);
    }

    /// It has been.
    pub(crate) fn committed_to(&mut self, group: &'static str, part: Part, offset: u64) {
        let (floor, _) = self.committed.entry((group, part)).or_default();
        *floor = offset.max(*floor);
    }

    /// A member was given a partition; in its generation nobody else may be.
    pub(crate) fn given_part(
        &mut self,
        (leader, generation): (&str, i32),
        part: Part,
        member: &str,
    ) -> Result<(), Violation> {
        let known = self.given.entry((leader.to_owned(), generation, part));
        let known = known.or_insert_with(|| member.to_owned());
        if known == member {
            return Ok(());
        }
        Err(Violation(format!("{part:?} is given to {known} and to {member} in generation {generation}")))
    }
}

/// What bindings bring.
impl Ledger {
    /// A reader has seen a message.
    pub(crate) fn consume_bound(
        &mut self,
        part: Part,
        offset: u64,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let id = frames::message_of(payload, topic).map_err(|what| Violation(format!("{part:?}: {what}")))?;
        self.consumed += 1;
        self.place(part, offset, Entry::Message(id))?;
        let places = self.messages.entry(id).or_default();
        if !places.contains(&(part, offset)) {
            places.push((part, offset));
        }
        Ok(())
    }

    /// Whether every message that was acknowledged has become a record, in order, and no more often than it may.
    /// `ends` are the moments of the messages' ledger at which a broker ended. Where a disk fails, what a client sent
    /// before it heard of that may overtake what was refused; then `keeps_order` is not asked for.
    pub(crate) fn check_messages(
        &self,
        sent: &[mqtt::Message],
        ends: &[mqtt::Moment],
        keeps_order: bool,
    ) -> Result<(), Violation> {
        let mut last: BTreeMap<_, (MessageId, (Part, u64))> = BTreeMap::new();
        for (id, message) in sent.iter().enumerate() {
            let places = self.messages.get(&id).map(Vec::as_slice).unwrap_or_default();
            let Some(first) = places.iter().min() else {
                if message.acked.is_some() && message.qos > QoS::AtMostOnce {
                    return Err(Violation(format!("message {id} was acknowledged and is in no topic")));
                }
                continue;
            };
            let was_cut =
                |end: &&mqtt::Moment| **end > message.sent && message.acked.is_none_or(|at| **end < at);
            let most = match message.qos {
                QoS::AtMostOnce => 1,
                QoS::AtLeastOnce => usize::MAX,
                QoS::ExactlyOnce => 1 + ends.iter().filter(was_cut).count(),
            };
            if places.len() > most {
                return Err(Violation(format!("message {id} of {:?} stands at {places:?}", message.qos)));
            }
            let key = (message.publisher, &message.topic, message.qos);
            if let Some((before, at)) = last.insert(key, (id, *first))
                && (at.0 != first.0 || (keeps_order && at.1 > first.1))
            {
                return Err(Violation(format!(
                    "messages {before} and {id} of one publisher stand at {at:?} and {first:?}"
                )));
            }
        }
        Ok(())
    }
}

/// The end of a run.
impl Ledger {
    /// A reader goes through a whole partition, from its start on.
    pub(crate) fn sweep(&mut self, part: Part, isolation: Isolation, start: u64) {
        self.log(part).swept[isolation as usize] = Some(Swept { start, ..Swept::default() });
    }

    /// It has come to an offset, and was shown what stands there.
    pub(crate) fn swept(&mut self, part: Part, isolation: Isolation, offset: u64) {
        if let Some(swept) = &mut self.log(part).swept[isolation as usize] {
            swept.at.insert(offset);
        }
    }

    /// Whether everything that was acknowledged is there, and seen by whom it is for.
    pub(crate) fn check_losses(&self) -> Result<(), Violation> {
        let acked = self.records.iter().enumerate().filter(|(_, record)| record.is_acked);
        for (id, Rec { part, found, txn, .. }) in acked {
            let (Some(offset), Some(log)) = (*found, self.logs.get(part)) else { continue };
            let is_in = |isolation: Isolation| {
                let swept = log.swept[isolation as usize].as_ref();
                swept.is_some_and(|swept| offset < swept.start || swept.at.contains(&offset))
            };
            if !is_in(Isolation::ReadUncommitted) {
                return Err(Violation(format!(
                    "{part:?}: record {id} was acknowledged at {offset} and is gone"
                )));
            }
            let is_committed = txn.is_none_or(|txn| self.txns[txn].fate == Fate::Committed);
            if is_committed && !is_in(Isolation::ReadCommitted) {
                return Err(Violation(format!(
                    "{part:?}: record {id} was committed at {offset} and is not shown"
                )));
            }
        }
        Ok(())
    }
}
