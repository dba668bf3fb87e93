//! The bytes of records, as `docs/formats/group-records.md` tells them. They must be read by every later version.

use mainstem_coordinator::group::{Groups, State};
use mainstem_coordinator::{Error, Record};

use crate::desk::{Desk, GROUP, statically};

/// Group `group`, generation 1 since 1,000,000 ms: one static member, which leads.
const GROUP_KEY: &[u8] = b"\x01\x05group";
const GROUP_VALUE: &[u8] = b"\x01\x02\xc0\x84\x3d\
    \x09consumer\x06range\
    \x29one-00000000-0000-0000-0000-000000000001\x01\
    \x28one-00000000-0000-0000-0000-000000000001\x04one\
    \x06client\x0a/127.0.0.1\
    \xe0\xd4\x03\x90\x4e\
    \x00\x01a";
/// Its offset in partition 3 of `topic`: 5.
const OFFSET_KEY: &[u8] = b"\x02\x05group\x05topic\x06";
const OFFSET_VALUE: &[u8] = b"\x01\x0a\x01\x00\xc0\x84\x3d\x00\x00";
/// What producer 7 would commit for partition 4: 6.
const PENDING_KEY: &[u8] = b"\x03\x0e\x05group\x05topic\x08";
const PENDING_VALUE: &[u8] = b"\x01\x0c\x01\x00\xc0\x84\x3d\x00\x01";

fn record(key: &[u8], value: &[u8]) -> Record {
    Record { key: key.into(), value: Some(value.into()) }
}

fn records() -> [Record; 3] {
    [record(GROUP_KEY, GROUP_VALUE), record(OFFSET_KEY, OFFSET_VALUE), record(PENDING_KEY, PENDING_VALUE)]
}

#[test]
fn records_have_the_bytes_that_are_documented() {
    let mut desk = Desk::default();
    let (id, _) = desk.join_now(&statically("", "one"));
    let who = statically(&id, "one");
    let caller = desk.sync_as(&who, 1, &[(&id, "a")]);
    assert!(desk.assignment(caller).is_some());
    desk.commit_as(&who, 1, 3, 5).unwrap();
    desk.commit_in_transaction(7, None, 4, 6).unwrap();
    assert_eq!(desk.log, records());
}

#[test]
fn records_of_version_1_are_read() {
    let mut desk = Desk::default();
    for record in &records() {
        desk.groups.restore(record).unwrap();
    }
    desk.groups.restored(desk.now_ms);
    let described = desk.groups.describe(GROUP).unwrap();
    assert_eq!((described.state, described.members[0].assignment.as_slice()), (State::Stable, &b"a"[..]));
    assert_eq!(desk.fetch(3), Some(5));
    assert_eq!(desk.fetch_with(4, true), Err(Error::UnstableOffsetCommit));
}

#[test]
fn a_kind_or_a_version_that_is_not_known_is_refused() {
    for bad in [
        record(b"\x04\x05group", GROUP_VALUE),
        record(GROUP_KEY, b"\x02"),
        record(OFFSET_KEY, b"\x02\x0a\x01\x00\x00\x00\x00"),
    ] {
        assert!(Groups::default().restore(&bad).is_err(), "{bad:?}");
    }
}
