//! Rebalance: who is waited for, for how long, and what members are told meanwhile.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{State, SyncGroup};

use crate::harness::{GROUP, Harness, MemberSpec, REBALANCE_MS, SESSION_MS, member, new_member};

#[test]
fn members_get_their_assignments() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let callers = [harness.join(&member(&ids[0])), harness.join(&member(&ids[1]))];
    let leader = harness.joined(callers[0]).unwrap().outcome.unwrap();
    assert_eq!((leader.generation, leader.members.len()), (2, 2));
    let follower = harness.sync(&ids[1], 2, &[]);
    assert_eq!(harness.synced(follower), None);
    let leader = harness.sync(&ids[0], 2, &[(&ids[0], "a"), (&ids[1], "b"), ("nobody", "c")]);
    assert_eq!(harness.assignment(leader).as_deref(), Some("a"));
    assert_eq!(harness.assignment(follower).as_deref(), Some("b"));
    let again = harness.sync(&ids[1], 2, &[]);
    assert_eq!(harness.assignment(again).as_deref(), Some("b"));
}

#[test]
fn member_left_out_by_the_leader_gets_an_empty_assignment() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    harness.sync(&ids[0], 2, &[(&ids[0], "a")]);
    let forgotten = harness.sync(&ids[1], 2, &[]);
    assert_eq!(harness.assignment(forgotten).as_deref(), Some(""));
}

#[test]
fn sync_is_fenced_by_generation_member_state_and_protocol() {
    let mut harness = Harness::default();
    let none = harness.sync("nobody", 0, &[]);
    assert_eq!(harness.synced(none), Some(Err(Error::UnknownMemberId)));
    let ids = harness.stable(2);
    let cases = [("nobody", 1, Error::UnknownMemberId), (&ids[0], 0, Error::IllegalGeneration)];
    for (id, generation, error) in cases {
        let caller = harness.sync(id, generation, &[]);
        assert_eq!(harness.synced(caller), Some(Err(error)));
    }
    harness.join(&member(&ids[0]));
    let caller = harness.sync(&ids[1], 1, &[]);
    assert_eq!(harness.synced(caller), Some(Err(Error::RebalanceInProgress)));
}

#[test]
fn sync_checks_protocol_type_and_name_kip_559() {
    let mut harness = Harness::default();
    let ids = harness.stable(1);
    let cases = [
        (Some("consumer"), Some("range"), None),
        (None, None, None),
        (Some("connect"), Some("range"), Some(Error::InconsistentGroupProtocol)),
        (Some("consumer"), Some("sticky"), Some(Error::InconsistentGroupProtocol)),
        (None, Some("sticky"), Some(Error::InconsistentGroupProtocol)),
    ];
    for (protocol_type, protocol, error) in cases {
        let caller = harness.caller();
        let request = SyncGroup {
            group_id: GROUP,
            member_id: &ids[0],
            instance_id: None,
            generation: 1,
            protocol_type,
            protocol,
            assignments: vec![],
        };
        harness.groups.handle_sync(harness.now_ms, &request, caller);
        let synced = harness.synced(caller).unwrap();
        assert_eq!(synced.as_ref().err().copied(), error);
        if let Ok(synced) = synced {
            assert_eq!((synced.protocol_type.as_str(), synced.protocol.as_str()), ("consumer", "range"));
        }
    }
}

#[test]
fn member_without_heartbeats_is_removed_after_its_session_timeout() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.wait(SESSION_MS - 1);
    assert_eq!(harness.heartbeat(&ids[0], 1), Ok(()));
    harness.wait(1);
    assert_eq!(harness.heartbeat(&ids[0], 1), Err(Error::RebalanceInProgress));
    assert_eq!(harness.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
    assert_eq!(harness.join_now(&member(&ids[0])).1.unwrap().members.len(), 1);
}

#[test]
fn heartbeats_and_commits_renew_the_session() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    for _ in 0..10 {
        harness.wait(SESSION_MS - 1);
        assert_eq!(harness.heartbeat(&ids[0], 1), Ok(()));
        assert_eq!(harness.commit(&ids[1], 1, 0, 0), Ok(()));
    }
    assert_eq!(harness.groups.describe(GROUP).unwrap().members.len(), 2);
}

#[test]
fn group_is_empty_after_the_last_member_leaves() {
    let mut harness = Harness::default();
    let ids = harness.stable(1);
    assert_eq!(harness.leave(&[(&ids[0], None)])[0].outcome, Ok(()));
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Empty);
    assert_eq!(harness.heartbeat(&ids[0], 1), Err(Error::UnknownMemberId));
    let (id, _) = harness.join_now(&new_member());
    assert_eq!(harness.join_now(&member(&id)).1.unwrap().generation, 3, "generation ids are not reused");
}

#[test]
fn member_that_does_not_rejoin_in_time_is_removed() {
    let mut harness = Harness::default();
    let ids = harness.stable(3);
    let caller = harness.join(&member(&ids[0]));
    for _ in 0..REBALANCE_MS / 5_000 {
        assert_eq!(harness.joined(caller), None);
        assert_eq!(
            harness.heartbeat(&ids[1], 1),
            Err(Error::RebalanceInProgress),
            "it sends heartbeats, but does not join"
        );
        harness.wait(5_000);
    }
    let joined = harness.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.generation, joined.members.len()), (2, 1));
    assert_eq!(harness.heartbeat(&ids[1], 1), Err(Error::UnknownMemberId));
}

#[test]
fn new_leader_is_elected_if_the_leader_does_not_rejoin() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let caller = harness.join(&MemberSpec { protocols: vec![("range", "new")], ..member(&ids[1]) });
    harness.wait(SESSION_MS);
    let joined = harness.joined(caller).unwrap().outcome.unwrap();
    assert_eq!((joined.leader.as_str(), joined.members.len()), (ids[1].as_str(), 1));
}

