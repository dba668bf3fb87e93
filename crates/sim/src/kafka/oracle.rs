//! The oracle of the Kafka scenario: what was promised about topics, and what was observed.
//!
//! It records which record is stored at which offset, the state of transactions, watermarks, producer ids, and
//! committed offsets. Each observation is compared with all earlier ones; `check_losses` and `check_messages` judge the
//! run as a whole.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_mqtt::QoS;

use crate::Violation;
use crate::mqtt::frames;
use crate::mqtt::oracle::{self as mqtt, MessageId};

/// Number of a record. A later record of the same producer has a higher one.
pub(crate) type RecordId = usize;
pub(crate) type TxnId = usize;
/// Position in the order of all events of a run.
pub(crate) type Moment = u64;

/// A partition of one of the topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartitionId {
    pub(crate) topic: usize,
    pub(crate) index: i32,
}

/// A record as its producer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) part: PartitionId,
    /// Records of one stream keep their order in a partition: those of a producer, or of one of its connections.
    pub(crate) stream: (usize, u64),
    pub(crate) txn: Option<TxnId>,
    /// Its offset, once acknowledged or read.
    found: Option<u64>,
    is_acked: bool,
}

/// What is stored at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Record(RecordId),
    /// A transaction's marker.
    Marker {
        is_commit: bool,
    },
    /// A message that a binding has appended.
    Message(MessageId),
}

/// Lower bounds of a partition's watermarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermarks {
    pub(crate) start: u64,
    pub(crate) high_watermark: u64,
    pub(crate) last_stable: u64,
}

#[derive(Debug, Default)]
struct Log {
    at: BTreeMap<u64, Entry>,
    watermarks: Watermarks,
    /// Records below this offset may have been deleted.
    deletable: u64,
    /// Offsets of the records of each stream.
    streams: BTreeMap<(usize, u64), BTreeMap<RecordId, u64>>,
    /// What the last consumers found, by isolation level.
    swept: [Option<Swept>; 2],
}

/// All of a partition, as read at the end.
#[derive(Debug, Default)]
struct Swept {
    start: u64,
    at: BTreeSet<u64>,
}

/// Isolation level of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    ReadUncommitted = 0,
    ReadCommitted = 1,
}

/// How a transaction has ended, as far as its producer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnOutcome {
    Open,
    Committed,
    Aborted,
    /// No answer has come.
    Unknown,
}

/// A transaction as its producer sees it.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a transaction, independent of each other")]
struct Txn {
    name: String,
    outcome: TxnOutcome,
    /// Its producer has sent the commit.
    is_commit_sent: bool,
    /// Another producer of the same name began before the commit was sent.
    is_fenced: bool,
    /// The offset committed with it.
    offset: Option<u64>,
    /// A consumer of committed records has received one of its records.
    was_seen_committed: bool,
    /// A consumer was sent it as aborted.
    was_seen_aborted: bool,
}

/// Everything known about the topics of a run.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    records: Vec<Record>,
    txns: Vec<Txn>,
    logs: BTreeMap<PartitionId, Log>,
    /// Owner of each producer id.
    ids: BTreeMap<i64, String>,
    /// Last epoch of each producer id.
    epochs: BTreeMap<i64, i16>,
    /// Offsets sent to be committed in transactions.
    offsets: BTreeMap<u64, TxnId>,
    /// Last committed offset of each transactional id.
    offset_floors: BTreeMap<String, u64>,
    /// Per group and partition: the last acknowledged offset, and the last one sent.
    committed: BTreeMap<(&'static str, PartitionId), (u64, u64)>,
    /// Owner of each partition, by leader and number of the generation.
    assignments: BTreeMap<(String, i32, PartitionId), String>,
    /// Owner of each partition in a group of the consumer protocol, and until when it is one, ms.
    owners: BTreeMap<PartitionId, (String, u64)>,
    /// Where each message of a binding is stored.
    messages: BTreeMap<MessageId, Vec<(PartitionId, u64)>>,
    now: Moment,
    /// The topics have been created.
    pub(crate) has_topics: bool,
    /// Number of brokers that have ended.
    pub(crate) ends: u64,
    pub(crate) acknowledged: u64,
    pub(crate) consumed: u64,
}

impl Oracle {
    /// Returns the next moment.
    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn log(&mut self, part: PartitionId) -> &mut Log {
        self.logs.entry(part).or_default()
    }

    /// A record is about to be sent for the first time.
    pub(crate) fn record(&mut self, part: PartitionId, stream: (usize, u64), txn: Option<TxnId>) -> RecordId {
        self.records.push(Record { part, stream, txn, found: None, is_acked: false });
        self.records.len() - 1
    }

