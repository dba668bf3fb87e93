//! Static members (KIP-345) keep their place until their session expires, whatever their member id.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::State;

use crate::harness::{
    GROUP, Harness, MemberSpec, REBALANCE_MS, SESSION_MS, member, new_member, static_member,
};

/// A stable group of two static members; the first one leads.
fn pair(harness: &mut Harness) -> (String, String) {
    let (first, joined) = harness.join_now(&static_member("", "one"));
    assert_eq!(joined.unwrap().generation, 1);
    let second = harness.join(&static_member("", "two"));
    let again = harness.join(&static_member(&first, "one"));
    let second = harness.joined(second).unwrap().member_id;
    assert_eq!(harness.joined(again).unwrap().outcome.unwrap().generation, 2);
    let syncs = [
        harness.sync_as(&static_member(&second, "two"), 2, &[]),
        harness.sync_as(&static_member(&first, "one"), 2, &[(&first, "a"), (&second, "b")]),
    ];
    assert!(syncs.map(|caller| harness.assignment(caller)).iter().all(Option::is_some));
    (first, second)
}

#[test]
fn static_member_joins_at_once_with_an_id_from_its_instance() {
    let (id, joined) = Harness::default().join_now(&static_member("", "one"));
    assert!(joined.is_ok());
    assert!(id.starts_with("one-"), "{id}");
}

#[test]
fn restarted_member_takes_its_place_without_a_rebalance() {
    let mut harness = Harness::default();
    let (first, second) = pair(&mut harness);
    let (new, joined) = harness.join_now(&static_member("", "two"));
    let joined = joined.unwrap();
    assert_ne!(new, second);
    assert_eq!((joined.generation, joined.leader.as_str()), (2, first.as_str()));
    assert!(!joined.skip_assignment && joined.members.is_empty());
    let caller = harness.sync_as(&static_member(&new, "two"), 2, &[]);
    assert_eq!(harness.assignment(caller).as_deref(), Some("b"));
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Stable);
}

#[test]
fn old_member_id_is_fenced() {
    let mut harness = Harness::default();
    let (_, second) = pair(&mut harness);
    let (new, _) = harness.join_now(&static_member("", "two"));
    let old = static_member(&second, "two");
    assert_eq!(harness.heartbeat_as(&old, 2), Err(Error::FencedInstanceId));
    assert_eq!(harness.commit_as(&old, 2, 0, 1), Err(Error::FencedInstanceId));
    assert_eq!(harness.join_now(&old).1, Err(Error::FencedInstanceId));
    let caller = harness.sync_as(&old, 2, &[]);
    assert_eq!(harness.synced(caller), Some(Err(Error::FencedInstanceId)));
    assert_eq!(harness.leave(&[(&second, Some("two"))])[0].outcome, Err(Error::FencedInstanceId));
    assert_eq!(harness.heartbeat(&second, 2), Err(Error::UnknownMemberId));
    assert_eq!(harness.commit_as(&static_member(&new, "two"), 2, 0, 1), Ok(()));
}

#[test]
fn rejects_unknown_instance_ids() {
    let mut harness = Harness::default();
    let (first, _) = pair(&mut harness);
    assert_eq!(harness.heartbeat_as(&static_member(&first, "three"), 2), Err(Error::UnknownMemberId));
}

#[test]
fn restarted_leader_skips_the_assignment_kip_814() {
    let mut harness = Harness::default();
    let (first, _) = pair(&mut harness);
    let (new, joined) = harness.join_now(&static_member("", "one"));
    let joined = joined.unwrap();
    assert!(joined.skip_assignment);
    assert_eq!((joined.leader.as_str(), joined.members.len()), (new.as_str(), 2));

    let old_client = MemberSpec { can_skip_assignment: false, ..static_member("", "one") };
    let (newer, joined) = harness.join_now(&old_client);
    let joined = joined.unwrap();
    assert!(!joined.skip_assignment && joined.members.is_empty());
    assert_eq!(joined.leader, new, "an old client must not consider itself the leader");
    assert!(![first, new].contains(&newer));
}

