//! JoinGroup: which members are admitted, and what they are told.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{JoinGroup, Settings, State};

use crate::harness::{GROUP, Harness, MemberSpec, SESSION_MS, member, new_member};

#[test]
fn new_member_rejoins_with_its_assigned_id_kip_394() {
    let mut harness = Harness::default();
    let (id, refused) = harness.join_now(&new_member());
    assert_eq!(refused, Err(Error::MemberIdRequired));
    assert!(id.starts_with("client-"), "{id}");
    let (same, joined) = harness.join_now(&member(&id));
    let joined = joined.unwrap();
    assert_eq!((same.as_str(), joined.leader.as_str(), joined.generation), (id.as_str(), id.as_str(), 1));
    assert_eq!(joined.members.len(), 1);
    assert_eq!((joined.protocol_type.as_str(), joined.protocol.as_str()), ("consumer", "range"));
}

#[test]
fn old_client_joins_with_a_single_request() {
    let mut harness = Harness::default();
    let (id, joined) = harness.join_now(&MemberSpec { needs_member_id: false, ..new_member() });
    assert_eq!(joined.unwrap().leader, id);
}

#[test]
fn rejects_unassigned_member_ids() {
    let mut harness = Harness::default();
    assert_eq!(harness.join_now(&member("nobody")).1, Err(Error::UnknownMemberId));
    assert!(harness.groups.is_empty());
    harness.stable(1);
    assert_eq!(harness.join_now(&member("nobody")).1, Err(Error::UnknownMemberId));
}

#[test]
fn pending_member_expires_and_its_group_is_removed() {
    let mut harness = Harness::default();
    let (id, _) = harness.join_now(&new_member());
    harness.wait(SESSION_MS - 1);
    assert_eq!(harness.groups.len(), 1);
    harness.wait(1);
    assert!(harness.groups.is_empty());
    assert_eq!(harness.join_now(&member(&id)).1, Err(Error::UnknownMemberId));
}

#[test]
fn a_pending_member_may_leave() {
    let mut harness = Harness::default();
    let (id, _) = harness.join_now(&new_member());
    assert_eq!(harness.leave(&[(&id, None)])[0].outcome, Ok(()));
    assert!(harness.groups.is_empty());
    assert_eq!(harness.groups.next_deadline_ms(), None);
}

#[test]
fn first_members_wait_for_pending_members() {
    let mut harness = Harness::default();
    let (first, _) = harness.join_now(&new_member());
    let (second, _) = harness.join_now(&new_member());
    let one = harness.join(&member(&first));
    assert_eq!(harness.joined(one), None);
    let two = harness.join(&member(&second));
    let joined: Vec<_> = [one, two].map(|caller| harness.joined(caller).unwrap().outcome.unwrap()).into();
    assert_eq!([joined[0].generation, joined[1].generation], [1, 1]);
    assert_eq!(joined[0].members.len() + joined[1].members.len(), 2);
}

#[test]
fn wait_for_pending_members_is_bounded() {
    let mut harness = Harness::default();
    let (first, _) = harness.join_now(&new_member());
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::MemberIdRequired));
    let one = harness.join(&member(&first));
    harness.wait(199);
    assert_eq!(harness.joined(one), None);
    harness.wait(1);
    assert_eq!(harness.joined(one).unwrap().outcome.unwrap().generation, 1);
}

#[test]
fn initial_delay_is_extended_while_members_arrive() {
    let settings = Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() };
    let mut harness = Harness::new(settings);
    let eager = MemberSpec { needs_member_id: false, ..new_member() };
    let one = harness.join(&eager);
    harness.wait(2_999);
    assert_eq!(harness.joined(one), None);
    let two = harness.join(&eager);
    harness.wait(1);
    assert_eq!(harness.joined(one), None, "a member joined, so the delay is extended");
    harness.wait(2_999);
    assert_eq!(harness.joined(one), None);
    harness.wait(1);
    assert_eq!(harness.joined(one).unwrap().outcome.unwrap().generation, 1);
    assert_eq!(harness.joined(two).unwrap().outcome.unwrap().generation, 1);
}

