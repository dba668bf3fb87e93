//! Snapshots of a partition's producers. The format is specified in `docs/formats/transaction-records.md`.
//!
//! A snapshot covers the log up to an offset; the rest is replayed. A damaged snapshot only costs a full replay.

use std::collections::HashMap;

use super::entry::{Entry, WrittenBatch};
use super::{AbortedTransaction, Limits, Producers};
use crate::bytes::{Malformed, Reader, Writer};

const VERSION: u8 = 2;
/// Replaces the batch count: there are no batches, and any sequence number is accepted.
const ANY_SEQUENCE: u64 = 255;

impl Producers {
    /// Encodes the state up to `offset`, which must be where the durable log ends.
    pub fn snapshot(&self, offset: u64) -> Vec<u8> {
        let mut writer = Writer::starting_with(VERSION);
        let entries = self.entries_before(offset);
        writer.number(offset).number(self.evicted_until_ms).number(entries.len() as u64);
        for (id, entry) in entries {
            writer.signed(id);
            put_entry(entry, &mut writer);
        }
        let aborted = || self.aborted.iter().take_while(|aborted| aborted.last_offset < offset);
        writer.number(aborted().count() as u64);
        for aborted in aborted() {
            writer.signed(aborted.producer_id).number(aborted.first_offset);
            writer.number(aborted.last_offset - aborted.first_offset).number(aborted.last_stable_offset);
        }
        writer.0
    }

    /// The producers as of `offset`, ordered by id: without the changes that are not durable.
    fn entries_before(&self, offset: u64) -> Vec<(i64, &Entry)> {
        let undone = self.undo.iter().rev().take_while(|undo| undo.offset >= offset);
        // The oldest change of a producer comes last.
        let before: HashMap<i64, Option<&Entry>> =
            undone.map(|undo| (undo.producer_id, undo.before.as_ref())).collect();
        let unchanged = self.entries.iter().filter(|(id, _)| !before.contains_key(id));
        let restored = before.iter().filter_map(|(id, entry)| Some((*id, (*entry)?)));
        let mut entries: Vec<_> = unchanged.map(|(id, entry)| (*id, entry)).chain(restored).collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries
    }

    /// Decodes a snapshot; also returns the offset from which the log must be replayed.
    ///
    /// # Errors
    /// [`Malformed`]: replay the log from its start.
    pub fn restore(limits: Limits, snapshot: &[u8]) -> Result<(Self, u64), Malformed> {
        let mut reader = Reader::new(snapshot);
        if reader.byte()? != VERSION {
            return Err(Malformed("unknown snapshot version"));
        }
        let offset = reader.number()?;
        let mut producers = Self::new(limits);
        producers.evicted_until_ms = reader.number()?;
        for _ in 0..reader.count()? {
            let id = reader.signed()?;
            let mut entry = take_entry(&mut reader)?;
            producers.list_if_idle(id, &mut entry);
            producers.open.extend(entry.open_from.map(|begin| (begin, id)));
            producers.entries.insert(id, entry);
        }
        let mut behind = 0;
        for _ in 0..reader.count()? {
            let producer_id = reader.signed()?;
            let first_offset = reader.number()?;
            let last_offset = first_offset
                .checked_add(reader.number()?)
                .filter(|last_offset| *last_offset >= behind)
                .ok_or(Malformed("aborted transactions out of order"))?;
            behind = last_offset.saturating_add(1);
            let last_stable_offset = reader.number()?;
            producers.aborted.push(AbortedTransaction {
                producer_id,
                first_offset,
                last_offset,
                last_stable_offset,
            });
        }
        reader.end()?;
        Ok((producers, offset))
    }
}

fn put_entry(entry: &Entry, writer: &mut Writer) {
    writer.signed(entry.epoch.into()).signed(entry.coordinator_epoch.into());
    writer.signed(entry.last_timestamp_ms).number(entry.seen_ms).number(entry.last_offset);
    // 0 for none.
    writer.number(entry.open_from.map_or(0, |begin| begin + 1));
    writer.number(if entry.accepts_any_sequence { ANY_SEQUENCE } else { entry.batches().len() as u64 });
    for written in entry.batches() {
        writer.number(written.last_offset).number(written.last_offset_delta.into());
        writer.signed(written.last_sequence.into()).signed(written.timestamp_ms);
    }
}

fn take_entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let epoch = i16::try_from(reader.signed()?).map_err(|_| Malformed("an epoch exceeds 16 bits"))?;
    let mut entry = Entry {
        epoch,
        coordinator_epoch: reader.signed_32()?,
        last_timestamp_ms: reader.signed()?,
        seen_ms: reader.number()?,
        last_offset: reader.number()?,
        open_from: reader.number()?.checked_sub(1),
        ..Entry::default()
    };
    let count = reader.number()?;
    entry.accepts_any_sequence = count == ANY_SEQUENCE;
    for _ in 0..if entry.accepts_any_sequence { 0 } else { count } {
        let last_offset = reader.number()?;
        let last_offset_delta = u32::try_from(reader.number()?)
            .ok()
            .filter(|delta| u64::from(*delta) <= last_offset)
            .ok_or(Malformed("a batch starts before offset 0"))?;
        entry.push(WrittenBatch {
            last_offset,
            last_offset_delta,
            last_sequence: reader.signed_32()?,
            timestamp_ms: reader.signed()?,
        });
    }
    Ok(entry)
}
