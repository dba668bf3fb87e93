//! What is kept comes back, from a whole log and from a compacted one.

use mainstem_coordinator::group::{Groups, State};
use mainstem_coordinator::{Error, Record};

use crate::desk::{Desk, GROUP, SESSION_MS, member, newcomer, statically};

#[test]
fn a_stable_group_goes_on_as_if_nothing_had_happened() {
    for compacted in [false, true] {
        let mut desk = Desk::default();
        let ids = desk.stable(2);
        desk.join(&member(&ids[0]));
        desk.join(&member(&ids[1]));
        desk.sync(&ids[0], 2, &[(&ids[0], "a"), (&ids[1], "b")]);
        desk.commit(&ids[0], 2, 0, 5).unwrap();
        let before = desk.groups.describe(GROUP);
        if compacted {
            desk.restart_compacted();
        } else {
            desk.restart();
        }
        assert_eq!(desk.groups.describe(GROUP), before);
        assert_eq!(desk.heartbeat(&ids[0], 2), Ok(()));
        assert_eq!(desk.commit(&ids[1], 2, 0, 6), Ok(()));
        let again = desk.sync(&ids[1], 2, &[]);
        assert_eq!(desk.assignment(again).as_deref(), Some("b"));
        assert_eq!(desk.fetch(0), Some(6));
    }
}

#[test]
fn members_have_their_session_timeout_to_be_heard_again() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.now_ms += 10 * SESSION_MS;
    desk.restart();
    desk.wait(SESSION_MS - 1);
    assert_eq!(desk.heartbeat(&ids[0], 1), Ok(()));
    desk.wait(1);
    assert_eq!(desk.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
}

#[test]
fn a_rebalance_that_was_on_begins_anew() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    desk.restart();
    let caller = desk.sync(&ids[0], 2, &[]);
    assert_eq!(desk.synced(caller), Some(Err(Error::IllegalGeneration)));
    let first = desk.join(&member(&ids[0]));
    let second = desk.join(&member(&ids[1]));
    for caller in [first, second] {
        assert_eq!(desk.joined(caller).unwrap().outcome.unwrap().generation, 2);
    }
}

#[test]
fn a_static_member_that_took_its_place_again_keeps_it() {
    let mut desk = Desk::default();
    let (old, _) = desk.join_now(&statically("", "one"));
    let caller = desk.sync_as(&statically(&old, "one"), 1, &[(&old, "a")]);
    assert_eq!(desk.assignment(caller).as_deref(), Some("a"));
    let (new, _) = desk.join_now(&statically("", "one"));
    desk.restart();
    assert_eq!(desk.heartbeat_as(&statically(&old, "one"), 1), Err(Error::FencedInstanceId));
    assert_eq!(desk.heartbeat_as(&statically(&new, "one"), 1), Ok(()));
}

#[test]
fn an_empty_group_keeps_its_generation_and_its_offsets() {
    let mut desk = Desk::default();
    let ids = desk.stable(1);
    desk.commit(&ids[0], 1, 0, 5).unwrap();
    desk.leave(&[(&ids[0], None)]);
    desk.restart_compacted();
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::Empty);
    assert_eq!(desk.fetch(0), Some(5));
    let (id, _) = desk.join_now(&newcomer());
    assert_eq!(desk.join_now(&member(&id)).1.unwrap().generation, 3);
}

#[test]
fn a_group_that_never_got_anything_leaves_nothing_behind() {
    let mut desk = Desk::default();
    let (id, _) = desk.join_now(&newcomer());
    desk.join_now(&member(&id)).1.unwrap();
    desk.leave(&[(&id, None)]);
    assert!(desk.groups.is_empty());
    assert_eq!(desk.log, []);
}

#[test]
fn bytes_that_are_no_records_are_refused() {
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
