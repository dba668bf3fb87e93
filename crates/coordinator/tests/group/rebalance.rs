//! From one generation to the next: who is waited for, for how long, and what members hear meanwhile.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{State, SyncGroup};

use crate::desk::{Desk, GROUP, REBALANCE_MS, SESSION_MS, Who, member, newcomer};

#[test]
fn everybody_gets_what_the_leader_assigns() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let callers = [desk.join(&member(&ids[0])), desk.join(&member(&ids[1]))];
    let leader = desk.joined(callers[0]).unwrap().outcome.unwrap();
    assert_eq!((leader.generation, leader.members.len()), (2, 2));
    let follower = desk.sync(&ids[1], 2, &[]);
    assert_eq!(desk.synced(follower), None);
    let leader = desk.sync(&ids[0], 2, &[(&ids[0], "a"), (&ids[1], "b"), ("nobody", "c")]);
    assert_eq!(desk.assignment(leader).as_deref(), Some("a"));
    assert_eq!(desk.assignment(follower).as_deref(), Some("b"));
    let again = desk.sync(&ids[1], 2, &[]);
    assert_eq!(desk.assignment(again).as_deref(), Some("b"));
}

#[test]
fn a_member_that_the_leader_forgets_gets_nothing() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    desk.sync(&ids[0], 2, &[(&ids[0], "a")]);
    let forgotten = desk.sync(&ids[1], 2, &[]);
    assert_eq!(desk.assignment(forgotten).as_deref(), Some(""));
}

#[test]
fn sync_is_fenced_by_generation_member_state_and_protocol() {
    let mut desk = Desk::default();
    let none = desk.sync("nobody", 0, &[]);
    assert_eq!(desk.synced(none), Some(Err(Error::UnknownMemberId)));
    let ids = desk.stable(2);
    let cases = [("nobody", 1, Error::UnknownMemberId), (&ids[0], 0, Error::IllegalGeneration)];
    for (id, generation, error) in cases {
        let caller = desk.sync(id, generation, &[]);
        assert_eq!(desk.synced(caller), Some(Err(error)));
    }
    desk.join(&member(&ids[0]));
    let caller = desk.sync(&ids[1], 1, &[]);
    assert_eq!(desk.synced(caller), Some(Err(Error::RebalanceInProgress)));
}

#[test]
fn sync_says_which_protocol_it_means_kip_559() {
    let mut desk = Desk::default();
    let ids = desk.stable(1);
    let cases = [
        (Some("consumer"), Some("range"), None),
        (None, None, None),
        (Some("connect"), Some("range"), Some(Error::InconsistentGroupProtocol)),
        (Some("consumer"), Some("sticky"), Some(Error::InconsistentGroupProtocol)),
        (None, Some("sticky"), Some(Error::InconsistentGroupProtocol)),
    ];
    for (protocol_type, protocol, error) in cases {
        let caller = desk.caller();
        let request = SyncGroup {
            group_id: GROUP,
            member_id: &ids[0],
            instance_id: None,
            generation: 1,
            protocol_type,
            protocol,
            assignments: vec![],
        };
        desk.groups.handle_sync(desk.now_ms, &request, caller);
        let synced = desk.synced(caller).unwrap();
        assert_eq!(synced.as_ref().err().copied(), error);
        if let Ok(synced) = synced {
            assert_eq!((synced.protocol_type.as_str(), synced.protocol.as_str()), ("consumer", "range"));
        }
    }
}

#[test]
fn a_silent_member_is_out_after_its_session_timeout() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.wait(SESSION_MS - 1);
    assert_eq!(desk.heartbeat(&ids[0], 1), Ok(()));
    desk.wait(1);
    assert_eq!(desk.heartbeat(&ids[0], 1), Err(Error::RebalanceInProgress));
    assert_eq!(desk.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
    assert_eq!(desk.join_now(&member(&ids[0])).1.unwrap().members.len(), 1);
}

#[test]
fn heartbeats_and_commits_keep_a_member() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    for _ in 0..10 {
        desk.wait(SESSION_MS - 1);
        assert_eq!(desk.heartbeat(&ids[0], 1), Ok(()));
        assert_eq!(desk.commit(&ids[1], 1, 0, 0), Ok(()));
    }
    assert_eq!(desk.groups.describe(GROUP).unwrap().members.len(), 2);
}

#[test]
fn the_last_member_to_go_leaves_an_empty_group() {
    let mut desk = Desk::default();
    let ids = desk.stable(1);
    assert_eq!(desk.leave(&[(&ids[0], None)])[0].outcome, Ok(()));
    assert_eq!(desk.groups.describe(GROUP).unwrap().state, State::Empty);
    assert_eq!(desk.heartbeat(&ids[0], 1), Err(Error::UnknownMemberId));
    let (id, _) = desk.join_now(&newcomer());
    assert_eq!(desk.join_now(&member(&id)).1.unwrap().generation, 3, "no generation comes twice");
}

#[test]
fn who_does_not_join_again_in_time_is_out() {
    let mut desk = Desk::default();
    let ids = desk.stable(3);
    let caller = desk.join(&member(&ids[0]));
    for _ in 0..REBALANCE_MS / 5_000 {
        assert_eq!(desk.joined(caller), None);
        assert_eq!(
            desk.heartbeat(&ids[1], 1),
            Err(Error::RebalanceInProgress),
            "it lives, but does not join"
        );
        desk.wait(5_000);
    }
    let joined = desk.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (2, 1));
    assert_eq!(desk.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
}

#[test]
fn another_one_leads_if_the_leader_does_not_join_again() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let caller = desk.join(&Who { protocols: vec![("range", "new")], ..member(&ids[1]) });
    desk.wait(SESSION_MS);
    let joined = desk.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.leader.as_str(), joined.members.len()), (ids[1].as_str(), 1));
}

