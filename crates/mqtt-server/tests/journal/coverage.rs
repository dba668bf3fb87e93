//! Which kinds of entries a journal has. Reads the format as documented, with no code of the broker.

use std::collections::BTreeSet;

use mainstem_log::batches;

const MESSAGE: u8 = 5;
const MARKS: u8 = 6;
const SNAPSHOT: u8 = 9;

/// The kinds of entries, flags and marks that occur.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    entries: BTreeSet<u8>,
    /// Flags that occur in messages, and whether a message without receivers occurs.
    message_flags: u8,
    has_message_for_nobody: bool,
    marks: BTreeSet<u8>,
    snapshots: BTreeSet<u8>,
}

impl Coverage {
    /// Everything.
    pub(crate) fn whole() -> Self {
        Self {
            entries: (1..=11).collect(),
            message_flags: 0b1_1111,
            has_message_for_nobody: true,
            marks: (0..=3).collect(),
            snapshots: (0..=2).collect(),
        }
    }

    pub(crate) fn add(&mut self, log: &[u8]) {
        for batch in batches(log) {
            for record in batch.records() {
                let entry = record.unwrap().value.unwrap();
                self.entries.insert(entry[0]);
                match entry[0] {
                    MESSAGE => {
                        self.message_flags |= entry[1];
                        self.has_message_for_nobody |= entry[1] & 16 == 0;
                    }
                    MARKS => self.add_marks(&entry[1..]),
                    SNAPSHOT => {
                        self.snapshots.insert(entry[1]);
                    }
                    _ => {}
                }
            }
        }
    }

    fn add_marks(&mut self, mut marks: &[u8]) {
        while let Some((kind, rest)) = marks.split_first() {
            self.marks.insert(*kind);
            // A session and a value.
            marks = behind_varint(behind_varint(rest));
        }
    }
}

fn behind_varint(bytes: &[u8]) -> &[u8] {
    let last = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    &bytes[last + 1..]
}