#[test]
fn restart_with_another_protocol_causes_a_rebalance() {
    let mut harness = Harness::default();
    let both = vec![("range", ""), ("sticky", "")];
    let who = |id, instance| MemberSpec { protocols: both.clone(), ..static_member(id, instance) };
    let (first, _) = harness.join_now(&who("", "one"));
    let caller = harness.sync_as(&who(&first, "one"), 1, &[]);
    assert!(harness.assignment(caller).is_some());
    let (_, joined) =
        harness.join_now(&MemberSpec { protocols: vec![("sticky", "")], ..static_member("", "one") });
    assert_eq!(joined.unwrap().generation, 2);
}

#[test]
fn restart_while_the_leader_assigns_causes_a_rebalance() {
    let mut harness = Harness::default();
    let (first, second) = pair(&mut harness);
    harness.join(&static_member(&first, "one"));
    harness.join(&static_member(&second, "two"));
    let leader = harness.sync_as(&static_member(&second, "two"), 3, &[]);
    let back = harness.join(&static_member("", "two"));
    assert_eq!(harness.synced(leader), Some(Err(Error::FencedInstanceId)));
    let again = harness.join(&static_member(&first, "one"));
    assert_eq!(harness.joined(back).unwrap().outcome.unwrap().generation, 4);
    assert_eq!(harness.joined(again).unwrap().outcome.unwrap().generation, 4);
}

#[test]
fn pending_join_of_the_old_member_id_is_fenced() {
    let mut harness = Harness::default();
    let (first, second) = pair(&mut harness);
    let old = harness.join(&static_member(&first, "one"));
    let new = harness.join(&static_member("", "one"));
    assert_eq!(harness.joined(old).unwrap().outcome, Err(Error::FencedInstanceId));
    harness.join_now(&static_member(&second, "two")).1.unwrap();
    assert_eq!(harness.joined(new).unwrap().outcome.unwrap().generation, 3);
}

#[test]
fn static_member_stays_without_rejoining() {
    let mut harness = Harness::default();
    let (first, second) = pair(&mut harness);
    let long = MemberSpec { session_ms: 10 * REBALANCE_MS, ..static_member("", "two") };
    let (second_again, _) = harness.join_now(&long);
    assert_ne!(second, second_again);
    let caller = harness.join(&static_member(&first, "one"));
    harness.wait(REBALANCE_MS);
    let joined = harness.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (3, 2));
}

#[test]
fn rebalance_waits_for_sessions_of_absent_static_members() {
    let mut harness = Harness::default();
    let long_session = |instance| MemberSpec { session_ms: 3 * REBALANCE_MS, ..static_member("", instance) };
    let (one, _) = harness.join_now(&long_session("one"));
    let caller = harness.sync_as(&static_member(&one, "one"), 1, &[]);
    assert!(harness.assignment(caller).is_some());
    let (dynamic, _) = harness.join_now(&new_member());
    harness.join(&member(&dynamic));
    harness.leave(&[(&dynamic, None)]);
    harness.wait(2 * REBALANCE_MS);
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::PreparingRebalance);
    harness.wait(REBALANCE_MS);
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Empty);
}

#[test]
fn leave_by_instance_id_removes_the_member() {
    let mut harness = Harness::default();
    let (first, _) = pair(&mut harness);
    let left = harness.leave(&[("", Some("two")), ("", Some("three")), ("", None)]);
    let outcomes: Vec<_> = left.iter().map(|left| left.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Err(Error::UnknownMemberId), Err(Error::UnknownMemberId)]);
    assert_eq!(harness.heartbeat_as(&static_member(&first, "one"), 2), Err(Error::RebalanceInProgress));
}

#[test]
fn static_member_is_removed_when_its_session_expires() {
    let mut harness = Harness::default();
    let (first, second) = pair(&mut harness);
    harness.wait(SESSION_MS - 1);
    assert_eq!(harness.heartbeat_as(&static_member(&first, "one"), 2), Ok(()));
    harness.wait(1);
    assert_eq!(harness.heartbeat_as(&static_member(&second, "two"), 2), Err(Error::UnknownMemberId));
}
