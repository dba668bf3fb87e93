//! Offsets: commit, fetch, expiry, deletion, and rollback of failed writes.

use std::sync::Arc;

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    GroupOffsetFetch, OffsetCommit, OffsetDelete, OffsetFetch, OffsetToDelete, Response, Settings, State,
    TopicRequest, TransactionEnd,
};

use crate::harness::{GROUP, Harness, MemberSpec, TOPIC, member, new_member, one, subscription};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

#[test]
fn simple_consumer_creates_a_group_with_offsets_only() {
    let mut harness = Harness::default();
    assert_eq!(harness.fetch(0), None);
    assert_eq!(harness.commit_simple(0, 5), Ok(()));
    assert_eq!(harness.commit_simple(0, 7), Ok(()));
    assert_eq!(harness.fetch(0), Some(7));
    let listed = harness.groups.list(&[], &[]);
    assert_eq!((listed[0].state, listed[0].protocol_type.as_str()), (State::Empty, ""));
}

#[test]
fn commits_are_fenced_by_member_and_generation() {
    let mut harness = Harness::default();
    assert_eq!(harness.commit("nobody", 3, 0, 1), Err(Error::GroupIdNotFound));
    let ids = harness.stable(2);
    let cases = [
        (ids[0].as_str(), 1, Ok(())),
        (&ids[1], 1, Ok(())),
        (&ids[0], 0, Err(Error::IllegalGeneration)),
        (&ids[0], 2, Err(Error::IllegalGeneration)),
        ("nobody", 1, Err(Error::UnknownMemberId)),
        ("", -1, Err(Error::UnknownMemberId)),
    ];
    for (id, generation, outcome) in cases {
        assert_eq!(harness.commit(id, generation, 0, 1), outcome, "{id} {generation}");
    }
    // Before it rejoins, a member may still commit what it has processed.
    let caller = harness.join(&member(&ids[0]));
    assert_eq!(harness.commit(&ids[1], 1, 0, 2), Ok(()));
    harness.join_now(&member(&ids[1])).1.unwrap();
    assert!(harness.joined(caller).is_some());
    assert_eq!(harness.commit(&ids[1], 2, 0, 3), Err(Error::RebalanceInProgress));
    assert_eq!(harness.commit(&ids[1], 1, 0, 3), Err(Error::IllegalGeneration));
    assert_eq!(harness.fetch(0), Some(2));
}

#[test]
fn commit_reports_errors_per_partition() {
    let mut harness =
        Harness::new(Settings { offset_metadata_max_bytes: 3, offsets_max: 2, ..Settings::default() });
    let mut commit = |partition, metadata, exists: bool| {
        let mut topics = one(partition, 1, metadata);
        topics[0].partitions[0].refused = (!exists).then_some(Error::UnknownTopicOrPartition);
        let caller = harness.caller();
        let request = OffsetCommit {
            group_id: GROUP,
            member_id: "",
            instance_id: None,
            generation: -1,
            retention_ms: None,
            no_group: Error::IllegalGeneration,
            topics,
        };
        harness.groups.handle_offset_commit(harness.now_ms, &request, caller);
        harness.committed_outcome(caller)
    };
    assert_eq!(commit(0, "four", true), Err(Error::OffsetMetadataTooLarge));
    assert_eq!(commit(0, "", false), Err(Error::UnknownTopicOrPartition));
    assert_eq!(commit(0, "two", true), Ok(()));
    assert_eq!(commit(1, "", true), Ok(()));
    assert_eq!(commit(2, "", true), Err(Error::InvalidCommitOffsetSize));
    assert_eq!(commit(1, "new", true), Ok(()));
    assert_eq!(harness.fetch_with(1, false).unwrap().unwrap().metadata, "new");
}

#[test]
fn rejected_commit_creates_no_group() {
    let mut harness = Harness::new(Settings { offsets_max: 0, ..Settings::default() });
    assert_eq!(harness.commit_simple(0, 1), Err(Error::InvalidCommitOffsetSize));
    assert!(harness.groups.is_empty());
}

