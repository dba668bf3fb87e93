//! JoinGroup: who may come in, and what it is told.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{JoinGroup, Settings, State};

use crate::desk::{Desk, GROUP, SESSION_MS, Who, member, newcomer};

#[test]
fn a_new_member_comes_back_with_its_identifier_kip_394() {
    let mut desk = Desk::default();
    let (id, refused) = desk.join_now(&newcomer());
    assert_eq!(refused, Err(Error::MemberIdRequired));
    assert!(id.starts_with("client-"), "{id}");
    let (same, joined) = desk.join_now(&member(&id));
    let joined = joined.unwrap();
    assert_eq!((same.as_str(), joined.leader.as_str(), joined.generation), (id.as_str(), id.as_str(), 1));
    assert_eq!(joined.members.len(), 1);
    assert_eq!((joined.protocol_type.as_str(), joined.protocol.as_str()), ("consumer", "range"));
}

#[test]
fn an_old_client_need_not_come_back() {
    let mut desk = Desk::default();
    let (id, joined) = desk.join_now(&Who { needs_member_id: false, ..newcomer() });
    assert_eq!(joined.unwrap().leader, id);
}

#[test]
fn an_identifier_that_nobody_was_given_is_unknown() {
    let mut desk = Desk::default();
    assert_eq!(desk.join_now(&member("nobody")).1, Err(Error::UnknownMemberId));
    assert!(desk.groups.is_empty());
    desk.stable(1);
    assert_eq!(desk.join_now(&member("nobody")).1, Err(Error::UnknownMemberId));
}

#[test]
fn who_does_not_come_back_is_forgotten_and_the_group_with_it() {
    let mut desk = Desk::default();
    let (id, _) = desk.join_now(&newcomer());
    desk.wait(SESSION_MS - 1);
    assert_eq!(desk.groups.len(), 1);
    desk.wait(1);
    assert!(desk.groups.is_empty());
    assert_eq!(desk.join_now(&member(&id)).1, Err(Error::UnknownMemberId));
}

#[test]
fn a_pending_member_may_leave() {
    let mut desk = Desk::default();
    let (id, _) = desk.join_now(&newcomer());
    assert_eq!(desk.leave(&[(&id, None)])[0].outcome, Ok(()));
    assert!(desk.groups.is_empty());
    assert_eq!(desk.groups.next_deadline_ms(), None);
}

#[test]
fn the_first_members_of_a_group_wait_for_those_that_were_told_to_come_back() {
    let mut desk = Desk::default();
    let (first, _) = desk.join_now(&newcomer());
    let (second, _) = desk.join_now(&newcomer());
    let one = desk.join(&member(&first));
    assert_eq!(desk.joined(one), None);
    let two = desk.join(&member(&second));
    let joined: Vec<_> = [one, two].map(|caller| desk.joined(caller).unwrap().outcome.unwrap()).into();
    assert_eq!([joined[0].generation, joined[1].generation], [1, 1]);
    assert_eq!(joined[0].members.len() + joined[1].members.len(), 2);
}

#[test]
fn they_do_not_wait_for_long() {
    let mut desk = Desk::default();
    let (first, _) = desk.join_now(&newcomer());
    assert_eq!(desk.join_now(&newcomer()).1, Err(Error::MemberIdRequired));
    let one = desk.join(&member(&first));
    desk.wait(199);
    assert_eq!(desk.joined(one), None);
    desk.wait(1);
    assert_eq!(desk.joined(one).unwrap().outcome.unwrap().generation, 1);
}

#[test]
fn the_initial_delay_is_repeated_while_members_come_up_to_the_rebalance_timeout() {
    let settings = Settings { initial_rebalance_delay_ms: 3_000, ..Settings::default() };
    let mut desk = Desk::new(settings);
    let eager = Who { needs_member_id: false, ..newcomer() };
    let one = desk.join(&eager);
    desk.wait(2_999);
    assert_eq!(desk.joined(one), None);
    let two = desk.join(&eager);
    desk.wait(1);
    assert_eq!(desk.joined(one), None, "somebody came, so the delay begins anew");
    desk.wait(2_999);
    assert_eq!(desk.joined(one), None);
    desk.wait(1);
    assert_eq!(desk.joined(one).unwrap().outcome.unwrap().generation, 1);
    assert_eq!(desk.joined(two).unwrap().outcome.unwrap().generation, 1);
}

