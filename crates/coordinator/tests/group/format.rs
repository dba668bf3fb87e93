//! Golden bytes of records, as specified in `docs/formats/group-records.md`. Every later version must be able to read
//! them.

use mainstem_coordinator::group::{GroupConfig, Groups, State};
use mainstem_coordinator::{Error, Record};

use crate::consumer::{Consumer, TopicTable};
use crate::harness::{GROUP, Harness, static_member};

/// Group `group`, generation 1 since 1,000,000 ms, with one static member, the leader.
const GROUP_KEY: &[u8] = b"\x01\x05group";
const GROUP_VALUE: &[u8] = b"\x01\x02\xc0\x84\x3d\
    \x09consumer\x06range\
    \x29one-00000000-0000-0000-0000-000000000001\x01\
    \x28one-00000000-0000-0000-0000-000000000001\x04one\
    \x06client\x0a/127.0.0.1\
    \xe0\xd4\x03\x90\x4e\
    \x00\x01a";
/// Its committed offset in partition 3 of `topic`: 5.
const OFFSET_KEY: &[u8] = b"\x02\x05group\x05topic\x06";
const OFFSET_VALUE: &[u8] = b"\x01\x0a\x01\x00\xc0\x84\x3d\x00\x00";
/// The pending offset of producer 7 in partition 4: 6.
const PENDING_KEY: &[u8] = b"\x03\x0e\x05group\x05topic\x08";
const PENDING_VALUE: &[u8] = b"\x01\x0c\x01\x00\xc0\x84\x3d\x00\x01";

fn record(key: &[u8], value: &[u8]) -> Record {
    Record { key: key.into(), value: Some(value.into()) }
}

fn records() -> [Record; 3] {
    [record(GROUP_KEY, GROUP_VALUE), record(OFFSET_KEY, OFFSET_VALUE), record(PENDING_KEY, PENDING_VALUE)]
}

#[test]
fn records_match_the_documented_bytes() {
    let mut harness = Harness::default();
    let (id, _) = harness.join_now(&static_member("", "one"));
    let who = static_member(&id, "one");
    let caller = harness.sync_as(&who, 1, &[(&id, "a")]);
    assert!(harness.assignment(caller).is_some());
    harness.commit_as(&who, 1, 3, 5).unwrap();
    harness.commit_in_transaction(7, None, 4, 6).unwrap();
    assert_eq!(harness.log, records());
}

#[test]
fn reads_version_1_records() {
    let mut harness = Harness::default();
    for record in &records() {
        harness.groups.restore(record).unwrap();
    }
    harness.groups.finish_restore(harness.now_ms);
    let described = harness.groups.describe(GROUP).unwrap();
    assert_eq!((described.state, described.members[0].assignment.as_slice()), (State::Stable, &b"a"[..]));
    assert_eq!(harness.fetch(3), Some(5));
    assert_eq!(harness.fetch_with(4, true), Err(Error::UnstableOffsetCommit));
}

#[test]
fn rejects_unknown_kinds_and_versions() {
    for bad in [
        record(b"\x07\x05group", GROUP_VALUE),
        record(GROUP_KEY, b"\x02"),
        record(OFFSET_KEY, b"\x02\x0a\x01\x00\x00\x00\x00"),
    ] {
        assert!(Groups::default().restore(&bad).is_err(), "{bad:?}");
    }
}

/// The group as one of the consumer protocol, in epoch 2 since 1,000,000 ms, and its fingerprint.
const CONSUMER_GROUP_KEY: &[u8] = b"\x04\x05group";
const CONSUMER_GROUP_VALUE: &[u8] = b"\x01\x04\x04\x02\xc0\x84\x3d";
/// Its first member, which holds one partition and must give up another one.
const MEMBER_KEY: &[u8] = b"\x05\x05group\x03one";
const MEMBER_VALUE: &[u8] = b"\x01\x09instance\x00\x06client\x0a/127.0.0.1\xe0\xd4\x03\
    \x01\x01a\x03b.\x02\x02\x00\x01\
    \x01\x10\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x00\
    \x01\x10\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x02\
    \x01\x10\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x00\
    \x02\x02\x00";

#[test]
fn records_of_the_consumer_protocol_match_the_documented_bytes() {
    let topics = TopicTable::of(&[("a", 2)]);
    let mut harness = Harness::default();
    let mut one = Consumer {
        instance_id: Some("instance".into()),
        regex: Some("b.".into()),
        assignor: Some("range".into()),
        ..Consumer::of("one", &["a"])
    };
    one.join(&mut harness, &topics).unwrap();
    Consumer::of("two", &["a"]).join(&mut harness, &topics).unwrap();
    one.beat(&mut harness, &topics).unwrap();
    let last = |key: &[u8]| {
        let newest = harness.log.iter().rfind(|record| record.key == key);
        newest.and_then(|record| record.value.clone()).expect("a record")
    };
    let fingerprint = last(CONSUMER_GROUP_KEY).split_off(CONSUMER_GROUP_VALUE.len());
    assert_eq!(last(CONSUMER_GROUP_KEY), [CONSUMER_GROUP_VALUE, &fingerprint].concat());
    assert_eq!(last(MEMBER_KEY), MEMBER_VALUE);

    let mut restored = Harness::default();
    restored.groups.restore(&record(MEMBER_KEY, MEMBER_VALUE)).unwrap();
    restored.groups.restore(&record(CONSUMER_GROUP_KEY, &last(CONSUMER_GROUP_KEY))).unwrap();
    restored.groups.finish_restore(restored.now_ms);
    let described = restored.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!((described.epoch, described.assignor, described.members[0].epoch), (2, "range", 1));
    let [assigned, target] = [&described.members[0].assignment, &described.members[0].target];
    assert_eq!((&*assigned[0].partitions, &*target[0].partitions), (&[0, 1][..], &[0][..]));
}

/// A member of the classic protocol in such a group.
#[test]
fn reads_members_of_the_classic_protocol() {
    let value = [&MEMBER_VALUE[..MEMBER_VALUE.len() - 1], b"\x01\x90\x4e\x05range\x02\x00\x01"].concat();
    let mut harness = Harness::default();
    harness.groups.restore(&record(CONSUMER_GROUP_KEY, &[CONSUMER_GROUP_VALUE, b"\x00"].concat())).unwrap();
    harness.groups.restore(&record(MEMBER_KEY, &value)).unwrap();
    harness.groups.finish_restore(harness.now_ms);
    assert!(harness.groups.describe_consumer_group(GROUP).unwrap().members[0].is_classic);
    for damaged in [b"\x01\x90\x4e\x05range".as_slice(), b"\x00\x00", b""] {
        let value = [&MEMBER_VALUE[..MEMBER_VALUE.len() - 1], damaged].concat();
        assert!(Groups::default().restore(&record(MEMBER_KEY, &value)).is_err(), "{damaged:?}");
    }
}

#[test]
fn records_of_configurations_match_the_documented_bytes() {
    let mut harness = Harness::default();
    let caller = harness.caller();
    let config = GroupConfig { session_timeout_ms: Some(5), heartbeat_interval_ms: None };
    harness.groups.handle_configure(GROUP, config, caller);
    harness.settle();
    let expected = record(b"\x06\x05group", b"\x01\x06\x00");
    assert_eq!(harness.log, std::slice::from_ref(&expected));
    let mut restored = Groups::default();
    restored.restore(&expected).unwrap();
    assert_eq!(restored.configuration(GROUP), config);
    assert!(restored.restore(&record(b"\x06\x05group", b"\x01\x06")).is_err());
}