#[test]
fn who_does_not_sync_in_time_is_out() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    let leader = desk.sync(&ids[0], 2, &[]);
    assert!(desk.assignment(leader).is_some());
    let mut waited_ms = 0;
    while desk.heartbeat(&ids[0], 2).is_ok() {
        // It lives, but does not ask for what it got.
        assert_ne!(desk.heartbeat(&ids[1], 2), Err(Error::UnknownMemberId));
        desk.wait(5_000);
        waited_ms += 5_000;
    }
    assert_eq!(waited_ms, REBALANCE_MS);
    assert_eq!(desk.heartbeat(&ids[1], 2), Err(Error::UnknownMemberId));
}

#[test]
fn a_leader_that_does_not_assign_is_out_and_the_others_are_told() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    let follower = desk.sync(&ids[1], 2, &[]);
    desk.wait(SESSION_MS);
    assert_eq!(desk.synced(follower), Some(Err(Error::RebalanceInProgress)));
    let joined = desk.join_now(&member(&ids[1])).1.unwrap();
    assert_eq!((joined.leader.as_str(), joined.members.len()), (ids[1].as_str(), 1));
}

#[test]
fn somebody_who_joins_while_the_leader_assigns_begins_it_anew() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    let follower = desk.sync(&ids[1], 2, &[]);
    let (third, _) = desk.join_now(&newcomer());
    let caller = desk.join(&member(&third));
    assert_eq!(desk.synced(follower), Some(Err(Error::RebalanceInProgress)));
    let late = desk.sync(&ids[0], 2, &[(&ids[0], "a")]);
    assert_eq!(desk.synced(late), Some(Err(Error::RebalanceInProgress)));
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    assert_eq!(desk.joined(caller).unwrap().outcome.unwrap().generation, 3);
}

#[test]
fn a_new_member_whose_join_is_not_answered_for_five_minutes_is_given_up() {
    let mut desk = Desk::default();
    let slow = Who { rebalance_ms: 10 * 60_000, needs_member_id: false, ..newcomer() };
    let (id, _joined) = desk.join_now(&slow);
    let sync = desk.sync(&id, 1, &[]);
    assert!(desk.assignment(sync).is_some());
    let caller = desk.join(&Who { needs_member_id: false, ..newcomer() });
    for _ in 0..5 * 60 / 5 {
        assert_eq!(desk.joined(caller), None);
        assert_eq!(desk.heartbeat(&id, 1), Err(Error::RebalanceInProgress), "it lives, but does not join");
        desk.wait(5_000);
    }
    assert_eq!(desk.joined(caller).unwrap().outcome, Err(Error::UnknownMemberId));
}

#[test]
fn members_that_wait_need_not_be_heard() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let caller = desk.join(&member(&ids[0]));
    desk.wait(4_000);
    assert_eq!(desk.heartbeat(&ids[1], 1), Err(Error::RebalanceInProgress));
    desk.wait(9_000);
    assert_eq!(desk.heartbeat(&ids[1], 1), Err(Error::RebalanceInProgress));
    assert_eq!(desk.joined(caller), None, "13 s without a heartbeat, and still there");
    desk.join_now(&member(&ids[1])).1.unwrap();
    assert!(desk.joined(caller).unwrap().outcome.is_ok());
}

#[test]
fn several_leave_at_once_and_each_is_told() {
    let mut desk = Desk::default();
    let ids = desk.stable(3);
    let left = desk.leave(&[(&ids[0], None), ("nobody", None), (&ids[1], Some("instance")), (&ids[1], None)]);
    let outcomes: Vec<_> = left.iter().map(|left| left.outcome).collect();
    let unknown = Err(Error::UnknownMemberId);
    assert_eq!(outcomes, [Ok(()), unknown, unknown, Ok(())]);
    assert_eq!(desk.join_now(&member(&ids[2])).1.unwrap().leader, ids[2]);
}

#[test]
fn nobody_leaves_a_group_that_there_is_not() {
    assert_eq!(Desk::default().leave(&[("nobody", None)])[0].outcome, Err(Error::UnknownMemberId));
}

#[test]
fn groups_are_shown_as_they_are() {
    let mut desk = Desk::default();
    assert_eq!(desk.groups.describe(GROUP), Err(Error::GroupIdNotFound));
    let ids = desk.stable(1);
    let described = desk.groups.describe(GROUP).unwrap();
    assert_eq!((described.state, described.protocol.as_str()), (State::Stable, "range"));
    assert_eq!(described.members[0].member_id, ids[0]);
    assert_eq!(described.members[0].client_host, "/127.0.0.1");
    for (states, types, found) in [
        (&[][..], &[][..], 1),
        (&["stable"], &[], 1),
        (&["Empty", "STABLE"], &["Classic"], 1),
        (&["Empty"], &[], 0),
        (&[], &["consumer"], 0),
    ] {
        assert_eq!(desk.groups.list(states, types).len(), found, "{states:?} {types:?}");
    }
    desk.join(&member(&ids[0]));
    let described = desk.groups.describe(GROUP).unwrap();
    assert_eq!((described.state, described.protocol.as_str()), (State::CompletingRebalance, ""));
}

#[test]
fn whoever_waits_is_told_when_the_groups_go() {
    let mut desk = Desk::default();
    let ids = desk.stable(2);
    let joining = desk.join(&member(&ids[0]));
    desk.groups.abandon(Error::NotCoordinator);
    assert_eq!(desk.joined(joining).unwrap().outcome, Err(Error::NotCoordinator));
}