#[test]
fn members_need_a_protocol_in_common() {
    let mut harness = Harness::default();
    let ids = harness.stable(1);
    for who in [
        MemberSpec { protocols: vec![("roundrobin", "")], ..new_member() },
        MemberSpec { protocols: vec![], ..new_member() },
        MemberSpec { protocol_type: "connect", ..new_member() },
    ] {
        assert_eq!(harness.join_now(&who).1, Err(Error::InconsistentGroupProtocol));
    }
    assert_eq!(harness.heartbeat(&ids[0], 1), Ok(()), "the group is unaffected");
    let mut empty = Harness::default();
    let (_, refused) = empty.join_now(&MemberSpec { protocol_type: "", ..new_member() });
    assert_eq!(refused, Err(Error::InconsistentGroupProtocol));
    assert!(empty.groups.is_empty());
}

#[test]
fn selects_the_common_protocol_with_most_votes() {
    let mut harness = Harness::default();
    let ids: Vec<String> = (0..3).map(|_| harness.join_now(&new_member()).0).collect();
    let speaks = [
        vec![("only-mine", "0"), ("range", "1"), ("sticky", "2")],
        vec![("sticky", "3"), ("range", "4")],
        vec![("sticky", "5"), ("range", "6")],
    ];
    let mut callers = Vec::new();
    for (id, protocols) in ids.iter().zip(&speaks) {
        callers.push(harness.join(&MemberSpec { protocols: protocols.clone(), ..member(id) }));
    }
    let joined: Vec<_> = callers.into_iter().map(|c| harness.joined(c).unwrap().outcome.unwrap()).collect();
    assert!(joined.iter().all(|joined| joined.protocol == "sticky"));
    let leader = joined.iter().find(|joined| !joined.members.is_empty()).unwrap();
    let mut metadata: Vec<&[u8]> = leader.members.iter().map(|member| member.metadata.as_slice()).collect();
    metadata.sort_unstable();
    assert_eq!(metadata, [b"2", b"3", b"5"]);
}

#[test]
fn rejects_invalid_session_timeouts_and_group_ids() {
    let mut harness = Harness::default();
    for session_ms in [0, 5_999, 1_800_001] {
        let (_, refused) = harness.join_now(&MemberSpec { session_ms, ..new_member() });
        assert_eq!(refused, Err(Error::InvalidSessionTimeout));
    }
    let caller = harness.caller();
    let nameless = JoinGroup {
        group_id: "",
        member_id: "",
        instance_id: None,
        client_id: "",
        client_host: "",
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer",
        protocols: vec![("range", b"")],
        needs_member_id: true,
        can_skip_assignment: true,
        random: 0,
    };
    harness.groups.handle_join(harness.now_ms, &nameless, &harness.topics, caller);
    assert_eq!(harness.joined(caller).unwrap().outcome, Err(Error::InvalidGroupId));
    let long = "g".repeat(40_000);
    let caller = harness.caller();
    harness.groups.handle_join(
        harness.now_ms,
        &JoinGroup { group_id: &long, ..nameless },
        &harness.topics,
        caller,
    );
    assert_eq!(harness.joined(caller).unwrap().outcome, Err(Error::InvalidGroupId));
}

#[test]
fn unchanged_follower_rejoins_without_a_rebalance() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let (_, joined) = harness.join_now(&member(&ids[1]));
    let joined = joined.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (1, 0));
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Stable);
}

#[test]
fn rejoining_leader_or_changed_member_causes_a_rebalance() {
    for (index, protocols) in [(0, vec![("range", "")]), (1, vec![("range", "new")])] {
        let mut harness = Harness::default();
        let ids = harness.stable(2);
        let caller = harness.join(&MemberSpec { protocols, ..member(&ids[index]) });
        assert_eq!(harness.joined(caller), None);
        let other = &ids[1 - index];
        assert_eq!(harness.heartbeat(other, 1), Err(Error::RebalanceInProgress));
        let (_, joined) = harness.join_now(&member(other));
        assert_eq!(joined.unwrap().generation, 2);
        assert_eq!(harness.joined(caller).unwrap().outcome.unwrap().generation, 2);
    }
}

#[test]
fn repeated_join_is_answered_twice() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let first = harness.join(&member(&ids[0]));
    let second = harness.join(&member(&ids[0]));
    assert_eq!(harness.joined(first).unwrap().outcome, Err(Error::RebalanceInProgress));
    harness.join_now(&member(&ids[1])).1.unwrap();
    assert_eq!(harness.joined(second).unwrap().outcome.unwrap().generation, 2);
}

#[test]
fn lost_join_response_is_repeated() {
    let mut harness = Harness::default();
    let (id, _) = harness.join_now(&new_member());
    let first = harness.join_now(&member(&id)).1.unwrap();
    let again = harness.join_now(&member(&id)).1.unwrap();
    assert_eq!(first, again);
}
