//! Static members (KIP-345): their place is theirs for as long as their session lasts, whoever they are by then.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::State;

use crate::desk::{Desk, GROUP, REBALANCE_MS, SESSION_MS, Who, member, newcomer, statically};

/// A static member that leads, and one more, which is stable.
fn pair(desk: &mut Desk) -> (String, String) {
    let (first, joined) = desk.join_now(&statically("", "one"));
    assert_eq!(joined.unwrap().generation, 1);
    let second = desk.join(&statically("", "two"));
    let again = desk.join(&statically(&first, "one"));
    let second = desk.joined(second).unwrap().member_id;
    assert_eq!(desk.joined(again).unwrap().outcome.unwrap().generation, 2);
    let syncs = [
        desk.sync_as(&statically(&second, "two"), 2, &[]),
        desk.sync_as(&statically(&first, "one"), 2, &[(&first, "a"), (&second, "b")]),
    ];
    assert!(syncs.map(|caller| desk.assignment(caller)).iter().all(Option::is_some));
    (first, second)
}

#[test]
fn a_static_member_need_not_come_back_and_is_named_after_its_instance() {
    let (id, joined) = Desk::default().join_now(&statically("", "one"));
    assert!(joined.is_ok());
    assert!(id.starts_with("one-"), "{id}");
}

#[test]
fn it_takes_its_place_again_without_a_rebalance() {
    let mut desk = Desk::default();
    let (first, second) = pair(&mut desk);
    let (new, joined) = desk.join_now(&statically("", "two"));
    let joined = joined.unwrap();
    assert_ne!(new, second);
    assert_eq!((joined.generation, joined.leader.as_str()), (2, first.as_str()));
    assert!(!joined.skip_assignment && joined.members.is_empty());
    let caller = desk.sync_as(&statically(&new, "two"), 2, &[]);
    assert_eq!(desk.assignment(caller).as_deref(), Some("b"));
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::Stable);
}

#[test]
fn who_goes_by_its_old_identifier_is_fenced() {
    let mut desk = Desk::default();
    let (_, second) = pair(&mut desk);
    let (new, _) = desk.join_now(&statically("", "two"));
    let old = statically(&second, "two");
    assert_eq!(desk.heartbeat_as(&old, 2), Err(Error::FencedInstanceId));
    assert_eq!(desk.commit_as(&old, 2, 0, 1), Err(Error::FencedInstanceId));
    assert_eq!(desk.join_now(&old).1, Err(Error::FencedInstanceId));
    let caller = desk.sync_as(&old, 2, &[]);
    assert_eq!(desk.synced(caller), Some(Err(Error::FencedInstanceId)));
    assert_eq!(desk.leave(&[(&second, Some("two"))])[0].outcome, Err(Error::FencedInstanceId));
    assert_eq!(desk.heartbeat(&second, 2), Err(Error::UnknownMemberId));
    assert_eq!(desk.commit_as(&statically(&new, "two"), 2, 0, 1), Ok(()));
}

#[test]
fn an_instance_that_nobody_goes_by_is_unknown() {
    let mut desk = Desk::default();
    let (first, _) = pair(&mut desk);
    assert_eq!(desk.heartbeat_as(&statically(&first, "three"), 2), Err(Error::UnknownMemberId));
}

#[test]
fn a_leader_that_is_back_learns_that_it_need_not_assign_kip_814() {
    let mut desk = Desk::default();
    let (first, _) = pair(&mut desk);
    let (new, joined) = desk.join_now(&statically("", "one"));
    let joined = joined.unwrap();
    assert!(joined.skip_assignment);
    assert_eq!((joined.leader.as_str(), joined.members.len()), (new.as_str(), 2));

    let old_client = Who { can_skip_assignment: false, ..statically("", "one") };
    let (newer, joined) = desk.join_now(&old_client);
    let joined = joined.unwrap();
    assert!(!joined.skip_assignment && joined.members.is_empty());
    assert_eq!(joined.leader, new, "it must not take itself for the leader");
    assert!(![first, new].contains(&newer));
}

