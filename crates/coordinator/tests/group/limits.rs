//! Nothing grows without bound, whatever clients send.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{JoinGroup, Settings};

use crate::desk::{Desk, Who, member, newcomer};

fn only(members_max: usize) -> Settings {
    Settings { members_max, ..Settings::default() }
}

#[test]
fn a_group_has_a_greatest_size() {
    let mut desk = Desk::new(only(2));
    let ids = desk.stable(2);
    assert_eq!(desk.join_now(&newcomer()).1, Err(Error::GroupMaxSizeReached));
    assert!(desk.join_now(&member(&ids[1])).1.is_ok(), "members stay");
    desk.leave(&[(&ids[1], None)]);
    desk.join(&member(&ids[0]));
    assert_eq!(desk.join_now(&newcomer()).1, Err(Error::MemberIdRequired));
}

#[test]
fn identifiers_that_never_come_back_count() {
    let mut desk = Desk::new(only(3));
    for _ in 0..3 {
        assert_eq!(desk.join_now(&newcomer()).1, Err(Error::MemberIdRequired));
    }
    assert_eq!(desk.join_now(&newcomer()).1, Err(Error::GroupMaxSizeReached));
}

#[test]
fn a_bound_that_is_lower_after_a_restart_sends_the_last_ones_away() {
    let mut desk = Desk::default();
    let ids = desk.stable(3);
    let log = desk.log.clone();
    let mut desk = Desk::new(only(2));
    desk.log = log;
    desk.restart();
    assert_eq!(desk.heartbeat(&ids[0], 1), Err(Error::RebalanceInProgress));
    let callers = [desk.join(&member(&ids[0])), desk.join(&member(&ids[1]))];
    assert_eq!(desk.join_now(&member(&ids[2])).1, Err(Error::GroupMaxSizeReached));
    assert!(callers.into_iter().all(|caller| desk.joined(caller).unwrap().outcome.is_ok()));
}

#[test]
fn there_is_a_greatest_number_of_groups() {
    let mut desk = Desk::new(Settings { groups_max: 0, ..Settings::default() });
    assert_eq!(desk.join_now(&newcomer()).1, Err(Error::PolicyViolation));
    assert_eq!(desk.commit_alone(0, 1), Err(Error::PolicyViolation));
}

#[test]
fn what_members_say_of_themselves_has_a_bound() {
    let large = "x".repeat(2_000);
    let who = Who { protocols: vec![("range", &large)], needs_member_id: false, ..newcomer() };
    for settings in [
        Settings { group_bytes_max: 3_500, ..Settings::default() },
        Settings { groups_bytes_max: 3_500, ..Settings::default() },
    ] {
        let mut desk = Desk::new(settings);
        desk.join_now(&who).1.unwrap();
        assert_eq!(desk.join_now(&who).1, Err(Error::PolicyViolation));
    }
}

#[test]
fn assignments_that_are_too_large_are_given_up() {
    let mut desk = Desk::new(Settings { group_bytes_max: 3_500, ..Settings::default() });
    let (id, joined) = desk.join_now(&Who { needs_member_id: false, ..newcomer() });
    let large = "x".repeat(4_000);
    let caller = desk.sync(&id, joined.unwrap().generation, &[(&id, &large)]);
    assert_eq!(desk.synced(caller), Some(Err(Error::UnknownServerError)));
    assert_eq!(desk.heartbeat(&id, 1), Err(Error::RebalanceInProgress));
}

#[test]
fn nobody_speaks_more_protocols_than_it_may_and_none_counts_twice() {
    let mut desk = Desk::default();
    let twice = Who { protocols: vec![("range", "1"), ("range", "2")], ..newcomer() };
    let (id, _) = desk.join_now(&twice);
    let joined = desk.join_now(&Who { id: &id, ..twice }).1.unwrap();
    assert_eq!(joined.members[0].metadata, b"1");
    let names: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let protocols = names.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(desk.join_now(&Who { protocols, ..newcomer() }).1, Err(Error::InvalidRequest));
}

#[test]
fn a_client_s_name_makes_no_identifier_that_does_not_fit() {
    let mut desk = Desk::default();
    let long = "ü".repeat(20_000);
    let caller = desk.caller();
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
    desk.groups.handle_join(desk.now_ms, &request, caller);
    let id = desk.joined(caller).unwrap().member_id;
    assert!(id.ends_with("ü-ffffffff-ffff-ffff-ffff-ffffffffffff"), "{id}");
    assert!(id.len() < 300);
}
