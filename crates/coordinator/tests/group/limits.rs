//! Limits: clients cannot make state grow without bound.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{JoinGroup, Settings};

use crate::harness::{Harness, MemberSpec, member, new_member};

fn with_members_max(members_max: usize) -> Settings {
    Settings { members_max, ..Settings::default() }
}

#[test]
fn group_size_is_limited() {
    let mut harness = Harness::new(with_members_max(2));
    let ids = harness.stable(2);
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::GroupMaxSizeReached));
    assert!(harness.join_now(&member(&ids[1])).1.is_ok(), "existing members stay");
    harness.leave(&[(&ids[1], None)]);
    harness.join(&member(&ids[0]));
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::MemberIdRequired));
}

#[test]
fn pending_members_count_towards_the_limit() {
    let mut harness = Harness::new(with_members_max(3));
    for _ in 0..3 {
        assert_eq!(harness.join_now(&new_member()).1, Err(Error::MemberIdRequired));
    }
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::GroupMaxSizeReached));
}

#[test]
fn lowered_limit_removes_the_last_members_to_rejoin() {
    let mut harness = Harness::default();
    let ids = harness.stable(3);
    let log = harness.log.clone();
    let mut harness = Harness::new(with_members_max(2));
    harness.log = log;
    harness.restart();
    assert_eq!(harness.heartbeat(&ids[0], 1), Err(Error::RebalanceInProgress));
    let callers = [harness.join(&member(&ids[0])), harness.join(&member(&ids[1]))];
    assert_eq!(harness.join_now(&member(&ids[2])).1, Err(Error::GroupMaxSizeReached));
    assert!(callers.into_iter().all(|caller| harness.joined(caller).unwrap().outcome.is_ok()));
}

#[test]
fn number_of_groups_is_limited() {
    let mut harness = Harness::new(Settings { groups_max: 0, ..Settings::default() });
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::PolicyViolation));
    assert_eq!(harness.commit_simple(0, 1), Err(Error::PolicyViolation));
}

#[test]
fn member_metadata_is_limited() {
    let large = "x".repeat(2_000);
    let who = MemberSpec { protocols: vec![("range", &large)], needs_member_id: false, ..new_member() };
    for settings in [
        Settings { group_bytes_max: 3_500, ..Settings::default() },
        Settings { groups_bytes_max: 3_500, ..Settings::default() },
    ] {
        let mut harness = Harness::new(settings);
        harness.join_now(&who).1.unwrap();
        assert_eq!(harness.join_now(&who).1, Err(Error::PolicyViolation));
    }
}

#[test]
fn oversized_assignment_fails_the_sync() {
    let mut harness = Harness::new(Settings { group_bytes_max: 3_500, ..Settings::default() });
    let (id, joined) = harness.join_now(&MemberSpec { needs_member_id: false, ..new_member() });
    let large = "x".repeat(4_000);
    let caller = harness.sync(&id, joined.unwrap().generation, &[(&id, &large)]);
    assert_eq!(harness.synced(caller), Some(Err(Error::UnknownServerError)));
    assert_eq!(harness.heartbeat(&id, 1), Err(Error::RebalanceInProgress));
}

#[test]
fn protocols_are_limited_and_deduplicated() {
    let mut harness = Harness::default();
    let twice = MemberSpec { protocols: vec![("range", "1"), ("range", "2")], ..new_member() };
    let (id, _) = harness.join_now(&twice);
    let joined = harness.join_now(&MemberSpec { id: &id, ..twice }).1.unwrap();
    assert_eq!(joined.members[0].metadata, b"1");
    let names: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let protocols = names.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(harness.join_now(&MemberSpec { protocols, ..new_member() }).1, Err(Error::InvalidRequest));
}

#[test]
fn long_client_id_is_truncated_in_the_member_id() {
    let mut harness = Harness::default();
    let long = "ü".repeat(20_000);
    let caller = harness.caller();
    let request = JoinGroup {
        group_id: "group",
        member_id: "",
        instance_id: None,
        client_id: &long,
        client_host: "",
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer",
        protocols: vec![("range", b"")],
        needs_member_id: true,
        can_skip_assignment: true,
        random: u128::MAX,
    };
    harness.groups.handle_join(harness.now_ms, &request, &harness.topics, caller);
    let id = harness.joined(caller).unwrap().member_id;
    assert!(id.ends_with("ü-ffffffff-ffff-ffff-ffff-ffffffffffff"), "{id}");
    assert!(id.len() < 300);
}
