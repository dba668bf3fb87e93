//! Replay of persisted records, from a full log and from a compacted one.

use mainstem_coordinator::group::{Groups, State};
use mainstem_coordinator::{Error, Record};

use crate::harness::{GROUP, Harness, SESSION_MS, member, new_member, static_member};

#[test]
fn stable_group_continues_after_a_restart() {
    for compacted in [false, true] {
        let mut harness = Harness::default();
        let ids = harness.stable(2);
        harness.join(&member(&ids[0]));
        harness.join(&member(&ids[1]));
        harness.sync(&ids[0], 2, &[(&ids[0], "a"), (&ids[1], "b")]);
        harness.commit(&ids[0], 2, 0, 5).unwrap();
        let before = harness.groups.describe(GROUP);
        if compacted {
            harness.restart_compacted();
        } else {
            harness.restart();
        }
        assert_eq!(harness.groups.describe(GROUP), before);
        assert_eq!(harness.heartbeat(&ids[0], 2), Ok(()));
        assert_eq!(harness.commit(&ids[1], 2, 0, 6), Ok(()));
        let again = harness.sync(&ids[1], 2, &[]);
        assert_eq!(harness.assignment(again).as_deref(), Some("b"));
        assert_eq!(harness.fetch(0), Some(6));
    }
}

#[test]
fn members_have_one_session_timeout_to_return() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.now_ms += 10 * SESSION_MS;
    harness.restart();
    harness.wait(SESSION_MS - 1);
    assert_eq!(harness.heartbeat(&ids[0], 1), Ok(()));
    harness.wait(1);
    assert_eq!(harness.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
}

#[test]
fn rebalance_in_progress_starts_over() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    harness.restart();
    let caller = harness.sync(&ids[0], 2, &[]);
    assert_eq!(harness.synced(caller), Some(Err(Error::IllegalGeneration)));
    let first = harness.join(&member(&ids[0]));
    let second = harness.join(&member(&ids[1]));
    for caller in [first, second] {
        assert_eq!(harness.joined(caller).unwrap().outcome.unwrap().generation, 2);
    }
}

#[test]
fn replaced_static_member_stays_fenced() {
    let mut harness = Harness::default();
    let (old, _) = harness.join_now(&static_member("", "one"));
    let caller = harness.sync_as(&static_member(&old, "one"), 1, &[(&old, "a")]);
    assert_eq!(harness.assignment(caller).as_deref(), Some("a"));
    let (new, _) = harness.join_now(&static_member("", "one"));
    harness.restart();
    assert_eq!(harness.heartbeat_as(&static_member(&old, "one"), 1), Err(Error::FencedInstanceId));
    assert_eq!(harness.heartbeat_as(&static_member(&new, "one"), 1), Ok(()));
}

#[test]
fn empty_group_keeps_its_generation_and_offsets() {
    let mut harness = Harness::default();
    let ids = harness.stable(1);
    harness.commit(&ids[0], 1, 0, 5).unwrap();
    harness.leave(&[(&ids[0], None)]);
    harness.restart_compacted();
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Empty);
    assert_eq!(harness.fetch(0), Some(5));
    let (id, _) = harness.join_now(&new_member());
    assert_eq!(harness.join_now(&member(&id)).1.unwrap().generation, 3);
}

#[test]
fn group_without_assignment_is_never_persisted() {
    let mut harness = Harness::default();
    let (id, _) = harness.join_now(&new_member());
    harness.join_now(&member(&id)).1.unwrap();
    harness.leave(&[(&id, None)]);
    assert!(harness.groups.is_empty());
    assert_eq!(harness.log, []);
}

#[test]
fn rejects_malformed_records() {
    let record = |key: &[u8], value: Option<&[u8]>| Record { key: key.into(), value: value.map(Into::into) };
    for bad in [
        record(b"", None),
        record(b"\x09\x01g", None),
        record(b"\x01\x02g", None),
        record(b"\x01\x01gg", None),
        record(b"\x01\x01g", Some(b"")),
        record(b"\x01\x01g", Some(b"\x02")),
        record(b"\x01\x01g", Some(b"\x01\x02\x00\x00\x00\x00\x7f")),
        record(b"\x02\x01g\x01t\x00", Some(b"\x01\x00")),
        record(b"\x02\x01g\x01t", None),
    ] {
        assert!(Groups::default().restore(&bad).is_err(), "{bad:?}");
    }
    let whole = record(b"\x02\x01g\x01t\x00", Some(b"\x01\x0a\x01\x00\x00\x00\x00"));
    assert_eq!(Groups::default().restore(&whole), Ok(()));
}