#[test]
fn fetches_all_offsets_of_several_groups() {
    let mut harness = Harness::default();
    harness.commit_simple(1, 11).unwrap();
    harness.commit_simple(0, 10).unwrap();
    let caller = harness.caller();
    let groups = ["other", GROUP]
        .map(|group_id| GroupOffsetFetch { group_id, member_id: None, member_epoch: -1, topics: None })
        .into();
    harness.groups.handle_offset_fetch(&OffsetFetch { groups, require_stable: true }, caller);
    let Some(Response::Fetch(groups)) = harness.answer(caller) else { panic!("no answer") };
    assert_eq!(groups[0].outcome, Ok(vec![]));
    let topics = groups[1].outcome.as_ref().unwrap();
    assert_eq!(topics[0].name, TOPIC);
    let offsets: Vec<i64> =
        topics[0].partitions.iter().map(|p| p.outcome.as_ref().unwrap().as_ref().unwrap().offset).collect();
    assert_eq!(offsets, [10, 11]);
    let listed = harness.groups.committed_beyond(GROUP, 1);
    assert_eq!(listed, Some(vec![(TOPIC.into(), vec![0, 1])]));
    assert_eq!(harness.groups.committed_beyond(GROUP, 2), None);
    assert_eq!(harness.groups.committed_beyond("other", 0), None);
}

#[test]
fn offsets_expire_seven_days_after_the_last_member_left() {
    let mut harness = Harness::default();
    let ids = harness.stable(1);
    harness.commit(&ids[0], 1, 0, 1).unwrap();
    for _ in 0..20 {
        for _ in 0..DAY_MS / 8_000 {
            harness.now_ms += 8_000;
            assert_eq!(harness.heartbeat(&ids[0], 1), Ok(()));
        }
        harness.groups.tick(harness.now_ms);
    }
    assert_eq!(harness.fetch(0), Some(1), "nothing expires while there are members");
    harness.leave(&[(&ids[0], None)]);
    harness.wait(7 * DAY_MS - 1);
    assert_eq!(harness.fetch(0), Some(1));
    harness.wait(600_000);
    assert_eq!(harness.fetch(0), None);
    assert!(harness.groups.is_empty());
    harness.restart();
    assert!(harness.groups.is_empty(), "expired groups are not restored");
}

#[test]
fn offsets_of_simple_consumers_expire_one_by_one() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.wait(4 * DAY_MS);
    harness.commit_simple(1, 1).unwrap();
    harness.wait(3 * DAY_MS + 600_000);
    assert_eq!((harness.fetch(0), harness.fetch(1)), (None, Some(1)));
    harness.wait(4 * DAY_MS);
    assert!(harness.groups.is_empty());
}

#[test]
fn request_may_set_the_retention_of_its_offsets() {
    let mut harness = Harness::default();
    let caller = harness.caller();
    let request = OffsetCommit {
        group_id: GROUP,
        member_id: "",
        instance_id: None,
        generation: -1,
        retention_ms: Some(1_000_000),
        no_group: Error::IllegalGeneration,
        topics: one(0, 1, ""),
    };
    harness.groups.handle_offset_commit(harness.now_ms, &request, caller);
    harness.wait(999_999);
    assert_eq!(harness.fetch(0), Some(1));
    harness.wait(600_000);
    assert_eq!(harness.fetch(0), None);
}

/// A stable member that is subscribed to the topics; returns its member id.
fn reader(harness: &mut Harness, topics: &[&str]) -> String {
    let metadata = subscription(topics);
    let (id, _) = harness.join_now(&new_member());
    harness.join_now(&MemberSpec { protocols: vec![("range", &metadata)], ..member(&id) }).1.unwrap();
    let caller = harness.sync(&id, 1, &[]);
    assert!(harness.assignment(caller).is_some());
    id
}