#[test]
fn members_need_a_protocol_in_common() {
    let mut desk = Desk::default();
    let ids = desk.stable(1);
    for who in [
        Who { protocols: vec![("roundrobin", "")], ..newcomer() },
        Who { protocols: vec![], ..newcomer() },
        Who { protocol_type: "connect", ..newcomer() },
    ] {
        assert_eq!(desk.join_now(&who).1, Err(Error::InconsistentGroupProtocol));
    }
    assert_eq!(desk.heartbeat(&ids[0], 1), Ok(()), "the group does not notice");
    let mut empty = Desk::default();
    let (_, refused) = empty.join_now(&Who { protocol_type: "", ..newcomer() });
    assert_eq!(refused, Err(Error::InconsistentGroupProtocol));
    assert!(empty.groups.is_empty());
}

#[test]
fn the_protocol_with_most_votes_is_chosen_among_those_all_speak() {
    let mut desk = Desk::default();
    let ids: Vec<String> = (0..3).map(|_| desk.join_now(&newcomer()).0).collect();
    let speaks = [
        vec![("only-mine", "0"), ("range", "1"), ("sticky", "2")],
        vec![("sticky", "3"), ("range", "4")],
        vec![("sticky", "5"), ("range", "6")],
    ];
    let mut callers = Vec::new();
    for (id, protocols) in ids.iter().zip(&speaks) {
        callers.push(desk.join(&Who { protocols: protocols.clone(), ..member(id) }));
    }
    let joined: Vec<_> = callers.into_iter().map(|c| desk.joined(c).unwrap().outcome.unwrap()).collect();
    assert!(joined.iter().all(|joined| joined.protocol == "sticky"));
    let leader = joined.iter().find(|joined| !joined.members.is_empty()).unwrap();
    let mut metadata: Vec<&[u8]> = leader.members.iter().map(|member| member.metadata.as_slice()).collect();
    metadata.sort_unstable();
    assert_eq!(metadata, [b"2", b"3", b"5"]);
}

#[test]
fn session_timeouts_have_bounds_and_groups_have_names() {
    let mut desk = Desk::default();
    for session_ms in [0, 5_999, 1_800_001] {
        let (_, refused) = desk.join_now(&Who { session_ms, ..newcomer() });
        assert_eq!(refused, Err(Error::InvalidSessionTimeout));
    }
    let caller = desk.caller();
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
    desk.groups.handle_join(desk.now_ms, &nameless, caller);
    assert_eq!(desk.joined(caller).unwrap().outcome, Err(Error::InvalidGroupId));
    let long = "g".repeat(40_000);
    let caller = desk.caller();
    desk.groups.handle_join(desk.now_ms, &JoinGroup { group_id: &long, ..nameless }, caller);
    assert_eq!(desk.joined(caller).unwrap().outcome, Err(Error::InvalidGroupId));
}

#[test]
fn a_follower_that_joins_again_with_nothing_new_changes_nothing() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let (_, joined) = desk.join_now(&member(&ids[1]));
    let joined = joined.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (1, 0));
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::Stable);
}

#[test]
fn a_leader_that_joins_again_and_a_member_with_news_cause_a_rebalance() {
    for (index, protocols) in [(0, vec![("range", "")]), (1, vec![("range", "new")])] {
        let mut desk = Desk::default();
        let ids = desk.stable(2);
        let caller = desk.join(&Who { protocols, ..member(&ids[index]) });
        assert_eq!(desk.joined(caller), None);
        let other = &ids[1 - index];
        assert_eq!(desk.heartbeat(other, 1), Err(Error::RebalanceInProgress));
        let (_, joined) = desk.join_now(&member(other));
        assert_eq!(joined.unwrap().generation, 2);
        assert_eq!(desk.joined(caller).unwrap().outcome.unwrap().generation, 2);
    }
}

#[test]
fn who_asks_twice_is_answered_twice() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let first = desk.join(&member(&ids[0]));
    let second = desk.join(&member(&ids[0]));
    assert_eq!(desk.joined(first).unwrap().outcome, Err(Error::RebalanceInProgress));
    desk.join_now(&member(&ids[1])).1.unwrap();
    assert_eq!(desk.joined(second).unwrap().outcome.unwrap().generation, 2);
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let mut desk = Desk::default();
    let (id, _) = desk.join_now(&newcomer());
    let first = desk.join_now(&member(&id)).1.unwrap();
    let again = desk.join_now(&member(&id)).1.unwrap();
    assert_eq!(first, again);
}
