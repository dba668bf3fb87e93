//! A partition's producers as bytes. The format stands in `docs/formats/transaction-records.md`.

use std::collections::HashMap;

use super::entry::{Entry, Written};
use super::{Aborted, Limits, Producers};
use crate::bytes::{Malformed, Reader, Writer};

const VERSION: u8 = 1;
/// In place of the number of batches: there are none, and the producer may go on with any sequence number.
const MAY_GO_ON: u64 = 255;

impl Producers {
    /// Everything known of the log below `offset`, which is where what is durable ends.
    pub fn snapshot(&self, offset: u64) -> Vec<u8> {
        let mut durable = self.clone();
        durable.rollback_to(offset);
        let mut writer = Writer::starting_with(VERSION);
        writer.number(offset).number(durable.entries.len() as u64);
        let mut entries: Vec<_> = durable.entries.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        for (id, entry) in entries {
            writer.signed(*id);
            put_entry(entry, &mut writer);
        }
        writer.number(durable.aborted.len() as u64);
        for aborted in durable.aborted.iter() {
            writer.signed(aborted.producer_id).number(aborted.first_offset);
            writer.number(aborted.last_offset - aborted.first_offset).number(aborted.last_stable_offset);
        }
        writer.0
    }

    /// Reads a snapshot, and the offset from which on the log is to be told again.
    ///
    /// # Errors
    /// [`Malformed`]: the log must be told from its start.
    pub fn restore(limits: Limits, snapshot: &[u8]) -> Result<(Self, u64), Malformed> {
        let mut reader = Reader::new(snapshot);
        if reader.byte()? != VERSION {
            return Err(Malformed("a snapshot of another version"));
        }
        let offset = reader.number()?;
        let mut producers = Self::new(limits);
        let count = reader.count()?;
        producers.entries = HashMap::with_capacity(count.min(limits.producers));
        for _ in 0..count {
            let id = reader.signed()?;
            let entry = take_entry(&mut reader)?;
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
            producers.aborted.push(Aborted { producer_id, first_offset, last_offset, last_stable_offset });
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
    writer.number(if entry.may_go_on { MAY_GO_ON } else { entry.batches().len() as u64 });
    for written in entry.batches() {
        writer.number(written.last_offset).number(written.last_offset_delta.into());
        writer.signed(written.last_sequence.into()).signed(written.timestamp_ms);
    }
}

fn take_entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let epoch = i16::try_from(reader.signed()?).map_err(|_| Malformed("an epoch of more than 16 bits"))?;
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
    entry.may_go_on = count == MAY_GO_ON;
    for _ in 0..if entry.may_go_on { 0 } else { count } {
        let last_offset = reader.number()?;
        let last_offset_delta = u32::try_from(reader.number()?)
            .ok()
            .filter(|delta| u64::from(*delta) <= last_offset)
            .ok_or(Malformed("a batch longer than its log"))?;
        entry.push(Written {
            last_offset,
            last_offset_delta,
            last_sequence: reader.signed_32()?,
            timestamp_ms: reader.signed()?,
        });
    }
    Ok(entry)
}