#[test]
fn offsets_of_unsubscribed_topics_expire_kip_211() {
    let mut harness = Harness::default();
    let id = reader(&mut harness, &["other"]);
    harness.commit(&id, 1, 0, 1).unwrap();
    for _ in 0..8 * DAY_MS / 8_000 {
        harness.wait(8_000);
        harness.heartbeat(&id, 1).unwrap();
    }
    assert_eq!(harness.fetch(0), None);
    assert_eq!(harness.groups.len(), 1);
}

fn delete_offset(harness: &mut Harness, exists: bool) -> Result<Result<(), Error>, Error> {
    let caller = harness.caller();
    let partitions = vec![OffsetToDelete { partition: 0, exists }];
    let topics = vec![TopicRequest { name: TOPIC, id: [0; 16], partitions }];
    harness.groups.handle_offset_delete(&OffsetDelete { group_id: GROUP, topics }, caller);
    match harness.answer(caller) {
        Some(Response::OffsetDelete(outcome)) => outcome.map(|topics| topics[0].partitions[0].outcome),
        other => panic!("{other:?} is no answer to OffsetDelete"),
    }
}

#[test]
fn offset_delete_requires_an_unsubscribed_topic() {
    let mut harness = Harness::default();
    assert_eq!(delete_offset(&mut harness, true), Err(Error::GroupIdNotFound));
    harness.commit_simple(0, 1).unwrap();
    assert_eq!(delete_offset(&mut harness, false), Ok(Err(Error::UnknownTopicOrPartition)));
    assert_eq!(delete_offset(&mut harness, true), Ok(Ok(())));
    assert_eq!(harness.fetch(0), None);

    for (topics, outcome) in [(&[TOPIC], Err(Error::GroupSubscribedToTopic)), (&["other"], Ok(()))] {
        let mut harness = Harness::default();
        let id = reader(&mut harness, topics);
        harness.commit(&id, 1, 0, 1).unwrap();
        assert_eq!(delete_offset(&mut harness, true), Ok(outcome));
    }

    let mut harness = Harness::default();
    let connect = MemberSpec { protocol_type: "connect", needs_member_id: false, ..new_member() };
    harness.join_now(&connect).1.unwrap();
    assert_eq!(delete_offset(&mut harness, true), Err(Error::NonEmptyGroup));
}

fn delete_group(harness: &mut Harness) -> Result<(), Error> {
    let caller = harness.caller();
    harness.groups.handle_delete(harness.now_ms, &[GROUP], caller);
    match harness.answer(caller) {
        Some(Response::Delete(deleted)) => deleted[0].outcome,
        other => panic!("{other:?} is no answer to DeleteGroups"),
    }
}

#[test]
fn delete_removes_an_empty_group_with_its_offsets() {
    let mut harness = Harness::default();
    assert_eq!(delete_group(&mut harness), Err(Error::GroupIdNotFound));
    let ids = harness.stable(1);
    harness.commit(&ids[0], 1, 0, 1).unwrap();
    assert_eq!(delete_group(&mut harness), Err(Error::NonEmptyGroup));
    harness.leave(&[(&ids[0], None)]);
    harness.commit_in_transaction(1, None, 1, 1).unwrap();
    assert_eq!(delete_group(&mut harness), Ok(()));
    assert_eq!(harness.groups.describe(GROUP), Err(Error::GroupIdNotFound));
    harness.restart();
    assert!(harness.groups.is_empty());
}

#[test]
fn deleted_topic_removes_its_offsets() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.commit_in_transaction(1, None, 1, 1).unwrap();
    harness.forget("another");
    assert_eq!(harness.fetch(0), Some(1));
    harness.forget(TOPIC);
    assert_eq!(harness.fetch(0), None);
    assert!(harness.groups.is_empty());
    harness.restart();
    assert!(harness.groups.is_empty());
}