#[test]
fn it_causes_a_rebalance_if_the_protocol_changes_with_it() {
    let mut desk = Desk::default();
    let both = vec![("range", ""), ("sticky", "")];
    let who = |id, instance| Who { protocols: both.clone(), ..statically(id, instance) };
    let (first, _) = desk.join_now(&who("", "one"));
    let caller = desk.sync_as(&who(&first, "one"), 1, &[]);
    assert!(desk.assignment(caller).is_some());
    let (_, joined) = desk.join_now(&Who { protocols: vec![("sticky", "")], ..statically("", "one") });
    assert_eq!(joined.unwrap().generation, 2);
}

#[test]
fn it_causes_a_rebalance_while_the_leader_assigns() {
    let mut desk = Desk::default();
    let (first, second) = pair(&mut desk);
    desk.join(&statically(&first, "one"));
    desk.join(&statically(&second, "two"));
    let leader = desk.sync_as(&statically(&second, "two"), 3, &[]);
    let back = desk.join(&statically("", "two"));
    assert_eq!(desk.synced(leader), Some(Err(Error::FencedInstanceId)));
    let again = desk.join(&statically(&first, "one"));
    assert_eq!(desk.joined(back).unwrap().outcome.unwrap().generation, 4);
    assert_eq!(desk.joined(again).unwrap().outcome.unwrap().generation, 4);
}

#[test]
fn who_waits_to_join_is_fenced_when_its_instance_comes_again() {
    let mut desk = Desk::default();
    let (first, second) = pair(&mut desk);
    let old = desk.join(&statically(&first, "one"));
    let new = desk.join(&statically("", "one"));
    assert_eq!(desk.joined(old).unwrap().outcome, Err(Error::FencedInstanceId));
    desk.join_now(&statically(&second, "two")).1.unwrap();
    assert_eq!(desk.joined(new).unwrap().outcome.unwrap().generation, 3);
}

#[test]
fn it_belongs_to_the_next_generation_even_if_it_does_not_join() {
    let mut desk = Desk::default();
    let (first, second) = pair(&mut desk);
    let long = Who { session_ms: 10 * REBALANCE_MS, ..statically("", "two") };
    let (second_again, _) = desk.join_now(&long);
    assert_ne!(second, second_again);
    let caller = desk.join(&statically(&first, "one"));
    desk.wait(REBALANCE_MS);
    let joined = desk.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (3, 2));
}

#[test]
fn a_rebalance_that_no_static_member_joins_waits_for_their_sessions() {
    let mut desk = Desk::default();
    let lasting = |instance| Who { session_ms: 3 * REBALANCE_MS, ..statically("", instance) };
    let (one, _) = desk.join_now(&lasting("one"));
    let caller = desk.sync_as(&statically(&one, "one"), 1, &[]);
    assert!(desk.assignment(caller).is_some());
    let (visitor, _) = desk.join_now(&newcomer());
    desk.join(&member(&visitor));
    desk.leave(&[(&visitor, None)]);
    desk.wait(2 * REBALANCE_MS);
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::PreparingRebalance);
    desk.wait(REBALANCE_MS);
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::Empty);
}

#[test]
fn an_administrator_removes_it_by_its_instance() {
    let mut desk = Desk::default();
    let (first, _) = pair(&mut desk);
    let left = desk.leave(&[("", Some("two")), ("", Some("three")), ("", None)]);
    let outcomes: Vec<_> = left.iter().map(|left| left.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Err(Error::UnknownMemberId), Err(Error::UnknownMemberId)]);
    assert_eq!(desk.heartbeat_as(&statically(&first, "one"), 2), Err(Error::RebalanceInProgress));
}

#[test]
fn it_is_out_when_its_session_ends() {
    let mut desk = Desk::default();
    let (first, second) = pair(&mut desk);
    desk.wait(SESSION_MS - 1);
    assert_eq!(desk.heartbeat_as(&statically(&first, "one"), 2), Ok(()));
    desk.wait(1);
    assert_eq!(desk.heartbeat_as(&statically(&second, "two"), 2), Err(Error::UnknownMemberId));
}