#[test]
fn member_that_does_not_sync_in_time_is_removed() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    let leader = harness.sync(&ids[0], 2, &[]);
    assert!(harness.assignment(leader).is_some());
    let mut waited_ms = 0;
    while harness.heartbeat(&ids[0], 2).is_ok() {
        // It sends heartbeats, but no SyncGroup.
        assert_ne!(harness.heartbeat(&ids[1], 2), Err(Error::UnknownMemberId));
        harness.wait(5_000);
        waited_ms += 5_000;
    }
    assert_eq!(waited_ms, REBALANCE_MS);
    assert_eq!(harness.heartbeat(&ids[1], 2), Err(Error::UnknownMemberId));
}

#[test]
fn leader_that_does_not_assign_is_removed() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    let follower = harness.sync(&ids[1], 2, &[]);
    harness.wait(SESSION_MS);
    assert_eq!(harness.synced(follower), Some(Err(Error::RebalanceInProgress)));
    let joined = harness.join_now(&member(&ids[1])).1.unwrap();
    assert_eq!((joined.leader.as_str(), joined.members.len()), (ids[1].as_str(), 1));
}

#[test]
fn join_during_assignment_restarts_the_rebalance() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    let follower = harness.sync(&ids[1], 2, &[]);
    let (third, _) = harness.join_now(&new_member());
    let caller = harness.join(&member(&third));
    assert_eq!(harness.synced(follower), Some(Err(Error::RebalanceInProgress)));
    let late = harness.sync(&ids[0], 2, &[(&ids[0], "a")]);
    assert_eq!(harness.synced(late), Some(Err(Error::RebalanceInProgress)));
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    assert_eq!(harness.joined(caller).unwrap().outcome.unwrap().generation, 3);
}

#[test]
fn new_member_is_removed_after_five_minutes_without_a_join_response() {
    let mut harness = Harness::default();
    let slow = MemberSpec { rebalance_ms: 10 * 60_000, needs_member_id: false, ..new_member() };
    let (id, _joined) = harness.join_now(&slow);
    let sync = harness.sync(&id, 1, &[]);
    assert!(harness.assignment(sync).is_some());
    let caller = harness.join(&MemberSpec { needs_member_id: false, ..new_member() });
    for _ in 0..5 * 60 / 5 {
        assert_eq!(harness.joined(caller), None);
        assert_eq!(
            harness.heartbeat(&id, 1),
            Err(Error::RebalanceInProgress),
            "it sends heartbeats, but does not join"
        );
        harness.wait(5_000);
    }
    assert_eq!(harness.joined(caller).unwrap().outcome, Err(Error::UnknownMemberId));
}

#[test]
fn members_with_pending_requests_need_no_heartbeats() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let caller = harness.join(&member(&ids[0]));
    harness.wait(4_000);
    assert_eq!(harness.heartbeat(&ids[1], 1), Err(Error::RebalanceInProgress));
    harness.wait(9_000);
    assert_eq!(harness.heartbeat(&ids[1], 1), Err(Error::RebalanceInProgress));
    assert_eq!(harness.joined(caller), None, "13 s without a heartbeat, and still there");
    harness.join_now(&member(&ids[1])).1.unwrap();
    assert!(harness.joined(caller).unwrap().outcome.is_ok());
}

#[test]
fn leave_group_reports_each_member() {
    let mut harness = Harness::default();
    let ids = harness.stable(3);
    let left =
        harness.leave(&[(&ids[0], None), ("nobody", None), (&ids[1], Some("instance")), (&ids[1], None)]);
    let outcomes: Vec<_> = left.iter().map(|left| left.outcome).collect();
    let unknown = Err(Error::UnknownMemberId);
    assert_eq!(outcomes, [Ok(()), unknown, unknown, Ok(())]);
    assert_eq!(harness.join_now(&member(&ids[2])).1.unwrap().leader, ids[2]);
}

#[test]
fn leaving_an_unknown_group_fails() {
    assert_eq!(Harness::default().leave(&[("nobody", None)])[0].outcome, Err(Error::UnknownMemberId));
}

#[test]
fn list_and_describe_report_the_state() {
    let mut harness = Harness::default();
    assert_eq!(harness.groups.describe(GROUP), Err(Error::GroupIdNotFound));
    let ids = harness.stable(1);
    let described = harness.groups.describe(GROUP).unwrap();
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
        assert_eq!(harness.groups.list(states, types).len(), found, "{states:?} {types:?}");
    }
    harness.join(&member(&ids[0]));
    let described = harness.groups.describe(GROUP).unwrap();
    assert_eq!((described.state, described.protocol.as_str()), (State::CompletingRebalance, ""));
}

#[test]
fn abandon_answers_pending_requests() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    let joining = harness.join(&member(&ids[0]));
    harness.groups.abandon(Error::NotCoordinator);
    assert_eq!(harness.joined(joining).unwrap().outcome, Err(Error::NotCoordinator));
}

/// A client that has lost a response repeats its request, and then counts on a whole session.
#[test]
fn repeated_joins_and_syncs_renew_the_session() {
    let mut harness = Harness::default();
    let ids = harness.stable(2);
    harness.wait(SESSION_MS - 1);
    let (_, joined) = harness.join_now(&member(&ids[1]));
    assert_eq!(joined.unwrap().generation, 1);
    let caller = harness.sync(&ids[0], 1, &[]);
    assert!(harness.assignment(caller).is_some());
    harness.wait(SESSION_MS - 1);
    for id in &ids {
        assert_eq!(harness.heartbeat(id, 1), Ok(()));
    }
}