/// Deletion of a topic in parts, with a new topic of the same name in between.
#[test]
fn offsets_committed_after_the_deletion_of_their_topic_stay() {
    for steps_max in 1..12 {
        let mut harness = Harness::default();
        for partition in 0..6 {
            harness.commit_simple(partition, 1).unwrap();
        }
        harness.commit_in_transaction(1, None, 7, 1).unwrap();
        let first = harness.groups.forget_topics(["another", "b"].map(Arc::from).into());
        let number = harness.groups.forget_topics([Arc::from(TOPIC)].into());
        harness.groups.continue_forgetting(steps_max);
        for partition in [3, 9] {
            harness.commit_simple(partition, 2).unwrap();
        }
        harness.commit_in_transaction(1, None, 8, 2).unwrap();
        while harness.groups.is_forgetting() {
            assert!(!harness.groups.has_forgotten(number));
            let steps = harness.groups.continue_forgetting(steps_max);
            assert!((1..=2 * steps_max).contains(&steps), "{steps} steps of {steps_max}");
        }
        assert!(harness.groups.has_forgotten(first) && harness.groups.has_forgotten(number));
        harness.end_transaction(1, TransactionEnd::Commit);
        for is_restarted in [false, true] {
            let seen: Vec<_> = (0..10).map(|partition| harness.fetch(partition)).collect();
            let none = None;
            let expected = [none, none, none, Some(2), none, none, none, none, Some(2), Some(2)];
            assert_eq!(seen, expected, "{steps_max} steps, restarted: {is_restarted}");
            harness.restart();
        }
    }
}

#[test]
fn a_deletion_that_a_restart_has_interrupted_is_found() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.commit_in_transaction(1, None, 1, 1).unwrap();
    assert!(harness.groups.topics_with_offsets(|topic| topic != TOPIC).is_empty());
    assert_eq!(harness.groups.topics_with_offsets(|_| true), [Arc::from(TOPIC)].into());
}

#[test]
fn failed_write_turns_the_reply_into_an_error() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    let caller = harness.caller();
    let groups = vec![GroupOffsetFetch { group_id: GROUP, member_id: None, member_epoch: -1, topics: None }];
    harness.groups.handle_offset_fetch(&OffsetFetch { groups, require_stable: false }, caller);
    let Some(Response::Fetch(groups)) =
        harness.answer(caller).map(|answer| answer.with_error(Error::NotCoordinator))
    else {
        panic!("no answer")
    };
    assert_eq!(groups[0].outcome, Err(Error::NotCoordinator));
}

/// A rejected write must leave no trace: after a restart it would not be there either.
#[test]
fn failed_writes_revert_offsets() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.commit_in_transaction(1, None, 1, 10).unwrap();
    harness.settle();
    harness.log_rejects_writes = true;
    harness.commit_simple(0, 2).unwrap();
    harness.commit_simple(0, 3).unwrap();
    harness.commit_simple(2, 4).unwrap();
    harness.commit_in_transaction(2, None, 3, 5).unwrap();
    harness.end_transaction(1, TransactionEnd::Commit);
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    let seen = |harness: &mut Harness| [0, 1, 2, 3].map(|partition| harness.fetch(partition));
    assert_eq!(seen(&mut harness), [Some(1), None, None, None]);
    // The first transaction can still end; the second one never existed.
    harness.end_transaction(1, TransactionEnd::Commit);
    harness.end_transaction(2, TransactionEnd::Commit);
    assert_eq!(seen(&mut harness), [Some(1), Some(10), None, None]);
    harness.log_rejects_writes = true;
    harness.forget(TOPIC);
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    assert_eq!(seen(&mut harness), [Some(1), Some(10), None, None]);
    harness.restart();
    assert_eq!(seen(&mut harness), [Some(1), Some(10), None, None]);
}

#[test]
fn failed_write_does_not_revert_a_later_one() {
    for fails_first in [true, false] {
        let mut harness = Harness::default();
        harness.log_rejects_writes = true;
        harness.commit_simple(0, 1).unwrap();
        harness.settle();
        if fails_first {
            harness.groups.write_failed(harness.rejected.pop().unwrap());
        }
        harness.log_rejects_writes = false;
        harness.commit_simple(0, 2).unwrap();
        harness.fail_rejected_writes();
        assert_eq!(harness.fetch(0), Some(2));
        harness.restart();
        assert_eq!(harness.fetch(0), Some(2));
    }
}