    /// Records were acknowledged, from `base_offset` on.
    pub(crate) fn acked(&mut self, records: &[RecordId], base_offset: u64) -> Result<(), Violation> {
        for (offset, id) in (base_offset..).zip(records) {
            let part = self.records[*id].part;
            self.observe_entry(part, offset, Entry::Record(*id))?;
            self.records[*id].is_acked = true;
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// An entry was observed at an offset, by its acknowledgement or by a consumer.
    pub(crate) fn observe_entry(
        &mut self,
        part: PartitionId,
        offset: u64,
        entry: Entry,
    ) -> Result<(), Violation> {
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
        // A record that was deleted before it was acknowledged may be appended again.
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

    /// A producer was assigned its id.
    ///
    /// # Errors
    /// Another one has it.
    pub(crate) fn assigned_id(&mut self, id: i64, to: &str) -> Result<(), Violation> {
        let known = self.ids.entry(id).or_insert_with(|| to.to_owned());
        if known == to {
            return Ok(());
        }
        Err(Violation(format!("the producer id {id} of {known} is given to {to}")))
    }

    /// The highest watermarks observed so far.
    pub(crate) fn watermarks(&self, part: PartitionId) -> Watermarks {
        self.logs.get(&part).map(|log| log.watermarks).unwrap_or_default()
    }

    /// A response carries watermarks. `floor` is what had been observed when the request was sent.
    pub(crate) fn observe_watermarks(
        &mut self,
        part: PartitionId,
        floor: Watermarks,
        observe_watermarks: Watermarks,
    ) -> Result<(), Violation> {
        let back = |what: &str, was: u64, is: u64| {
            Violation(format!("{part:?}: the {what} was {was}, and has gone back to {is}"))
        };
        if observe_watermarks.high_watermark < floor.high_watermark {
            return Err(back("high watermark", floor.high_watermark, observe_watermarks.high_watermark));
        }
        if observe_watermarks.last_stable < floor.last_stable {
            return Err(back("last stable offset", floor.last_stable, observe_watermarks.last_stable));
        }
        if observe_watermarks.start < floor.start {
            return Err(back("log start", floor.start, observe_watermarks.start));
        }
        let log = self.log(part);
        if observe_watermarks.start > log.deletable {
            let Log { deletable, .. } = log;
            return Err(Violation(format!(
                "{part:?}: begins at {}, and nothing behind {deletable} was deleted",
                observe_watermarks.start
            )));
        }
        log.watermarks.start = log.watermarks.start.max(observe_watermarks.start);
        log.watermarks.high_watermark = log.watermarks.high_watermark.max(observe_watermarks.high_watermark);
        log.watermarks.last_stable = log.watermarks.last_stable.max(observe_watermarks.last_stable);
        Ok(())
    }

    /// Records below an offset are about to be deleted.
    pub(crate) fn delete_before(&mut self, part: PartitionId, offset: u64) {
        let log = self.log(part);
        log.deletable = log.deletable.max(offset);
    }

    /// Records below an offset have been deleted.
    pub(crate) fn deleted_before(&mut self, part: PartitionId, offset: u64) {
        let log = self.log(part);
        log.watermarks.start = log.watermarks.start.max(offset);
    }

    /// The broker has ended. After a deletion, a recovered log may have its former start.
    pub(crate) fn broker_ended(&mut self) {
        self.ends += 1;
        for log in self.logs.values_mut().filter(|log| log.deletable > 0) {
            (log.watermarks.start, log.watermarks.last_stable) = (0, 0);
        }
    }

    /// Offset below which records may have been deleted.
    pub(crate) fn deletable(&self, part: PartitionId) -> u64 {
        self.logs.get(&part).map_or(0, |log| log.deletable)
    }
}

impl Oracle {
    pub(crate) fn begin_txn(&mut self, name: &str) -> TxnId {
        self.txns.push(Txn {
            name: name.to_owned(),
            outcome: TxnOutcome::Open,
            is_commit_sent: false,
            is_fenced: false,
            offset: None,
            was_seen_committed: false,
            was_seen_aborted: false,
        });
        self.txns.len() - 1
    }

    /// A commit is about to be sent.
    pub(crate) fn txn_commit_sent(&mut self, txn: TxnId) {
        self.txns[txn].is_commit_sent = true;
    }

    /// Number of transactions so far.
    pub(crate) fn txns(&self) -> TxnId {
        self.txns.len()
    }

    /// A producer of this name has begun, and fences open transactions that began before its request.
    pub(crate) fn fence(&mut self, name: &str, before: TxnId) {
        for txn in
            self.txns[..before].iter_mut().filter(|txn| txn.name == name && txn.outcome == TxnOutcome::Open)
        {
            txn.is_fenced |= !txn.is_commit_sent;
        }
    }

    /// A producer was assigned an epoch, which never goes back.
    pub(crate) fn assigned_epoch(&mut self, id: i64, epoch: i16) -> Result<(), Violation> {
        let known = self.epochs.insert(id, epoch).unwrap_or(epoch);
        if known > epoch {
            return Err(Violation(format!(
                "the epoch of producer {id} was {known}, and has gone back to {epoch}"
            )));
        }
        Ok(())
    }

    /// Returns an offset to be committed with a transaction, higher than all before.
    pub(crate) fn new_offset(&mut self, txn: TxnId) -> u64 {
        let offset = self.tick();
        self.offsets.insert(offset, txn);
        self.txns[txn].offset = Some(offset);
        offset
    }

    /// The last offset known to be committed under this name, or 0.
    pub(crate) fn offset_floor(&self, name: &str) -> u64 {
        self.offset_floors.get(name).copied().unwrap_or(0)
    }

    /// A committed offset was fetched, of a group for which only producers of this name commit.
    pub(crate) fn fetched_offset(&mut self, name: &str, floor: u64, found: i64) -> Result<(), Violation> {
        let at = u64::try_from(found).unwrap_or(0);
        if at < floor {
            return Err(Violation(format!(
                "{name}: the committed offset was {floor}, and has gone back to {found}"
            )));
        }
        match self.offsets.get(&at).copied() {
            Some(txn) if self.txns[txn].name == name => self.seen_committed(txn),
            None if found == -1 => Ok(()),
            _ => Err(Violation(format!("{name}: the committed offset is {found}, which nobody committed"))),
        }
    }

    /// The producer knows the outcome of a transaction, or will never know it.
    pub(crate) fn ended(&mut self, txn: TxnId, outcome: TxnOutcome) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        known.outcome = outcome;
        match outcome {
            TxnOutcome::Aborted if known.was_seen_committed => Err(Violation(format!(
                "transaction {txn} was aborted, and shown to readers of committed ones"
            ))),
            TxnOutcome::Committed if known.was_seen_aborted => {
                Err(Violation(format!("transaction {txn} was committed, and called aborted")))
            }
            TxnOutcome::Committed if known.is_fenced => {
                Err(Violation(format!("transaction {txn} of a fenced producer was committed")))
            }
            TxnOutcome::Committed => {
                let floor = self.offset_floors.entry(known.name.clone()).or_default();
                *floor = known.offset.unwrap_or(0).max(*floor);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A consumer of committed records has received a record of this transaction.
    pub(crate) fn seen_committed(&mut self, txn: TxnId) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        let what = match known.outcome {
            _ if known.was_seen_aborted => "was called aborted",
            TxnOutcome::Aborted => "was aborted",
            _ if known.is_fenced => "was of a fenced producer",
            _ if !known.is_commit_sent => "was not committed yet",
            _ => {
                known.was_seen_committed = true;
                return Ok(());
            }
        };
        Err(Violation(format!("transaction {txn} {what}, and is shown to readers of committed ones")))
    }

    /// A consumer of committed records was sent this transaction as aborted.
    pub(crate) fn seen_aborted(&mut self, txn: TxnId) -> Result<(), Violation> {
        let known = &mut self.txns[txn];
        if known.outcome == TxnOutcome::Committed || known.was_seen_committed {
            return Err(Violation(format!("transaction {txn} was committed, and is called aborted")));
        }
        known.was_seen_aborted = true;
        Ok(())
    }

    /// A consumer has received a record.
    pub(crate) fn consume(
        &mut self,
        part: PartitionId,
        offset: u64,
        id: RecordId,
        isolation: Isolation,
    ) -> Result<(), Violation> {
        if id >= self.records.len() {
            return Err(Violation(format!("{part:?}: at {offset} stands record {id}, which nobody sent")));
        }
        self.consumed += 1;
        self.observe_entry(part, offset, Entry::Record(id))?;
        match self.records[id].txn {
            Some(txn) if isolation == Isolation::ReadCommitted => self.seen_committed(txn),
            _ => Ok(()),
        }
    }

    pub(crate) fn txn_of(&self, id: RecordId) -> Option<TxnId> {
        self.records.get(id).and_then(|record| record.txn)
    }
}

impl Oracle {
    /// The last acknowledged offset of a group, and the last one sent, or 0.
    pub(crate) fn committed(&self, group: &'static str, part: PartitionId) -> (u64, u64) {
        self.committed.get(&(group, part)).copied().unwrap_or_default()
    }

    /// A commit is about to be sent.
    pub(crate) fn commit_sent(&mut self, group: &'static str, part: PartitionId, offset: u64) {
        let (_, tried) = self.committed.entry((group, part)).or_default();
        *tried = offset.max(*tried);
    }

    /// A commit was acknowledged.
    pub(crate) fn commit_acked(&mut self, group: &'static str, part: PartitionId, offset: u64) {
        let (floor, _) = self.committed.entry((group, part)).or_default();
        *floor = offset.max(*floor);
    }

    /// A member was assigned a partition.
    ///
    /// # Errors
    /// Another member of the same generation has it.
    pub(crate) fn assigned_partition(
        &mut self,
        (leader, generation): (&str, i32),
        part: PartitionId,
        member: &str,
    ) -> Result<(), Violation> {
        let known = self.assignments.entry((leader.to_owned(), generation, part));
        let known = known.or_insert_with(|| member.to_owned());
        if known == member {
            return Ok(());
        }
        Err(Violation(format!("{part:?} is given to {known} and to {member} in generation {generation}")))
    }

    /// A member of a group of the consumer protocol owns a partition until a time, unless it gives it up before.
    ///
    /// # Errors
    /// Another member owns it.
    pub(crate) fn own(
        &mut self,
        part: PartitionId,
        member: &str,
        now_ms: u64,
        until_ms: u64,
    ) -> Result<(), Violation> {
        match self.owners.insert(part, (member.to_owned(), until_ms)) {
            Some((owner, end_ms)) if owner != member && end_ms > now_ms => {
                Err(Violation(format!("{part:?} is owned by {owner}, and {member} gets it")))
            }
            _ => Ok(()),
        }
    }

    /// A member no longer uses a partition.
    pub(crate) fn give_up(&mut self, part: PartitionId, member: &str) {
        if self.owners.get(&part).is_some_and(|(owner, _)| owner == member) {
            self.owners.remove(&part);
        }
    }
}

impl Oracle {
    /// A consumer has received a message of a binding.
    pub(crate) fn consume_bound(
        &mut self,
        part: PartitionId,
        offset: u64,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let id = frames::message_of(payload, topic).map_err(|what| Violation(format!("{part:?}: {what}")))?;
        self.consumed += 1;
        self.observe_entry(part, offset, Entry::Message(id))?;
        let places = self.messages.entry(id).or_default();
        if !places.contains(&(part, offset)) {
            places.push((part, offset));
        }
        Ok(())
    }

    /// Checks that every acknowledged message has become a record, in order, and no more often than its QoS allows.
    /// `ends` are the moments at which a broker ended, in the time of the messages' oracle. After a disk fault, a
    /// message that is sent again may overtake one that was refused; then `keeps_order` is false.
    pub(crate) fn check_messages(
        &self,
        sent: &[mqtt::Message],
        ends: &[mqtt::Moment],
        keeps_order: bool,
    ) -> Result<(), Violation> {
        let mut last: BTreeMap<_, (MessageId, (PartitionId, u64))> = BTreeMap::new();
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

impl Oracle {
    /// A consumer begins to read a whole partition, from its start.
    pub(crate) fn sweep(&mut self, part: PartitionId, isolation: Isolation, start: u64) {
        self.log(part).swept[isolation as usize] = Some(Swept { start, ..Swept::default() });
    }

    /// It has read the entry at an offset.
    pub(crate) fn swept(&mut self, part: PartitionId, isolation: Isolation, offset: u64) {
        if let Some(swept) = &mut self.log(part).swept[isolation as usize] {
            swept.at.insert(offset);
        }
    }

    /// Checks that everything acknowledged is there, and visible at the right isolation levels.
    pub(crate) fn check_losses(&self) -> Result<(), Violation> {
        let acked = self.records.iter().enumerate().filter(|(_, record)| record.is_acked);
        for (id, Record { part, found, txn, .. }) in acked {
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
            let is_committed = txn.is_none_or(|txn| self.txns[txn].outcome == TxnOutcome::Committed);
            if is_committed && !is_in(Isolation::ReadCommitted) {
                return Err(Violation(format!(
                    "{part:?}: record {id} was committed at {offset} and is not shown"
                )));
            }
        }
        Ok(())
    }
}
